/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "document.h"
#include "layouts/coverage.h"

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err;
    if (refit_layout_parse(text, strlen(text), "test", &layout, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return layout;
}

#define MESH4 "\"format\":\"refit-layout/1\",\"ranks\":4,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[4]}},"

/* ---- names ---- */

static void every_tensor_is_found_by_its_name(void **state)
{
    struct refit_layout *layout = parse(
        "{" MESH4 "\"entries\":["
        "{\"tensor\":\"a.{l}.b.{e}\",\"for\":{\"l\":[3,6],\"e\":[8,12]},\"dtype\":\"U8\",\"shape\":[4],\"mesh\":\"m\"},"
        "{\"tensor\":\"a.7.b.10\",\"dtype\":\"U8\",\"shape\":[5],\"mesh\":\"m\"},"
        "{\"tensor\":\"a.007.b.10\",\"dtype\":\"U8\",\"shape\":[6],\"mesh\":\"m\"},"
        "{\"tensor\":\"plain\",\"dtype\":\"U8\",\"shape\":[7],\"mesh\":\"m\"}],"
        "\"aliases\":{\"other\":\"a.4.b.9\"},\"excused\":[\"x.y\",\"debug.*\"]}");
    struct refit_tensor tensor;
    uint32_t id;
    assert_int_equal(refit_layout_tensor_count(layout), 15);
    for (uint32_t t = 0; t < 15; t++) {
        refit_layout_tensor(layout, t, &tensor);
        assert_true(refit_layout_find(layout, tensor.name, &id));
        assert_int_equal(id, t);
    }
    refit_layout_tensor(layout, 5, &tensor);
    assert_string_equal(tensor.name, "a.4.b.9");
    assert_true(refit_layout_find(layout, "other", &id));
    assert_int_equal(id, 5);
    static const char *const missing[] = {"a.2.b.9", "a.4.b.12", "a.4.b.09", "a.4.b.", "a.4.b.9.", "", "a.\x01.b.\x01",
                                          "a.99999999999999999999.b.8", "plain1"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        assert_false(refit_layout_find(layout, missing[i], &id));
    assert_true(refit_layout_excuses(layout, "x.y"));
    assert_true(refit_layout_excuses(layout, "debug.z"));
    assert_false(refit_layout_excuses(layout, "x.y.z"));
    assert_int_equal(refit_layout_model_bytes(layout), 12 * 4 + 5 + 6 + 7);
    refit_layout_release(layout);
}

/* Families that overlap share tensors: nothing is there twice, and each has all its holders. */
static bool count_ranks(void *ctx, const struct refit_region *region)
{
    *(uint32_t *)ctx |= 1u << region->rank;
    return true;
}

static void overlapping_families_share_tensors(void **state)
{
    struct refit_layout *layout = parse(
        "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"a\":{\"axes\":[\"x\"],\"shape\":[1],\"ranks\":[0]},"
        "\"b\":{\"axes\":[\"x\"],\"shape\":[1],\"ranks\":[1]}},\"entries\":["
        "{\"tensor\":\"w.{l}\",\"for\":{\"l\":[0,4]},\"dtype\":\"U8\",\"shape\":[4],\"mesh\":\"b\"},"
        "{\"tensor\":\"w.{l}\",\"for\":{\"l\":[2,7]},\"dtype\":\"U8\",\"shape\":[4],\"mesh\":\"a\"},"
        "{\"rank\":2,\"buffer\":\"w.3\",\"bytes\":4,\"dtype\":\"U8\",\"regions\":[{\"tensor\":\"w.3\",\"shape\":[4],"
        "\"offset\":0}]}]}");
    static const uint32_t ranks[7] = {2, 2, 3, 7, 1, 1, 1};
    char name[16];
    assert_int_equal(refit_layout_tensor_count(layout), 7);
    for (uint32_t l = 0; l < 7; l++) {
        uint32_t id = 0, found = 0;
        snprintf(name, sizeof name, "w.%u", l);
        assert_true(refit_layout_find(layout, name, &id));
        refit_layout_regions(layout, id, REFIT_ALL_RANKS, count_ranks, &found);
        assert_int_equal(found, ranks[l]);
    }
    refit_layout_release(layout);
}

/* ---- regions, buffers ---- */

struct order_check {
    uint32_t last_rank;
    uint32_t count;
    uint32_t stop_after;
};

static bool check_order(void *ctx, const struct refit_region *region)
{
    struct order_check *check = ctx;
    assert_true(region->rank >= check->last_rank);
    check->last_rank = region->rank;
    return ++check->count != check->stop_after;
}

static void regions_come_by_rising_rank_also_on_shuffled_meshes(void **state)
{
    struct refit_layout *layout = parse(
        "{\"format\":\"refit-layout/1\",\"ranks\":6,\"meshes\":{\"m\":{\"axes\":[\"e\",\"t\"],\"shape\":[2,3],"
        "\"ranks\":[5,0,3,1,4,2]}},\"entries\":[{\"tensor\":\"w.{i}\",\"for\":{\"i\":{\"range\":[0,2],\"axis\":\"e\"}},"
        "\"dtype\":\"U8\",\"shape\":[6],\"mesh\":\"m\",\"placements\":[\"Replicate\",\"Shard(0)\"]}]}");
    struct order_check check = {0}, stopped = {.stop_after = 2};
    uint32_t found = 0;
    assert_true(refit_layout_regions(layout, 1, REFIT_ALL_RANKS, check_order, &check));
    assert_int_equal(check.count, 3);
    refit_layout_regions(layout, 1, REFIT_ALL_RANKS, count_ranks, &found);
    assert_int_equal(found, 1u << 1 | 1u << 4 | 1u << 2);
    assert_false(refit_layout_regions(layout, 0, REFIT_ALL_RANKS, check_order, &stopped));
    assert_int_equal(stopped.count, 2);
    refit_layout_release(layout);
}

struct buffers_seen {
    const struct refit_layout *layout;
    uint32_t rank;
    uint64_t next;
};

static bool check_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct buffers_seen *seen = ctx;
    struct refit_buffer found;
    assert_int_equal(buffer->offset, seen->next);
    assert_int_equal(buffer->offset % REFIT_BUFFER_ALIGN, 0);
    seen->next = (buffer->offset + buffer->bytes + REFIT_BUFFER_ALIGN - 1) / REFIT_BUFFER_ALIGN * REFIT_BUFFER_ALIGN;
    assert_true(refit_layout_buffer_find(seen->layout, seen->rank, buffer->name, &found));
    assert_string_equal(found.name, buffer->name);
    assert_int_equal(found.offset, buffer->offset);
    assert_int_equal(found.bytes, buffer->bytes);
    assert_int_equal(found.derived, buffer->derived);
    return true;
}

static void buffers_are_packed_and_found_by_name(void **state)
{
    static const char *const files[] = {"cases/pipeline.trainer.json", "cases/pipeline.virtual.json",
                                        "cases/expert_parallel.engine.json", "cases/mamba.engine.json",
                                        "cases/flat_parameter.trainer.json", "cases/scalar_empty.trainer.json"};
    struct refit_buffer buffer;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct refit_layout *layout = document_layout(files[i]);
        for (uint32_t rank = 0; rank < refit_layout_ranks(layout); rank++) {
            struct buffers_seen seen = {.layout = layout, .rank = rank};
            assert_true(refit_layout_buffers(layout, rank, check_buffer, &seen));
            assert_int_equal(seen.next, refit_layout_arena_bytes(layout, rank));
        }
        assert_false(refit_layout_buffer_find(layout, 0, "no.such.buffer", &buffer));
        assert_false(refit_layout_buffer_find(layout, refit_layout_ranks(layout), "w", &buffer));
        refit_layout_release(layout);
    }
}

