/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <cmocka.h>

#include "layouts/tally.h"

#define THREADS 4
#define ADDS 20000

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = ""};
    if (refit_layout_parse(text, strlen(text), "a test layout", &layout, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return layout;
}

static void *add_many(void *ctx)
{
    for (uint32_t i = 0; i < ADDS; i++) {
        refit_tally_add(ctx, i % 3, (struct refit_digest){{i, UINT64_MAX - i}});
    }
    return NULL;
}

static void adders_may_run_at_once(void **state)
{
    struct refit_tally *tally = refit_tally_create(3);
    pthread_t threads[THREADS];
    uint64_t expected[3][2] = {{0}};
    for (uint32_t i = 0; i < ADDS; i++) {
        expected[i % 3][0] += (uint64_t)THREADS * i;
        expected[i % 3][1] += (uint64_t)THREADS * (UINT64_MAX - i);
    }
    assert_int_equal(refit_tally_count(tally), 3);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, tally), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (uint32_t t = 0; t < 3; t++) {
        const struct refit_digest sum = refit_tally_get(tally, t);
        assert_int_equal(sum.d[0], expected[t][0]);
        assert_int_equal(sum.d[1], expected[t][1]);
    }
    refit_tally_destroy(tally);
    refit_tally_destroy(NULL);
}

#define HEAD \
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[2]}},\"entries\":["
#define EXPERTS \
    "{\"tensor\":\"e.{i}.w\",\"for\":{\"i\":[0,11]},\"dtype\":\"F8_E4M3\",\"shape\":[6,4],\"mesh\":\"m\"," \
    "\"placements\":[\"Shard(0)\"]}"
#define SCALAR "{\"tensor\":\"a.scale\",\"dtype\":\"F32\",\"shape\":[],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}"
static const char one_way[] = HEAD EXPERTS "," SCALAR "]}";
static const char other_way[] = HEAD SCALAR "," EXPERTS "]}";

/* Digests that depend on the name only, so that layouts number tensors as they like. */
static struct refit_tally *tally_of(const struct refit_layout *layout)
{
    const uint32_t count = refit_layout_tensor_count(layout);
    struct refit_tally *tally = refit_tally_create(count);
    for (uint32_t id = 0; id < count; id++) {
        struct refit_tensor tensor;
        struct refit_digest digest = {{0, 0}};
        refit_layout_tensor(layout, id, &tensor);
        refit_digest_add(&digest, tensor.name, strlen(tensor.name), 0);
        refit_tally_add(tally, id, digest);
    }
    return tally;
}

static void model_hex(const char *text, const char *profile, char hex[static REFIT_SHA256_HEX_MAX])
{
    struct refit_layout *layout = parse(text);
    struct refit_tally *tally = tally_of(layout);
    assert_int_equal(refit_model_digest(layout, tally, profile, hex, NULL), REFIT_OK);
    refit_tally_destroy(tally);
    refit_layout_release(layout);
}

static void model_digest_is_sha256_of_the_lines_by_name(void **state)
{
    static const char *const names[] = {"a.scale", "e.0.w", "e.1.w", "e.10.w", "e.2.w", "e.3.w",
                                        "e.4.w",   "e.5.w", "e.6.w", "e.7.w",  "e.8.w", "e.9.w"};
    char text[2048] = "refit-model/1 exact\n";
    char expected[REFIT_SHA256_HEX_MAX];
    char found[REFIT_SHA256_HEX_MAX];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct refit_digest digest = {{0, 0}};
        char hex[REFIT_DIGEST_HEX_MAX];
        refit_digest_add(&digest, names[i], strlen(names[i]), 0);
        refit_digest_hex(digest, hex);
        strcat(text, names[i]);
        strcat(text, i == 0 ? " F32  " : " F8_E4M3 6,4 ");
        strcat(text, hex);
        strcat(text, "\n");
    }
    refit_sha256_hex(text, strlen(text), expected);
    model_hex(one_way, "exact", found);
    assert_string_equal(found, expected);
}

