/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs of this process, before anything is made on one: which is which, and how much is free. Without CUDA at build or
 * run time: REFIT_UNSUPPORTED with the reason.
 */
#ifndef REFIT_MEMORY_CUDA_PROBE_H
#define REFIT_MEMORY_CUDA_PROBE_H

#include <stdint.h>

#include "base/error.h"

#define REFIT_CUDA_UUID_TEXT_MAX 41 /* "GPU-", 32 digits in five groups, NUL */

struct refit_cuda_device_info {
    uint8_t uuid[16];     /* the same for all processes */
    uint64_t granularity; /* of its allocations */
    uint64_t available;   /* bytes, a moment's answer */
    uint64_t total;
};

/* Of device number `device`. REFIT_NOT_FOUND when there is none of that number. */
REFIT_MUST_CHECK enum refit_status refit_cuda_device_read(int device, struct refit_cuda_device_info *out,
                                                          struct refit_error *err);
/* The number that the device with this UUID has here. REFIT_MISMATCH, with the ones there are: this process does not see it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_device_find(const uint8_t uuid[16], int *device, struct refit_error *err);
/* As nvidia-smi writes it. */
void refit_cuda_uuid_text(const uint8_t uuid[16], char out[static REFIT_CUDA_UUID_TEXT_MAX]);

#endif
