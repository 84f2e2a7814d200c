/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/kept.h"

#include <stdlib.h>
#include <string.h>

#include "memory/ops.h"

/* --- the tables ------------------------------------------------------------------------------------------------- */

void refit_remains_release(struct refit_remains *remains)
{
    refit_plan_release(remains->plan);
    refit_landed_release(remains->landed);
    refit_tally_destroy(remains->tally);
    *remains = (struct refit_remains){.version = 0};
}

void refit_kept_clear(struct refit_kept *kept)
{
    for (uint32_t i = 0; i < REFIT_SLOTS_MAX; i++)
        refit_tally_destroy(kept->known[i].tally);
    refit_remains_release(&kept->remains);
    memset(kept, 0, sizeof *kept);
}

void refit_kept_forget(struct refit_kept *kept, uint32_t slot)
{
    refit_tally_destroy(kept->known[slot].tally);
    kept->known[slot] = (struct refit_known){.version = 0};
    if (kept->remains.id[0] && kept->remains.slot == slot)
        refit_remains_release(&kept->remains);
}

void refit_kept_know(struct refit_kept *kept, uint32_t slot, uint64_t version, struct refit_tally *tally)
{
    refit_tally_destroy(kept->known[slot].tally);
    kept->known[slot] = (struct refit_known){version, tally};
}

const struct refit_tally *refit_kept_tally(const struct refit_kept *kept, uint32_t slot, uint64_t version)
{
    return slot < REFIT_SLOTS_MAX && kept->known[slot].version == version ? kept->known[slot].tally : NULL;
}

static uint32_t known_at(const struct refit_kept *kept, uint64_t version)
{
    uint32_t at = 0;
    while (at < REFIT_SLOTS_MAX && kept->known[at].version != version)
        at++;
    return at;
}

void refit_kept_follow(struct refit_kept *kept, const struct refit_bank_snapshot *bank)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        uint64_t version = bank->slot[i].version.version;
        uint32_t at = version ? known_at(kept, version) : REFIT_SLOTS_MAX;
        if (at == REFIT_SLOTS_MAX || at == i)
            continue;
        const struct refit_known other = kept->known[i];
        kept->known[i] = kept->known[at];
        kept->known[at] = other;
    }
    /* Where something half filled was, there may be a whole version now. */
    uint32_t slot = kept->remains.slot;
    if (kept->remains.id[0] && slot < bank->slots && bank->slot[slot].state != REFIT_SLOT_FREE)
        refit_remains_release(&kept->remains);
}

static bool any_landed(const struct refit_remains *remains)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(remains->plan, &count);
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < edges[i].batches; k++)
            if (refit_landed_has(remains->landed, &edges[i], k))
                return true;
    return false;
}

void refit_kept_leave(struct refit_kept *kept, const struct refit_remains *remains)
{
    refit_remains_release(&kept->remains);
    kept->remains = *remains;
    if (!any_landed(remains))
        refit_remains_release(&kept->remains);
}

static bool same_edges(const struct refit_plan *a, const struct refit_plan *b)
{
    size_t a_count, b_count;
    const struct refit_edge *of_a = refit_plan_edges(a, &a_count), *of_b = refit_plan_edges(b, &b_count);
    bool same = a_count == b_count && refit_plan_batch_bytes(a) == refit_plan_batch_bytes(b);
    for (size_t i = 0; same && i < a_count; i++)
        same = of_a[i].digest == of_b[i].digest && of_a[i].batches == of_b[i].batches;
    return same;
}

bool refit_kept_resume(struct refit_kept *kept, const char *id, uint64_t version, uint32_t slot,
                       const struct refit_plan *plan, struct refit_remains *out)
{
    const struct refit_remains *remains = &kept->remains;
    if (!id[0] || strcmp(remains->id, id) != 0 || remains->version != version || remains->slot != slot ||
        !same_edges(remains->plan, plan))
        return false;
    *out = *remains;
    kept->remains = (struct refit_remains){.version = 0};
    return true;
}

/* --- copying ---------------------------------------------------------------------------------------------------- */

