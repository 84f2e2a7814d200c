/* SPDX-License-Identifier: Apache-2.0
 *
 * How large batches are and where they land; how plans are shown; what is too much.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/plan_json.h"
#include "plan_texts.h"

/* ---- batches ---- */

/* A model of `rows` x 256 KiB. */
static struct refit_plan *plan_of_rows(const char *source, const char *destination, uint32_t ranks, uint32_t rows)
{
    char text[2][512];
    struct refit_layout *layouts[2];
    const char *placements[] = {source, destination};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text[i], sizeof(text[i]),
                       "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"x\"],"
                       "\"shape\":[%u]}},\"entries\":[{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[%u,262144],\"mesh\":\"m\","
                       "\"placements\":[%s]}]}", ranks, ranks, rows, placements[i]);
        layouts[i] = parse(text[i]);
    }
    struct refit_plan *plan = plan_of(layouts[0], layouts[1], 0, 0);
    refit_layout_release(layouts[0]);
    refit_layout_release(layouts[1]);
    return plan;
}

static void batches_grow_with_what_is_held(void **state)
{
    static const struct {
        uint32_t rows, batch_bytes;
    } expected[] = {{1, 64 << 10},    {511, 64 << 10},  {512, 128 << 10}, {1023, 128 << 10}, {1024, 256 << 10},
                    {4096, 1 << 20},  {8192, 2 << 20},  {16383, 2 << 20}, {16384, 4 << 20}, {1 << 20, 4 << 20}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct refit_plan *plan = plan_of_rows(R, R, 1, expected[i].rows);
        assert_int_equal(refit_plan_batch_bytes(plan), expected[i].batch_bytes);
        refit_plan_release(plan);
    }
}

/* Batches of other sizes are other batches: a receiver with much more memory has no edge in common with a small one. And a
 * mask of wanted tensors changes neither size nor digest of what it leaves whole. */
static void size_of_batches_is_in_the_digest_and_not_in_the_mask(void **state)
{
    static const char large[] = MESH2(2, "x", 1, "y", 2) WEIGHT("n", "[7]", R "," R) ","
                                WEIGHT("w", "[400,131072]", R "," S0) "]}";
    struct refit_layout *trainer = parse(large);
    struct refit_layout *small = parse(MESH2(1, "x", 1, "y", 1) WEIGHT("n", "[7]", R "," R) "],\"excused\":[\"w\"]}");
    struct refit_plan *all = plan_of(trainer, trainer, 0, 1);
    struct refit_plan *few = plan_of(trainer, small, 0, 0);
    struct refit_plan *masked = NULL;
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .rank_count = 2,
                                           .wanted = (const uint8_t[]){1, 0}};
    struct refit_plan *both = plan_of(trainer, trainer, 0, 2);
    assert_int_equal(refit_plan_build(trainer, trainer, scope, &masked, NULL), REFIT_OK);
    assert_int_equal(refit_plan_batch_bytes(few), 64 << 10);
    assert_int_equal(refit_plan_batch_bytes(both), 128 << 10);
    assert_int_equal(refit_plan_batch_bytes(masked), 128 << 10);
    assert_int_equal(edge_at(few, 0, 1)->bytes, 28);
    assert_int_equal(edge_at(masked, 0, 1)->bytes, 28);
    assert_null(refit_plan_edge(both, edge_at(few, 0, 1)->digest));
    assert_non_null(refit_plan_edge(both, edge_at(masked, 0, 1)->digest));
    assert_non_null(refit_plan_edge(all, edge_at(few, 0, 1)->digest)); /* half of it is no more than 1,024 of the larger batches */
    refit_plan_release(all);
    refit_plan_release(few);
    refit_plan_release(masked);
    refit_plan_release(both);
    refit_layout_release(trainer);
    refit_layout_release(small);
}

/* Two copies of a unit on one rank are one unit that is held. */
static void copies_do_not_make_batches_larger(void **state)
{
    struct refit_layout *source = parse(MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[400,65536]", R "," R) "]}");
    struct refit_layout *destination = parse(
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[400,65536]", R "," R)
        ",{\"buffer\":\"again\",\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[400,65536],\"mesh\":\"m\"}]}");
    struct refit_plan *plan = plan_of(source, destination, 0, 0);
    const struct refit_edge *edge = edge_at(plan, 0, 1);
    assert_int_equal(edge->ops, 2);
    assert_int_equal(edge->bytes, 2 * 400 * 65536 * 4);
    assert_int_equal(refit_plan_batch_bytes(plan), 64 << 10);
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* What each rank takes from the network, over all edges: even to one batch; and in each edge, by number, to one. */
static void check_landing(const struct refit_plan *plan, uint32_t ranks)
{
    uint64_t bytes[16] = {0};
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++) {
        uint32_t numbers[16] = {0};
        const struct refit_group group = takers_of(plan, &edges[i]);
        for (uint32_t number = 0; number < edges[i].batches; number++) {
            const uint32_t rank = refit_plan_landing_rank(plan, &edges[i], number);
            assert_true(refit_group_has(group, rank));
            numbers[rank]++;
            bytes[rank] += refit_batch_bytes(plan, &edges[i], number);
        }
        for (uint32_t k = 0; k < group.count; k++) {
            assert_in_range(numbers[group.ranks[k]], edges[i].batches / group.count,
                            (edges[i].batches + group.count - 1) / group.count);
        }
    }
    for (uint32_t a = 0; a < ranks; a++) {
        for (uint32_t b = 0; b < ranks; b++) {
            assert_true(bytes[a] <= bytes[b] + refit_plan_batch_bytes(plan));
        }
    }
}

