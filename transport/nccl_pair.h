/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators of two: a device here and a device of a peer, for one direction. Made when the first group is to go that
 * way, and kept with the device, so that the next refit finds it. All functions are for the owner of the device's turn.
 *
 * Of two, because then whoever dies, stalls or is cut off costs its own pair alone: that communicator is aborted and made
 * again, and no other is shrunk, grown or even told.
 */
#ifndef REFIT_TRANSPORT_NCCL_PAIR_H
#define REFIT_TRANSPORT_NCCL_PAIR_H

#include "transport/nccl_device.h"

#define REFIT_NCCL_PAIRS_MAX 64 /* of a device; the one used longest ago makes room */

struct refit_nccl_pair {
    struct refit_nccl_pair *next;
    bool receiving;
    struct refit_nccl_id process, peer; /* the other end: its process and its device */
    uint64_t tag;                       /* names it on the wire; the receiving end chose it */
    ncclComm_t comm;
    int64_t used_ns;
};

/* The receiving end has rank 0, the other one rank 1. */
static inline int refit_nccl_pair_other(const struct refit_nccl_pair *pair)
{
    return pair->receiving ? 1 : 0;
}

/* One that is good still, for receiving: by its peer; for sending: by its tag. NULL: none. */
struct refit_nccl_pair *refit_nccl_pair_to(struct refit_nccl_device *device, const struct refit_nccl_id *process,
                                           const struct refit_nccl_id *peer);
struct refit_nccl_pair *refit_nccl_pair_tagged(struct refit_nccl_device *device, uint64_t tag);

/* Receiving end: what a new communicator is to be made of. */
REFIT_MUST_CHECK enum refit_status refit_nccl_unique(const struct refit_nccl_device *device,
                                                     uint8_t unique[REFIT_NCCL_UNIQUE_BYTES], struct refit_error *err);
/* Begins to make one, in place of an older one to the same peer; done when the poll says so. From REFIT_OK on it is of
 * the device's pairs. */
REFIT_MUST_CHECK enum refit_status refit_nccl_pair_begin(struct refit_nccl_device *device,
                                                         const struct refit_nccl_pair *like,
                                                         const uint8_t unique[REFIT_NCCL_UNIQUE_BYTES],
                                                         struct refit_nccl_pair **out, struct refit_error *err);
/* REFIT_BUSY: what it was last called for is not done (it takes no other call before that). REFIT_OK: done, and no error
 * has come since. */
REFIT_MUST_CHECK enum refit_status refit_nccl_pair_poll(const struct refit_nccl_device *device,
                                                        const struct refit_nccl_pair *pair, struct refit_error *err);
/* Ends what it is at, and forgets it. */
void refit_nccl_pair_abort(struct refit_nccl_device *device, struct refit_nccl_pair *pair);

#endif
