/* SPDX-License-Identifier: Apache-2.0
 *
 * What a refit need not move, since an earlier one did: tensors of the version that is served, and what had landed
 * when a refit broke off. The tables are guarded by the receiver's lock; what a refit takes out is its own.
 */
#ifndef REFIT_RECEIVER_KEPT_H
#define REFIT_RECEIVER_KEPT_H

#include "receiver/receiver.h"

/* The digests of what a slot holds, by tensor. */
struct refit_known {
    uint64_t version; /* 0: not known */
    struct refit_tally *tally;
};

/* A slot that was given up half filled, and not written since. */
struct refit_remains {
    char id[REFIT_REFIT_ID_MAX]; /* of that refit; empty: none */
    uint64_t version;
    uint32_t slot;
    struct refit_plan *plan;
    struct refit_landed *landed;
    struct refit_tally *tally;   /* of what is landed */
};

struct refit_kept {
    struct refit_known known[REFIT_SLOTS_MAX]; /* by slot */
    struct refit_remains remains;
};

void refit_kept_clear(struct refit_kept *kept);
/* The slot is written from now on. */
void refit_kept_forget(struct refit_kept *kept, uint32_t slot);
/* Takes the tally. */
void refit_kept_know(struct refit_kept *kept, uint32_t slot, uint64_t version, struct refit_tally *tally);
/* NULL: the slot holds another version, or its digests are not known (refitd was started anew since). Borrowed until
 * the slot is forgotten. */
const struct refit_tally *refit_kept_tally(const struct refit_kept *kept, uint32_t slot, uint64_t version);

/* Versions have changed slots without a transfer. */
void refit_kept_follow(struct refit_kept *kept, const struct refit_bank_snapshot *bank);

/* Takes plan, landed and tally over, when anything has landed. */
void refit_kept_leave(struct refit_kept *kept, const struct refit_remains *remains);
/* What the refit `id` left in this slot, when it was moved by the same edges; the caller's from now on. False:
 * nothing. */
bool refit_kept_resume(struct refit_kept *kept, const char *id, uint64_t version, uint32_t slot,
                       const struct refit_plan *plan, struct refit_remains *out);
void refit_remains_release(struct refit_remains *remains);

/* Copies the tensors whose mask is 0 (of all tensors of `destination`) from one slot to another on every rank,
 * digests them on the way, compares with what is known of them, and adds them to `tally`. REFIT_CORRUPT names a
 * tensor that is not what it was. */
struct refit_keep {
    struct refit_layout *destination;
    uint32_t first_rank, rank_count;
    const uint8_t *mask;
    struct refit_arena *const *from, *const *to;
    const struct refit_tally *known;
    struct refit_tally *tally;
    bool (*go_on)(void *context); /* asked between batches */
    void *context;
};
REFIT_MUST_CHECK enum refit_status refit_kept_copy(const struct refit_keep *keep, uint64_t *bytes,
                                                   struct refit_error *err);

#endif
