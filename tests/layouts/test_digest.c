/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/digest.h"

#define TENSOR_BYTES ((size_t)40000) /* ten blocks, the last one not full */

static const char *const kernels[] = {"portable", "avx2", "avx512"};
#define KERNELS (sizeof(kernels) / sizeof(kernels[0]))

static uint64_t random_state;

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t n)
{
    return (size_t)(next(&random_state) % n);
}

static uint64_t output(uint64_t seed, uint64_t n)
{
    uint64_t state = seed + n * 0x9e3779b97f4a7c15u;
    return next(&state);
}

/* The formula of digest.h, word for word. */
static struct refit_digest by_formula(const uint8_t *bytes, size_t len)
{
    const uint64_t k_seed[2] = {0x243f6a8885a308d3u, 0x13198a2e03707344u};
    const uint64_t w_seed[2] = {0xa4093822299f31d0u, 0x082efa98ec4e6c89u};
    struct refit_digest digest = {{0, 0}};
    for (size_t i = 0; i < (len + 3) / 4; i++) {
        uint64_t x = 0;
        for (size_t j = 4 * i; j < len && j < 4 * i + 4; j++) {
            x |= (uint64_t)bytes[j] << (8 * (j % 4));
        }
        for (unsigned k = 0; k < 2; k++) {
            uint64_t key = (uint32_t)(output(k_seed[k], i & 1023) >> 32) | 1;
            digest.d[k] += (output(w_seed[k], i >> 10) | 1) * (x * key);
        }
    }
    return digest;
}

static struct refit_digest whole(const uint8_t *bytes, size_t len)
{
    struct refit_digest digest = {{0, 0}};
    refit_digest_add(&digest, bytes, len, 0);
    return digest;
}

static void fill_random(uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)next(&random_state);
    }
}

struct fixture {
    uint8_t *bytes;
    uint8_t *other;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f || !(f->bytes = malloc(TENSOR_BYTES + 64)) || !(f->other = malloc(TENSOR_BYTES + 64))) {
        return -1;
    }
    random_state = 20;
    fill_random(f->bytes, TENSOR_BYTES + 64);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    free(f->bytes);
    free(f->other);
    free(f);
    return 0;
}

static void assert_digest(struct refit_digest found, struct refit_digest expected)
{
    assert_int_equal(found.d[0], expected.d[0]);
    assert_int_equal(found.d[1], expected.d[1]);
}

#define FOR_EACH_KERNEL(i) \
    for (size_t i = 0; i < KERNELS; i++) \
        if (refit_digest_use(kernels[i]))

static void digest_is_the_formula_with_every_kernel(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        assert_string_equal(refit_digest_kernel(), kernels[i]);
        for (size_t len = 0; len < 200; len++) {
            assert_digest(whole(f->bytes, len), by_formula(f->bytes, len));
        }
        assert_digest(whole(f->bytes + 1, TENSOR_BYTES), by_formula(f->bytes + 1, TENSOR_BYTES));
    }
    assert_false(refit_digest_use("no-such-kernel"));
}

/* These bits are in other people's hands (wire, published digests): they never change. */
static void digest_of_known_bytes_is_frozen(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t len;
        const char *hex;
    } golden[] = {
        {0, "00000000000000000000000000000000"},
        {1, "5421600df71cc5eddaba44bcdcdd6f3f"},
        {4096, "d17e3e4de68259064374c3582b261c76"},
        {4097, "ea7524eb3369d5bf4a1eab35ed846073"},
        {40000, "aaad7acbaece3a480cf404465753d650"},
    };
    for (size_t i = 0; i < TENSOR_BYTES; i++) {
        f->bytes[i] = (uint8_t)(i * 7 + i / 256 + 1);
    }
    FOR_EACH_KERNEL(i) {
        for (size_t g = 0; g < sizeof(golden) / sizeof(golden[0]); g++) {
            char hex[REFIT_DIGEST_HEX_MAX];
            refit_digest_hex(whole(f->bytes, golden[g].len), hex);
            assert_string_equal(hex, golden[g].hex);
        }
    }
}

