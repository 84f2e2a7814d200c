/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of a reshard (docs/gpu.md): makes its communicator, calls the library for every tensor of the list and waits
 * for its GPU, on a thread of its own, since the library's calls wait for other ranks. The owner has the device's turn.
 */
#ifndef REFIT_TRANSPORT_NCCL_MEMBER_H
#define REFIT_TRANSPORT_NCCL_MEMBER_H

#include "transport/nccl.h"
#include "transport/nccl_device.h"
#include "transport/reshard_fit.h"

struct refit_nccl_member_config {
    struct refit_nccl_device *device;
    const struct refit_reshard_list *list; /* borrowed until the member is ended */
    const struct refit_layout *layout;     /* of its side */
    enum refit_side side;
    uint32_t layout_rank;             /* in it */
    const struct refit_arena *arena;  /* of that rank; a destination's is written */
    uint32_t rank;                    /* in the communicator, of list->sources + list->destinations */
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
};

struct refit_nccl_member;

/* What was built in and found at run time, for `refitd --version`. */
void refit_nccl_reshard_describe(char *text, size_t size);

/* The configuration is copied. */
REFIT_MUST_CHECK enum refit_status refit_nccl_member_start(const struct refit_nccl_member_config *config,
                                                           struct refit_nccl_member **out, struct refit_error *err);
/* REFIT_BUSY until this rank is through: what it had to send has left, what it had to get is there. */
REFIT_MUST_CHECK enum refit_status refit_nccl_member_poll(struct refit_nccl_member *member, struct refit_error *err);
/* Frees it. One that is not through, or failed, is broken off first: its device is quiet when this returns. NULL is
 * fine. One that is through may be ended once all others are, too. */
void refit_nccl_member_end(struct refit_nccl_member *member);

#endif