static void a_stage_has_no_buffer_of_another_stages_layer(void **state)
{
    struct refit_layout *layout = document_layout("cases/pipeline.trainer.json");
    struct refit_buffer buffer;
    assert_true(refit_layout_buffer_find(layout, 0, "decoder.layers.3.w", &buffer));
    assert_false(refit_layout_buffer_find(layout, 2, "decoder.layers.3.w", &buffer));
    refit_layout_release(layout);
}

/* ---- documents ---- */

static void equal_documents_have_equal_digests_and_meaning(void **state)
{
    struct refit_layout *a = document_layout("cases/fused_qkv.trainer.json"), *b;
    size_t len;
    const char *text = refit_layout_text(a, &len);
    assert_int_equal(strlen(text), len);
    b = parse(text);
    assert_string_equal(refit_layout_digest(a), refit_layout_digest(b));
    assert_int_equal(strlen(refit_layout_digest(a)), 64);
    for (uint32_t t = 0; t < refit_layout_tensor_count(a); t++) {
        struct refit_tensor x, y;
        refit_layout_tensor(a, t, &x);
        refit_layout_tensor(b, t, &y);
        assert_string_equal(x.name, y.name);
    }
    refit_layout_release(b);
    b = refit_layout_retain(a);
    refit_layout_release(a);
    assert_int_equal(refit_layout_ranks(b), 2);
    refit_layout_release(b);
    refit_layout_release(NULL);
}

