/* SPDX-License-Identifier: Apache-2.0
 *
 * memory/cuda.h where neither a CUDA toolkit nor its wheels were at hand when Refit was built.
 */
#include <stdio.h>
#include <string.h>

#include "memory/cuda.h"

#define LEFT_OUT "left out: no CUDA headers and nvcc when it was built"

void refit_cuda_describe(char *text, size_t size)
{
    snprintf(text, size, LEFT_OUT);
}

enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    (void)bytes;
    (void)out;
    return refit_fail(err, REFIT_UNSUPPORTED, "slot on CUDA device %d: " LEFT_OUT, device);
}

enum refit_status refit_cuda_slot_export(const struct refit_arena *slot, int *fd, struct refit_error *err)
{
    (void)slot;
    (void)fd;
    return refit_fail(err, REFIT_UNSUPPORTED, "slot on a CUDA device: " LEFT_OUT);
}

enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only, struct refit_arena **out,
                                       struct refit_error *err)
{
    (void)fd;
    (void)bytes;
    (void)read_only;
    (void)out;
    return refit_fail(err, REFIT_UNSUPPORTED, "slot on CUDA device %d: " LEFT_OUT, device);
}

void refit_cuda_slot_info(const struct refit_arena *slot, struct refit_cuda_slot_info *info)
{
    (void)slot;
    memset(info, 0, sizeof *info);
}