static void any_cut_adds_up(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        for (unsigned round = 0; round < 300; round++) {
            const size_t most = (size_t)1 << (1 + below(15));
            const size_t len = 1 + below(TENSOR_BYTES);
            const struct refit_digest expected = whole(f->bytes, len);
            struct refit_digest sum = {{0, 0}};
            for (size_t at = 0; at < len;) {
                size_t n = 1 + below(most);
                n = n < len - at ? n : len - at;
                struct refit_digest part = {{0, 0}};
                /* From another alignment than its own. */
                uint8_t *moved = f->other + below(64);
                memcpy(moved, f->bytes + at, n);
                refit_digest_add(&part, moved, n, at);
                refit_digest_merge(&sum, part);
                at += n;
            }
            assert_true(refit_digest_equal(sum, expected));
        }
    }
}

static void copy_digests_what_it_copies(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        for (unsigned round = 0; round < 1000; round++) {
            const size_t at = below(TENSOR_BYTES);
            const size_t len = below(round % 2 ? 300 : TENSOR_BYTES - at + 1) % (TENSOR_BYTES - at + 1);
            uint8_t *dst = f->other + below(64);
            struct refit_digest copied = {{0, 0}};
            struct refit_digest added = {{0, 0}};
            dst[len] = 0xa5;
            refit_digest_copy(&copied, dst, f->bytes + at, len, at);
            refit_digest_add(&added, f->bytes + at, len, at);
            assert_true(refit_digest_equal(copied, added));
            assert_memory_equal(dst, f->bytes + at, len);
            assert_int_equal(dst[len], 0xa5);
        }
    }
}

/* Large copies go past the caches: another path. */
static void large_copy_digests_what_it_copies(void **state)
{
    const size_t len = ((size_t)2 << 20) + 77;
    uint8_t *src = test_malloc(len + 128);
    uint8_t *dst = test_malloc(len + 128);
    fill_random(src, len + 128);
    FOR_EACH_KERNEL(i) {
        for (size_t shift = 0; shift < 70; shift += 5) {
            struct refit_digest copied = {{0, 0}};
            struct refit_digest added = {{0, 0}};
            dst[shift + len] = 0xa5;
            refit_digest_copy(&copied, dst + shift, src + shift / 2, len, 13 * shift);
            refit_digest_add(&added, src + shift / 2, len, 13 * shift);
            assert_true(refit_digest_equal(copied, added));
            assert_memory_equal(dst + shift, src + shift / 2, len);
            assert_int_equal(dst[shift + len], 0xa5);
        }
    }
    test_free(src);
    test_free(dst);
}

static void copied_rows_equal_a_loop_of_runs(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        for (unsigned round = 0; round < 600; round++) {
            const size_t run = below(round % 2 ? 40 : 3000) + 1;
            const size_t gap = below(50);
            const size_t count = below(6) + 1;
            const size_t at = below(64);
            uint8_t *dst = f->other + below(64);
            struct refit_digest copied = {{0, 0}};
            struct refit_digest added = {{0, 0}};
            const struct refit_digest_runs runs = {
                .dst = dst, .dst_stride = (ptrdiff_t)(run + 1),
                .src = f->bytes + at, .src_stride = (ptrdiff_t)(run + gap),
                .run_bytes = run, .count = count, .tensor_offset = at, .tensor_stride = (int64_t)(2 * run + 3)};
            memset(dst, 0xa5, count * (run + 1));
            refit_digest_copy_rows(&copied, &runs, round % 3 ? REFIT_STORE_CACHED : REFIT_STORE_STREAMED);
            for (size_t row = 0; row < count; row++) {
                const uint8_t *from = f->bytes + at + row * (run + gap);
                refit_digest_add(&added, from, run, at + row * (2 * run + 3));
                assert_memory_equal(dst + row * (run + 1), from, run);
                assert_int_equal(dst[row * (run + 1) + run], 0xa5);
            }
            assert_true(refit_digest_equal(copied, added));
        }
    }
}

