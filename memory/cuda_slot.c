/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/io.h"
#include "memory/cuda_internal.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static uint64_t round_up(uint64_t bytes, uint64_t granularity)
{
    uint64_t rest = bytes % granularity;
    uint64_t rounded = 0;
    if (bytes == 0)
        return granularity;
    return rest == 0 ? bytes : __builtin_add_overflow(bytes, granularity - rest, &rounded) ? 0 : rounded;
}

/* Undoes as much as was done. The stream is idle first: work may still touch the slot whose waiter gave up. */
void refit_cuda_slot_destroy(struct refit_cuda_slot *slot)
{
    struct refit_cuda_device *device = slot->device;
    const struct refit_cuda_driver *cuda = device->cuda;
    (void)cuda->cuCtxSetCurrent(device->context);
    (void)cuda->cuStreamSynchronize(device->stream);
    refit_io_close(&slot->fd);
    if (slot->mapped)
        (void)cuda->cuMemUnmap(slot->address, slot->bytes);
    if (slot->address)
        (void)cuda->cuMemAddressFree(slot->address, slot->bytes);
    if (slot->handle)
        (void)cuda->cuMemRelease(slot->handle);
    refit_cuda_device_close(device);
    free(slot);
}

static enum refit_status slot_begin(int ordinal, uint64_t bytes, struct refit_cuda_slot **out, struct refit_error *err)
{
    struct refit_cuda_device *device;
    enum refit_status status = refit_cuda_device_open(ordinal, &device, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_slot *slot = calloc(1, sizeof *slot);
    uint64_t rounded = round_up(bytes, device->info.granularity);
    if (!slot)
        status = refit_fail_alloc(err, "slot", sizeof *slot);
    else if (rounded == 0)
        status = refit_fail(err, REFIT_INVALID, "slot of %llu bytes: too large", (unsigned long long)bytes);
    if (status != REFIT_OK) {
        free(slot);
        refit_cuda_device_close(device);
        return status;
    }
    *slot = (struct refit_cuda_slot){.device = device, .bytes = rounded, .fd = -1};
    *out = slot;
    return refit_cuda_enter(device, err);
}

/* Before a byte moves, and with the numbers: the driver's own error has none. */
static enum refit_status admit(const struct refit_cuda_slot *slot, struct refit_error *err)
{
    const struct refit_cuda_device *device = slot->device;
    size_t available = 0, total = 0;
    enum refit_status status = CUDA(device->cuda, err, cuMemGetInfo, &available, &total);
    if (status != REFIT_OK || slot->bytes <= available)
        return status;
    return refit_fail(err, REFIT_NO_MEMORY,
                      "CUDA device %d: a slot of %llu bytes is needed, %zu of %zu bytes are free; leave the engine "
                      "less of the device, or use slots in host memory",
                      device->ordinal, (unsigned long long)slot->bytes, available, total);
}

static enum refit_status allocate(struct refit_cuda_slot *slot, struct refit_error *err)
{
    const struct refit_cuda_device *device = slot->device;
    CUmemAllocationProp prop = refit_cuda_prop(device);
    enum refit_status status = admit(slot, err);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuMemCreate, &slot->handle, slot->bytes, &prop, 0);
    return status;
}

static enum refit_status map(struct refit_cuda_slot *slot, bool read_only, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = slot->device->cuda;
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = slot->device->device},
        .flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    enum refit_status status = CUDA(cuda, err, cuMemAddressReserve, &slot->address, slot->bytes, 0, 0, 0);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuMemMap, slot->address, slot->bytes, 0, slot->handle, 0);
    if (status == REFIT_OK) {
        slot->mapped = true;
        status = CUDA(cuda, err, cuMemSetAccess, slot->address, slot->bytes, &access, 1);
    }
    return status;
}

static enum refit_status export_fd(const struct refit_cuda_slot *slot, int *fd, struct refit_error *err)
{
    return CUDA(slot->device->cuda, err, cuMemExportToShareableHandle, fd, slot->handle, POSIX_FD, 0);
}

/* A new slot begins as zeros, like one in host memory. */
static enum refit_status clear(const struct refit_cuda_slot *slot, struct refit_error *err)
{
    const struct refit_cuda_device *device = slot->device;
    enum refit_status status =
        CUDA(device->cuda, err, cuMemsetD8Async, slot->address, 0, slot->bytes, device->stream);
    return status == REFIT_OK ? CUDA(device->cuda, err, cuStreamSynchronize, device->stream) : status;
}

static enum refit_status wrap(struct refit_cuda_slot *slot, uint64_t bytes, bool read_only, struct refit_arena **out,
                              struct refit_error *err)
{
    struct refit_arena *arena;
    enum refit_status status = export_fd(slot, &slot->fd, err);
    if (status == REFIT_OK)
        status = refit_arena_create_kind(REFIT_ARENA_CUDA, &refit_arena_ops_cuda, bytes, &arena, err);
    if (status != REFIT_OK) {
        refit_cuda_slot_destroy(slot);
        return status;
    }
    struct refit_arena_piece piece = {.bytes = bytes, .fd = slot->fd};
    arena->device = slot;
    arena->read_only = read_only;
    status = refit_arena_insert(arena, piece, err);
    if (status == REFIT_OK)
        *out = arena;
    else
        refit_arena_release(arena);
    return status;
}

enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    struct refit_cuda_slot *slot = NULL;
    enum refit_status status = slot_begin(device, bytes, &slot, err);
    if (status == REFIT_OK)
        status = allocate(slot, err);
    if (status == REFIT_OK)
        status = map(slot, false, err);
    if (status == REFIT_OK)
        status = clear(slot, err);
    if (status == REFIT_OK)
        return wrap(slot, bytes, false, out, err);
    if (slot)
        refit_cuda_slot_destroy(slot);
    return status;
}

enum refit_status refit_cuda_slot_export(const struct refit_arena *arena, int *fd, struct refit_error *err)
{
    const struct refit_cuda_slot *slot = arena->device;
    if (arena->kind != REFIT_ARENA_CUDA)
        return refit_fail(err, REFIT_INVALID, "arena: exporting CUDA memory of an arena of kind %s", arena->ops->name);
    return export_fd(slot, fd, err);
}

enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only, struct refit_arena **out,
                                       struct refit_error *err)
{
    struct refit_cuda_slot *slot = NULL;
    enum refit_status status = slot_begin(device, bytes, &slot, err);
    if (status == REFIT_OK)
        status = CUDA(slot->device->cuda, err, cuMemImportFromShareableHandle, &slot->handle, (void *)(intptr_t)fd,
                      POSIX_FD);
    if (status == REFIT_OK)
        status = map(slot, read_only, err);
    if (status == REFIT_OK)
        return wrap(slot, bytes, read_only, out, err);
    if (slot)
        refit_cuda_slot_destroy(slot);
    return status;
}

void refit_cuda_slot_info(const struct refit_arena *arena, struct refit_cuda_slot_info *info)
{
    const struct refit_cuda_slot *slot = arena->device;
    *info = slot->device->info;
    info->bytes = slot->bytes;
}
