/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_probe.h"

#include <stdio.h>
#include <string.h>

#include "memory/cuda_internal.h"

enum refit_status refit_cuda_device_read(int ordinal, struct refit_cuda_device_info *out, struct refit_error *err)
{
    struct refit_cuda_device *device;
    size_t available = 0, total = 0;
    enum refit_status status = refit_cuda_device_open(ordinal, &device, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_enter(device, err);
    if (status == REFIT_OK) {
        status = CUDA(device->cuda, err, cuMemGetInfo, &available, &total);
        refit_cuda_leave(device);
    }
    *out = (struct refit_cuda_device_info){
        .granularity = device->info.granularity, .available = available, .total = total};
    memcpy(out->uuid, device->info.uuid, sizeof out->uuid);
    refit_cuda_device_close(device);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "CUDA device %d", ordinal);
}

/* No context is made for it: on a machine with many devices each would take memory of its own. */
enum refit_status refit_cuda_device_find(const uint8_t uuid[16], int *ordinal, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda;
    char seen[512] = "none", text[REFIT_CUDA_UUID_TEXT_MAX];
    size_t len = 0;
    enum refit_status status = refit_cuda_driver(&cuda, err);
    for (int i = 0; status == REFIT_OK && i < cuda->devices; i++) {
        CUdevice device = 0;
        CUuuid found;
        status = CUDA(cuda, err, cuDeviceGet, &device, i);
        if (status == REFIT_OK)
            status = CUDA(cuda, err, cuDeviceGetUuid, &found, device);
        if (status == REFIT_OK && memcmp(&found, uuid, 16) == 0) {
            *ordinal = i;
            return REFIT_OK;
        }
        refit_cuda_uuid_text((const uint8_t *)&found, text);
        if (status == REFIT_OK && len + sizeof text + 2 < sizeof seen)
            len += (size_t)snprintf(seen + len, sizeof seen - len, "%s%s", len ? ", " : "", text);
    }
    refit_cuda_uuid_text(uuid, text);
    return status != REFIT_OK ? status
                              : refit_fail(err, REFIT_MISMATCH, "%s is not among the devices of this process (%s); make it "
                                           "visible to it", text, seen);
}
