/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors one collective call can move, and how they are described to it: layout pairs from published refit
 * measurements, and odd ones. Every description is held against the layouts' own boxes, rank by rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "transport/reshard_fit.h"

static struct refit_layout *parse(const char *ranks_and_meshes, const char *entries)
{
    char text[8192];
    struct refit_layout *layout;
    struct refit_error err;
    snprintf(text, sizeof text, "{\"format\":\"refit-layout/1\",%s,\"entries\":[%s]}", ranks_and_meshes, entries);
    if (refit_layout_parse(text, strlen(text), "a layout", &layout, &err) != REFIT_OK)
        fail_msg("%s in %s", err.text, text);
    return layout;
}

/* Two layouts of one model, and the list for all ranks of the destination or some. */
struct two {
    struct refit_layout *layouts[2];
    struct refit_plan *plan;
    struct refit_reshard_list list;
};

static void two_open_ranks(struct two *two, const char *const source[2], const char *const destination[2],
                           uint32_t first, uint32_t count)
{
    struct refit_error err;
    two->layouts[REFIT_SOURCE] = parse(source[0], source[1]);
    two->layouts[REFIT_DESTINATION] = parse(destination[0], destination[1]);
    struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = first,
                                     .rank_count = count};
    if (refit_plan_build(two->layouts[0], two->layouts[1], scope, &two->plan, &err) != REFIT_OK ||
        refit_reshard_list_build(two->plan, &two->list, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void two_close(struct two *two)
{
    refit_reshard_list_release(&two->list);
    refit_plan_release(two->plan);
    refit_layout_release(two->layouts[0]);
    refit_layout_release(two->layouts[1]);
}

/* ---- a description against the boxes ---- */

struct held {
    const struct refit_tensor *tensor;
    const struct refit_reshard_tensor *t;
    const struct refit_reshard_side *side;
    int base;       /* the side's first rank, of the collective's */
    uint32_t first; /* and of its layout's */
    int seen;
};

/* Where in the tensor's bytes the part of the mesh's `index`th rank begins. */
static uint64_t described_start(const struct held *held, int index)
{
    const struct refit_reshard_side *side = held->side;
    int coordinates[2] = {side->mesh_dims == 1 ? index : index / side->mesh[1], index % side->mesh[1]};
    uint64_t start = 0;
    for (int axis = 0; axis < side->mesh_dims; axis++) {
        int cut = side->placement[axis];
        if (cut == REFIT_RESHARD_WHOLE)
            continue;
        uint64_t at = (uint64_t)coordinates[axis] * side->shape[cut];
        for (int d = cut + 1; d < held->t->dims; d++)
            at *= side->shape[d]; /* the only cut one is `cut` */
        start += at;
    }
    return start;
}

static bool check_region(void *context, const struct refit_region *region)
{
    struct held *held = context;
    uint64_t start = 0, bytes = 1;
    int index = held->base + (int)(region->rank - held->first) - held->side->start;
    if (region->rank < held->first || index < 0 ||
        index >= held->side->mesh[0] * (held->side->mesh_dims == 2 ? held->side->mesh[1] : 1))
        return true;
    for (uint32_t d = 0; d < held->tensor->dims; d++)
        start = start * (uint64_t)held->tensor->shape_units[d] + (uint64_t)region->box.start[d];
    for (int d = 0; d < held->t->dims; d++)
        bytes *= held->side->shape[d];
    assert_int_equal(start * held->tensor->unit_bytes, described_start(held, index));
    assert_int_equal(refit_box_volume(&region->box) * held->tensor->unit_bytes, bytes);
    held->seen++;
    return true;
}

static void check_described(const struct two *two, const struct refit_reshard_tensor *t)
{
    for (int s = 0; s < 2; s++) {
        struct refit_tensor tensor;
        const struct refit_reshard_side *side = &t->sides[s];
        refit_layout_tensor(two->layouts[s], t->id[s], &tensor);
        struct held held = {.tensor = &tensor, .t = t, .side = side,
                            .base = s == REFIT_SOURCE ? 0 : (int)two->list.sources,
                            .first = s == REFIT_SOURCE ? 0 : refit_plan_first_rank(two->plan)};
        refit_layout_regions(two->layouts[s], t->id[s], REFIT_ALL_RANKS, check_region, &held);
        assert_int_equal(held.seen, side->mesh[0] * (side->mesh_dims == 2 ? side->mesh[1] : 1));
        assert_in_range(t->dims, 1, REFIT_RESHARD_DIMS_MAX);
    }
}

/* `fits` has one reason per tensor of the destination, in order. */
static void expect_ranks(const char *const source[2], const char *const destination[2], uint32_t first, uint32_t count,
                         const enum refit_reshard_fit *fits, size_t fits_count)
{
    struct two two;
    size_t found = 0;
    two_open_ranks(&two, source, destination, first, count);
    assert_int_equal(refit_layout_tensor_count(two.layouts[1]), fits_count);
    for (size_t i = 0; i < fits_count; i++) {
        if (two.list.fits[i] != fits[i])
            fail_msg("tensor %zu: %s", i, refit_reshard_fit_text(two.list.fits[i]));
        found += fits[i] == REFIT_RESHARD_FITS;
    }
    assert_int_equal(two.list.count, found);
    for (size_t i = 0; i < two.list.count; i++)
        check_described(&two, &two.list.tensors[i]);
    two_close(&two);
}

#define MESH(ranks, axes, shape) "\"ranks\":" #ranks ",\"meshes\":{\"m\":{\"axes\":[" axes "],\"shape\":[" shape "]}}"
#define T(name, dtype, shape, placements) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"mesh\":\"m\",\"placements\":[" placements "]}"
#define R "\"Replicate\""
#define S0 "\"Shard(0)\""
#define S1 "\"Shard(1)\""
#define TWO(...) ((const char *const[2]){__VA_ARGS__})
#define EXPECT(source, destination, ...)                                                                        \
    do {                                                                                                        \
        const enum refit_reshard_fit wanted[] = {__VA_ARGS__};                                                  \
        expect_ranks(source, destination, 0, 0, wanted, sizeof wanted / sizeof *wanted);                        \
    } while (0)
#define FITS REFIT_RESHARD_FITS

/* ---- published pairs ---- */

static void rows_to_columns_is_two_dimensions_of_bytes(void **state)
{
    struct two two;
    (void)state;
    two_open_ranks(&two, TWO(MESH(2, "\"s\"", "2"), T("w", "F32", "8,8", S0)),
                   TWO(MESH(4, "\"t\"", "4"), T("w", "F32", "8,8", S1)), 0, 0);
    assert_int_equal(two.list.count, 1);
    const struct refit_reshard_tensor *t = two.list.tensors;
    check_described(&two, t);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->sides[0].shape[0], 4);
    assert_int_equal(t->sides[0].shape[1], 32);
    assert_int_equal(t->sides[1].shape[0], 8);
    assert_int_equal(t->sides[1].shape[1], 8);
    assert_int_equal(t->sides[0].start, 0);
    assert_int_equal(t->sides[1].start, 2);
    assert_int_equal(t->sides[0].placement[0], 0);
    assert_int_equal(t->sides[1].placement[0], 1);
    assert_int_equal(two.list.bytes, 8 * 8 * 4);
    two_close(&two);
}

static void tensor_parallel_to_replicas(void **state)
{
    (void)state;
    EXPECT(TWO(MESH(4, "\"tp\"", "4"), T("w", "BF16", "64,48", S0)),
           TWO(MESH(4, "\"dp\"", "4"), T("w", "BF16", "64,48", R)), FITS);
    EXPECT(TWO(MESH(4, "\"tp\"", "4"), T("w", "BF16", "64,48", S1)),
           TWO(MESH(4, "\"dp\",\"tp\"", "2,2"), T("w", "BF16", "64,48", R "," S0)), FITS);
    EXPECT(TWO(MESH(8, "\"dp\",\"fsdp\"", "2,4"), T("w", "BF16", "64,48", R "," S0)),
           TWO(MESH(8, "\"dp\",\"tp\"", "4,2"), T("w", "BF16", "64,48", R "," S1)), FITS);
    /* Shards outside, replicas inside: KV heads of fewer than the ranks. */
    EXPECT(TWO(MESH(4, "\"tp\"", "4"), T("k", "BF16", "64,48", S0)),
           TWO(MESH(8, "\"kv\",\"copies\"", "2,4"), T("k", "BF16", "64,48", S0 "," R)), FITS);
}

static void replicas_to_tensor_parallel(void **state)
{
    (void)state;
    EXPECT(TWO(MESH(8, "\"dp\"", "8"), T("embed", "BF16", "151936,2560", R) "," T("norm", "BF16", "2560", R) ","
               T("o", "BF16", "2560,4096", R)),
           TWO(MESH(8, "\"tp\"", "8"), T("embed", "BF16", "151936,2560", S0) "," T("norm", "BF16", "2560", R) ","
               T("o", "BF16", "2560,4096", S1)), FITS, FITS, FITS);
}

static void stages_and_experts_are_on_some_ranks_that_follow_each_other(void **state)
{
    (void)state;
    EXPECT(TWO("\"ranks\":16,\"meshes\":{\"m\":{\"axes\":[\"pp\",\"ep\",\"tp\"],\"shape\":[2,4,2]}}",
               "{\"tensor\":\"l.{l}.q\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":{\"range\":[0,2],"
               "\"axis\":\"pp\"}},\"placements\":[" R "," R "," S0 "]},"
               "{\"tensor\":\"l.{l}.e.{e}\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":{\"range\":[0,2],"
               "\"axis\":\"pp\"},\"e\":{\"range\":[0,4],\"axis\":\"ep\"}},\"placements\":[" R "," R "," S1 "]}"),
           TWO(MESH(8, "\"dp\",\"tp\"", "2,4"),
               "{\"tensor\":\"l.{l}.q\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":[0,2]},"
               "\"placements\":[" R "," S0 "]},"
               "{\"tensor\":\"l.{l}.e.{e}\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":[0,2],"
               "\"e\":[0,4]},\"placements\":[" R "," S1 "]}"),
           FITS, FITS, FITS, FITS, FITS, FITS, FITS, FITS, FITS, FITS);
}

static void a_receiver_of_some_ranks_is_a_mesh_of_those(void **state)
{
    static const enum refit_reshard_fit whole[] = {FITS, FITS}, part[] = {FITS, REFIT_RESHARD_MESH};
    const char *const *source = TWO(MESH(4, "\"tp\"", "4"), T("n", "F32", "16", R) "," T("w", "F32", "16,8", S0));
    const char *const *destination = TWO(MESH(4, "\"dp\",\"tp\"", "2,2"), T("n", "F32", "16", R "," R) ","
                                         T("w", "F32", "16,8", R "," S1));
    (void)state;
    expect_ranks(source, destination, 2, 2, whole, 2);
    /* Half of the shards are not enough for a tensor. */
    expect_ranks(source, destination, 2, 1, part, 2);
}

/* ---- odd ones ---- */

static void dimensions_that_are_cut_nowhere_are_joined(void **state)
{
    struct two two;
    (void)state;
    two_open_ranks(&two, TWO(MESH(2, "\"s\"", "2"), T("w", "U8", "3,4,5,6,7", "\"Shard(1)\"")),
                   TWO(MESH(3, "\"t\"", "3"), T("w", "U8", "3,4,5,6,7", "\"Shard(3)\"")), 0, 0);
    assert_int_equal(two.list.count, 1);
    check_described(&two, two.list.tensors);
    assert_int_equal(two.list.tensors[0].dims, 3);
    two_close(&two);
    two_open_ranks(&two, TWO(MESH(1, "\"s\"", "1"), T("scalar", "F32", "", R)),
                   TWO(MESH(2, "\"t\"", "2"), T("scalar", "F32", "", R)), 0, 0);
    assert_int_equal(two.list.count, 1);
    check_described(&two, two.list.tensors);
    two_close(&two);
}

static void what_is_uneven_strided_in_pieces_or_out_of_order_does_not_fit(void **state)
{
    (void)state;
    EXPECT(TWO(MESH(4, "\"s\"", "4"), T("a", "F32", "10,4", S0) "," T("b", "F32", "8,4", S0) ","
               T("c", "F32", "8,4", S0)),
           TWO(MESH(4, "\"t\"", "4"), T("a", "F32", "10,4", R) ","
               "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[8,4],\"mesh\":\"m\",\"placements\":[" R "],\"order\":[1,0]},"
               T("c", "F32", "8,4", S1)),
           REFIT_RESHARD_UNEVEN, REFIT_RESHARD_STRIDED, FITS);
    EXPECT(TWO(MESH(4, "\"a\",\"b\"", "2,2"), T("w", "F32", "8,4", S0 "," S1)),
           TWO(MESH(2, "\"t\"", "2"), T("w", "F32", "8,4", S0)), REFIT_RESHARD_AXES);
    EXPECT(TWO("\"ranks\":4,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[4],\"ranks\":[0,2,1,3]}}",
               T("w", "F32", "8,4", S0)),
           TWO(MESH(2, "\"t\"", "2"), T("w", "F32", "8,4", S0)), REFIT_RESHARD_MESH);
    /* FSDP inside TP on one dimension: rank (f, t) has shard 2t + f. */
    EXPECT(TWO(MESH(4, "\"fsdp\",\"tp\"", "2,2"), T("w", "F32", "8,4", "\"_StridedShard(0, split_factor=2)\"," S0)),
           TWO(MESH(2, "\"t\"", "2"), T("w", "F32", "8,4", S0)), REFIT_RESHARD_MESH);
}

static void more_shards_than_the_library_has_room_for_do_not_fit(void **state)
{
    (void)state;
    EXPECT(TWO(MESH(16, "\"s\"", "16"), T("w", "F32", "32,4", S0)),
           TWO(MESH(1, "\"t\"", "1"), T("w", "F32", "32,4", R)), FITS);
    EXPECT(TWO(MESH(32, "\"s\"", "32"), T("w", "F32", "32,4", S0)),
           TWO(MESH(1, "\"t\"", "1"), T("w", "F32", "32,4", R)), REFIT_RESHARD_SHARDS);
    /* Of 32, two flow into one of 16. */
    EXPECT(TWO(MESH(32, "\"s\"", "32"), T("w", "F32", "32,4", S0)),
           TWO(MESH(16, "\"t\"", "16"), T("w", "F32", "32,4", S0)), FITS);
    EXPECT(TWO(MESH(1, "\"s\"", "1"), T("w", "F32", "32,4", R)),
           TWO(MESH(65, "\"t\"", "65"), T("w", "F32", "32,4", R)), REFIT_RESHARD_SHARDS);
}

/* ---- both ends, and batches ---- */

static void both_ends_find_the_same(void **state)
{
    struct two two;
    struct refit_error err;
    struct refit_plan *theirs;
    struct refit_reshard_list list;
    (void)state;
    two_open_ranks(&two, TWO(MESH(4, "\"s\"", "4"), T("w", "F32", "16,8", S0) "," T("u", "F32", "10,8", S0)),
                   TWO(MESH(4, "\"dp\",\"t\"", "2,2"), T("w", "F32", "16,8", R "," S1) "," T("u", "F32", "10,8", R "," S1)),
                   2, 2);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = 3, .first_rank = 2, .rank_count = 2};
    assert_int_equal(refit_plan_build(two.layouts[0], two.layouts[1], scope, &theirs, &err), REFIT_OK);
    assert_int_equal(refit_reshard_list_build(theirs, &list, &err), REFIT_OK);
    assert_int_equal(list.digest, two.list.digest);
    refit_reshard_list_release(&list);
    refit_plan_release(theirs);
    assert_int_equal(two.list.count, 1);
    /* A receiver of all ranks is another collective. */
    scope.first_rank = scope.rank_count = 0;
    assert_int_equal(refit_plan_build(two.layouts[0], two.layouts[1], scope, &theirs, &err), REFIT_OK);
    assert_int_equal(refit_reshard_list_build(theirs, &list, &err), REFIT_OK);
    assert_int_not_equal(list.digest, two.list.digest);
    refit_reshard_list_release(&list);
    refit_plan_release(theirs);
    two_close(&two);
}

static void what_is_not_wanted_is_not_on_the_list(void **state)
{
    struct refit_error err;
    struct two two;
    struct refit_reshard_list list;
    struct refit_plan *plan;
    const uint8_t wanted[] = {1, 0};
    (void)state;
    two_open_ranks(&two, TWO(MESH(2, "\"s\"", "2"), T("a", "F32", "16,8", S0) "," T("b", "F32", "16,8", S0)),
                   TWO(MESH(1, "\"t\"", "1"), T("a", "F32", "16,8", R) "," T("b", "F32", "16,8", R)), 0, 0);
    struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .wanted = wanted};
    assert_int_equal(refit_plan_build(two.layouts[0], two.layouts[1], scope, &plan, &err), REFIT_OK);
    assert_int_equal(refit_reshard_list_build(plan, &list, &err), REFIT_OK);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.fits[1], REFIT_RESHARD_UNWANTED);
    refit_reshard_list_release(&list);
    refit_plan_release(plan);
    two_close(&two);
}

