/* SPDX-License-Identifier: Apache-2.0
 *
 * A model whole and dense, and its buckets: what a broadcast moves, the same at both ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/dense.h"
#include "layouts/plan.h"

/* Two ranks; a tensor larger than a bucket between small ones, an empty one, a tied name, a name that nobody has to use. */
static const char sharded[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[2]}},"
    "\"aliases\":{\"head\":\"embed\"},\"excused\":[\"extra.*\"],\"entries\":["
    "{\"tensor\":\"embed\",\"dtype\":\"F32\",\"shape\":[100,64],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"none\",\"dtype\":\"F32\",\"shape\":[0,64],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
    "{\"tensor\":\"big\",\"dtype\":\"F32\",\"shape\":[1000,1024],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
    "{\"tensor\":\"w.{i}\",\"for\":{\"i\":[0,5]},\"dtype\":\"F32\",\"shape\":[200,1024],\"mesh\":\"m\","
    "\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"extra.b\",\"dtype\":\"BF16\",\"shape\":[3],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err;
    if (refit_layout_parse(text, strlen(text), "layout", &layout, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return layout;
}

static struct refit_layout *dense_of(const struct refit_layout *layout)
{
    struct refit_layout *dense = NULL;
    struct refit_error err;
    if (refit_layout_dense(layout, &dense, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return dense;
}

static void every_tensor_is_there_whole_under_its_id(void **state)
{
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout);
    assert_int_equal(refit_layout_ranks(dense), 1);
    assert_int_equal(refit_layout_tensor_count(dense), refit_layout_tensor_count(layout));
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor there, here;
        struct refit_buffer buffer;
        refit_layout_tensor(layout, id, &there);
        refit_layout_tensor(dense, id, &here);
        assert_string_equal(here.name, there.name);
        assert_true(refit_layout_buffer_find(dense, 0, here.name, &buffer));
        assert_int_equal(buffer.bytes, there.bytes);
    }
    refit_layout_release(layout);
    refit_layout_release(dense);
}

static void aliases_and_excused_names_go_with_it(void **state)
{
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout);
    uint32_t id, target;
    assert_true(refit_layout_find(dense, "head", &id) && refit_layout_find(dense, "embed", &target));
    assert_int_equal(id, target);
    assert_true(refit_layout_excuses(dense, "extra.b"));
    assert_false(refit_layout_excuses(dense, "w.0"));
    refit_layout_release(layout);
    refit_layout_release(dense);
}

static void it_is_the_same_however_the_model_is_cut(void **state)
{
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout), *again = dense_of(dense);
    assert_string_equal(refit_layout_digest(dense), refit_layout_digest(again));
    refit_layout_release(layout);
    refit_layout_release(dense);
    refit_layout_release(again);
}

static struct refit_buckets buckets_of(struct refit_layout *dense)
{
    struct refit_buckets buckets;
    struct refit_error err;
    if (refit_buckets_create(dense, &buckets, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return buckets;
}

static void buckets_cover_all_in_order_and_a_large_tensor_is_alone(void **state)
{
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout);
    struct refit_buckets buckets = buckets_of(dense);
    uint32_t next = 0, big;
    uint64_t end = 0;
    assert_true(refit_layout_find(dense, "big", &big));
    for (uint32_t i = 0; i < buckets.count; i++) {
        const struct refit_bucket *bucket = &buckets.items[i];
        assert_int_equal(bucket->first, next);
        assert_true(bucket->begin >= end);
        assert_true(bucket->bytes <= REFIT_BUCKET_BYTES_MIN || (bucket->first <= big && bucket->count == 1));
        next += bucket->count;
        end = bucket->begin + bucket->bytes;
    }
    assert_int_equal(next, refit_layout_tensor_count(dense));
    assert_int_equal(buckets.bytes_max, 1000 * 1024 * 4);
    assert_int_equal(buckets.count, 5); /* embed and the empty one; big; two, two, one of w, and what follows */
    refit_buckets_release(&buckets);
    refit_layout_release(layout);
    refit_layout_release(dense);
}

/* Planned bucket by bucket, every byte moves once. */
static void masks_of_all_buckets_make_the_whole_plan(void **state)
{
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout);
    struct refit_buckets buckets = buckets_of(dense);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < buckets.count; i++) {
        struct refit_plan *plan = NULL;
        struct refit_error err;
        uint8_t *mask = refit_bucket_mask(&buckets, i, dense);
        assert_non_null(mask);
        if (refit_plan_build(layout, dense, (struct refit_plan_scope){.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS,
                                                                      .wanted = mask}, &plan, &err) != REFIT_OK)
            fail_msg("%s", err.text);
        bytes += refit_plan_bytes(plan);
        refit_plan_release(plan);
        free(mask);
    }
    assert_int_equal(bytes, refit_layout_model_bytes(dense));
    refit_buckets_release(&buckets);
    refit_layout_release(layout);
    refit_layout_release(dense);
}

/* A destination that names the tied tensor by its other name. */
static void a_mask_finds_a_tensor_by_its_alias(void **state)
{
    static const char tied[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[1]}},"
        "\"aliases\":{\"embed\":\"lm\"},\"entries\":["
        "{\"tensor\":\"lm\",\"dtype\":\"F32\",\"shape\":[100,64],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";
    struct refit_layout *layout = parse(sharded), *dense = dense_of(layout), *other = parse(tied);
    struct refit_buckets buckets = buckets_of(dense);
    uint8_t *first = refit_bucket_mask(&buckets, 0, other), *second = refit_bucket_mask(&buckets, 1, other);
    assert_int_equal(first[0], 1);
    assert_int_equal(second[0], 0);
    free(first);
    free(second);
    refit_buckets_release(&buckets);
    refit_layout_release(layout);
    refit_layout_release(dense);
    refit_layout_release(other);
}

static void what_is_not_dense_has_no_buckets(void **state)
{
    struct refit_layout *layout = parse(sharded);
    struct refit_buckets buckets;
    struct refit_error err;
    assert_int_equal(refit_buckets_create(layout, &buckets, &err), REFIT_INVALID);
    refit_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_is_there_whole_under_its_id),
        cmocka_unit_test(aliases_and_excused_names_go_with_it),
        cmocka_unit_test(it_is_the_same_however_the_model_is_cut),
        cmocka_unit_test(buckets_cover_all_in_order_and_a_large_tensor_is_alone),
        cmocka_unit_test(masks_of_all_buckets_make_the_whole_plan),
        cmocka_unit_test(a_mask_finds_a_tensor_by_its_alias),
        cmocka_unit_test(what_is_not_dense_has_no_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
