/* SPDX-License-Identifier: Apache-2.0
 *
 * A reserved range of a GPU's addresses that a slot's memory is mapped to, beside the mapping the slot has.
 */
#include <stdlib.h>

#include "memory/cuda_internal.h"
#include "memory/exchange_internal.h"

struct refit_cuda_window {
    struct refit_cuda_device *device;
    CUdeviceptr address;
    uint64_t bytes;
    bool mapped;
};

enum refit_status refit_cuda_window_create(const struct refit_arena *slot, struct refit_cuda_window **out,
                                           struct refit_error *err)
{
    const struct refit_cuda_memory *memory = slot->device;
    struct refit_cuda_window *window = calloc(1, sizeof *window);
    if (!window)
        return refit_fail_alloc(err, "a window", sizeof *window);
    enum refit_status status = refit_cuda_device_open(memory->device->ordinal, &window->device, err);
    if (status != REFIT_OK) {
        free(window);
        return status;
    }
    window->bytes = memory->bytes;
    status = refit_cuda_enter(window->device, err);
    if (status == REFIT_OK) {
        status = CUDA(window->device->cuda, err, cuMemAddressReserve, &window->address, window->bytes, 0, 0, 0);
        refit_cuda_leave(window->device);
    }
    if (status != REFIT_OK) {
        refit_cuda_window_destroy(window);
        return status;
    }
    *out = window;
    return REFIT_OK;
}

static enum refit_status empty(struct refit_cuda_window *window, struct refit_error *err)
{
    if (!window->mapped)
        return REFIT_OK;
    window->mapped = false;
    return CUDA(window->device->cuda, err, cuMemUnmap, window->address, window->bytes);
}

static enum refit_status map(struct refit_cuda_window *window, const struct refit_cuda_memory *memory,
                             struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = window->device->cuda;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = window->device->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    enum refit_status status = empty(window, err);
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuMemMap, window->address, window->bytes, 0, memory->handle, 0);
    window->mapped = status == REFIT_OK;
    if (status == REFIT_OK)
        status = CUDA(cuda, err, cuMemSetAccess, window->address, window->bytes, &access, 1);
    if (status != REFIT_OK && window->mapped)
        (void)!empty(window, NULL);
    return status;
}

enum refit_status refit_cuda_window_show(struct refit_cuda_window *window, const struct refit_arena *slot,
                                         struct refit_error *err)
{
    const struct refit_cuda_memory *memory = slot->device;
    if (memory->bytes != window->bytes || refit_arena_device(slot) != window->device->ordinal)
        return refit_fail(err, REFIT_MISMATCH, "window of %llu bytes on CUDA device %d: a slot of %llu bytes on device %d "
                          "can't be shown in it", (unsigned long long)window->bytes, window->device->ordinal,
                          (unsigned long long)memory->bytes, refit_arena_device(slot));
    enum refit_status status = refit_cuda_enter(window->device, err);
    if (status != REFIT_OK)
        return status;
    status = map(window, memory, err);
    refit_cuda_leave(window->device);
    return status;
}

uint64_t refit_cuda_window_address(const struct refit_cuda_window *window)
{
    return window->address;
}

void refit_cuda_window_destroy(struct refit_cuda_window *window)
{
    if (!window)
        return;
    bool entered = refit_cuda_enter_to_free(window->device);
    (void)!empty(window, NULL);
    if (window->address)
        (void)window->device->cuda->cuMemAddressFree(window->address, window->bytes);
    if (entered)
        refit_cuda_leave(window->device);
    refit_cuda_device_close(window->device);
    free(window);
}