static void a_batch_is_covered_when_all_its_tensors_are(void **state)
{
    struct two two;
    size_t count;
    (void)state;
    /* Rows of a: even; of u: uneven. 256 KiB of `a` per edge, then some of `u`: the last batch has both or `u` alone. */
    two_open_ranks(&two, TWO(MESH(2, "\"s\"", "2"), T("a", "F32", "1024,256", S0) "," T("u", "F32", "3,64", S0)),
                   TWO(MESH(1, "\"t\"", "1"), T("a", "F32", "1024,256", R) "," T("u", "F32", "3,64", R)), 0, 0);
    const struct refit_edge *edges = refit_plan_edges(two.plan, &count);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
        assert_true(edges[i].batches > 1);
        assert_true(refit_reshard_covers(&two.list, two.plan, &edges[i], 0));
        assert_false(refit_reshard_covers(&two.list, two.plan, &edges[i], edges[i].batches - 1));
    }
    two_close(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_to_columns_is_two_dimensions_of_bytes),
        cmocka_unit_test(tensor_parallel_to_replicas),
        cmocka_unit_test(replicas_to_tensor_parallel),
        cmocka_unit_test(stages_and_experts_are_on_some_ranks_that_follow_each_other),
        cmocka_unit_test(a_receiver_of_some_ranks_is_a_mesh_of_those),
        cmocka_unit_test(dimensions_that_are_cut_nowhere_are_joined),
        cmocka_unit_test(what_is_uneven_strided_in_pieces_or_out_of_order_does_not_fit),
        cmocka_unit_test(more_shards_than_the_library_has_room_for_do_not_fit),
        cmocka_unit_test(both_ends_find_the_same),
        cmocka_unit_test(what_is_not_wanted_is_not_on_the_list),
        cmocka_unit_test(a_batch_is_covered_when_all_its_tensors_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
