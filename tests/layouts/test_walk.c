/* SPDX-License-Identifier: Apache-2.0
 *
 * Strips and windows of edge streams too large to hold: only addresses are compared, with arithmetic.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/plan.h"

#define LAYOUT(ranks, entries) \
    "{\"format\":\"refit-layout/1\",\"ranks\":" ranks ",\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[" ranks \
    "]}},\"entries\":[" entries "]}"

static struct refit_plan *plan_of(const char *source_text, const char *destination_text, enum refit_side side)
{
    struct refit_layout *source = NULL;
    struct refit_layout *destination = NULL;
    struct refit_plan *plan = NULL;
    struct refit_error err = {.text = ""};
    const struct refit_plan_scope scope = {.side = side, .rank = REFIT_ALL_RANKS};
    if (refit_layout_parse(source_text, strlen(source_text), "the source", &source, &err) != REFIT_OK
        || refit_layout_parse(destination_text, strlen(destination_text), "the destination", &destination, &err)
               != REFIT_OK
        || refit_plan_build(source, destination, scope, &plan, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    refit_layout_release(source);
    refit_layout_release(destination);
    return plan;
}

/* Where byte `at` of the edge stream lies. */
struct place {
    uint64_t tensor;
    uint64_t offset;
    uint64_t tensor_offset;
};
typedef struct place (*place_fn)(uint64_t at);

static void check_strip(const struct refit_strip *strip, uint64_t at, place_fn place)
{
    const uint64_t runs[] = {0, strip->count / 2, strip->count - 1};
    for (size_t i = 0; i < 3; i++) {
        const uint64_t ends[] = {0, strip->run_bytes - 1};
        for (size_t e = 0; e < 2; e++) {
            const struct place expected = place(at + runs[i] * strip->run_bytes + ends[e]);
            assert_int_equal(strip->tensor, expected.tensor);
            assert_int_equal(strip->offset + runs[i] * (uint64_t)strip->stride + ends[e], expected.offset);
            assert_int_equal(strip->tensor_offset + runs[i] * (uint64_t)strip->tensor_stride + ends[e],
                             expected.tensor_offset);
        }
    }
}

/* The edge to this rank alone. */
static const struct refit_edge *only_edge_to(const struct refit_plan *plan, uint32_t rank)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++) {
        const struct refit_group group = refit_plan_group(plan, REFIT_DESTINATION, edges[i].destination_group);
        if (group.count == 1 && group.ranks[0] == rank) {
            return &edges[i];
        }
    }
    fail_msg("no edge to rank %u", rank);
    abort(); /* not reached */
}

/* Walks every batch of the edge with strips of at most `most` bytes; returns how many strips there were. */
static uint64_t check_batches(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t rank,
                              uint64_t most, place_fn place)
{
    const uint64_t batch_bytes = refit_plan_batch_bytes(plan);
    uint64_t at = 0;
    uint64_t strips = 0;
    for (uint32_t number = 0; number < edge->batches; number++) {
        struct refit_walk walk = refit_walk_batch(plan, edge, number, rank);
        struct refit_strip strip;
        assert_int_equal(at, number * batch_bytes);
        for (; refit_walk_next(&walk, most, &strip); strips++) {
            assert_true(strip.count > 0 && strip.run_bytes > 0 && strip.count * strip.run_bytes <= most);
            check_strip(&strip, at, place);
            at += strip.count * strip.run_bytes;
        }
        assert_int_equal(at, number * batch_bytes + refit_batch_bytes(plan, edge, number));
    }
    assert_int_equal(at, edge->bytes);
    struct refit_walk walk = refit_walk_batch(plan, edge, edge->batches, rank);
    struct refit_strip strip;
    assert_false(refit_walk_next(&walk, UINT64_MAX, &strip));
    return strips;
}

#define ROWS 50000u
#define COLUMNS 1750u /* BF16: rows of 3500 bytes of a tensor that has twice that */
#define WHOLE_WIDE LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[50000,3500],\"mesh\":\"m\"," \
                                "\"placements\":[\"Replicate\"]}")
#define HALF_WIDE LAYOUT("2", "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[50000,3500],\"mesh\":\"m\"," \
                               "\"placements\":[\"Shard(1)\"]}")

