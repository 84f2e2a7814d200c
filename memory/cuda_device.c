/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "memory/cuda_internal.h"

extern const unsigned char refit_cuda_image[];

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct refit_cuda_device *registry[REFIT_CUDA_DEVICES];

enum refit_status refit_cuda_enter(const struct refit_cuda_device *device, struct refit_error *err)
{
    return CUDA(device->cuda, err, cuCtxSetCurrent, device->context);
}

CUmemAllocationProp refit_cuda_prop(const struct refit_cuda_device *device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device},
    };
}

/* What a layout of slots and whoever opens one must know of the device. */
static enum refit_status describe(struct refit_cuda_device *device, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    CUmemAllocationProp prop = refit_cuda_prop(device);
    CUuuid uuid;
    size_t granularity = 0;
    int vmm = 0;
    enum refit_status status = CUDA(cuda, err, cuDeviceGetUuid, &uuid, device->device);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGetAttribute, &vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      device->device);
    if (status == REFIT_OK && !vmm)
        return refit_fail(err, REFIT_UNSUPPORTED, "CUDA device %d: lacks virtual memory management", device->ordinal);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGetAttribute, &device->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                      device->device);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuMemGetAllocationGranularity, &granularity, &prop,
                      CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (status != REFIT_OK)
        return status;
    memcpy(device->info.uuid, &uuid, sizeof device->info.uuid);
    device->info.granularity = granularity;
    /* Not all platforms have it: unknown is no failure. */
    if (cuda->cuDeviceGetAttribute(&device->info.numa_node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device->device) !=
        CUDA_SUCCESS)
        device->info.numa_node = -1;
    return REFIT_OK;
}

static enum refit_status upload_constants(struct refit_cuda_device *device, struct refit_error *err)
{
    static uint32_t table[2048];
    for (unsigned i = 0; i < 2048; i++)
        table[i] = refit_digest_k(i / 1024, i % 1024);
    enum refit_status status = CUDA(device->cuda, err, cuMemAlloc, &device->k, sizeof table);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuMemcpyHtoDAsync, device->k, table, sizeof table, device->stream);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuStreamSynchronize, device->stream);
    return status;
}

static enum refit_status prepare(struct refit_cuda_device *device, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    enum refit_status status = CUDA(cuda, err, cuDeviceGet, &device->device, device->ordinal);
    if (status == REFIT_OK)
        status = describe(device, err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDevicePrimaryCtxRetain, &device->context, device->device);
    if (status == REFIT_OK)
        status = refit_cuda_enter(device, err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuModuleLoadData, &device->module, refit_cuda_image);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuModuleGetFunction, &device->move, device->module, "refit_move");
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuStreamCreate, &device->stream, CU_STREAM_NON_BLOCKING);
    return status == REFIT_OK ? upload_constants(device, err) : status;
}

/* Undoes as much of `prepare` as was done. Nothing can be done about a failure here. */
static void destroy(struct refit_cuda_device *device)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    if (device->context)
        (void)cuda->cuCtxSetCurrent(device->context);
    if (device->stream) {
        (void)cuda->cuStreamSynchronize(device->stream);
        refit_cuda_batches_free(device);
        (void)cuda->cuStreamDestroy(device->stream);
    }
    if (device->k)
        (void)cuda->cuMemFree(device->k);
    if (device->module)
        (void)cuda->cuModuleUnload(device->module);
    if (device->context) {
        (void)cuda->cuCtxSetCurrent(NULL);
        (void)cuda->cuDevicePrimaryCtxRelease(device->device);
    }
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static enum refit_status create(const struct refit_cuda_driver *cuda, int ordinal, struct refit_cuda_device **out,
                                struct refit_error *err)
{
    struct refit_cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return refit_fail_alloc(err, "CUDA device", sizeof *device);
    device->cuda = cuda;
    device->ordinal = ordinal;
    pthread_mutex_init(&device->lock, NULL);
    enum refit_status status = prepare(device, err);
    if (status != REFIT_OK) {
        destroy(device);
        return refit_error_prefix(err, status, "CUDA device %d", ordinal);
    }
    *out = device;
    return REFIT_OK;
}

enum refit_status refit_cuda_device_open(int ordinal, struct refit_cuda_device **out, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda;
    enum refit_status status = refit_cuda_driver(&cuda, err);
    if (status != REFIT_OK)
        return status;
    if (ordinal < 0 || ordinal >= cuda->devices || ordinal >= REFIT_CUDA_DEVICES)
        return refit_fail(err, REFIT_NOT_FOUND, "CUDA device %d: the driver has %d", ordinal, cuda->devices);
    pthread_mutex_lock(&registry_lock);
    if (!registry[ordinal])
        status = create(cuda, ordinal, &registry[ordinal], err);
    if (status == REFIT_OK) {
        *out = registry[ordinal];
        (*out)->references++;
    }
    pthread_mutex_unlock(&registry_lock);
    return status;
}

void refit_cuda_device_close(struct refit_cuda_device *device)
{
    pthread_mutex_lock(&registry_lock);
    if (--device->references == 0) {
        registry[device->ordinal] = NULL;
        destroy(device);
    }
    pthread_mutex_unlock(&registry_lock);
}