static void rows_equal_a_loop_of_runs(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        for (unsigned round = 0; round < 1000; round++) {
            const size_t run = 1 + below(round % 3 == 0 ? 5000 : 20);
            const size_t count = below(TENSOR_BYTES / run < 6000 ? TENSOR_BYTES / run : 6000);
            const size_t room = count > 1 ? (TENSOR_BYTES - run) / (count - 1) : 0;
            const ptrdiff_t stride = round % 4 == 0 ? (ptrdiff_t)run : (ptrdiff_t)below(room + 1);
            const int64_t tensor_stride = round % 2 ? (int64_t)run : (int64_t)below(9000);
            const uint64_t offset = below(100000);
            struct refit_digest rows = {{0, 0}};
            struct refit_digest loop = {{0, 0}};
            refit_digest_add_rows(&rows, f->bytes, run, count, stride, offset, tensor_stride);
            for (size_t r = 0; r < count; r++) {
                refit_digest_add(&loop, f->bytes + r * (size_t)stride, run, offset + r * (uint64_t)tensor_stride);
            }
            assert_true(refit_digest_equal(rows, loop));
        }
    }
}

static void rows_may_run_backwards(void **state)
{
    struct fixture *f = *state;
    FOR_EACH_KERNEL(i) {
        struct refit_digest rows = {{0, 0}};
        refit_digest_add_rows(&rows, f->bytes + 39990, 10, 4000, -10, 39990, -10);
        assert_digest(rows, whole(f->bytes, TENSOR_BYTES));
    }
}

static void each_changed_bit_is_seen(void **state)
{
    struct fixture *f = *state;
    const struct refit_digest right = whole(f->bytes, TENSOR_BYTES);
    for (size_t bit = 0; bit < 8 * TENSOR_BYTES; bit += 1 + below(300)) {
        struct refit_digest part = right;
        uint8_t was = f->bytes[bit / 8];
        uint8_t now = was ^ (uint8_t)(1u << (bit % 8));
        struct refit_digest minus = {{0, 0}};
        refit_digest_add(&minus, &was, 1, bit / 8);
        refit_digest_add(&part, &now, 1, bit / 8);
        part.d[0] -= minus.d[0];
        part.d[1] -= minus.d[1];
        assert_true(part.d[0] != right.d[0]);
        assert_true(part.d[1] != right.d[1]);
    }
}

static void swap(uint8_t *a, uint8_t *b, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* Rows of 128 bf16: neighbours, and those of other blocks. */
static void swapped_rows_are_seen(void **state)
{
    struct fixture *f = *state;
    const size_t row = 256;
    const struct refit_digest right = whole(f->bytes, TENSOR_BYTES);
    for (size_t a = 0; a < TENSOR_BYTES / row; a++) {
        for (size_t b = a + 1; b < TENSOR_BYTES / row; b += 1 + b / 32 * 5) {
            swap(f->bytes + a * row, f->bytes + b * row, row);
            assert_false(refit_digest_equal(whole(f->bytes, TENSOR_BYTES), right));
            swap(f->bytes + a * row, f->bytes + b * row, row);
        }
    }
}

/* Experts are whole numbers of blocks apart, where K repeats: only the block weights tell them apart. */
static void swapped_experts_and_moved_blocks_are_seen(void **state)
{
    struct fixture *f = *state;
    const size_t block = 4096;
    const struct refit_digest right = whole(f->bytes, TENSOR_BYTES);
    for (size_t a = 0; a < 9; a++) {
        for (size_t b = a + 1; b < 9; b++) {
            swap(f->bytes + a * block, f->bytes + b * block, block);
            assert_false(refit_digest_equal(whole(f->bytes, TENSOR_BYTES), right));
            swap(f->bytes + a * block, f->bytes + b * block, block);
        }
    }
    for (size_t shift = 1; shift < 9 * block; shift = 2 * shift + 1) {
        struct refit_digest moved = {{0, 0}};
        refit_digest_add(&moved, f->bytes, TENSOR_BYTES, shift);
        assert_false(refit_digest_equal(moved, right));
        moved = (struct refit_digest){{0, 0}};
        refit_digest_add(&moved, f->bytes, TENSOR_BYTES, block * shift);
        assert_false(refit_digest_equal(moved, right));
    }
}

static void square_left_untransposed_is_seen(void **state)
{
    struct fixture *f = *state;
    const size_t n = 100;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            memcpy(f->other + 2 * (j * n + i), f->bytes + 2 * (i * n + j), 2);
        }
    }
    assert_false(refit_digest_equal(whole(f->other, 2 * n * n), whole(f->bytes, 2 * n * n)));
    /* And the transposed view has the digest of what it shows. */
    struct refit_digest view = {{0, 0}};
    for (size_t row = 0; row < n; row++) {
        refit_digest_add_rows(&view, f->bytes + 2 * row, 2, n, (ptrdiff_t)(2 * n), 2 * n * row, 2);
    }
    assert_true(refit_digest_equal(view, whole(f->other, 2 * n * n)));
}

