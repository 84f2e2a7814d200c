/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges with a GPU at one end or at both: one kernel, launched for a part at a time on a stream of its own. Host memory
 * at the other end is pinned for it, and read and written over the bus.
 */
#include <stdlib.h>

#include "memory/cuda_exchange_kernel.h"
#include "memory/cuda_internal.h"
#include "memory/exchange_internal.h"

/* Enough work to fill a device, so that what a launch costs does not show. */
#define PART_BYTES ((uint64_t)256 << 20)
#define PINNED_MAX 16u

struct pinned {
    void *at;
    CUdeviceptr device;
};

struct refit_cuda_exchange {
    struct refit_cuda_device *device;
    CUstream stream;
    struct pinned pinned[PINNED_MAX];
    uint32_t pinned_count;
};

static const struct pinned *find_pinned(const struct refit_cuda_exchange *exchange, const void *at)
{
    for (uint32_t i = 0; i < exchange->pinned_count; i++) {
        if (exchange->pinned[i].at == at)
            return &exchange->pinned[i];
    }
    return NULL;
}

static enum refit_status pin(struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                             struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = exchange->device->cuda;
    struct pinned *pinned = &exchange->pinned[exchange->pinned_count];
    if (!arena->mapping || arena->read_only)
        return refit_fail(err, REFIT_INVALID, "exchange: memory of kind %s that is not a writable slot", arena->ops->name);
    if (find_pinned(exchange, arena->mapping))
        return REFIT_OK;
    if (exchange->pinned_count == PINNED_MAX)
        return refit_fail(err, REFIT_BUSY, "exchange: more than %u slots in host memory", PINNED_MAX);
    enum refit_status status = CUDA(cuda, err, cuMemHostRegister, arena->mapping, arena->mapping_bytes,
                                    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "pinning a slot of %zu bytes", arena->mapping_bytes);
    status = CUDA(cuda, err, cuMemHostGetDevicePointer, &pinned->device, arena->mapping, 0);
    if (status != REFIT_OK) {
        (void)cuda->cuMemHostUnregister(arena->mapping);
        return status;
    }
    pinned->at = arena->mapping;
    exchange->pinned_count++;
    return REFIT_OK;
}

static enum refit_status check_device(const struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                                      struct refit_error *err)
{
    if (refit_arena_device(arena) == exchange->device->ordinal)
        return REFIT_OK;
    return refit_fail(err, REFIT_UNSUPPORTED, "exchange: slots on CUDA devices %d and %d", exchange->device->ordinal,
                      refit_arena_device(arena));
}

/* What its exchanges need of an arena. In the device's context. */
static enum refit_status prepare_one(struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                                     struct refit_error *err)
{
    return arena->kind == REFIT_ARENA_CUDA ? check_device(exchange, arena, err) : pin(exchange, arena, err);
}

enum refit_status refit_cuda_exchange_prepare(struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                                              struct refit_error *err)
{
    enum refit_status status = refit_cuda_enter(exchange->device, err);
    if (status != REFIT_OK)
        return status;
    status = prepare_one(exchange, arena, err);
    refit_cuda_leave(exchange->device);
    return status;
}

enum refit_status refit_cuda_exchange_create(int ordinal, struct refit_cuda_exchange **out, struct refit_error *err)
{
    struct refit_cuda_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return refit_fail_alloc(err, "an exchange", sizeof *exchange);
    enum refit_status status = refit_cuda_device_open(ordinal, &exchange->device, err);
    if (status != REFIT_OK) {
        free(exchange);
        return status;
    }
    status = refit_cuda_enter(exchange->device, err);
    if (status == REFIT_OK) {
        status = refit_cuda_new_stream(exchange->device, false, &exchange->stream, err);
        refit_cuda_leave(exchange->device);
    }
    if (status != REFIT_OK) {
        refit_cuda_exchange_destroy(exchange);
        return status;
    }
    *out = exchange;
    return REFIT_OK;
}