/* A plan from the layout to itself, of what is kept: its windows are the same in both slots. */
static enum refit_status plan_copy(const struct refit_keep *keep, struct refit_plan **out, struct refit_error *err)
{
    uint32_t tensors = refit_layout_tensor_count(keep->destination);
    uint8_t *kept = malloc((size_t)tensors + 1);
    if (!kept)
        return refit_fail_alloc(err, "the mask of unchanged tensors", tensors);
    for (uint32_t id = 0; id < tensors; id++)
        kept[id] = !keep->mask[id];
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS,
                                           .first_rank = keep->first_rank, .rank_count = keep->rank_count,
                                           .wanted = kept};
    enum refit_status status = refit_plan_build(keep->destination, keep->destination, scope, out, err);
    free(kept);
    return status;
}

static enum refit_status copy_window(const struct refit_keep *keep, struct refit_walk walk, uint32_t rank,
                                     struct refit_segments *segments, struct refit_error *err)
{
    struct refit_completion completion = {.status = REFIT_OK};
    uint32_t index = rank - keep->first_rank;
    enum refit_status status =
        refit_memory_copy(keep->to[index], walk, keep->from[index], walk, segments, &completion, err);
    return refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
}

/* Every rank's copy; of equal ones the first counts. */
static enum refit_status copy_batch(const struct refit_keep *keep, const struct refit_plan *plan,
                                    const struct refit_edge *edge, uint32_t batch, struct refit_segments *segments,
                                    struct refit_tally *tally, struct refit_error *err)
{
    struct refit_group ranks = refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group);
    enum refit_status status = REFIT_OK;
    for (uint32_t i = 0; i < ranks.count && status == REFIT_OK; i++) {
        struct refit_walk walk = refit_walk_batch(plan, edge, batch, ranks.ranks[i]);
        status = copy_window(keep, walk, ranks.ranks[i], segments, err);
        if (status == REFIT_OK && i == 0)
            refit_segments_tally(segments, tally);
    }
    return status;
}

static enum refit_status copy_all(const struct refit_keep *keep, const struct refit_plan *plan,
                                  struct refit_tally *tally, struct refit_error *err)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    struct refit_segments segments;
    enum refit_status status = REFIT_OK;
    refit_segments_init(&segments, true);
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        for (uint32_t k = 0; k < edges[i].batches && status == REFIT_OK; k++) {
            status = copy_batch(keep, plan, &edges[i], k, &segments, tally, err);
            if (status == REFIT_OK && !keep->go_on(keep->context))
                status = refit_fail(err, REFIT_ABORTED, "cancelled while unchanged tensors were copied");
        }
    refit_segments_release(&segments);
    return status;
}

static enum refit_status compare(const struct refit_keep *keep, const struct refit_tally *copied,
                                 struct refit_error *err)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(keep->destination); id++) {
        struct refit_digest digest = refit_tally_get(copied, id);
        struct refit_tensor tensor;
        if (keep->mask[id])
            continue;
        refit_layout_tensor(keep->destination, id, &tensor);
        if (!refit_digest_equal(digest, refit_tally_get(keep->known, id)))
            return refit_fail(err, REFIT_CORRUPT, "tensor \"%s\" is no more what was verified when its version landed; "
                              "publish again without naming it as unchanged", tensor.name);
        refit_tally_add(keep->tally, id, digest);
    }
    return REFIT_OK;
}

enum refit_status refit_kept_copy(const struct refit_keep *keep, uint64_t *bytes, struct refit_error *err)
{
    struct refit_plan *plan = NULL;
    struct refit_tally *copied = refit_tally_create(refit_layout_tensor_count(keep->destination));
    enum refit_status status = copied ? plan_copy(keep, &plan, err)
                                      : refit_fail_alloc(err, "the digests of unchanged tensors",
                                                         refit_layout_tensor_count(keep->destination));
    if (status == REFIT_OK)
        status = copy_all(keep, plan, copied, err);
    if (status == REFIT_OK)
        status = compare(keep, copied, err);
    if (status == REFIT_OK)
        *bytes = refit_plan_bytes(plan);
    refit_plan_release(plan);
    refit_tally_destroy(copied);
    return status;
}
