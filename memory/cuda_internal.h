/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: what slots of one device share, and a batch of work queued on it.
 */
#ifndef REFIT_MEMORY_CUDA_INTERNAL_H
#define REFIT_MEMORY_CUDA_INTERNAL_H

#include <pthread.h>

#include "memory/arena_ops.h"
#include "memory/cuda.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_move.h"

#define REFIT_CUDA_CHUNK_BYTES ((uint64_t)4 << 20)
#define REFIT_CUDA_CHUNKS 8u /* of a batch before it waits for itself */
#define REFIT_CUDA_DIGESTS 512u
#define REFIT_CUDA_LANDINGS 512u
#define REFIT_CUDA_DEVICES 16

/* Pinned host memory; what a batch has staged, until its event has come. */
struct refit_cuda_chunk {
    struct refit_cuda_chunk *next;
    uint8_t *bytes;
    uint64_t used;
};

/* Loaded bytes that go from a chunk to where the caller wants them. */
struct refit_cuda_landing {
    const uint8_t *from;
    uint8_t *dst;
    int64_t dst_stride;
    uint64_t run_bytes;
    uint64_t count;
};

struct refit_cuda_batch {
    struct refit_pending pending; /* first: it is what a completion points to */
    struct refit_cuda_device *device;
    struct refit_cuda_batch *next;
    CUevent event;
    CUdeviceptr sums;      /* on the device: two words per digest */
    uint64_t *sums_pinned; /* where they come back */
    struct refit_digest *digests[REFIT_CUDA_DIGESTS];
    uint32_t digest_count;
    struct refit_cuda_landing landings[REFIT_CUDA_LANDINGS];
    uint32_t landing_count;
    struct refit_cuda_chunk *chunks;
    uint32_t chunk_count;
};

/* One per device and process, while a slot is there. */
struct refit_cuda_device {
    const struct refit_cuda_driver *cuda;
    int ordinal;
    unsigned references; /* under the registry's mutex */
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction move;
    CUstream stream;
    CUdeviceptr k;
    int processors;
    struct refit_cuda_slot_info info; /* less `bytes` */
    pthread_mutex_t lock;             /* of the lists */
    struct refit_cuda_batch *idle;
    struct refit_cuda_batch *late; /* given up by whoever waited; the device is not done with them */
    struct refit_cuda_chunk *chunks;
};

/* arena->device of kind cuda. */
struct refit_cuda_slot {
    struct refit_cuda_device *device;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    uint64_t bytes; /* rounded up to the granularity */
    bool mapped;
    int fd; /* the export that the arena's piece names; -1 */
};

REFIT_MUST_CHECK enum refit_status refit_cuda_device_open(int ordinal, struct refit_cuda_device **out,
                                                          struct refit_error *err);
void refit_cuda_device_close(struct refit_cuda_device *device);
/* Makes the device's context the calling thread's. */
REFIT_MUST_CHECK enum refit_status refit_cuda_enter(const struct refit_cuda_device *device, struct refit_error *err);

/* What a slot asks of the driver. */
CUmemAllocationProp refit_cuda_prop(const struct refit_cuda_device *device);

REFIT_MUST_CHECK enum refit_status refit_cuda_batch_take(struct refit_cuda_device *device,
                                                         struct refit_cuda_batch **out, struct refit_error *err);
/* Room for one of each of what follows, before any of it: a full batch waits for itself here, and starts over. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_make_room(struct refit_cuda_batch *batch, uint64_t bytes,
                                                              struct refit_error *err);
/* Pinned room for `bytes` <= REFIT_CUDA_CHUNK_BYTES. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_stage(struct refit_cuda_batch *batch, uint64_t bytes, uint8_t **out,
                                                          struct refit_error *err);
/* Where kernels add up for `digest`. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_sum(struct refit_cuda_batch *batch, struct refit_digest *digest,
                                                        CUdeviceptr *sum, struct refit_error *err);
void refit_cuda_batch_land(struct refit_cuda_batch *batch, struct refit_cuda_landing landing);
/* Queues what ends the batch; it is given back by whoever waits. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_seal(struct refit_cuda_batch *batch, struct refit_error *err);
/* For closing a device: everything queued is done; frees all batches and chunks. */
void refit_cuda_batches_free(struct refit_cuda_device *device);

void refit_cuda_slot_destroy(struct refit_cuda_slot *slot);

extern const struct refit_arena_ops refit_arena_ops_cuda;

#endif