void refit_cuda_exchange_destroy(struct refit_cuda_exchange *exchange)
{
    if (!exchange)
        return;
    const struct refit_cuda_driver *cuda = exchange->device->cuda;
    bool entered = refit_cuda_enter_to_free(exchange->device);
    for (uint32_t i = 0; i < exchange->pinned_count; i++)
        (void)cuda->cuMemHostUnregister(exchange->pinned[i].at);
    if (exchange->stream)
        (void)cuda->cuStreamDestroy(exchange->stream);
    if (entered)
        refit_cuda_leave(exchange->device);
    refit_cuda_device_close(exchange->device);
    free(exchange);
}

static enum refit_status address_of(const struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                                    uint64_t bytes, CUdeviceptr *out, struct refit_error *err)
{
    const struct pinned *pinned = find_pinned(exchange, arena->mapping);
    bool on_device = arena->kind == REFIT_ARENA_CUDA;
    *out = on_device ? refit_arena_device_address(arena, 0, bytes) : pinned ? pinned->device : 0;
    if (!arena->read_only && *out % sizeof(struct refit_cuda_words) == 0 && (bytes == 0 || *out))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "exchange: %llu bytes of an arena of %llu can't be written in one piece",
                      (unsigned long long)bytes, (unsigned long long)arena->bytes);
}

static enum refit_status launch(const struct refit_cuda_exchange *exchange, CUdeviceptr a, CUdeviceptr b,
                                uint64_t bytes, struct refit_error *err)
{
    const struct refit_cuda_device *device = exchange->device;
    struct refit_cuda_exchange_range range = {
        .a = (uint8_t *)(uintptr_t)a, .b = (uint8_t *)(uintptr_t)b, .bytes = bytes};
    void *parameters[] = {&range};
    uint64_t of_block = REFIT_CUDA_THREADS * REFIT_CUDA_EXCHANGE_AHEAD * sizeof(struct refit_cuda_words);
    uint64_t blocks = (bytes + of_block - 1) / of_block;
    uint64_t most = 8u * (uint64_t)(device->processors > 0 ? device->processors : 1);
    return CUDA(device->cuda, err, cuLaunchKernel, device->exchange, (unsigned)(blocks < most ? blocks : most), 1, 1,
                REFIT_CUDA_THREADS, 1, 1, 0, exchange->stream, parameters, NULL);
}

/* All parts are queued before the first is waited for. A part that could not be queued leaves the rest untouched; one that
 * failed on the device, or is not done in time, leaves nothing that can be relied upon. */
static enum refit_status run(const struct refit_cuda_exchange *exchange, CUdeviceptr a, CUdeviceptr b, uint64_t bytes,
                             struct refit_deadline deadline, struct refit_exchanged *done, struct refit_error *err)
{
    uint64_t queued = 0;
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK && queued < bytes) {
        uint64_t part = bytes - queued < PART_BYTES ? bytes - queued : PART_BYTES;
        status = launch(exchange, a + queued, b + queued, part, err);
        queued += status == REFIT_OK ? part : 0;
    }
    struct refit_error lost;
    enum refit_status waited = refit_cuda_wait_stream(exchange->device, exchange->stream, deadline, &lost);
    if (waited == REFIT_OK) {
        done->bytes = queued;
        return status;
    }
    done->torn = queued > 0;
    return status == REFIT_OK ? refit_fail(err, waited, "%s", lost.text) : status;
}

enum refit_status refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                          struct refit_arena *b, uint64_t bytes, struct refit_deadline deadline,
                                          struct refit_exchanged *done, struct refit_error *err)
{
    CUdeviceptr of_a = 0, of_b = 0;
    enum refit_status status = refit_cuda_enter(exchange->device, err);
    if (status != REFIT_OK)
        return status;
    status = prepare_one(exchange, a, err);
    if (status == REFIT_OK)
        status = prepare_one(exchange, b, err);
    if (status == REFIT_OK)
        status = address_of(exchange, a, bytes, &of_a, err);
    if (status == REFIT_OK)
        status = address_of(exchange, b, bytes, &of_b, err);
    if (status == REFIT_OK)
        status = run(exchange, of_a, of_b, bytes, deadline, done, err);
    refit_cuda_leave(exchange->device);
    return status;
}
