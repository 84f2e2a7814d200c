/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the digest: its constants and the table of kernels. A kernel sums over whole words of one block;
 * everything else (parts of words, block weights, strided rows) is written once, in digest.c.
 */
#ifndef REFIT_LAYOUTS_DIGEST_KERNEL_H
#define REFIT_LAYOUTS_DIGEST_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFIT_DIGEST_BLOCK_WORDS 1024u
#define REFIT_DIGEST_BLOCK_BYTES (4 * REFIT_DIGEST_BLOCK_WORDS)
/* Behind each table of K lie zeros, so that a vector load may begin at any word of it. */
#define REFIT_DIGEST_K_PAD 32u
/* K_1[j] lies this many words behind K_0[j]. */
#define REFIT_DIGEST_K1 (REFIT_DIGEST_BLOCK_WORDS + REFIT_DIGEST_K_PAD)

/* How far ahead of the words in hand to prefetch. The hardware's prefetchers stop at each page, and a core can have more
 * requests to memory open in its second-level cache than in its first: fetching into the second, a page ahead, reads
 * 8 % more per second than into the first, 1.5 KB ahead. */
#define REFIT_DIGEST_AHEAD 4096

struct refit_digest_kernel {
    const char *name;
    /* sum[k] += x_i * k[k * REFIT_DIGEST_K1 + i] over `words` words at x, any alignment. The line `ahead` bytes from
     * each one read is prefetched, wherever that is. */
    void (*sum)(uint64_t sum[2], const uint8_t *x, const uint32_t *k, size_t words, ptrdiff_t ahead);
    /* The same, and the words copied to dst, any alignment. */
    void (*copy)(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k, size_t words,
                 ptrdiff_t ahead);
    /* The same past the caches, or NULL. dst is a multiple of 64, words of 16; the caller fences. */
    void (*stream)(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k, size_t words,
                   ptrdiff_t ahead);
    void (*fence)(void);
};

extern const struct refit_digest_kernel refit_digest_portable;
#if defined(__x86_64__)
extern const struct refit_digest_kernel refit_digest_avx2;
extern const struct refit_digest_kernel refit_digest_avx512;
#endif

#endif
