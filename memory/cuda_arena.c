/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas over memory of others in this process: a trainer's tensors.
 */
#include <stdlib.h>

#include "memory/cuda_internal.h"

static void unbind(struct refit_cuda_memory *memory)
{
    refit_cuda_device_close(memory->device);
    free(memory);
}

enum refit_status refit_cuda_arena_create(int device, uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    struct refit_cuda_device *opened;
    enum refit_status status = refit_cuda_device_open(device, &opened, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        refit_cuda_device_close(opened);
        return refit_fail_alloc(err, "arena", sizeof *memory);
    }
    *memory = (struct refit_cuda_memory){.device = opened, .fd = -1};
    status = refit_arena_create_kind(REFIT_ARENA_CUDA, &refit_arena_ops_cuda, bytes, out, err);
    if (status != REFIT_OK) {
        unbind(memory);
        return status;
    }
    (*out)->device = memory;
    (*out)->ordinal = opened->ordinal;
    return REFIT_OK;
}

static enum refit_status check_place(const struct refit_cuda_device *device, CUdeviceptr address,
                                     struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = device->cuda;
    CUcontext context = NULL;
    unsigned type = 0;
    int ordinal = -1;
    CUresult known = cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (known == CUDA_ERROR_INVALID_VALUE || (known == CUDA_SUCCESS && type != CU_MEMORYTYPE_DEVICE))
        return refit_fail(err, REFIT_INVALID, "%#llx is an address of host memory, or of none; memory of CUDA device %d "
                          "is expected", (unsigned long long)address, device->ordinal);
    enum refit_status status = refit_cuda_check(cuda, known, "cuPointerGetAttribute", err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuPointerGetAttribute, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if (status != REFIT_OK)
        return status;
    if (ordinal != device->ordinal)
        return refit_fail(err, REFIT_INVALID, "%#llx is memory of CUDA device %d, that of device %d is expected",
                          (unsigned long long)address, ordinal, device->ordinal);
    /* Mappings and memory pools belong to no context: some drivers then name none, others have no answer. */
    if (cuda->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS && context &&
        context != device->context)
        return refit_fail(err, REFIT_INVALID, "%#llx is memory of a context that is not the primary one of CUDA device "
                          "%d, the one of CUDA's runtime", (unsigned long long)address, device->ordinal);
    return REFIT_OK;
}

/* Both ends: how far an allocation reaches is not asked, for a tensor may lie across mappings that were put side by side. */
static enum refit_status check_address(const struct refit_cuda_device *device, CUdeviceptr address, uint64_t bytes,
                                       struct refit_error *err)
{
    CUdeviceptr last;
    if (__builtin_add_overflow(address, bytes - 1, &last))
        return refit_fail(err, REFIT_INVALID, "%llu bytes at %#llx", (unsigned long long)bytes,
                          (unsigned long long)address);
    enum refit_status status = refit_cuda_enter(device, err);
    if (status != REFIT_OK)
        return status;
    status = check_place(device, address, err);
    if (status == REFIT_OK)
        status = check_place(device, last, err);
    refit_cuda_leave(device);
    return status;
}

enum refit_status refit_cuda_bind(struct refit_arena *arena, uint64_t offset, uint64_t address, uint64_t bytes,
                                  struct refit_error *err)
{
    const struct refit_cuda_memory *memory = arena->kind == REFIT_ARENA_CUDA ? arena->device : NULL;
    if (!memory)
        return refit_fail(err, REFIT_INVALID, "arena: CUDA memory bound to an arena of kind %s", arena->ops->name);
    enum refit_status status = refit_arena_check_range(arena, offset, bytes, err);
    if (status == REFIT_OK && bytes > 0)
        status = check_address(memory->device, address, bytes, err);
    struct refit_arena_piece piece = {.offset = offset, .bytes = bytes, .address = address, .fd = -1};
    return status == REFIT_OK ? refit_arena_insert(arena, piece, err) : status;
}
