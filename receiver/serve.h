/* SPDX-License-Identifier: Apache-2.0
 *
 * This replica as a source: on request it dials a receiver of another layout and serves one of its versions to it.
 * The slot is pinned meanwhile; one that is being filled is served tensor by tensor, as each is whole.
 */
#ifndef REFIT_RECEIVER_SERVE_H
#define REFIT_RECEIVER_SERVE_H

#include "receiver/receiver.h"

#define REFIT_SERVES_MAX 64 /* that run or are remembered */

struct refit_serve;

/* Guarded by the receiver's lock. */
struct refit_serves {
    struct refit_serve *items[REFIT_SERVES_MAX]; /* the oldest first */
    uint32_t count;
    uint64_t bytes; /* sent by those that have ended */
};

uint32_t refit_serves_running(const struct refit_serves *serves);
/* Ends all that read this slot. Not under the lock; when it returns none of them reads. */
void refit_serves_end_slot(struct refit_receiver *receiver, uint32_t slot);
/* The same for a version that is not the active one any more. */
void refit_serves_end_version(struct refit_receiver *receiver, uint64_t version);
/* Ends and forgets all. */
void refit_serves_close(struct refit_receiver *receiver);

#endif
