/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/check.h"

#include "memory/ops.h"

static enum refit_status digest_batch(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t batch,
                                      const struct refit_arena *arena, struct refit_segments *segments,
                                      struct refit_error *err)
{
    struct refit_completion completion = {0};
    enum refit_status status =
        refit_memory_digest(arena, refit_walk_batch(plan, edge, batch), segments, &completion, err);
    if (status == REFIT_OK)
        status = refit_completion_wait(&completion, (struct refit_deadline){.at_ns = INT64_MAX}, err);
    return status;
}

static enum refit_status digest_again(const struct refit_plan *plan, const struct refit_arena *arena,
                                      struct refit_tally *now, struct refit_error *err)
{
    struct refit_segments segments;
    enum refit_status status = REFIT_OK;
    size_t count = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    refit_segments_init(&segments, true);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t batch = 0; batch < edges[i].batches && status == REFIT_OK; batch++) {
            status = digest_batch(plan, &edges[i], batch, arena, &segments, err);
            if (status == REFIT_OK)
                refit_segments_tally(&segments, now);
        }
    }
    refit_segments_release(&segments);
    return status;
}

static enum refit_status compare(const struct refit_plan *plan, const struct refit_tally *sent,
                                 const struct refit_tally *now, struct refit_error *err)
{
    struct refit_tensor tensor;
    for (uint32_t i = 0; i < refit_tally_count(now); i++) {
        if (refit_digest_equal(refit_tally_get(sent, i), refit_tally_get(now, i)))
            continue;
        refit_layout_tensor(refit_plan_destination(plan), i, &tensor);
        return refit_fail(err, REFIT_CORRUPT, "tensor %s was written while it was being published; "
                          "keep the memory unchanged until the sources are free", tensor.name);
    }
    return REFIT_OK;
}

enum refit_status refit_check_source(const struct refit_plan *plan, const struct refit_arena *arena,
                                     const struct refit_tally *sent, struct refit_error *err)
{
    struct refit_tally *now = refit_tally_create(refit_tally_count(sent));
    if (!now)
        return refit_fail_alloc(err, "a tally", refit_tally_count(sent) * sizeof(struct refit_digest));
    enum refit_status status = digest_again(plan, arena, now, err);
    if (status == REFIT_OK)
        status = compare(plan, sent, now, err);
    refit_tally_destroy(now);
    return status;
}
