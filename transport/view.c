/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/view.h"

static size_t arenas_of(const struct refit_plan *plan, struct refit_plan_scope scope)
{
    if (scope.side == REFIT_DESTINATION)
        return refit_plan_rank_count(plan);
    return scope.rank == REFIT_ALL_RANKS ? refit_layout_ranks(refit_plan_source(plan)) : 1;
}

enum refit_status refit_view_of(const struct refit_plan *plan, struct refit_arena *const *arenas, size_t arena_count,
                                struct refit_view *out, struct refit_error *err)
{
    struct refit_plan_scope scope = refit_plan_scope_of(plan);
    size_t expected = arenas_of(plan, scope);
    if (arena_count != expected)
        return refit_fail(err, REFIT_INVALID, "a holder's plan describes the memory of %zu ranks, %zu arenas were "
                          "given", expected, arena_count);
    *out = (struct refit_view){
        .plan = plan, .side = scope.side, .rank = scope.rank, .arenas = arenas, .arena_count = arena_count};
    return REFIT_OK;
}

/* Batches go round the group, so that its ranks' memory is read evenly. */
static bool pick_source(const struct refit_view *view, const struct refit_edge *edge, uint32_t batch, uint32_t *rank)
{
    struct refit_group group = refit_plan_group(view->plan, REFIT_SOURCE, edge->source_group);
    for (uint32_t i = 0; i < group.count; i++) {
        *rank = group.ranks[(batch + (uint64_t)i) % group.count];
        if (*rank < view->arena_count && view->arenas[*rank])
            return true;
    }
    return false;
}

bool refit_view_window(const struct refit_view *view, const struct refit_edge *edge, uint32_t batch,
                       const struct refit_arena **arena, struct refit_walk *walk)
{
    uint32_t rank = view->rank, index = 0;
    if (view->side == REFIT_DESTINATION) {
        rank = refit_plan_landing_rank(view->plan, edge, batch);
        index = rank - refit_plan_first_rank(view->plan);
    } else if (view->rank == REFIT_ALL_RANKS) {
        if (!pick_source(view, edge, batch, &rank))
            return false;
        index = rank;
    }
    if (index >= view->arena_count || !view->arenas[index])
        return false;
    *arena = view->arenas[index];
    *walk = refit_walk_batch(view->plan, edge, batch, rank);
    return true;
}
