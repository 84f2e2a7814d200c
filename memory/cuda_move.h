/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: copying rows and digesting them, as one thread of many does it. One source for CUDA's compiler
 * and for the host's, which runs it where a stand-in takes the place of the driver.
 */
#ifndef REFIT_MEMORY_CUDA_MOVE_H
#define REFIT_MEMORY_CUDA_MOVE_H

#include "layouts/digest_constants.h"

#define REFIT_CUDA_THREADS 256u
/* To a tile: what a thread does once for each tile is shared by eight quads. */
#define REFIT_CUDA_LANES_MAX 32u

/* What a thread moves at once where addresses allow it. */
struct refit_cuda_quad {
    uint32_t word[4];
} __attribute__((aligned(16)));

/* The kernel's only parameter. Bytes move when dst is not NULL and are digested when sum is not NULL. */
struct refit_cuda_move {
    uint8_t *dst;
    const uint8_t *src;
    int64_t dst_stride;
    int64_t src_stride;
    uint64_t run_bytes;
    uint64_t count;
    uint64_t tensor_offset;
    int64_t tensor_stride;
    const uint32_t *k;      /* K_0, then K_1: 1024 each */
    unsigned long long *sum; /* two; added to */
    uint64_t tiles_per_run;
    uint32_t lanes;         /* threads to a tile: a power of two, at most REFIT_CUDA_LANES_MAX */
};

/* Part of a run in one block of the digest, so that a thread computes the block's weights once. */
struct refit_cuda_tile {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t first; /* word of the tensor */
    uint64_t words;
    uint64_t begin; /* the run's bytes in the tensor */
    uint64_t end;
};

REFIT_DIGEST_INLINE struct refit_cuda_tile refit_cuda_tile_at(const struct refit_cuda_move *move, uint64_t index)
{
    struct refit_cuda_tile tile;
    uint64_t run, part;
    if ((index | move->tiles_per_run) >> 32 == 0) { /* which is several times as fast */
        run = (uint32_t)index / (uint32_t)move->tiles_per_run;
        part = (uint32_t)index % (uint32_t)move->tiles_per_run;
    } else {
        run = index / move->tiles_per_run;
        part = index % move->tiles_per_run;
    }
    tile.begin = move->tensor_offset + run * (uint64_t)move->tensor_stride;
    tile.end = tile.begin + move->run_bytes;
    tile.dst = move->dst ? move->dst + (int64_t)run * move->dst_stride : 0;
    tile.src = move->src + (int64_t)run * move->src_stride;
    uint64_t block = tile.begin / 4096 + part;
    uint64_t first = tile.begin / 4 > block * 1024 ? tile.begin / 4 : block * 1024;
    uint64_t behind = (tile.end + 3) / 4 < (block + 1) * 1024 ? (tile.end + 3) / 4 : (block + 1) * 1024;
    tile.first = first;
    tile.words = behind > first ? behind - first : 0;
    return tile;
}

/* How many quads a tile begins with: none unless the first word, its place among the digest's constants and both addresses
 * are where a quad may begin. */
REFIT_DIGEST_INLINE uint64_t refit_cuda_quads(const struct refit_cuda_tile *tile)
{
    uint64_t at = tile->first * 4 - tile->begin;
    if (tile->first * 4 < tile->begin || (tile->first & 3) != 0 || (((uintptr_t)(tile->src + at)) & 15) != 0 ||
        (tile->dst && (((uintptr_t)(tile->dst + at)) & 15) != 0))
        return 0;
    uint64_t whole = tile->end / 4 > tile->first ? tile->end / 4 - tile->first : 0;
    return (whole < tile->words ? whole : tile->words) / 4;
}

/* Quad `q` of the tile, and its share of the sums. */
REFIT_DIGEST_INLINE void refit_cuda_move_quad(const struct refit_cuda_move *move, const struct refit_cuda_tile *tile,
                                              uint64_t q, unsigned long long part[2])
{
    uint64_t at = tile->first * 4 - tile->begin + q * 16;
    struct refit_cuda_quad x = *(const struct refit_cuda_quad *)(const void *)(tile->src + at);
    if (tile->dst)
        *(struct refit_cuda_quad *)(void *)(tile->dst + at) = x;
    if (!move->sum)
        return;
    const uint32_t *k = move->k + ((tile->first + 4 * q) & 1023);
    struct refit_cuda_quad k0 = *(const struct refit_cuda_quad *)(const void *)k;
    struct refit_cuda_quad k1 = *(const struct refit_cuda_quad *)(const void *)(k + 1024);
    for (int i = 0; i < 4; i++) {
        part[0] += (unsigned long long)x.word[i] * k0.word[i];
        part[1] += (unsigned long long)x.word[i] * k1.word[i];
    }
}

/* Whole words at once where both addresses allow it. */
REFIT_DIGEST_INLINE uint32_t refit_cuda_word(const struct refit_cuda_tile *tile, uint64_t word)
{
    uint64_t from = word * 4 > tile->begin ? word * 4 : tile->begin;
    uint64_t to = word * 4 + 4 < tile->end ? word * 4 + 4 : tile->end;
    const uint8_t *src = tile->src + (from - tile->begin);
    uint8_t *dst = tile->dst ? tile->dst + (from - tile->begin) : 0;
    if (to - from == 4 && (((uintptr_t)src | (uintptr_t)dst) & 3) == 0) {
        uint32_t x = *(const uint32_t *)(const void *)src;
        if (dst)
            *(uint32_t *)(void *)dst = x;
        return x;
    }
    uint32_t x = 0;
    for (uint64_t i = from; i < to; i++) {
        uint8_t byte = src[i - from];
        x |= (uint32_t)byte << (8 * (i & 3));
        if (dst)
            dst[i - from] = byte;
    }
    return x;
}

/* The share of thread `thread` of `threads`. */
REFIT_DIGEST_INLINE void refit_cuda_move_thread(const struct refit_cuda_move *move, uint64_t thread, uint64_t threads,
                                                unsigned long long sum[2])
{
    uint64_t lane = thread % move->lanes;
    sum[0] = sum[1] = 0;
    for (uint64_t i = thread / move->lanes; i < move->count * move->tiles_per_run; i += threads / move->lanes) {
        struct refit_cuda_tile tile = refit_cuda_tile_at(move, i);
        unsigned long long part[2] = {0, 0};
        uint64_t quads = refit_cuda_quads(&tile);
        for (uint64_t q = lane; q < quads; q += move->lanes)
            refit_cuda_move_quad(move, &tile, q, part);
        for (uint64_t w = quads * 4 + lane; w < tile.words; w += move->lanes) {
            uint64_t word = tile.first + w;
            uint64_t x = refit_cuda_word(&tile, word);
            if (move->sum) {
                part[0] += x * move->k[word & 1023];
                part[1] += x * move->k[1024 + (word & 1023)];
            }
        }
        sum[0] += part[0] * refit_digest_weight(0, tile.first >> 10);
        sum[1] += part[1] * refit_digest_weight(1, tile.first >> 10);
    }
}

#endif
