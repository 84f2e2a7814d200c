/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "layouts/digest_kernel.h"

/* Plain loops that compilers turn into vectors of 32 x 32 -> 64 multiplies (built with -O3). */
static void portable_sum(uint64_t sum[2], const uint8_t *x, const uint32_t *k, size_t words, ptrdiff_t ahead)
{
    (void)ahead;
    uint64_t s0 = 0;
    uint64_t s1 = 0;
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, x + 4 * i, sizeof(word));
        s0 += (uint64_t)word * k[i];
        s1 += (uint64_t)word * k[i + REFIT_DIGEST_K1];
    }
    sum[0] += s0;
    sum[1] += s1;
}

/* A block lies in the first cache, so a second look at it costs little. */
static void portable_copy(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k,
                          size_t words, ptrdiff_t ahead)
{
    memcpy(dst, x, 4 * words);
    portable_sum(sum, dst, k, words, ahead);
}

const struct refit_digest_kernel refit_digest_portable = {
    .name = "portable",
    .sum = portable_sum,
    .copy = portable_copy,
};
