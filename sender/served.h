/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank tells the lead when it has served a replica, or could not: outcome, counters, and tallies, of which only the
 * entries that are not zero travel: of what it sent, and, when it was asked to check, of its memory afterwards.
 */
#ifndef REFIT_SENDER_SERVED_H
#define REFIT_SENDER_SERVED_H

#include "base/buf.h"
#include "layouts/tally.h"

struct refit_served {
    uint32_t replica;
    uint64_t attempt; /* the order's, so that a late answer to an earlier publish is known as one */
    struct refit_error outcome;
    uint64_t payload_bytes;
    uint64_t wire_bytes;
};

/* The replica's end went away: it failed, or it had all it needed. Which, the replica says. */
static inline bool refit_served_is_let_go(enum refit_status status)
{
    return status == REFIT_PEER || status == REFIT_NOT_FOUND;
}

/* Tallies may be NULL. False: out of memory. */
bool refit_served_write(struct refit_buf *out, const struct refit_served *served, const struct refit_tally *tally,
                        const struct refit_tally *again);
/* Reads all but the tallies, and returns where they begin: hand it to refit_served_add. */
REFIT_MUST_CHECK enum refit_status refit_served_read(const void *body, size_t len, struct refit_served *out,
                                                     const void **tally, size_t *tally_len, struct refit_error *err);
/* Adds what travelled; REFIT_PEER when it names a tensor that is not there. */
REFIT_MUST_CHECK enum refit_status refit_served_add(const void *tallies, size_t len, struct refit_tally *tally,
                                                    struct refit_tally *again, struct refit_error *err);

#endif
