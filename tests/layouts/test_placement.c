/* SPDX-License-Identifier: Apache-2.0
 *
 * Placements against torch itself: golden_placements.json was made by golden_placements.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "document.h"

static json_t *golden(void)
{
    size_t len;
    json_t *value = NULL;
    char *text = document_read("golden_placements.json", &len);
    assert_int_equal(refit_json_parse(text, len, "golden", &value, NULL), REFIT_OK);
    free(text);
    return value;
}

static int64_t number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static struct refit_layout *layout_of(json_t *document)
{
    struct refit_layout *layout = NULL;
    struct refit_error err;
    assert_non_null(document);
    if (refit_layout_from_json(document, "test", &layout, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    json_decref(document);
    return layout;
}

/* A one-entry layout of an [n, 2] tensor. */
static struct refit_layout *placed(int64_t n, json_t *axes, json_t *shape, int64_t ranks, json_t *placements)
{
    return layout_of(json_pack("{s:s, s:I, s:{s:{s:o, s:o}}, s:[{s:s, s:s, s:[I, i], s:s, s:o}]}", "format",
                               "refit-layout/1", "ranks", (json_int_t)ranks, "meshes", "m", "axes", axes, "shape", shape,
                               "entries", "tensor", "w", "dtype", "BF16", "shape", (json_int_t)n, 2, "mesh", "m",
                               "placements", placements));
}

static bool keep(void *ctx, const struct refit_region *region)
{
    struct refit_box *box = ctx;
    assert_int_equal(box->dims, 0); /* one region per rank */
    *box = region->box;
    return true;
}

static void expect_rows(const struct refit_layout *layout, uint32_t rank, int64_t start, int64_t count)
{
    struct refit_box box = {.dims = 0};
    refit_layout_regions(layout, 0, rank, keep, &box);
    if (count == 0) {
        assert_int_equal(box.dims, 0);
        return;
    }
    assert_int_equal(box.dims, 2);
    assert_int_equal(box.start[0], start);
    assert_int_equal(box.extent[0], count);
    assert_int_equal(box.extent[1], 2);
}

static void shard_cuts_as_torch_chunk(void **state)
{
    json_t *file = golden(), *item;
    size_t i;
    assert_true(json_array_size(json_object_get(file, "chunks")) > 100);
    json_array_foreach(json_object_get(file, "chunks"), i, item) {
        int64_t n = number(item, "n"), parts = number(item, "parts"), start = 0;
        struct refit_layout *layout = placed(n, json_pack("[s]", "a"), json_pack("[I]", (json_int_t)parts), parts,
                                             json_pack("[s]", "Shard(0)"));
        for (uint32_t rank = 0; rank < parts; rank++) {
            int64_t size = json_integer_value(json_array_get(json_object_get(item, "sizes"), rank));
            expect_rows(layout, rank, start, size);
            start += size;
        }
        assert_int_equal(start, n);
        refit_layout_release(layout);
    }
    json_decref(file);
}

static void strided_shard_is_fsdp_inside_tp(void **state)
{
    json_t *file = golden(), *item;
    size_t i;
    assert_true(json_array_size(json_object_get(file, "fsdp_tp")) > 50);
    json_array_foreach(json_object_get(file, "fsdp_tp"), i, item) {
        int64_t fsdp = number(item, "fsdp"), tp = number(item, "tp");
        char strided[64];
        snprintf(strided, sizeof strided, "_StridedShard(0, split_factor=%d)", (int)tp);
        struct refit_layout *layout = placed(number(item, "n"), json_pack("[s, s]", "fsdp", "tp"),
                                             json_pack("[I, I]", (json_int_t)fsdp, (json_int_t)tp), fsdp * tp,
                                             json_pack("[s, s]", strided, "Shard(0)"));
        for (uint32_t rank = 0; rank < fsdp * tp; rank++) {
            const json_t *rows = json_array_get(json_object_get(item, "rows"), rank);
            expect_rows(layout, rank, json_integer_value(json_array_get(rows, 0)),
                        json_integer_value(json_array_get(rows, 1)));
        }
        refit_layout_release(layout);
    }
    json_decref(file);
}

static void row_8_of_9_lies_at_coordinate_3_1(void **state)
{
    struct refit_layout *layout = placed(9, json_pack("[s, s]", "fsdp", "tp"), json_pack("[i, i]", 4, 2), 8,
                                         json_pack("[s, s]", "_StridedShard(0, split_factor=2)", "Shard(0)"));
    expect_rows(layout, 3 * 2 + 1, 8, 1);
    expect_rows(layout, 3 * 2 + 0, 0, 0);
    refit_layout_release(layout);
}

/* Three axes on one dimension, each order that split factors can say. */
static void split_factor_says_which_axes_cut_first(void **state)
{
    /* 24 rows on a=2, b=2, c=3: where rank (1, 0, 2) begins, and its 2 rows. */
    static const struct {
        const char *a, *b;
        int64_t start;
    } cases[] = {
        {"Shard(0)", "Shard(0)", 12 + 0 + 4},                                                       /* a, b, c */
        {"Shard(0)", "_StridedShard(0, split_factor=3)", 12 + 8 + 0},                               /* a, c, b */
        {"_StridedShard(0, split_factor=2)", "Shard(0)", 0 + 6 + 4},                                /* b, a, c */
        {"_StridedShard(0, split_factor=6)", "Shard(0)", 0 + 8 + 2},                                /* b, c, a */
        {"_StridedShard(0, split_factor=3)", "_StridedShard(0, split_factor=3)", 16 + 4 + 0},       /* c, a, b */
        {"_StridedShard(0, split_factor=6)", "_StridedShard(0, split_factor=3)", 16 + 0 + 2},       /* c, b, a */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct refit_layout *layout = placed(24, json_pack("[s, s, s]", "a", "b", "c"), json_pack("[i, i, i]", 2, 2, 3),
                                             12, json_pack("[s, s, s]", cases[i].a, cases[i].b, "Shard(0)"));
        expect_rows(layout, 1 * 6 + 0 * 3 + 2, cases[i].start, 2);
        refit_layout_release(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_cuts_as_torch_chunk),
        cmocka_unit_test(strided_shard_is_fsdp_inside_tp),
        cmocka_unit_test(row_8_of_9_lies_at_coordinate_3_1),
        cmocka_unit_test(split_factor_says_which_axes_cut_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
