/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as `nccl` uses it in this process: whose turn it is, two streams, memory to stage in, and the communicators that
 * reach peers from it. All but the turn and the count of references is the turn's owner's, without a lock.
 *
 * Two communicators may not be at work on a GPU at once, so there is one set of streams and one ring, not one per refit.
 */
#ifndef REFIT_TRANSPORT_NCCL_DEVICE_H
#define REFIT_TRANSPORT_NCCL_DEVICE_H

#include "memory/cuda_stream.h"
#include "transport/nccl_driver.h"
#include "transport/nccl_turn.h"
#include "transport/nccl_wire.h"

/* A device is looked at after so long, and each time that nothing has come after twice as long. */
#define REFIT_NCCL_POLL_NS INT64_C(25000)
#define REFIT_NCCL_POLL_MAX_NS INT64_C(800000)

#define REFIT_NCCL_GROUPS 2 /* on their way at once: one is packed or unpacked while the other is on the wire */

struct refit_nccl_pair;

struct refit_nccl_device {
    const struct refit_nccl_driver *nccl;
    int ordinal;
    struct refit_nccl_id uuid;
    struct refit_turn turn;
    struct refit_cuda_stream *wire; /* NCCL's; of the least priority, the engine's work comes first */
    struct refit_cuda_stream *work; /* packs, unpacks, digests */
    struct refit_cuda_buffer *ring; /* made for the first batch that needs it */
    struct refit_nccl_pair *pairs;
    size_t pair_count;
    unsigned references; /* under the registry's lock */
    struct refit_nccl_device *next;
};

/* Of an arena of kind cuda. REFIT_UNSUPPORTED: it is of another kind, or has no NCCL. */
REFIT_MUST_CHECK enum refit_status refit_nccl_device_of(const struct refit_arena *arena, struct refit_nccl_device **out,
                                                        struct refit_error *err);
void refit_nccl_device_release(struct refit_nccl_device *device); /* NULL is fine */

/* Room for a group's batch in its part of the ring: `bytes` from `at` on. */
REFIT_MUST_CHECK enum refit_status refit_nccl_device_stage(struct refit_nccl_device *device, unsigned group, uint64_t at,
                                                           uint64_t bytes, uint64_t *address, struct refit_error *err);
/* Nothing queued is at work any more, and nothing of it is to be believed. Returns only then, and says so in the log
 * when it takes longer than REFIT_ABORT_MS: memory that is still written must not be given back. */
void refit_nccl_device_quiet(const struct refit_nccl_device *device);

#endif