static void model_digest_does_not_depend_on_the_layout(void **state)
{
    char a[REFIT_SHA256_HEX_MAX];
    char b[REFIT_SHA256_HEX_MAX];
    model_hex(one_way, "exact", a);
    model_hex(other_way, "exact", b);
    assert_string_equal(a, b);
}

static void model_digest_says_the_wire_profile(void **state)
{
    char a[REFIT_SHA256_HEX_MAX];
    char b[REFIT_SHA256_HEX_MAX];
    model_hex(one_way, "exact", a);
    model_hex(one_way, "bf16", b);
    assert_string_not_equal(a, b);
}

static void swapped_experts_change_the_model_digest(void **state)
{
    struct refit_layout *layout = parse(one_way);
    struct refit_tally *tally = tally_of(layout);
    struct refit_tally *swapped = refit_tally_create(refit_tally_count(tally));
    char a[REFIT_SHA256_HEX_MAX];
    char b[REFIT_SHA256_HEX_MAX];
    for (uint32_t id = 0; id < refit_tally_count(tally); id++) {
        const uint32_t from = id < 2 ? 1 - id : id;
        refit_tally_add(swapped, id, refit_tally_get(tally, from));
    }
    assert_int_equal(refit_model_digest(layout, tally, "exact", a, NULL), REFIT_OK);
    assert_int_equal(refit_model_digest(layout, swapped, "exact", b, NULL), REFIT_OK);
    assert_string_not_equal(a, b);
    refit_tally_destroy(tally);
    refit_tally_destroy(swapped);
    refit_layout_release(layout);
}

static void tally_of_another_layout_is_refused(void **state)
{
    struct refit_layout *layout = parse(one_way);
    struct refit_tally *tally = refit_tally_create(5);
    struct refit_error err;
    char hex[REFIT_SHA256_HEX_MAX];
    assert_int_equal(refit_model_digest(layout, tally, "exact", hex, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "5 tensors"));
    refit_tally_destroy(tally);
    refit_layout_release(layout);
}

static void digests_as_text_add_up_like_others(void **state)
{
    struct refit_tally *tally = refit_tally_create(2), *sum = refit_tally_create(2);
    refit_tally_add(tally, 0, (struct refit_digest){{UINT64_C(0x0123456789abcdef), UINT64_MAX}});
    refit_tally_add(tally, 1, (struct refit_digest){{7, 0}});
    char *text = refit_tally_hex(tally);
    assert_string_equal(text, "0123456789abcdefffffffffffffffff00000000000000070000000000000000");
    assert_true(refit_tally_add_hex(sum, text, 64));
    assert_true(refit_tally_add_hex(sum, text, 64));
    assert_int_equal(refit_tally_get(sum, 0).d[0], UINT64_C(0x02468acf13579bde));
    assert_int_equal(refit_tally_get(sum, 0).d[1], UINT64_MAX - 1);
    assert_int_equal(refit_tally_get(sum, 1).d[0], 14);
    assert_false(refit_tally_add_hex(sum, text, 63));
    assert_false(refit_tally_add_hex(sum, text, 32));
    text[5] = 'A';
    assert_false(refit_tally_add_hex(sum, text, 64));
    assert_int_equal(refit_tally_get(sum, 1).d[0], 14); /* nothing of it was added */
    free(text);
    refit_tally_destroy(tally);
    refit_tally_destroy(sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adders_may_run_at_once),
        cmocka_unit_test(model_digest_is_sha256_of_the_lines_by_name),
        cmocka_unit_test(model_digest_does_not_depend_on_the_layout),
        cmocka_unit_test(model_digest_says_the_wire_profile),
        cmocka_unit_test(swapped_experts_change_the_model_digest),
        cmocka_unit_test(tally_of_another_layout_is_refused),
        cmocka_unit_test(digests_as_text_add_up_like_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
