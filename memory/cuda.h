/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots in a GPU's memory: the arena kind `cuda` (docs/gpu.md). Built in or not, these functions are there; without
 * CUDA at build or run time they are REFIT_UNSUPPORTED with the reason.
 */
#ifndef REFIT_MEMORY_CUDA_H
#define REFIT_MEMORY_CUDA_H

#include <stdbool.h>

#include "memory/arena.h"

#define REFIT_CUDA_DESCRIPTION_MAX 1024

/* What was built in and what was found at run time, in one line. */
void refit_cuda_describe(char *text, size_t size);

struct refit_cuda_slot_info {
    uint8_t uuid[16];     /* of the device */
    uint64_t granularity; /* of its allocations */
    uint64_t bytes;       /* mapped: rounded up to the granularity */
    int numa_node;        /* next to the device; -1: not known */
};

/* New memory on device number `device`. REFIT_NO_MEMORY with the numbers when it does not fit. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out,
                                                          struct refit_error *err);
/* A descriptor that another process opens; the caller closes it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_export(const struct refit_arena *slot, int *fd,
                                                          struct refit_error *err);
/* Maps an exported descriptor (borrowed); `read_only` maps it so, and writing operations refuse. */
REFIT_MUST_CHECK enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only,
                                                        struct refit_arena **out, struct refit_error *err);
void refit_cuda_slot_info(const struct refit_arena *slot, struct refit_cuda_slot_info *info);

#endif