static void stale_chunk_is_seen(void **state)
{
    struct fixture *f = *state;
    /* The new version differs from the old a little, everywhere, as after a training step. */
    for (size_t i = 0; i < TENSOR_BYTES; i++) {
        f->other[i] = (uint8_t)(f->bytes[i] + (i % 2 == 0));
    }
    const struct refit_digest right = whole(f->other, TENSOR_BYTES);
    for (size_t at = 0; at + 512 <= TENSOR_BYTES; at += 512) {
        swap(f->other + at, f->bytes + at, 512);
        assert_false(refit_digest_equal(whole(f->other, TENSOR_BYTES), right));
        swap(f->other + at, f->bytes + at, 512);
    }
}

static void sign_of_zero_and_nan_payload_are_seen(void **state)
{
    const float zeros[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    const float minus[4] = {0.0F, 0.0F, -0.0F, 0.0F};
    const uint32_t nan_a[2] = {0x7fc00000u, 0x7fc00001u};
    const uint32_t nan_b[2] = {0x7fc00001u, 0x7fc00000u};
    struct refit_digest a = {{0, 0}};
    struct refit_digest b = {{0, 0}};
    refit_digest_add(&a, zeros, sizeof(zeros), 0);
    refit_digest_add(&b, minus, sizeof(minus), 0);
    assert_false(refit_digest_equal(a, b));
    a = b = (struct refit_digest){{0, 0}};
    refit_digest_add(&a, nan_a, sizeof(nan_a), 0);
    refit_digest_add(&b, nan_b, sizeof(nan_b), 0);
    assert_false(refit_digest_equal(a, b));
}

static void offsets_past_32_bits_count(void **state)
{
    struct fixture *f = *state;
    const uint64_t far = ((uint64_t)1 << 45) + 3;
    struct refit_digest once = {{0, 0}};
    struct refit_digest twice = {{0, 0}};
    struct refit_digest low = {{0, 0}};
    refit_digest_add(&once, f->bytes, TENSOR_BYTES, far);
    refit_digest_add(&twice, f->bytes, 12345, far);
    refit_digest_add(&twice, f->bytes + 12345, TENSOR_BYTES - 12345, far + 12345);
    refit_digest_add(&low, f->bytes, TENSOR_BYTES, 3);
    assert_true(refit_digest_equal(once, twice));
    assert_false(refit_digest_equal(once, low));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(digest_is_the_formula_with_every_kernel),
        TEST(digest_of_known_bytes_is_frozen),
        TEST(any_cut_adds_up),
        TEST(copy_digests_what_it_copies),
        TEST(large_copy_digests_what_it_copies),
        TEST(copied_rows_equal_a_loop_of_runs),
        TEST(rows_equal_a_loop_of_runs),
        TEST(rows_may_run_backwards),
        TEST(each_changed_bit_is_seen),
        TEST(swapped_rows_are_seen),
        TEST(swapped_experts_and_moved_blocks_are_seen),
        TEST(square_left_untransposed_is_seen),
        TEST(stale_chunk_is_seen),
        TEST(sign_of_zero_and_nan_payload_are_seen),
        TEST(offsets_past_32_bits_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
