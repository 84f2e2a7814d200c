/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest's speed per kernel: in cache, from memory, over rows and elements, and copy-and-digest against memcpy
 * between two mappings (medians of interleaved rounds).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "layouts/digest.h"

#define ROUNDS 15
#define CACHE_BYTES ((size_t)256 << 10)
#define MEMORY_BYTES ((size_t)512 << 20)
#define PIECE_BYTES ((size_t)4 << 20)
#define ROW_BYTES ((size_t)3584)

struct bench {
    uint8_t *src;
    uint8_t *dst;
    struct refit_digest sink;
};

typedef void (*work_fn)(struct bench *b);

static void in_cache(struct bench *b)
{
    for (size_t i = 0; i < 400; i++) {
        refit_digest_add(&b->sink, b->src, CACHE_BYTES, 0);
    }
}

static void from_memory(struct bench *b)
{
    for (size_t at = 0; at < MEMORY_BYTES; at += PIECE_BYTES) {
        refit_digest_add(&b->sink, b->src + at, PIECE_BYTES, at);
    }
}

static void odd_offset(struct bench *b)
{
    for (size_t i = 0; i < 400; i++) {
        refit_digest_add(&b->sink, b->src + 3, CACHE_BYTES, 1);
    }
}

static void rows(struct bench *b)
{
    const size_t count = CACHE_BYTES / ROW_BYTES;
    for (size_t i = 0; i < 400; i++) {
        refit_digest_add_rows(&b->sink, b->src, ROW_BYTES, count, (ptrdiff_t)ROW_BYTES, 1024, 8 * ROW_BYTES);
    }
}

static void transposed_elements(struct bench *b)
{
    refit_digest_add_rows(&b->sink, b->src, 2, 4096, 8192, 0, 2);
    for (size_t i = 1; i < 64; i++) {
        refit_digest_add_rows(&b->sink, b->src + 2 * i, 2, 4096, 8192, 8192 * i, 2);
    }
}

static void scattered_elements(struct bench *b)
{
    for (size_t i = 0; i < 64; i++) {
        refit_digest_add_rows(&b->sink, b->src + 8192 * i, 2, 4096, 2, 2 * i, 8192);
    }
}

static void plain_memcpy(struct bench *b)
{
    for (size_t at = 0; at < MEMORY_BYTES; at += PIECE_BYTES) {
        memcpy(b->dst + at, b->src + at, PIECE_BYTES);
    }
}

static void copy_digest(struct bench *b)
{
    for (size_t at = 0; at < MEMORY_BYTES; at += PIECE_BYTES) {
        refit_digest_copy(&b->sink, b->dst + at, b->src + at, PIECE_BYTES, at);
    }
}

static void copy_digest_rows(struct bench *b)
{
    for (size_t at = 0; at + ROW_BYTES <= MEMORY_BYTES; at += ROW_BYTES) {
        refit_digest_copy(&b->sink, b->dst + at, b->src + at, ROW_BYTES, 4 * at);
    }
}

static const struct {
    const char *name;
    work_fn fn;
    size_t bytes;
} cases[] = {
    {"add, in cache", in_cache, 400 * CACHE_BYTES},
    {"add, in cache, odd offset", odd_offset, 400 * CACHE_BYTES},
    {"add rows of 3.5 KB, in cache", rows, 400 * (CACHE_BYTES / ROW_BYTES) * ROW_BYTES},
    {"add, from memory", from_memory, MEMORY_BYTES},
    {"add, 2-byte runs, dense in the tensor", transposed_elements, (size_t)64 * 8192},
    {"add, 2-byte runs, apart in the tensor", scattered_elements, (size_t)64 * 8192},
    {"memcpy of 4 MiB", plain_memcpy, MEMORY_BYTES},
    {"copy and digest, 4 MiB", copy_digest, MEMORY_BYTES},
    {"copy and digest, rows of 3.5 KB", copy_digest_rows, MEMORY_BYTES},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(struct bench *b, const char *kernel)
{
    double rates[CASES][ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < CASES; i++) {
            int64_t begin = refit_clock_ns();
            cases[i].fn(b);
            rates[i][round] = (double)cases[i].bytes / (double)(refit_clock_ns() - begin);
        }
    }
    for (size_t i = 0; i < CASES; i++) {
        qsort(rates[i], ROUNDS, sizeof(rates[i][0]), by_value);
        printf("%-9s %-40s %7.2f GB/s (%.2f to %.2f)\n", kernel, cases[i].name, rates[i][ROUNDS / 2], rates[i][0],
               rates[i][ROUNDS - 1]);
    }
}

static uint8_t *map(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(at, 0x5a, len);
    return at;
}

int main(void)
{
    struct bench b = {.src = map(MEMORY_BYTES), .dst = map(MEMORY_BYTES)};
    for (size_t i = 0; i < MEMORY_BYTES; i++) {
        b.src[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    const char *const kernels[] = {"portable", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (refit_digest_use(kernels[i])) {
            run(&b, kernels[i]);
        } else {
            printf("%-9s not on this CPU\n", kernels[i]);
        }
    }
    printf("(checksum of the work: %016llx)\n", (unsigned long long)b.sink.d[0]);
    return 0;
}
