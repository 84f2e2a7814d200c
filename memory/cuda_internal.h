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
#include "memory/cuda_pinned.h"
#include "memory/rows.h"

#define REFIT_CUDA_CHUNK_BYTES ((uint64_t)4 << 20)
#define REFIT_CUDA_CHUNKS 8u /* of a batch before it waits for itself */
#define REFIT_CUDA_SUMS 512u
#define REFIT_CUDA_LANDINGS 512u
#define REFIT_CUDA_DEVICES 16

/* Pinned host memory; what a batch has staged, until its event has come. */
struct refit_cuda_chunk {
    struct refit_cuda_chunk *next;
    uint8_t *bytes;
    uint64_t used;
};

/* Where kernels add up digests, two words each. */
struct refit_cuda_sums {
    struct refit_cuda_sums *next;
    CUdeviceptr device;
    uint64_t *pinned; /* where they come back */
    struct refit_digest *digests[REFIT_CUDA_SUMS];
    uint32_t count;
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
    CUstream stream; /* the device's, or a caller's */
    CUevent event;
    const struct refit_cuda_device *follows; /* the other device whose work, as it was queued, comes first; NULL: none */
    struct refit_cuda_sums *sums; /* the newest first */
    struct refit_cuda_landing landings[REFIT_CUDA_LANDINGS];
    uint32_t landing_count;
    struct refit_cuda_chunk *chunks;
    uint32_t chunk_count;
    struct refit_cuda_pinned *pinned; /* the caller's, retained; NULL: none is named */
};

/* One per device and process, while an arena or a stream is there. */
struct refit_cuda_device {
    const struct refit_cuda_driver *cuda;
    int ordinal;
    unsigned references; /* under the registry's mutex */
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction move, exchange;
    CUstream stream;
    CUevent mark; /* what was queued on the stream when it was recorded last, for other devices that read its memory */
    CUdeviceptr k;
    int processors;
    struct refit_cuda_slot_info info; /* less what is of one slot */
    pthread_mutex_t lock;             /* of the lists */
    struct refit_cuda_batch *idle;
    struct refit_cuda_batch *late; /* given up by whoever waited; the device is not done with them */
    struct refit_cuda_chunk *chunks;
    struct refit_cuda_sums *sums;
    struct refit_cuda_memory *dying; /* released while the device was not done with it */
};

/* arena->device of kind cuda. */
struct refit_cuda_memory {
    struct refit_cuda_device *device;
    struct refit_cuda_memory *next; /* dying */
    uint8_t id[REFIT_CUDA_ID_BYTES];
    /* Of a slot: */
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    uint64_t bytes; /* rounded up to the granularity; 0: memory of others */
    bool mapped;
    bool fabric;
    bool imported; /* another process's; only read here */
    int fd; /* the export that the arena's piece names; -1 */
    /* Other devices of this process, by number (cuda_peer.c): */
    struct refit_cuda_device *peers[REFIT_CUDA_DEVICES]; /* that read it, too; opened */
    bool refused[REFIT_CUDA_DEVICES];                    /* that cannot */
};

REFIT_MUST_CHECK enum refit_status refit_cuda_device_open(int ordinal, struct refit_cuda_device **out,
                                                          struct refit_error *err);
void refit_cuda_device_close(struct refit_cuda_device *device);
/* Once more, of one that is open. */
void refit_cuda_device_retain(struct refit_cuda_device *device);
/* The device's context becomes the calling thread's, until refit_cuda_leave puts back what was. */
REFIT_MUST_CHECK enum refit_status refit_cuda_enter(const struct refit_cuda_device *device, struct refit_error *err);
void refit_cuda_leave(const struct refit_cuda_device *device);
/* To give something back: tried twice, for what is not given back now is lost. True: refit_cuda_leave is due. */
bool refit_cuda_enter_to_free(const struct refit_cuda_device *device);