/* Right half of the rows in memory that holds whole rows. */
static struct place in_rows(uint64_t at)
{
    const uint64_t row = at / (2 * COLUMNS);
    const uint64_t offset = row * 4 * COLUMNS + 2 * COLUMNS + at % (2 * COLUMNS);
    return (struct place){.offset = offset, .tensor_offset = offset};
}

static void strided_rows_come_in_few_strips(void **state)
{
    struct refit_plan *plan = plan_of(WHOLE_WIDE, HALF_WIDE, REFIT_SOURCE);
    const struct refit_edge *edge = only_edge_to(plan, 1);
    assert_int_equal(edge->bytes, (uint64_t)ROWS * 2 * COLUMNS);
    assert_int_equal(refit_plan_batch_bytes(plan), 256 << 10); /* 350 MB are held, in at least 1,024 batches */
    assert_int_equal(edge->batches, 668);
    /* The rest of a row, whole rows, the start of a row: no more, however many rows. */
    assert_true(check_batches(plan, edge, 0, UINT64_MAX, in_rows) <= 3 * edge->batches);
    (void)check_batches(plan, edge, 0, 100001, in_rows);
    (void)check_batches(plan, edge, 0, 777, in_rows);
    refit_plan_release(plan);
}

static struct place in_half(uint64_t at)
{
    return (struct place){.offset = at, .tensor_offset = in_rows(at).tensor_offset};
}

static void other_side_walks_the_same_stream(void **state)
{
    struct refit_plan *plan = plan_of(WHOLE_WIDE, HALF_WIDE, REFIT_DESTINATION);
    const struct refit_edge *edge = only_edge_to(plan, 1);
    assert_true(check_batches(plan, edge, 1, UINT64_MAX, in_half) <= 3 * edge->batches);
    refit_plan_release(plan);
}

static struct place dense(uint64_t at)
{
    return (struct place){.offset = at, .tensor_offset = at};
}

static void whole_tensors_are_one_run_per_batch(void **state)
{
    struct refit_plan *plan = plan_of(WHOLE_WIDE, WHOLE_WIDE, REFIT_DESTINATION);
    const struct refit_edge *edge = only_edge_to(plan, 0);
    assert_int_equal(check_batches(plan, edge, 0, UINT64_MAX, dense), edge->batches);
    refit_plan_release(plan);
}

#define TALL 3001u
#define BROAD 5003u
static const char transposed[] = LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[3001,5003],\"mesh\":\"m\","
                                             "\"placements\":[\"Replicate\"],\"order\":[1,0]}");
static const char straight[] = LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[3001,5003],\"mesh\":\"m\","
                                           "\"placements\":[\"Replicate\"]}");

static struct place in_transposed(uint64_t at)
{
    const uint64_t element = at / 4;
    const uint64_t row = element / BROAD;
    const uint64_t column = element % BROAD;
    return (struct place){.offset = 4 * (column * TALL + row) + at % 4, .tensor_offset = at};
}

static void transposed_matrix_has_one_strip_per_row(void **state)
{
    struct refit_plan *plan = plan_of(transposed, straight, REFIT_SOURCE);
    const struct refit_edge *edge = only_edge_to(plan, 0);
    const uint64_t strips = check_batches(plan, edge, 0, UINT64_MAX, in_transposed);
    assert_true(strips >= TALL && strips <= TALL + 3 * edge->batches);
    (void)check_batches(plan, edge, 0, 1003, in_transposed); /* inside elements, too */
    refit_plan_release(plan);
}

#define NORMS 40000u
#define NORM_BYTES 2800u
static const char norms[] = LAYOUT("1", "{\"tensor\":\"n.{i}\",\"for\":{\"i\":[0,40000]},\"dtype\":\"F32\","
                                        "\"shape\":[700],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}");

static struct place in_norms(uint64_t at)
{
    const uint64_t step = (NORM_BYTES + REFIT_BUFFER_ALIGN - 1) / REFIT_BUFFER_ALIGN * REFIT_BUFFER_ALIGN;
    return (struct place){.tensor = at / NORM_BYTES,
                          .offset = at / NORM_BYTES * step + at % NORM_BYTES,
                          .tensor_offset = at % NORM_BYTES};
}

