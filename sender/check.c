/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/check.h"

#include "memory/ops.h"

struct checked {
    const struct refit_plan *plan;
    uint32_t rank;
    const struct refit_arena *arena;
    struct refit_segments segments;
};

static enum refit_status digest_batch(struct checked *checked, const struct refit_edge *edge, uint32_t batch,
                                      struct refit_error *err)
{
    struct refit_completion completion = {0};
    struct refit_walk walk = refit_walk_batch(checked->plan, edge, batch, checked->rank);
    enum refit_status status = refit_memory_digest(checked->arena, walk, &checked->segments, &completion, err);
    status = refit_completion_end(&completion, status, refit_memory_patience(), err);
    return status;
}

enum refit_status refit_check_source(const struct refit_plan *plan, uint32_t rank, const struct refit_arena *arena,
                                     struct refit_tally *again, struct refit_error *err)
{
    struct checked checked = {.plan = plan, .rank = rank, .arena = arena};
    enum refit_status status = REFIT_OK;
    size_t count = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    refit_segments_init(&checked.segments, true);
    for (size_t i = 0; i < count; i++) {
        if (refit_plan_group(plan, REFIT_SOURCE, edges[i].source_group).ranks[0] != rank)
            continue;
        for (uint32_t batch = 0; batch < edges[i].batches && status == REFIT_OK; batch++) {
            status = digest_batch(&checked, &edges[i], batch, err);
            if (status == REFIT_OK)
                refit_segments_tally(&checked.segments, again);
        }
    }
    refit_segments_release(&checked.segments);
    return status;
}
