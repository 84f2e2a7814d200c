/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/digest_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define LANES 8u

struct sums {
    __m256i s0, s1;
};

/* vpmuludq multiplies the even words of both sides: the odd ones are shifted down in x, and in K read from one
 * word further on. */
AVX2 static inline struct sums step(struct sums s, __m256i x, const uint32_t *k)
{
    __m256i odd = _mm256_srli_epi64(x, 32);
    const uint32_t *k1 = k + REFIT_DIGEST_K1;
    __m256i e0 = _mm256_mul_epu32(x, _mm256_loadu_si256((const __m256i *)(const void *)k));
    __m256i o0 = _mm256_mul_epu32(odd, _mm256_loadu_si256((const __m256i *)(const void *)(k + 1)));
    __m256i e1 = _mm256_mul_epu32(x, _mm256_loadu_si256((const __m256i *)(const void *)k1));
    __m256i o1 = _mm256_mul_epu32(odd, _mm256_loadu_si256((const __m256i *)(const void *)(k1 + 1)));
    s.s0 = _mm256_add_epi64(s.s0, _mm256_add_epi64(e0, o0));
    s.s1 = _mm256_add_epi64(s.s1, _mm256_add_epi64(e1, o1));
    return s;
}

AVX2 static inline __m256i load(const uint8_t *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

AVX2 static inline void store(uint8_t *dst, __m256i x)
{
    _mm256_storeu_si256((__m256i *)(void *)dst, x);
}

AVX2 static inline uint64_t across(__m256i v)
{
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(half) + (uint64_t)_mm_extract_epi64(half, 1);
}

AVX2 static inline void finish(uint64_t sum[2], struct sums s)
{
    sum[0] += across(s.s0);
    sum[1] += across(s.s1);
}

/* Selects the first `words` (0 to 7) lanes. */
AVX2 static inline __m256i first(size_t words)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)words), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 static void avx2_sum(uint64_t sum[2], const uint8_t *x, const uint32_t *k, size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (; words >= 2 * LANES; words -= 2 * LANES, x += 8 * LANES, k += 2 * LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        s = step(s, load(x), k);
        s = step(s, load(x + 4 * LANES), k + LANES);
    }
    if (words >= LANES) {
        s = step(s, load(x), k);
        words -= LANES, x += 4 * LANES, k += LANES;
    }
    if (words > 0) {
        s = step(s, _mm256_maskload_epi32((const int *)(const void *)x, first(words)), k);
    }
    finish(sum, s);
}

AVX2 static void avx2_copy(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k,
                           size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (; words >= 2 * LANES; words -= 2 * LANES, x += 8 * LANES, dst += 8 * LANES, k += 2 * LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        __m256i a = load(x);
        __m256i b = load(x + 4 * LANES);
        store(dst, a);
        store(dst + 4 * LANES, b);
        s = step(s, a, k);
        s = step(s, b, k + LANES);
    }
    for (; words > 0; words -= words < LANES ? words : LANES, x += 4 * LANES, dst += 4 * LANES, k += LANES) {
        __m256i mask = words < LANES ? first(words) : _mm256_set1_epi32(-1);
        __m256i a = _mm256_maskload_epi32((const int *)(const void *)x, mask);
        _mm256_maskstore_epi32((int *)(void *)dst, mask, a);
        s = step(s, a, k);
    }
    finish(sum, s);
}

AVX2 static void avx2_stream(uint64_t sum[2], uint8_t *restrict dst, const uint8_t *restrict x, const uint32_t *k,
                             size_t words, ptrdiff_t ahead)
{
    struct sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (; words >= 2 * LANES; words -= 2 * LANES, x += 8 * LANES, dst += 8 * LANES, k += 2 * LANES) {
        _mm_prefetch((const void *)((uintptr_t)x + (uintptr_t)ahead), _MM_HINT_T1);
        __m256i a = load(x);
        __m256i b = load(x + 4 * LANES);
        _mm256_stream_si256((__m256i *)(void *)dst, a);
        _mm256_stream_si256((__m256i *)(void *)(dst + 4 * LANES), b);
        s = step(s, a, k);
        s = step(s, b, k + LANES);
    }
    finish(sum, s);
}

static void avx2_fence(void)
{
    _mm_sfence();
}

const struct refit_digest_kernel refit_digest_avx2 = {
    .name = "avx2",
    .sum = avx2_sum,
    .copy = avx2_copy,
    .stream = avx2_stream,
    .fence = avx2_fence,
};
#endif
