/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/exchange.h"

#include <stdlib.h>

#include "memory/exchange_internal.h"

struct refit_exchange {
    struct refit_cuda_exchange *cuda; /* NULL: of host memory */
    uint8_t *bounce;
};

static enum refit_status check_kind(const struct refit_arena *arena, struct refit_error *err)
{
    return arena->kind == REFIT_ARENA_HOST || arena->kind == REFIT_ARENA_CUDA
               ? REFIT_OK
               : refit_fail(err, REFIT_UNSUPPORTED, "exchange: memory of kind %s can't be exchanged", arena->ops->name);
}

static enum refit_status take_bounce(struct refit_exchange *exchange, struct refit_error *err)
{
    exchange->bounce = malloc(REFIT_EXCHANGE_HOST_CHUNK);
    return exchange->bounce ? REFIT_OK
                            : refit_fail_alloc(err, "the bounce buffer of an exchange", REFIT_EXCHANGE_HOST_CHUNK);
}

enum refit_status refit_exchange_create(const struct refit_arena *a, const struct refit_arena *b,
                                        struct refit_exchange **out, struct refit_error *err)
{
    int device = refit_arena_device(a) >= 0 ? refit_arena_device(a) : refit_arena_device(b);
    enum refit_status status = check_kind(a, err);
    if (status == REFIT_OK)
        status = check_kind(b, err);
    if (status != REFIT_OK)
        return status;
    struct refit_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return refit_fail_alloc(err, "an exchange", sizeof *exchange);
    status = device >= 0 ? refit_cuda_exchange_create(device, &exchange->cuda, err) : take_bounce(exchange, err);
    if (status == REFIT_OK)
        status = refit_exchange_prepare(exchange, a, err);
    if (status == REFIT_OK)
        status = refit_exchange_prepare(exchange, b, err);
    if (status != REFIT_OK) {
        refit_exchange_destroy(exchange);
        return status;
    }
    *out = exchange;
    return REFIT_OK;
}

enum refit_status refit_exchange_prepare(struct refit_exchange *exchange, const struct refit_arena *b,
                                         struct refit_error *err)
{
    return exchange->cuda ? refit_cuda_exchange_prepare(exchange->cuda, b, err) : REFIT_OK;
}

static enum refit_status find_bytes(const struct refit_arena *arena, uint64_t bytes, uint8_t **at,
                                    struct refit_error *err)
{
    *at = refit_arena_host(arena, 0, bytes);
    if (arena->read_only || !*at)
        return refit_fail(err, REFIT_INVALID, "exchange: %llu bytes of an arena of %llu can't be written in one piece",
                          (unsigned long long)bytes, (unsigned long long)arena->bytes);
    return REFIT_OK;
}

enum refit_status refit_exchange_run(struct refit_exchange *exchange, struct refit_arena *a, struct refit_arena *b,
                                     uint64_t bytes, struct refit_deadline deadline, struct refit_exchanged *done,
                                     struct refit_error *err)
{
    uint8_t *of_a, *of_b;
    *done = (struct refit_exchanged){.bytes = 0};
    if (exchange->cuda)
        return refit_cuda_exchange_run(exchange->cuda, a, b, bytes, deadline, done, err);
    enum refit_status status = find_bytes(a, bytes, &of_a, err);
    if (status == REFIT_OK)
        status = find_bytes(b, bytes, &of_b, err);
    while (status == REFIT_OK && done->bytes < bytes) {
        uint64_t left = bytes - done->bytes;
        uint64_t chunk = left < REFIT_EXCHANGE_HOST_CHUNK ? left : REFIT_EXCHANGE_HOST_CHUNK;
        status = refit_exchange_host_chunk(of_a + done->bytes, of_b + done->bytes, chunk, exchange->bounce, err);
        if (status == REFIT_OK)
            done->bytes += chunk;
    }
    return status;
}

void refit_exchange_destroy(struct refit_exchange *exchange)
{
    if (!exchange)
        return;
    refit_cuda_exchange_destroy(exchange->cuda);
    free(exchange->bounce);
    free(exchange);
}
