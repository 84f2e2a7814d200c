/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/cuda_internal.h"

#define SPINS 32u

extern const unsigned char refit_cuda_image[];

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct refit_cuda_device *registry[REFIT_CUDA_DEVICES];

enum refit_status refit_cuda_enter(const struct refit_cuda_device *device, struct refit_error *err)
{
    return CUDA(device->cuda, err, cuCtxPushCurrent, device->context);
}

bool refit_cuda_enter_to_free(const struct refit_cuda_device *device)
{
    return refit_cuda_enter(device, NULL) == REFIT_OK || refit_cuda_enter(device, NULL) == REFIT_OK;
}

void refit_cuda_leave(const struct refit_cuda_device *device)
{
    CUcontext left;
    (void)device->cuda->cuCtxPopCurrent(&left);
}

/* ---- waiting ---- */

static enum refit_status not_ready(const struct refit_cuda_device *device, CUresult result, const char *call,
                                   struct refit_error *err)
{
    return result == CUDA_ERROR_NOT_READY ? REFIT_BUSY : refit_cuda_check(device->cuda, result, call, err);
}

enum refit_status refit_cuda_poll_stream(const struct refit_cuda_device *device, CUstream stream,
                                         struct refit_error *err)
{
    return not_ready(device, device->cuda->cuStreamQuery(stream), "cuStreamQuery", err);
}

enum refit_status refit_cuda_poll_event(const struct refit_cuda_device *device, CUevent event, struct refit_error *err)
{
    return not_ready(device, device->cuda->cuEventQuery(event), "cuEventQuery", err);
}

/* A small copy is done in a few microseconds, and the shortest sleep is fifty: not at first. False: the deadline passed. */
static bool pause_until(unsigned *tries, struct refit_deadline deadline)
{
    if (refit_deadline_passed(deadline))
        return false;
    unsigned past = *tries < SPINS ? 0 : *tries - SPINS;
    struct timespec pause = {.tv_nsec = past < 8 ? 1000L << past : 200000};
    if (*tries >= SPINS)
        nanosleep(&pause, NULL);
    ++*tries;
    return true;
}

static enum refit_status late(const struct refit_cuda_device *device, struct refit_error *err)
{
    return refit_fail(err, REFIT_TIMEOUT, "CUDA device %d: queued work was not done by the deadline", device->ordinal);
}

enum refit_status refit_cuda_wait_stream(const struct refit_cuda_device *device, CUstream stream,
                                         struct refit_deadline deadline, struct refit_error *err)
{
    unsigned tries = 0;
    enum refit_status status;
    while ((status = refit_cuda_poll_stream(device, stream, err)) == REFIT_BUSY)
        if (!pause_until(&tries, deadline))
            return late(device, err);
    return status;
}

enum refit_status refit_cuda_wait_event(const struct refit_cuda_device *device, CUevent event,
                                        struct refit_deadline deadline, struct refit_error *err)
{
    unsigned tries = 0;
    enum refit_status status;
    while ((status = refit_cuda_poll_event(device, event, err)) == REFIT_BUSY)
        if (!pause_until(&tries, deadline))
            return late(device, err);
    return status;
}

static bool any_late(struct refit_cuda_device *device)
{
    bool entered = refit_cuda_enter_to_free(device);
    if (entered)
        refit_cuda_reap(device);
    if (entered)
        refit_cuda_leave(device);
    pthread_mutex_lock(&device->lock);
    bool any = device->late != NULL;
    pthread_mutex_unlock(&device->lock);
    return any;
}

/* False: the device is still at work for somebody who gave up. */
static bool wait_for_late(struct refit_cuda_device *device)
{
    unsigned tries = 0;
    struct refit_deadline deadline = refit_memory_patience();
    while (any_late(device))
        if (!pause_until(&tries, deadline))
            return false;
    return true;
}

/* A device that may still touch it; NULL: none does. */
static struct refit_cuda_device *busy_with(const struct refit_cuda_memory *memory, bool waiting)
{
    if (waiting ? !wait_for_late(memory->device) : any_late(memory->device))
        return memory->device;
    for (int i = 0; i < REFIT_CUDA_DEVICES; i++) {
        struct refit_cuda_device *peer = memory->peers[i];
        if (peer && (waiting ? !wait_for_late(peer) : any_late(peer)))
            return peer;
    }
    return NULL;
}

static void end_memory(struct refit_cuda_memory *memory)
{
    struct refit_cuda_device *device = memory->device, *peers[REFIT_CUDA_DEVICES];
    memcpy(peers, memory->peers, sizeof peers);
    bool entered = refit_cuda_enter_to_free(device);
    refit_cuda_memory_free(memory);
    if (entered)
        refit_cuda_leave(device);
    for (int i = 0; i < REFIT_CUDA_DEVICES; i++)
        if (peers[i])
            refit_cuda_device_close(peers[i]);
    refit_cuda_device_close(device);
}

