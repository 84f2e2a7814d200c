/* SPDX-License-Identifier: Apache-2.0
 *
 * The digests of what is here, tensor by tensor: of a version that is served, retained or staged. Of a part of a
 * replica they are partial sums, and each box of a tensor counts in one part only, so those of all parts add up to the
 * model's.
 */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "memory/ops.h"
#include "receiver/receiver_internal.h"

/* ---- as they are known ---- */

static struct refit_tally *copy_of(const struct refit_tally *tally)
{
    uint32_t count = refit_tally_count(tally);
    struct refit_tally *copy = refit_tally_create(count);
    for (uint32_t i = 0; copy && i < count; i++)
        refit_tally_add(copy, i, refit_tally_get(tally, i));
    return copy;
}

/* Under the lock; borrowed. */
static const struct refit_tally *find_known(const struct refit_receiver *receiver, uint64_t version)
{
    const struct refit_session *latest = receiver->session_count > 0 ? receiver->sessions[0] : NULL;
    if (latest && latest->tally && latest->request.version == version)
        return latest->tally;
    for (uint32_t slot = 0; slot < REFIT_SLOTS_MAX; slot++) {
        const struct refit_tally *known = refit_kept_tally(&receiver->kept, slot, version);
        if (known)
            return known;
    }
    return NULL;
}

/* ---- from the slot: a refitd that was started anew does not know them ---- */

static enum refit_status digest_edge(const struct refit_plan *plan, const struct refit_edge *edge,
                                     struct refit_arena *const *arenas, struct refit_segments *segments,
                                     struct refit_tally *tally, struct refit_error *err)
{
    uint32_t rank = refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group).ranks[0];
    const struct refit_arena *arena = arenas[rank - refit_plan_first_rank(plan)];
    enum refit_status status = REFIT_OK;
    for (uint32_t k = 0; k < edge->batches && status == REFIT_OK; k++) {
        struct refit_completion completion = {.status = REFIT_OK};
        struct refit_error ignored;
        status = refit_memory_digest(arena, refit_walk_batch(plan, edge, k, rank), segments, &completion, err);
        enum refit_status ended = refit_completion_wait(&completion, refit_deadline_in_ms(REFIT_ABORT_MS),
                                                        status == REFIT_OK ? err : &ignored);
        status = status == REFIT_OK ? ended : status;
        if (status == REFIT_OK)
            refit_segments_tally(segments, tally);
    }
    return status;
}

/* A plan from the layout to itself: each box of this part once. */
static enum refit_status digest_slot(struct refit_receiver *receiver, struct refit_layout *layout, uint32_t slot,
                                     struct refit_tally *tally, struct refit_error *err)
{
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS,
                                           .first_rank = receiver->config.bank.first_rank,
                                           .rank_count = receiver->config.bank.ranks};
    struct refit_segments segments;
    struct refit_plan *plan = NULL;
    size_t count = 0;
    enum refit_status status = refit_plan_build(layout, layout, scope, &plan, err);
    if (status != REFIT_OK)
        return status;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    struct refit_arena *const *arenas = refit_bank_arenas(receiver->bank, slot);
    refit_segments_init(&segments, true);
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        status = digest_edge(plan, &edges[i], arenas, &segments, tally, err);
    refit_segments_release(&segments);
    refit_plan_release(plan);
    return status;
}

static enum refit_status look_in_slot(struct refit_receiver *receiver, struct refit_layout *layout, uint64_t version,
                                      struct refit_tally **out, struct refit_error *err)
{
    uint32_t slot;
    enum refit_status status = refit_bank_pin(receiver->bank, version, &slot, err);
    if (status != REFIT_OK)
        return status;
    *out = refit_tally_create(refit_layout_tensor_count(layout));
    status = *out ? digest_slot(receiver, layout, slot, *out, err)
                  : refit_fail_alloc(err, "the digests of a slot", refit_layout_tensor_count(layout));
    refit_bank_unpin(receiver->bank, slot);
    if (status != REFIT_OK) {
        refit_tally_destroy(*out);
        *out = NULL;
    }
    return status;
}

enum refit_status refit_receiver_digests(struct refit_receiver *receiver, uint64_t version,
                                         struct refit_layout **layout,
                                         struct refit_tally **out, struct refit_error *err)
{
    *out = NULL;
    *layout = refit_bank_layout(receiver->bank);
    if (!*layout)
        return refit_fail(err, REFIT_NOT_FOUND, "no engine has attached yet, so no version is here");
    refit_receiver_lock(receiver);
    const struct refit_tally *known = find_known(receiver, version);
    if (known)
        *out = copy_of(known);
    refit_receiver_unlock(receiver);
    enum refit_status status = known && !*out ? refit_fail_alloc(err, "digests", refit_layout_tensor_count(*layout))
                                              : REFIT_OK;
    if (!known)
        status = look_in_slot(receiver, *layout, version, out, err);
    if (status != REFIT_OK) {
        refit_layout_release(*layout);
        *layout = NULL;
    }
    return status;
}

/* ---- what they add up to ---- */

enum refit_status refit_receiver_attest(struct refit_receiver *receiver, uint64_t version, const char *digest,
                                        const char *model, struct refit_error *err)
{
    const struct refit_bank_config *bank = &receiver->config.bank;
    if (!refit_is_sha256_hex(digest) || !refit_is_sha256_hex(model))
        return refit_fail(err, REFIT_INVALID, "commit: 'model' and its 'digest' must be 64 lower-case hex digits");
    bool whole = bank->ranks_total == 0 || bank->ranks == bank->ranks_total;
    if (whole && strcmp(digest, model) != 0)
        return refit_fail(err, REFIT_CORRUPT,
                          "version %" PRIu64 ": this replica is whole, and its digest %s is not the "
                          "model's, %s", version, digest, model);
    if (whole)
        return REFIT_OK;
    struct refit_error saving;
    refit_receiver_lock(receiver);
    bool bad = refit_quarantine_has(&receiver->quarantine, model);
    if (!bad)
        refit_proofs_add(&receiver->proofs, version, digest, model);
    refit_receiver_unlock(receiver);
    if (bad)
        return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 ": model digest %s is in quarantine here", version,
                          model);
    if (refit_record_save(receiver, &saving) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "state file not written, the model's digest is not known after a restart",
                        REFIT_LOG_CAUSE(&saving));
    return REFIT_OK;
}