static void batches_begin_anywhere_among_small_tensors(void **state)
{
    struct refit_plan *plan = plan_of(norms, norms, REFIT_SOURCE);
    const struct refit_edge *edge = only_edge_to(plan, 0);
    assert_int_equal(edge->ops, NORMS);
    uint64_t inside = 0; /* batches that begin within a tensor */
    for (uint32_t number = 0; number < edge->batches; number++) {
        inside += (uint64_t)number * refit_plan_batch_bytes(plan) % NORM_BYTES != 0;
    }
    assert_int_equal(check_batches(plan, edge, 0, UINT64_MAX, in_norms), NORMS + inside);
    (void)check_batches(plan, edge, 0, 999, in_norms);
    refit_plan_release(plan);
}

/* [9, 11, 13, 17] held with its dimensions in another order: four levels, none of which can be merged. */
static const char mixed[] = LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[9,11,13,17],\"mesh\":\"m\","
                                        "\"placements\":[\"Replicate\"],\"order\":[3,1,2,0]}");
static const char plain[] = LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[9,11,13,17],\"mesh\":\"m\","
                                        "\"placements\":[\"Replicate\"]}");

static struct place in_mixed(uint64_t at)
{
    const uint64_t d = at % 17;
    const uint64_t c = at / 17 % 13;
    const uint64_t b = at / 17 / 13 % 11;
    const uint64_t a = at / 17 / 13 / 11;
    return (struct place){.offset = ((d * 11 + b) * 13 + c) * 9 + a, .tensor_offset = at};
}

static void any_order_of_dimensions_is_walked(void **state)
{
    struct refit_plan *plan = plan_of(mixed, plain, REFIT_SOURCE);
    const struct refit_edge *edge = only_edge_to(plan, 0);
    for (uint64_t most = 1; most < 400; most += 1 + most / 7) {
        (void)check_batches(plan, edge, 0, most, in_mixed);
    }
    refit_plan_release(plan);
}

static void large_offsets_do_not_wrap(void **state)
{
    /* 2^33 rows of 3 bytes: past 2^32 elements and bytes. */
    static const char huge[] = LAYOUT("1", "{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[8589934592,3],\"mesh\":\"m\","
                                           "\"placements\":[\"Replicate\"]}");
    struct refit_plan *plan = plan_of(huge, huge, REFIT_SOURCE);
    const struct refit_edge *edge = only_edge_to(plan, 0);
    assert_int_equal(edge->bytes, (uint64_t)3 << 33);
    for (uint32_t number = 0; number < edge->batches; number += 97) {
        struct refit_walk walk = refit_walk_batch(plan, edge, number, 0);
        struct refit_strip strip;
        assert_true(refit_walk_next(&walk, UINT64_MAX, &strip));
        assert_int_equal(strip.offset, (uint64_t)number * REFIT_BATCH_BYTES_MAX);
        assert_int_equal(strip.tensor_offset, strip.offset);
    }
    refit_plan_release(plan);
}

static void nothing_is_walked_of_an_empty_window(void **state)
{
    struct refit_plan *plan = plan_of(plain, plain, REFIT_SOURCE);
    struct refit_walk walk = refit_walk_batch(plan, only_edge_to(plan, 0), 0, 0);
    struct refit_strip strip;
    assert_false(refit_walk_next(&walk, 0, &strip));
    assert_true(refit_walk_next(&walk, UINT64_MAX, &strip));
    assert_false(refit_walk_next(&walk, UINT64_MAX, &strip));
    refit_plan_release(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_rows_come_in_few_strips),
        cmocka_unit_test(other_side_walks_the_same_stream),
        cmocka_unit_test(whole_tensors_are_one_run_per_batch),
        cmocka_unit_test(transposed_matrix_has_one_strip_per_row),
        cmocka_unit_test(batches_begin_anywhere_among_small_tensors),
        cmocka_unit_test(any_order_of_dimensions_is_walked),
        cmocka_unit_test(large_offsets_do_not_wrap),
        cmocka_unit_test(nothing_is_walked_of_an_empty_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
