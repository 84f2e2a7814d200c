/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of this process that read each other's memory. The reader does the work, so that is all that is ever allowed:
 * nobody but its own device writes a slot.
 */
#include "memory/cuda_internal.h"

static pthread_mutex_t allowing = PTHREAD_MUTEX_INITIALIZER;

static enum refit_status ask(const struct refit_cuda_driver *cuda, CUdevice reader, CUdevice owner,
                             struct refit_error *err)
{
    int can = 0;
    if (reader == owner) /* of which CUDA says no */
        return REFIT_OK;
    enum refit_status status = CUDA(cuda, err, cuDeviceCanAccessPeer, &can, reader, owner);
    if (status == REFIT_OK && !can)
        return refit_fail(err, REFIT_UNSUPPORTED, "CUDA device %d can't read the memory of device %d (no peer access)",
                          (int)reader, (int)owner);
    return status;
}

/* Where an imported slot lies is not known here; the driver knows, and refuses. */
static enum refit_status allow(const struct refit_cuda_memory *memory, const struct refit_cuda_device *device,
                               struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
    };
    enum refit_status status = memory->imported ? REFIT_OK : ask(cuda, device->device, memory->device->device, err);
    return status == REFIT_OK ? CUDA(cuda, err, cuMemSetAccess, memory->address, memory->bytes, &access, 1) : status;
}

bool refit_cuda_reach(struct refit_cuda_memory *memory, struct refit_cuda_device *device)
{
    int number = device->ordinal;
    struct refit_error err;
    if (memory->bytes == 0)
        return false;
    pthread_mutex_lock(&allowing);
    if (!memory->peers[number] && !memory->refused[number]) {
        memory->refused[number] = allow(memory, device, &err) != REFIT_OK;
        if (!memory->refused[number]) {
            refit_cuda_device_retain(device);
            memory->peers[number] = device;
        }
    }
    bool allowed = memory->peers[number] != NULL;
    pthread_mutex_unlock(&allowing);
    return allowed;
}

enum refit_status refit_cuda_batch_follow(struct refit_cuda_batch *batch, const struct refit_cuda_device *other,
                                          struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = other->cuda;
    if (other == batch->device || other == batch->follows)
        return REFIT_OK;
    enum refit_status status = refit_cuda_enter(other, err);
    if (status != REFIT_OK)
        return status;
    status = CUDA(cuda, err, cuEventRecord, other->mark, other->stream);
    refit_cuda_leave(other);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuStreamWaitEvent, batch->stream, other->mark, 0);
    if (status == REFIT_OK)
        batch->follows = other;
    return status;
}

enum refit_status refit_cuda_peers(int reader, int owner, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda;
    CUdevice devices[2];
    enum refit_status status = refit_cuda_driver(&cuda, err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGet, &devices[0], reader);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGet, &devices[1], owner);
    return status == REFIT_OK ? ask(cuda, devices[0], devices[1], err) : status;
}
