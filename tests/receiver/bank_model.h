/* SPDX-License-Identifier: Apache-2.0
 *
 * The model that the bank's tests serve: every 64-bit word of every buffer is the version. Shared by the tests and the
 * processes they start.
 */
#ifndef REFIT_TESTS_RECEIVER_BANK_MODEL_H
#define REFIT_TESTS_RECEIVER_BANK_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "receiver/bank.h"
#include "tests/support/gpu.h"

#define MODEL_WAIT_MS 30000 /* for what must happen */

/* Two buffers: one cut over the ranks, one on each. `name` makes another layout. */
static inline void model_layout(char *text, size_t size, unsigned ranks, unsigned long rank_bytes, const char *name)
{
    snprintf(text, size,
             "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[%u]}},"
             "\"entries\":[{\"tensor\":\"%s\",\"dtype\":\"U8\",\"shape\":[%lu],\"mesh\":\"m\","
             "\"placements\":[\"Shard(0)\"]},"
             "{\"tensor\":\"norm\",\"dtype\":\"U8\",\"shape\":[1000],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}",
             ranks, ranks, name, rank_bytes * ranks);
}

static inline void model_fill(struct refit_bank *bank, uint32_t slot, unsigned ranks, uint64_t version)
{
    struct refit_arena *const *arenas = refit_bank_arenas(bank, slot);
    for (unsigned rank = 0; rank < ranks; rank++) {
        uint64_t bytes = refit_arena_bytes(arenas[rank]) / 8 * 8;
        bool device = refit_arena_kind(arenas[rank]) == REFIT_ARENA_CUDA;
        uint64_t *words = device ? malloc(bytes + 8) : refit_arena_host(arenas[rank], 0, bytes);
        for (uint64_t i = 0; i < bytes / 8; i++)
            words[i] = version;
        if (device) {
            gpu_write(refit_arena_device_address(arenas[rank], 0, bytes), words, bytes);
            free(words);
        }
    }
}

/* Begin, fill, stage. */
static inline enum refit_status model_stage(struct refit_bank *bank, unsigned ranks, uint64_t version, int64_t ms,
                                            uint32_t *slot, struct refit_error *err)
{
    struct refit_deadline deadline = refit_deadline_in_ms(ms);
    struct refit_version named = {.version = version};
    enum refit_status status = refit_bank_begin(bank, deadline, NULL, NULL, NULL, slot, err);
    if (status != REFIT_OK)
        return status;
    snprintf(named.label, sizeof named.label, "step-%llu", (unsigned long long)version);
    memset(named.digest, 'a', sizeof named.digest - 1);
    status = refit_bank_vacate(bank, *slot, &named, "flush", deadline, NULL, NULL, NULL, err);
    if (status != REFIT_OK) {
        refit_bank_discard(bank, *slot);
        return status;
    }
    model_fill(bank, *slot, ranks, version);
    status = refit_bank_stage(bank, *slot, "r", &named, deadline, NULL, err);
    if (status != REFIT_OK)
        refit_bank_discard(bank, *slot);
    return status;
}

static inline enum refit_status model_put(struct refit_bank *bank, unsigned ranks, uint64_t version, int64_t ms,
                                          struct refit_error *err)
{
    uint32_t slot;
    enum refit_status status = model_stage(bank, ranks, version, ms, &slot, err);
    if (status != REFIT_OK)
        return status;
    status = refit_bank_commit(bank, slot, "r", "flush", refit_deadline_in_ms(ms), err);
    if (status != REFIT_OK)
        refit_bank_discard(bank, slot);
    return status;
}

#endif
