/* SPDX-License-Identifier: Apache-2.0
 *
 * memory/cuda_probe.h of a build without CUDA.
 */
#include "memory/cuda_probe.h"

#define LEFT_OUT "this build has none: no CUDA headers and nvcc were there"

enum refit_status refit_cuda_device_read(int device, struct refit_cuda_device_info *out, struct refit_error *err)
{
    (void)out;
    return refit_fail(err, REFIT_UNSUPPORTED, "CUDA device %d: " LEFT_OUT, device);
}

enum refit_status refit_cuda_device_find(const uint8_t uuid[16], int *device, struct refit_error *err)
{
    char text[REFIT_CUDA_UUID_TEXT_MAX];
    (void)device;
    refit_cuda_uuid_text(uuid, text);
    return refit_fail(err, REFIT_UNSUPPORTED, "%s: memory of GPUs: " LEFT_OUT, text);
}
