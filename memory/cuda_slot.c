/* SPDX-License-Identifier: Apache-2.0
 *
 * A slot's last bytes, behind those asked for, say which slot it is (struct trailer): CUDA's descriptors name no file.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/io.h"
#include "memory/cuda_internal.h"

#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define TRAILER_MAGIC "REFITSLT"

struct trailer {
    char magic[8];
    uint64_t bytes; /* asked for */
    uint8_t id[REFIT_CUDA_ID_BYTES];
};

static bool round_up(uint64_t bytes, uint64_t granularity, uint64_t *rounded)
{
    if (__builtin_add_overflow(bytes, sizeof(struct trailer) + granularity - 1, rounded))
        return false;
    *rounded -= *rounded % granularity;
    return true;
}

static CUdeviceptr trailer_at(const struct refit_cuda_memory *slot)
{
    return slot->address + slot->bytes - sizeof(struct trailer);
}

void refit_cuda_memory_free(struct refit_cuda_memory *memory)
{
    const struct refit_cuda_driver *cuda = memory->device->cuda;
    refit_io_close(&memory->fd);
    if (memory->mapped)
        (void)cuda->cuMemUnmap(memory->address, memory->bytes);
    if (memory->address)
        (void)cuda->cuMemAddressFree(memory->address, memory->bytes);
    if (memory->handle)
        (void)cuda->cuMemRelease(memory->handle);
    free(memory);
}

