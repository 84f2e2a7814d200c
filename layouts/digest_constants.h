/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest's constants, for the CPU and for kernels of a GPU alike (C, C++ and CUDA).
 */
#ifndef REFIT_LAYOUTS_DIGEST_CONSTANTS_H
#define REFIT_LAYOUTS_DIGEST_CONSTANTS_H

#include <stdint.h>

#if defined(__CUDACC__)
#define REFIT_DIGEST_INLINE static inline __host__ __device__
#else
#define REFIT_DIGEST_INLINE static inline
#endif

/* Output number n (from 0) of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"). */
REFIT_DIGEST_INLINE uint64_t refit_splitmix64(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Frozen: another seed is another wire format. The digits are those of pi, after the point. */
REFIT_DIGEST_INLINE uint32_t refit_digest_k(unsigned k, unsigned word)
{
    return (uint32_t)(refit_splitmix64(k == 0 ? 0x243f6a8885a308d3u : 0x13198a2e03707344u, word) >> 32) | 1;
}

REFIT_DIGEST_INLINE uint64_t refit_digest_weight(unsigned k, uint64_t block)
{
    return refit_splitmix64(k == 0 ? 0xa4093822299f31d0u : 0x082efa98ec4e6c89u, block) | 1;
}

#endif
