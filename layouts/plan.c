/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "layouts/plan_internal.h"

struct refit_plan *refit_plan_retain(struct refit_plan *plan)
{
    atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
    return plan;
}

void refit_plan_release(struct refit_plan *plan)
{
    if (!plan || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    refit_layout_release(plan->source);
    refit_layout_release(plan->destination);
    refit_plan_groups_release(&plan->groups[REFIT_SOURCE]);
    refit_plan_groups_release(&plan->groups[REFIT_DESTINATION]);
    free(plan->edges);
    free(plan->by_digest);
    free(plan->wanted);
    free(plan->first_place);
    free(plan->places);
    free(plan->first_op);
    free(plan->first_mark);
    free(plan->ops);
    free(plan->marks);
    free(plan->forms);
    free(plan);
}

struct refit_layout *refit_plan_source(const struct refit_plan *plan)
{
    return plan->source;
}

struct refit_layout *refit_plan_destination(const struct refit_plan *plan)
{
    return plan->destination;
}

const struct refit_edge *refit_plan_edges(const struct refit_plan *plan, size_t *count)
{
    *count = plan->edge_count;
    return plan->edges;
}

const struct refit_edge *refit_plan_edge(const struct refit_plan *plan, uint64_t digest)
{
    size_t low = 0;
    size_t high = plan->edge_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (plan->edges[plan->by_digest[middle]].digest < digest) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == plan->edge_count) {
        return NULL;
    }
    const struct refit_edge *edge = &plan->edges[plan->by_digest[low]];
    return edge->digest == digest ? edge : NULL;
}

uint64_t refit_plan_class(const struct refit_plan *plan)
{
    uint64_t class = REFIT_PLANNER_VERSION;
    for (size_t i = 0; i < plan->edge_count; i++) {
        class = refit_plan_mix(class ^ plan->edges[plan->by_digest[i]].digest) + 0x9e3779b97f4a7c15u;
    }
    return class;
}

struct refit_group refit_plan_group(const struct refit_plan *plan, enum refit_side side, uint32_t number)
{
    return refit_plan_groups_at(&plan->groups[side], number);
}

uint32_t refit_plan_batch_bytes(const struct refit_plan *plan)
{
    return plan->batch_bytes;
}

uint32_t refit_plan_landing_rank(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number)
{
    const struct refit_group group = refit_plan_groups_at(&plan->groups[REFIT_DESTINATION], edge->destination_group);
    const uint16_t *places = plan->places + plan->first_place[edge - plan->edges];
    return group.ranks[places[number % group.count]];
}

uint64_t refit_plan_bytes(const struct refit_plan *plan)
{
    return plan->bytes;
}

uint64_t refit_plan_written_bytes(const struct refit_plan *plan)
{
    return plan->written_bytes;
}

uint32_t refit_plan_first_rank(const struct refit_plan *plan)
{
    return plan->first_rank;
}

uint32_t refit_plan_rank_count(const struct refit_plan *plan)
{
    return plan->rank_count;
}

static size_t groups_memory(const struct refit_plan_groups *groups)
{
    return groups->rank_count * sizeof(*groups->ranks) + groups->count * sizeof(*groups->spans);
}

size_t refit_plan_memory(const struct refit_plan *plan)
{
    const size_t per_edge = sizeof(*plan->edges) + sizeof(*plan->by_digest) + sizeof(*plan->first_place)
                            + sizeof(*plan->first_op) + sizeof(*plan->first_mark);
    return sizeof(*plan) + groups_memory(&plan->groups[REFIT_SOURCE]) + groups_memory(&plan->groups[REFIT_DESTINATION])
           + (plan->edge_count + 1) * per_edge + plan->place_count * sizeof(*plan->places)
           + plan->op_count * sizeof(*plan->ops)
           + plan->mark_count * sizeof(*plan->marks) + plan->form_words * sizeof(*plan->forms);
}

struct refit_plan_scope refit_plan_scope_of(const struct refit_plan *plan)
{
    return (struct refit_plan_scope){
        .side = plan->side,
        .rank = plan->rank,
        .first_rank = plan->first_rank,
        .rank_count = plan->rank_count,
        .wanted = plan->wanted,
    };
}
