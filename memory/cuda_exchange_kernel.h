/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: two ranges exchange their bytes, as one thread of many does it; the registers are the bounce
 * buffer, so each byte is read once and written once. One source for CUDA's compiler and for the host's, as cuda_move.h.
 */
#ifndef REFIT_MEMORY_CUDA_EXCHANGE_KERNEL_H
#define REFIT_MEMORY_CUDA_EXCHANGE_KERNEL_H

#include "layouts/digest_constants.h"

#define REFIT_CUDA_EXCHANGE_AHEAD 4u /* loads of a thread before its first store: they hide the memory's latency */

/* The widest a thread loads and stores at once. */
struct __attribute__((aligned(16))) refit_cuda_words {
    uint64_t low, high;
};

/* The kernel's only parameter. Both are aligned to 16 bytes, and do not overlap. */
struct refit_cuda_exchange_range {
    uint8_t *a, *b;
    uint64_t bytes;
};

REFIT_DIGEST_INLINE void refit_cuda_exchange_thread(const struct refit_cuda_exchange_range *range, uint64_t thread,
                                                    uint64_t threads)
{
    struct refit_cuda_words *a = (struct refit_cuda_words *)(void *)range->a;
    struct refit_cuda_words *b = (struct refit_cuda_words *)(void *)range->b;
    uint64_t count = range->bytes / sizeof *a;
    for (uint64_t first = thread; first < count; first += REFIT_CUDA_EXCHANGE_AHEAD * threads) {
        struct refit_cuda_words of_a[REFIT_CUDA_EXCHANGE_AHEAD], of_b[REFIT_CUDA_EXCHANGE_AHEAD];
        for (uint32_t i = 0; i < REFIT_CUDA_EXCHANGE_AHEAD; i++) {
            uint64_t at = first + i * threads;
            if (at < count) {
                of_a[i] = a[at];
                of_b[i] = b[at];
            }
        }
        for (uint32_t i = 0; i < REFIT_CUDA_EXCHANGE_AHEAD; i++) {
            uint64_t at = first + i * threads;
            if (at < count) {
                a[at] = of_b[i];
                b[at] = of_a[i];
            }
        }
    }
    for (uint64_t at = count * sizeof *a + thread; at < range->bytes; at += threads) {
        uint8_t byte = range->a[at];
        range->a[at] = range->b[at];
        range->b[at] = byte;
    }
}

#endif