/* File in bad/, and what its message must say. */
static const char *const bad[][2] = {
    {"alias_cycle", "alias \"x\": its target \"y\" is an alias itself"},
    {"alias_missing", "alias \"x\": no tensor \"y\""},
    {"alias_of_tensor", "alias \"w\" is the name of a tensor"},
    {"axis_cuts_both", "mesh axis \"tp\" cuts index \"l\", so it must be Replicate"},
    {"buffers_overflow", "larger than 2^60 bytes"},
    {"cut_in_unit", "rank 0: its part of dimension 1 is [0, 5), but F4 packs 2 elements"},
    {"duplicate_key", "duplicate object key"},
    {"excused_star", "\"excused\"[0]"},
    {"fill_outside", "fill 0: [2, 5) is outside the buffer of 4 bytes"},
    {"fill_value", "\"value\" must be between 0 and 255, found 256"},
    {"flat_in_unit", "\"flat\" cuts inside a unit"},
    {"flat_outside", "within its 32 elements"},
    {"groups_do_not_divide", "8 rows do not make 3 groups"},
    {"index_axis", "mesh \"m\" has no axis \"pp\""},
    {"index_counts", "\"counts\" must add up to 4, found 2 at 3"},
    {"index_lists_miss", "3 is in none of \"lists\""},
    {"index_range", "expected a range [first, end)"},
    {"index_twice_on_rank", "0 stands twice in one list"},
    {"index_unknown", "\"{l}\" is not an index of \"for\""},
    {"index_unused", "index \"l\" of \"for\" is in no name"},
    {"mesh_rank_outside", "cell 1 has rank 4; ranks are 0 to 3"},
    {"mesh_rank_twice", "rank 1 stands in it twice"},
    {"mesh_ranks", "\"ranks\" must be an array of 2"},
    {"mesh_shape", "one size for each of the 2 axes, found 1"},
    {"mesh_too_large", "cell 4 has rank 4"},
    {"name_control", "the byte 0x0a at 1"},
    {"name_too_long", "longer than 255 bytes"},
    {"name_touches_number", "index \"l\" must not touch another number"},
    {"negative_shape", "\"shape\"[0] must be an integer between 0 and"},
    {"no_ranks", "\"ranks\" must be an integer, found nothing"},
    {"no_such_mesh", "\"mesh\" \"n\" is not in \"meshes\""},
    {"not_an_object", "must be an object, found an array"},
    {"not_json", "not valid JSON at line 2"},
    {"number_past_64_bits", "too big integer"},
    {"odd_packed", "must be a multiple of 2: F4 packs that many elements, found 7"},
    {"order", "\"order\" must hold each of the 2 dimensions once"},
    {"other_format", "expected \"refit-layout/1\""},
    {"pad_smaller", "\"to\" must be between 8 and"},
    {"partial", "placement \"Partial(sum)\" on mesh axis \"tp\""},
    {"parts_do_not_divide", "parts must divide the axis's size 4"},
    {"pieces_disagree", "piece 1 has 8 units in dimension 1, expected 4"},
    {"pieces_only_fill", "\"pieces\" need at least one with a tensor"},
    {"placements_count", "\"placements\" must be an array of 1, one for each axis of mesh \"m\", found 2"},
    {"rank_outside", "\"rank\" must be between 0 and 3, found 4"},
    {"real_number", "holds a real number"},
    {"region_box", "[6, 9) in dimension 0 is outside its shape's 8"},
    {"region_outside", "ends outside the buffer of 31 bytes"},
    {"region_stride", "\"stride\" 0 in dimension 0"},
    {"region_wraps", "ends outside the buffer of 32 bytes"},
    {"rows_blocks", "\"rows\" [0, 2] do not fit blocks of 3"},
    {"rows_in_unit", "\"rows\" cut inside a unit"},
    {"rows_outside", "\"rows\" [6, 3] do not fit the dimension of 8"},
    {"shape_overflow", "\"shape\" is larger than 2^60 bytes"},
    {"shard_outside", "the tensor has 2 dimensions"},
    {"split_factor", "_StridedShard on mesh axis \"fsdp\": split_factor 3"},
    {"too_many_dimensions", "\"shape\" must be an array of at most 8"},
    {"too_many_ranks", "\"ranks\" must be between 1 and 65536, found 65537"},
    {"too_many_tensors", "more than 4194304 tensors"},
    {"two_buffers", "entries 0 and 1 both give rank 0 the buffer"},
    {"two_dtypes", "is I8 [8, 4] here and U8 [8, 4] in an earlier entry"},
    {"two_listed_buffers", "entries 0 and 1 both give rank 1 the buffer \"b\""},
    {"two_shapes", "is U8 [8, 5] here and U8 [8, 4] in an earlier entry"},
    {"unknown_dtype", "unknown dtype \"bfloat16\""},
    {"unknown_entry_member", "unknown member \"colour\""},
    {"unknown_member", "unknown member \"color\""},
    {"unknown_placement", "placement \"Shard(x)\" on mesh axis \"tp\": expected Replicate"},
};