/* In the device's context, which slot_end leaves. */
static enum refit_status slot_begin(int ordinal, uint64_t bytes, struct refit_cuda_memory **out,
                                    struct refit_error *err)
{
    struct refit_cuda_device *device;
    uint64_t rounded = 0;
    enum refit_status status = refit_cuda_device_open(ordinal, &device, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_memory *slot = calloc(1, sizeof *slot);
    if (!slot)
        status = refit_fail_alloc(err, "slot", sizeof *slot);
    else if (!round_up(bytes, device->info.granularity, &rounded))
        status = refit_fail(err, REFIT_INVALID, "slot of %llu bytes: too large", (unsigned long long)bytes);
    if (status == REFIT_OK)
        status = refit_cuda_enter(device, err);
    if (status != REFIT_OK) {
        free(slot);
        refit_cuda_device_close(device);
        return status;
    }
    *slot = (struct refit_cuda_memory){.device = device, .bytes = rounded, .fd = -1};
    *out = slot;
    return REFIT_OK;
}

static enum refit_status allocate(struct refit_cuda_memory *slot, struct refit_error *err)
{
    const struct refit_cuda_device *device = slot->device;
    const struct refit_cuda_driver *cuda = device->cuda;
    CUmemAllocationProp prop = refit_cuda_prop(device, true);
    enum refit_status status = refit_cuda_admit(device, "a slot", slot->bytes, err);
    if (status != REFIT_OK)
        return status;
    /* A device may support what this node is not set up for (no channel to its domain): then it is an ordinary slot. */
    slot->fabric = device->info.fabric && cuda->cuMemCreate(&slot->handle, slot->bytes, &prop, 0) == CUDA_SUCCESS;
    if (slot->fabric)
        return REFIT_OK;
    prop = refit_cuda_prop(device, false);
    return CUDA(cuda, err, cuMemCreate, &slot->handle, slot->bytes, &prop, 0);
}

static enum refit_status map(struct refit_cuda_memory *slot, bool read_only, struct refit_error *err)
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

static enum refit_status export_fd(const struct refit_cuda_memory *slot, int *fd, struct refit_error *err)
{
    return CUDA(slot->device->cuda, err, cuMemExportToShareableHandle, fd, slot->handle, POSIX_FD, 0);
}

/* A new slot begins as zeros, like one in host memory, and is named. */
static enum refit_status begin_new(struct refit_cuda_memory *slot, uint64_t bytes, struct refit_error *err)
{
    struct trailer trailer = {.magic = TRAILER_MAGIC, .bytes = bytes};
    if (getrandom(trailer.id, sizeof trailer.id, 0) != (ssize_t)sizeof trailer.id)
        return refit_fail(err, REFIT_SYSTEM, "slot: no random bytes for its name");
    memcpy(slot->id, trailer.id, sizeof slot->id);
    return refit_cuda_clear(slot->device, slot->address, slot->bytes, &trailer, sizeof trailer, err);
}

/* `id` NULL: any. */
static enum refit_status recognise(struct refit_cuda_memory *slot, uint64_t bytes, const uint8_t *id,
                                   struct refit_error *err)
{
    struct trailer trailer;
    enum refit_status status = refit_cuda_read(slot->device, trailer_at(slot), &trailer, sizeof trailer, err);
    if (status != REFIT_OK)
        return status;
    if (memcmp(trailer.magic, TRAILER_MAGIC, sizeof trailer.magic) != 0)
        return refit_fail(err, REFIT_MISMATCH, "CUDA device %d: the descriptor holds no slot of %llu bytes",
                          slot->device->ordinal, (unsigned long long)bytes);
    if (trailer.bytes != bytes)
        return refit_fail(err, REFIT_MISMATCH, "CUDA device %d: a slot of %llu bytes is expected, it has %llu",
                          slot->device->ordinal, (unsigned long long)bytes, (unsigned long long)trailer.bytes);
    if (id && memcmp(trailer.id, id, sizeof trailer.id) != 0)
        return refit_fail(err, REFIT_MISMATCH, "CUDA device %d: the descriptor is of another slot",
                          slot->device->ordinal);
    memcpy(slot->id, trailer.id, sizeof slot->id);
    return REFIT_OK;
}

static enum refit_status wrap(struct refit_cuda_memory *slot, uint64_t bytes, bool read_only, struct refit_arena **out,
                              struct refit_error *err)
{
    struct refit_arena *arena;
    enum refit_status status = export_fd(slot, &slot->fd, err);
    if (status == REFIT_OK)
        status = refit_arena_create_kind(REFIT_ARENA_CUDA, &refit_arena_ops_cuda, bytes, &arena, err);
    if (status != REFIT_OK)
        return status;
    struct refit_arena_piece piece = {.bytes = bytes, .address = slot->address, .fd = slot->fd};
    status = refit_arena_insert(arena, piece, err);
    if (status != REFIT_OK) {
        refit_arena_release(arena);
        return status;
    }
    arena->device = slot;
    arena->ordinal = slot->device->ordinal;
    arena->read_only = read_only;
    *out = arena;
    return REFIT_OK;
}

/* Leaves the context, and undoes as much as was done when that failed. */
static enum refit_status slot_end(struct refit_cuda_memory *slot, enum refit_status status)
{
    struct refit_cuda_device *device = slot->device;
    refit_cuda_leave(device);
    if (status != REFIT_OK)
        refit_cuda_memory_release(slot);
    return status;
}

enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    struct refit_cuda_memory *slot;
    enum refit_status status = slot_begin(device, bytes, &slot, err);
    if (status != REFIT_OK)
        return status;
    status = allocate(slot, err);
    if (status == REFIT_OK)
        status = map(slot, false, err);
    if (status == REFIT_OK)
        status = begin_new(slot, bytes, err);
    if (status == REFIT_OK)
        status = wrap(slot, bytes, false, out, err);
    return slot_end(slot, status);
}

/* NULL, and why, when it is none. */
static const struct refit_cuda_memory *slot_of(const struct refit_arena *arena, struct refit_error *err)
{
    const struct refit_cuda_memory *slot = arena->kind == REFIT_ARENA_CUDA ? arena->device : NULL;
    if (slot && slot->bytes > 0)
        return slot;
    (void)refit_fail(err, REFIT_INVALID, "arena: %s memory that is no slot of CUDA's can't be exported",
                     arena->ops->name);
    return NULL;
}

