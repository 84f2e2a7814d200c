/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/digest_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define LANES 16u

struct sums {
    __m512i s0, s1;
};

/* See digest_avx2.c. */
AVX512 static inline struct sums step(struct sums s, __m512i x, const uint32_t *k)
{
    __m512i odd = _mm512_srli_epi64(x, 32);
    const uint32_t *k1 = k + REFIT_DIGEST_K1;
    __m512i e0 = _mm512_mul_epu32(x, _mm512_loadu_si512(k));
    __m512i o0 = _mm512_mul_epu32(odd, _mm512_loadu_si512(k + 1));
    __m512i e1 = _mm512_mul_epu32(x, _mm512_loadu_si512(k1));
    __m512i o1 = _mm512_mul_epu32(odd, _mm512_loadu_si512(k1 + 1));
    s.s0 = _mm512_add_epi64(s.s0, _mm512_add_epi64(e0, o0));
    s.s1 = _mm512_add_epi64(s.s1, _mm512_add_epi64(e1, o1));
    return s;
}

/* _mm512_reduce_add_epi64 adds signed numbers, whose overflow is undefined. */
AVX512 static inline uint64_t across(__m512i v)
{
    __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i quarter = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint64_t)_mm_cvtsi128_si64(quarter) + (uint64_t)_mm_extract_epi64(quarter, 1);
}

AVX512 static inline void finish(uint64_t sum[2], struct sums s)
{
    sum[0] += across(s.s0);
    sum[1] += across(s.s1);
}

AVX512 static inline __mmask16 first(size_t words)
{
    return (__mmask16)((1u << words) - 1);
}

AVX512 static void avx512_sum(uint64_t sum[2], const uint8_t *x, const uint32_t *k, size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (; words >= LANES; words -= LANES, x += 4 * LANES, k += LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        s = step(s, _mm512_loadu_si512(x), k);
    }
    if (words > 0) {
        s = step(s, _mm512_maskz_loadu_epi32(first(words), x), k);
    }
    finish(sum, s);
}

AVX512 static void avx512_copy(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k,
                               size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (; words >= LANES; words -= LANES, x += 4 * LANES, dst += 4 * LANES, k += LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        __m512i a = _mm512_loadu_si512(x);
        _mm512_storeu_si512(dst, a);
        s = step(s, a, k);
    }
    if (words > 0) {
        __m512i a = _mm512_maskz_loadu_epi32(first(words), x);
        _mm512_mask_storeu_epi32(dst, first(words), a);
        s = step(s, a, k);
    }
    finish(sum, s);
}

AVX512 static void avx512_stream(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k,
                                 size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (; words >= LANES; words -= LANES, x += 4 * LANES, dst += 4 * LANES, k += LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        __m512i a = _mm512_loadu_si512(x);
        _mm512_stream_si512((void *)dst, a);
        s = step(s, a, k);
    }
    finish(sum, s);
}

static void avx512_fence(void)
{
    _mm_sfence();
}

const struct refit_digest_kernel refit_digest_avx512 = {
    .name = "avx512",
    .sum = avx512_sum,
    .copy = avx512_copy,
    .stream = avx512_stream,
    .fence = avx512_fence,
};
#endif