static void bad_documents_are_refused_by_name(void **state)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char file[128];
        struct refit_layout *layout = NULL;
        struct refit_error err = {0};
        size_t len;
        snprintf(file, sizeof file, "bad/%s.json", bad[i][0]);
        char *text = document_read(file, &len);
        enum refit_status status = refit_layout_parse(text, len, bad[i][0], &layout, &err);
        /* Without room for an error it must be refused all the same. */
        enum refit_status quiet = refit_layout_parse(text, len, bad[i][0], &layout, NULL);
        free(text);
        assert_true(status != REFIT_OK);
        assert_int_equal(status, quiet);
        assert_int_equal(err.status, status);
        assert_null(layout);
        if (!strstr(err.text, bad[i][1]) || strncmp(err.text, bad[i][0], strlen(bad[i][0])) != 0 ||
            strchr(err.text, '\n'))
            fail_msg("%s: expected \"%s\", found \"%s\"", file, bad[i][1], err.text);
    }
}

/* ---- merging ---- */

#define PART(rank, extra)                                                                                           \
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"entries\":[{\"rank\":" #rank ",\"buffer\":\"p\",\"bytes\":4,"       \
    "\"dtype\":\"U8\",\"regions\":[{\"tensor\":\"w\",\"shape\":[8],\"start\":[" #rank "],\"extent\":[4],\"offset\":0}]}]" \
    extra "}"

static void ranks_that_list_their_own_memory_are_merged(void **state)
{
    struct refit_layout *parts[2] = {parse(PART(0, ",\"excused\":[\"a\",\"b\"]")),
                                     parse(PART(1, ",\"aliases\":{\"x\":\"w\"},\"excused\":[\"b\"]"))};
    struct refit_layout *merged = NULL;
    struct order_check check = {0};
    uint32_t id;
    assert_int_equal(refit_layout_merge(parts, 2, &merged, NULL), REFIT_OK);
    assert_int_equal(refit_layout_ranks(merged), 2);
    assert_int_equal(refit_layout_tensor_count(merged), 1);
    assert_true(refit_layout_regions(merged, 0, REFIT_ALL_RANKS, check_order, &check));
    assert_int_equal(check.count, 2);
    assert_true(refit_layout_find(merged, "x", &id));
    assert_true(refit_layout_excuses(merged, "a") && refit_layout_excuses(merged, "b"));
    refit_layout_release(merged);
    refit_layout_release(parts[0]);
    refit_layout_release(parts[1]);
}