enum refit_status refit_cuda_slot_export(const struct refit_arena *arena, int *fd, struct refit_error *err)
{
    const struct refit_cuda_memory *slot = slot_of(arena, err);
    return slot ? export_fd(slot, fd, err) : REFIT_INVALID;
}

enum refit_status refit_cuda_slot_export_fabric(const struct refit_arena *arena,
                                                uint8_t handle[REFIT_CUDA_FABRIC_BYTES], struct refit_error *err)
{
    const struct refit_cuda_memory *slot = slot_of(arena, err);
    CUmemFabricHandle fabric;
    if (!slot)
        return REFIT_INVALID;
    if (!slot->fabric)
        return refit_fail(err, REFIT_UNSUPPORTED, "CUDA device %d: the slot has no handle for other nodes",
                          slot->device->ordinal);
    enum refit_status status = CUDA(slot->device->cuda, err, cuMemExportToShareableHandle, &fabric, slot->handle,
                                    CU_MEM_HANDLE_TYPE_FABRIC, 0);
    if (status == REFIT_OK)
        memcpy(handle, fabric.data, REFIT_CUDA_FABRIC_BYTES);
    return status;
}

/* What another process made: `shared` is a descriptor (as a pointer) or a fabric handle. */
struct shared {
    void *handle;
    CUmemAllocationHandleType type;
    uint64_t bytes;
    const uint8_t *id;
    bool read_only;
};

static enum refit_status open_shared(int device, const struct shared *shared, struct refit_arena **out,
                                     struct refit_error *err)
{
    struct refit_cuda_memory *slot;
    enum refit_status status = slot_begin(device, shared->bytes, &slot, err);
    if (status != REFIT_OK)
        return status;
    slot->imported = shared->read_only;
    slot->fabric = shared->type == CU_MEM_HANDLE_TYPE_FABRIC;
    status = CUDA(slot->device->cuda, err, cuMemImportFromShareableHandle, &slot->handle, shared->handle, shared->type);
    if (status == REFIT_OK)
        status = map(slot, shared->read_only, err);
    if (status == REFIT_OK)
        status = recognise(slot, shared->bytes, shared->id, err);
    if (status == REFIT_OK)
        status = wrap(slot, shared->bytes, shared->read_only, out, err);
    return slot_end(slot, status);
}

enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only, struct refit_arena **out,
                                       struct refit_error *err)
{
    struct shared shared = {
        .handle = (void *)(intptr_t)fd, .type = POSIX_FD, .bytes = bytes, .read_only = read_only};
    return open_shared(device, &shared, out, err);
}

enum refit_status refit_cuda_slot_adopt(int device, int fd, uint64_t bytes, const uint8_t id[REFIT_CUDA_ID_BYTES],
                                        struct refit_arena **out, struct refit_error *err)
{
    struct shared shared = {.handle = (void *)(intptr_t)fd, .type = POSIX_FD, .bytes = bytes, .id = id};
    return open_shared(device, &shared, out, err);
}

enum refit_status refit_cuda_slot_open_fabric(int device, const uint8_t handle[REFIT_CUDA_FABRIC_BYTES],
                                              uint64_t bytes, bool read_only, struct refit_arena **out,
                                              struct refit_error *err)
{
    CUmemFabricHandle fabric;
    memcpy(fabric.data, handle, REFIT_CUDA_FABRIC_BYTES);
    struct shared shared = {
        .handle = &fabric, .type = CU_MEM_HANDLE_TYPE_FABRIC, .bytes = bytes, .read_only = read_only};
    return open_shared(device, &shared, out, err);
}

void refit_cuda_slot_info(const struct refit_arena *arena, struct refit_cuda_slot_info *info)
{
    const struct refit_cuda_memory *slot = arena->device;
    *info = slot->device->info;
    info->bytes = slot->bytes;
    info->fabric = slot->fabric;
    memcpy(info->id, slot->id, sizeof info->id);
}
