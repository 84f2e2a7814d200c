/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of GPUs: the arena kind `cuda` (docs/gpu.md). Slots, which are allocations of CUDA's virtual memory management
 * that other processes open, and memory of others in this process (a trainer's tensors). Built in or not, these functions
 * are there; without CUDA at build or run time they are REFIT_UNSUPPORTED with the reason.
 *
 * Devices are numbered as this process sees them (CUDA_VISIBLE_DEVICES). All work is in a device's primary context, the
 * one of CUDA's runtime; the calling thread's current context is left as it was.
 */
#ifndef REFIT_MEMORY_CUDA_H
#define REFIT_MEMORY_CUDA_H

#include <stdbool.h>

#include "memory/arena.h"

#define REFIT_CUDA_DESCRIPTION_MAX 1024
#define REFIT_CUDA_UUID_BYTES 16
#define REFIT_CUDA_ID_BYTES 16
#define REFIT_CUDA_FABRIC_BYTES 64

/* What was built in and what was found at run time, in one line. */
void refit_cuda_describe(char *text, size_t size);
/* There is a driver and a device, or the reason why there is not. Opens the driver. */
REFIT_MUST_CHECK enum refit_status refit_cuda_probe(struct refit_error *err);

/* Device `reader` reads memory of device `owner` directly, over NVLink or the bus, or REFIT_UNSUPPORTED: copies between
 * them then go by way of host memory. */
REFIT_MUST_CHECK enum refit_status refit_cuda_peers(int reader, int owner, struct refit_error *err);

/* ---- slots ---- */

struct refit_cuda_slot_info {
    int device;                      /* its number in this process */
    uint8_t uuid[REFIT_CUDA_UUID_BYTES]; /* of the device, the same for all processes */
    uint8_t id[REFIT_CUDA_ID_BYTES]; /* of the slot, random, the same for all who open it; in its memory, behind its bytes */
    uint64_t granularity;            /* of the device's allocations */
    uint64_t bytes;                  /* taken of the device: more than asked for, a multiple of the granularity */
    int numa_node;                   /* next to the device; -1: not known */
    bool fabric;                     /* has a handle for other nodes */
};

/* New memory on device number `device`, zeros. REFIT_NO_MEMORY with the numbers when it does not fit. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out,
                                                          struct refit_error *err);
/* A descriptor that another process opens; the caller closes it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_export(const struct refit_arena *slot, int *fd,
                                                          struct refit_error *err);
/* Maps an exported descriptor (borrowed); `read_only` maps it so, and writing operations refuse. REFIT_MISMATCH when it
 * is no slot, or one of another size. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only,
                                                        struct refit_arena **out, struct refit_error *err);
/* Takes a slot back from the descriptor that an engine kept (borrowed), writable: after a restart of its owner. A CUDA
 * descriptor names no file whose identity could be asked for: which slot it is, is in the slot. REFIT_MISMATCH when it is
 * no slot, one of another size, or another than `id`. Its bytes are for the caller to verify. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_adopt(int device, int fd, uint64_t bytes,
                                                         const uint8_t id[REFIT_CUDA_ID_BYTES],
                                                         struct refit_arena **out, struct refit_error *err);
/* For other nodes of an NVLink domain, beside the descriptor. REFIT_UNSUPPORTED where info.fabric is false. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_export_fabric(const struct refit_arena *slot,
                                                                 uint8_t handle[REFIT_CUDA_FABRIC_BYTES],
                                                                 struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_open_fabric(int device, const uint8_t handle[REFIT_CUDA_FABRIC_BYTES],
                                                               uint64_t bytes, bool read_only, struct refit_arena **out,
                                                               struct refit_error *err);
/* Of a slot, by whatever way it came. */
void refit_cuda_slot_info(const struct refit_arena *slot, struct refit_cuda_slot_info *info);

/* ---- memory of others ---- */

/* An empty arena over a space of `bytes`, for pieces of memory of device number `device`. */
REFIT_MUST_CHECK enum refit_status refit_cuda_arena_create(int device, uint64_t bytes, struct refit_arena **out,
                                                           struct refit_error *err);
/* Memory of the arena's device at `address` (a CUdeviceptr; borrowed: it must stay until the arena is released) becomes
 * [offset, offset + bytes). From cudaMalloc, a memory pool or a mapping, in this process. REFIT_INVALID when it is host
 * memory, another device's, of a context other than the primary one, or none that CUDA knows. */
REFIT_MUST_CHECK enum refit_status refit_cuda_bind(struct refit_arena *arena, uint64_t offset, uint64_t address,
                                                   uint64_t bytes, struct refit_error *err);

#endif