static void give_up(struct refit_cuda_memory *memory, bool waiting)
{
    struct refit_cuda_device *busy = busy_with(memory, waiting);
    if (!busy || memory->bytes == 0) {
        end_memory(memory);
        return;
    }
    pthread_mutex_lock(&busy->lock);
    memory->next = busy->dying;
    busy->dying = memory;
    pthread_mutex_unlock(&busy->lock);
}

/* An owner waits, so that there is room for what comes next. */
void refit_cuda_memory_release(struct refit_cuda_memory *memory)
{
    give_up(memory, !memory->imported);
}

void refit_cuda_memory_retry(struct refit_cuda_memory *memory)
{
    give_up(memory, false);
}

/* ---- a device ---- */

enum refit_status refit_cuda_new_stream(const struct refit_cuda_device *device, bool least, CUstream *out,
                                        struct refit_error *err)
{
    int lowest = 0, highest = 0;
    enum refit_status status = CUDA(device->cuda, err, cuCtxGetStreamPriorityRange, &lowest, &highest);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuStreamCreateWithPriority, out, CU_STREAM_NON_BLOCKING, least ? lowest : 0);
    return status;
}

enum refit_status refit_cuda_admit(const struct refit_cuda_device *device, const char *what, uint64_t bytes,
                                   struct refit_error *err)
{
    size_t available = 0, total = 0;
    enum refit_status status = CUDA(device->cuda, err, cuMemGetInfo, &available, &total);
    if (status != REFIT_OK || bytes <= available)
        return status;
    return refit_fail(err, REFIT_NO_MEMORY,
                      "CUDA device %d: %s of %llu bytes is needed, %zu of %zu bytes are free; leave the engine less of "
                      "the device, or use slots in host memory",
                      device->ordinal, what, (unsigned long long)bytes, available, total);
}

CUmemAllocationProp refit_cuda_prop(const struct refit_cuda_device *device, bool fabric)
{
    int types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0);
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = (CUmemAllocationHandleType)types,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device},
    };
}

/* What a layout of slots and whoever opens one must know of the device. */
static enum refit_status describe(struct refit_cuda_device *device, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    CUmemAllocationProp prop;
    CUuuid uuid;
    size_t granularity = 0;
    int vmm = 0, fabric = 0;
    enum refit_status status = CUDA(cuda, err, cuDeviceGetUuid, &uuid, device->device);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGetAttribute, &vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                      device->device);
    if (status == REFIT_OK && !vmm)
        return refit_fail(err, REFIT_UNSUPPORTED, "CUDA device %d: lacks virtual memory management", device->ordinal);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuDeviceGetAttribute, &device->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                      device->device);
    /* Older drivers do not know the attribute. */
    device->info.fabric =
        cuda->cuDeviceGetAttribute(&fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device->device) ==
            CUDA_SUCCESS && fabric != 0;
    prop = refit_cuda_prop(device, device->info.fabric);
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
        status = refit_cuda_wait_stream(device, device->stream, refit_memory_patience(), err);
    return status;
}

static enum refit_status load(struct refit_cuda_device *device, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    enum refit_status status = CUDA(cuda, err, cuModuleLoadData, &device->module, refit_cuda_image);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuModuleGetFunction, &device->move, device->module, "refit_move");
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuModuleGetFunction, &device->exchange, device->module, "refit_exchange");
    if (status == REFIT_OK)
        status = refit_cuda_new_stream(device, true, &device->stream, err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuEventCreate, &device->mark, CU_EVENT_DISABLE_TIMING);
    return status == REFIT_OK ? upload_constants(device, err) : status;
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
    if (status != REFIT_OK)
        return status;
    status = load(device, err);
    refit_cuda_leave(device);
    return status;
}

/* Undoes as much of `prepare` as was done. Nothing can be done about a failure here. A device that does not end its work
 * keeps what that may touch. */
static void destroy(struct refit_cuda_device *device)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    bool entered = device->context && refit_cuda_enter_to_free(device);
    bool done = !device->stream ||
                (wait_for_late(device) && refit_cuda_wait_stream(device, device->stream, refit_memory_patience(),
                                                                 NULL) != REFIT_TIMEOUT);
    if (done && device->stream) {
        refit_cuda_batches_free(device);
        (void)cuda->cuStreamDestroy(device->stream);
    }
    if (done && device->mark)
        (void)cuda->cuEventDestroy(device->mark);
    if (done && device->k)
        (void)cuda->cuMemFree(device->k);
    if (done && device->module)
        (void)cuda->cuModuleUnload(device->module);
    if (entered)
        refit_cuda_leave(device);
    if (!done)
        return;
    if (device->context)
        (void)cuda->cuDevicePrimaryCtxRelease(device->device);
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
    device->ordinal = device->info.device = ordinal;
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

void refit_cuda_device_retain(struct refit_cuda_device *device)
{
    pthread_mutex_lock(&registry_lock);
    device->references++;
    pthread_mutex_unlock(&registry_lock);
}

void refit_cuda_device_close(struct refit_cuda_device *device)
{
    pthread_mutex_lock(&registry_lock);
    bool last = --device->references == 0;
    if (last)
        registry[device->ordinal] = NULL;
    pthread_mutex_unlock(&registry_lock);
    if (last)
        destroy(device);
}