static void equal_layouts_merge_to_that_one(void **state)
{
    struct refit_layout *a = document_layout("cases/gate_up.engine.json"), *merged = NULL;
    struct refit_layout *parts[3] = {a, document_layout("cases/gate_up.engine.json"), a};
    assert_int_equal(refit_layout_merge(parts, 3, &merged, NULL), REFIT_OK);
    assert_string_equal(refit_layout_digest(merged), refit_layout_digest(a));
    refit_layout_release(merged);
    refit_layout_release(parts[1]);
    refit_layout_release(a);
}

static void parts_that_do_not_fit_together_are_refused(void **state)
{
    struct refit_layout *own[2] = {parse(PART(0, "")), parse(PART(1, ""))};
    struct refit_layout *swapped[2] = {own[1], own[0]}, *one[3] = {own[0], own[1], own[0]};
    struct refit_layout *mesh[2] = {own[0], document_layout("cases/mla.trainer.json")};
    struct refit_layout *merged = NULL;
    struct refit_error err;
    assert_int_equal(refit_layout_merge(swapped, 2, &merged, &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "layout of rank 0: entry 0 describes rank 1"));
    assert_int_equal(refit_layout_merge(one, 3, &merged, &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "\"ranks\" is 2, but 3 ranks"));
    assert_int_equal(refit_layout_merge(mesh, 2, &merged, &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "layout of rank 1 differs"));
    assert_int_equal(refit_layout_merge(mesh, 0, &merged, &err), REFIT_INVALID);
    refit_layout_release(own[0]);
    refit_layout_release(own[1]);
    refit_layout_release(mesh[1]);
}

/* ---- size ---- */

static bool count_any(void *ctx, const struct refit_region *region)
{
    (void)region;
    ++*(uint64_t *)ctx;
    return true;
}

/* DeepSeek-V3's experts on 32 ranks: nothing is kept per member, so the text stays all there is to it. */
static void families_of_a_large_model_expand_on_the_fly(void **state)
{
    struct refit_layout *layout = parse(
        "{\"format\":\"refit-layout/1\",\"ranks\":32,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[32]}},\"entries\":["
        "{\"buffer\":\"l.{l}.w13\",\"for\":{\"l\":[3,61],\"e\":[0,256]},\"dtype\":\"F8_E4M3\",\"mesh\":\"m\",\"pieces\":["
        "{\"tensor\":\"l.{l}.e.{e}.gate\",\"shape\":[2048,7168],\"placements\":[\"Shard(0)\"]},"
        "{\"tensor\":\"l.{l}.e.{e}.up\",\"shape\":[2048,7168],\"placements\":[\"Shard(0)\"]}]},"
        "{\"tensor\":\"l.{l}.e.{e}.down\",\"buffer\":\"l.{l}.w2\",\"for\":{\"l\":[3,61],\"e\":[0,256]},"
        "\"dtype\":\"F8_E4M3\",\"shape\":[7168,2048],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]}]}");
    uint64_t regions = 0;
    uint32_t id;
    assert_int_equal(refit_layout_tensor_count(layout), 44544);
    for (uint32_t t = 0; t < 44544; t++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, t, &tensor);
        assert_true(refit_layout_find(layout, tensor.name, &id));
        assert_int_equal(id, t);
    }
    for (uint32_t t = 0; t < 44544; t += 97)
        refit_layout_regions(layout, t, REFIT_ALL_RANKS, count_any, &regions);
    assert_int_equal(regions, 460 * 32);
    assert_int_equal(refit_layout_arena_bytes(layout, 31), INT64_C(58) * 256 * 3 * 2048 * 7168 / 32);
    assert_int_equal(refit_coverage_check(layout, NULL), REFIT_OK);
    refit_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_is_found_by_its_name),
        cmocka_unit_test(overlapping_families_share_tensors),
        cmocka_unit_test(regions_come_by_rising_rank_also_on_shuffled_meshes),
        cmocka_unit_test(buffers_are_packed_and_found_by_name),
        cmocka_unit_test(a_stage_has_no_buffer_of_another_stages_layer),
        cmocka_unit_test(equal_documents_have_equal_digests_and_meaning),
        cmocka_unit_test(bad_documents_are_refused_by_name),
        cmocka_unit_test(ranks_that_list_their_own_memory_are_merged),
        cmocka_unit_test(equal_layouts_merge_to_that_one),
        cmocka_unit_test(parts_that_do_not_fit_together_are_refused),
        cmocka_unit_test(families_of_a_large_model_expand_on_the_fly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