/* All that is queued on the stream, or before the event, is done. In the device's context. REFIT_BUSY: not yet. */
REFIT_MUST_CHECK enum refit_status refit_cuda_poll_stream(const struct refit_cuda_device *device, CUstream stream,
                                                          struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_poll_event(const struct refit_cuda_device *device, CUevent event,
                                                         struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_wait_stream(const struct refit_cuda_device *device, CUstream stream,
                                                          struct refit_deadline deadline, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_wait_event(const struct refit_cuda_device *device, CUevent event,
                                                         struct refit_deadline deadline, struct refit_error *err);
/* What a slot asks of the driver. */
CUmemAllocationProp refit_cuda_prop(const struct refit_cuda_device *device, bool fabric);
REFIT_MUST_CHECK enum refit_status refit_cuda_new_stream(const struct refit_cuda_device *device, bool least,
                                                         CUstream *out, struct refit_error *err);
/* Before memory is taken, with the numbers: the driver's own error has none. In the device's context. */
REFIT_MUST_CHECK enum refit_status refit_cuda_admit(const struct refit_cuda_device *device, const char *what,
                                                    uint64_t bytes, struct refit_error *err);

/* For work on `stream`. In the device's context, as all of a batch's functions but its completion's. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_take(struct refit_cuda_device *device, CUstream stream,
                                                         struct refit_cuda_batch **out, struct refit_error *err);
/* Staging for `bytes`, and room for a landing: a full batch waits for itself here, and starts over. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_make_room(struct refit_cuda_batch *batch, uint64_t bytes,
                                                              struct refit_error *err);
/* Pinned room for `bytes` <= REFIT_CUDA_CHUNK_BYTES. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_stage(struct refit_cuda_batch *batch, uint64_t bytes, uint8_t **out,
                                                          struct refit_error *err);
/* The caller's memory is pinned, so that the device may be told of it. */
bool refit_cuda_batch_names(struct refit_cuda_batch *batch, const void *memory, uint64_t bytes);
/* Where kernels add up for `digest`; 0 when that is NULL. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_sum(struct refit_cuda_batch *batch, struct refit_digest *digest,
                                                        CUdeviceptr *sum, struct refit_error *err);
void refit_cuda_batch_land(struct refit_cuda_batch *batch, struct refit_cuda_landing landing);
/* Queues what ends the batch; it is given back by whoever waits. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_seal(struct refit_cuda_batch *batch, struct refit_error *err);
/* A few bytes, there when it returns. In the device's context. */
REFIT_MUST_CHECK enum refit_status refit_cuda_read(struct refit_cuda_device *device, CUdeviceptr from, void *out,
                                                   uint64_t bytes, struct refit_error *err);
/* Zeros, but for the last few. */
REFIT_MUST_CHECK enum refit_status refit_cuda_clear(struct refit_cuda_device *device, CUdeviceptr at, uint64_t bytes,
                                                    const void *last, uint64_t last_bytes, struct refit_error *err);
/* Takes back batches that are done since whoever waited gave up, and gives up memory that waited for them. */
void refit_cuda_reap(struct refit_cuda_device *device);
/* For closing a device: everything queued is done; frees all batches and chunks. */
void refit_cuda_batches_free(struct refit_cuda_device *device);

/* Moves rows between device addresses (or pinned memory's) and digests them. dst 0: digests in place; sum 0: moves. */
REFIT_MUST_CHECK enum refit_status refit_cuda_launch(const struct refit_cuda_batch *batch, CUdeviceptr dst,
                                                     int64_t dst_stride, CUdeviceptr src, int64_t src_stride,
                                                     const struct refit_rows *rows, CUdeviceptr sum,
                                                     struct refit_error *err);

/* `device` may read the memory; it is allowed to when that is first asked. For slots, of this process or imported:
 * what others allocated is theirs to open to other devices. */
bool refit_cuda_reach(struct refit_cuda_memory *memory, struct refit_cuda_device *device);
/* What was queued so far on the other device's own stream comes before what is queued on the batch from now on. */
REFIT_MUST_CHECK enum refit_status refit_cuda_batch_follow(struct refit_cuda_batch *batch,
                                                           const struct refit_cuda_device *other,
                                                           struct refit_error *err);

/* Gives back all but the device and the peers, in its context. Only when they are done with it. */
void refit_cuda_memory_free(struct refit_cuda_memory *memory);
/* With an arena's last reference. What late work of a device may still touch is kept until that is done. */
void refit_cuda_memory_release(struct refit_cuda_memory *memory);
/* The same for what was kept, without waiting. */
void refit_cuda_memory_retry(struct refit_cuda_memory *memory);

extern const struct refit_arena_ops refit_arena_ops_cuda;

#endif