static void what_comes_over_the_network_is_shared_evenly(void **state)
{
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint32_t rows = 1; rows < 3000; rows += 1 + rows / 3) {
            struct refit_plan *plan = plan_of_rows(S0, R, ranks, rows);
            check_landing(plan, ranks);
            refit_plan_release(plan);
            plan = plan_of_rows(S1, R, ranks, rows);
            check_landing(plan, ranks);
            refit_plan_release(plan);
        }
    }
}

/* ---- text ---- */

static void check_text(uint32_t count, const uint32_t *ranks, size_t len, const char *expected)
{
    char text[64];
    assert_string_equal(refit_group_format((struct refit_group){.ranks = ranks, .count = count}, text, len), expected);
}

static void groups_are_shown_as_ranges(void **state)
{
    const uint32_t ranks[] = {0, 1, 2, 3, 8, 10, 11, 4000000000u};
    check_text(1, ranks, 64, "0");
    check_text(2, ranks, 64, "0-1");
    check_text(8, ranks, 64, "0-3,8,10-11,4000000000");
    check_text(8, ranks, 12, "0-3,8,...");
    check_text(7, ranks, 8, "0-3,...");
    check_text(7, ranks, 7, "...");
}

static void plan_is_shown_as_json(void **state)
{
    struct refit_layout *source = parse(MESH2(4, "dp", 2, "tp", 2) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_layout *destination = parse(MESH2(2, "dp", 2, "x", 1) WEIGHT("w", "[16,6]", R "," R) "]}");
    struct refit_plan *plan = plan_of(source, destination, 0, 0);
    json_t *json = refit_plan_json(plan);
    json_int_t senders[2];
    json_int_t takers[2];
    json_int_t bytes;
    const char *digest;
    assert_int_equal(json_unpack(json, "{s:[{s:[I,I!], s:[I,I!], s:I, s:s}]}", "edges", "source_ranks", &senders[0],
                                 &senders[1], "destination_ranks", &takers[0], &takers[1], "bytes", &bytes, "digest",
                                 &digest), 0);
    assert_true(senders[0] == 0 && senders[1] == 2 && takers[0] == 0 && takers[1] == 1);
    assert_int_equal(bytes, 8 * 6 * 4);
    assert_ptr_equal(refit_plan_edge(plan, strtoull(digest, NULL, 16)), edge_at(plan, 0, 2));
    assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 16 * 6 * 4);
    assert_int_equal(json_integer_value(json_object_get(json, "written_bytes")), 2 * 16 * 6 * 4);
    assert_string_equal(json_string_value(json_object_get(json, "source")), refit_layout_digest(source));
    json_decref(json);
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* ---- limits ---- */

/* n boxes in each of three dimensions, every two of them crossing: n^3 cells and more. */
static void boxes_that_cross_too_often_are_refused(void **state)
{
    static char text[1 << 20];
    const int n = 110;
    size_t at = (size_t)snprintf(text, sizeof(text), "{\"format\":\"refit-layout/1\",\"ranks\":1,\"entries\":[");
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < 3; d++) {
            int extent[3] = {2 * n, 2 * n, 2 * n};
            extent[d] = n + i;
            at += (size_t)snprintf(text + at, sizeof(text) - at,
                                   "%s{\"rank\":0,\"buffer\":\"b.%d\",\"bytes\":%lld,\"dtype\":\"U8\",\"regions\":["
                                   "{\"tensor\":\"w\",\"shape\":[220,220,220],\"start\":[0,0,0],"
                                   "\"extent\":[%d,%d,%d],\"offset\":0}]}",
                                   i + d ? "," : "", 3 * i + d, (long long)extent[0] * extent[1] * extent[2], extent[0],
                                   extent[1], extent[2]);
            assert_true(at < sizeof(text));
        }
    }
    (void)snprintf(text + at, sizeof(text) - at, "]}");
    struct refit_layout *layout = parse(text);
    struct refit_plan *plan = NULL;
    struct refit_error err = {.text = ""};
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = 0};
    assert_int_equal(refit_plan_build(layout, layout, scope, &plan, &err), REFIT_UNSUPPORTED);
    assert_null(plan);
    assert_non_null(strstr(err.text, "\"w\""));
    refit_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_grow_with_what_is_held),
        cmocka_unit_test(size_of_batches_is_in_the_digest_and_not_in_the_mask),
        cmocka_unit_test(copies_do_not_make_batches_larger),
        cmocka_unit_test(what_comes_over_the_network_is_shared_evenly),
        cmocka_unit_test(groups_are_shown_as_ranges),
        cmocka_unit_test(plan_is_shown_as_json),
        cmocka_unit_test(boxes_that_cross_too_often_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
