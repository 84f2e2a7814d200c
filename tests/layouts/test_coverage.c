/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/coverage.h"

/* One rank's buffer "b" of U8 with these regions and fills, both as JSON text. */
static enum refit_status check(uint64_t bytes, const char *regions, const char *fills, struct refit_error *err)
{
    char text[4096];
    struct refit_layout *layout = NULL;
    snprintf(text, sizeof text,
             "{\"format\":\"refit-layout/1\",\"ranks\":2,\"entries\":[{\"rank\":1,\"buffer\":\"b\",\"bytes\":%lu,"
             "\"dtype\":\"U8\",\"regions\":[%s],\"fills\":[%s]}]}",
             (unsigned long)bytes, regions, fills);
    if (refit_layout_parse(text, strlen(text), "test", &layout, err) != REFIT_OK)
        fail_msg("%s", err->text);
    enum refit_status status = refit_coverage_check(layout, err);
    refit_layout_release(layout);
    return status;
}

static void expect_covered(uint64_t bytes, const char *regions, const char *fills)
{
    struct refit_error err;
    if (check(bytes, regions, fills, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void expect_fault(uint64_t bytes, const char *regions, const char *fills, const char *message)
{
    struct refit_error err = {0};
    assert_int_equal(check(bytes, regions, fills, &err), REFIT_INVALID);
    if (!strstr(err.text, message))
        fail_msg("expected \"%s\", found \"%s\"", message, err.text);
}

#define REGION(tensor, shape, offset, stride)                                                                        \
    "{\"tensor\":\"" tensor "\",\"shape\":[" shape "],\"offset\":" #offset ",\"stride\":[" stride "]}"

static void interleaved_rows_cover(void **state)
{
    expect_covered(24, REGION("gate", "4,3", 0, "6,1") "," REGION("up", "4,3", 3, "6,1"), "");
    /* Single bytes taken in turns by three. */
    expect_covered(30, REGION("a", "10", 0, "3") "," REGION("c", "10", 2, "3") "," REGION("b", "10", 1, "3"), "");
}

static void transposed_and_permuted_boxes_cover(void **state)
{
    expect_covered(12, REGION("w", "3,4", 0, "1,3"), "");
    expect_covered(24, REGION("w", "2,3,4", 0, "4,8,1"), "");
}

static void strides_that_interleave_with_each_other_cover(void **state)
{
    /* 0,2,4 + 0,3 = 0,2,3,4,5,7: the holes are 1 and 6. */
    expect_covered(8, REGION("w", "3,2", 0, "2,3") "," REGION("v", "2", 1, "5"), "");
    expect_fault(8, REGION("w", "3,2", 0, "2,3"), "", "bytes 1 to 2, before tensor \"w\", are in no region");
}

static void rows_of_different_lengths_cover(void **state)
{
    expect_covered(20, REGION("a", "2,3", 0, "5,1") "," REGION("b", "4,2", 3, "5,1") "," REGION("c", "2,3", 10, "5,1"),
                   "");
}

static void fills_count(void **state)
{
    expect_covered(10, REGION("w", "6", 0, "1"), "{\"offset\":6,\"bytes\":4}");
    expect_fault(10, REGION("w", "6", 0, "1"), "{\"offset\":5,\"bytes\":5}",
                 "byte 5 is written twice, by tensor \"w\" and by fill 0");
    expect_covered(0, "", "");
    expect_covered(4, "", "{\"offset\":0,\"bytes\":4}");
}

static void holes_are_named(void **state)
{
    expect_fault(12, REGION("w", "5", 0, "1") "," REGION("v", "5", 7, "1"), "",
                 "buffer \"b\" of rank 1: bytes 5 to 7, before tensor \"v\", are in no region");
    expect_fault(12, REGION("w", "5", 0, "1"), "", "bytes 5 to 12, its end, are in no region");
    expect_fault(12, REGION("w", "10", 2, "1"), "", "bytes 0 to 2, before tensor \"w\"");
    expect_fault(12, "", "", "bytes 0 to 12, its end");
}

static void overlaps_are_named(void **state)
{
    expect_fault(8, REGION("w", "5", 0, "1") "," REGION("v", "4", 4, "1"), "",
                 "byte 4 is written twice, by tensor \"w\" and by tensor \"v\"");
    expect_fault(23, REGION("gate", "4,3", 0, "6,1") "," REGION("up", "4,3", 2, "6,1"), "",
                 "byte 2 is written twice, by tensor \"gate\" and by tensor \"up\"");
    /* A region that overlaps itself. */
    expect_fault(7, REGION("w", "2,4", 0, "3,1"), "", "byte 3 is written twice, by tensor \"w\" and by tensor \"w\"");
    /* As many bytes as the buffer has, but not the right ones. */
    expect_fault(8, REGION("w", "4", 0, "1") "," REGION("v", "4", 3, "1"), "", "byte 3 is written twice");
}

static void families_on_meshes_cover(void **state)
{
    static const char text[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[3]}},\"entries\":["
        "{\"buffer\":\"l.{l}.w\",\"for\":{\"l\":[0,3],\"e\":{\"range\":[0,5],\"axis\":\"tp\"}},\"dtype\":\"BF16\",\"mesh\":"
        "\"m\",\"dim\":1,\"groups\":2,\"order\":[1,0],\"pieces\":[{\"tensor\":\"l.{l}.e.{e}.a\",\"shape\":[3,6],\"pad\":"
        "{\"dim\":0,\"to\":5}},{\"fill\":7,\"rows\":3},{\"tensor\":\"l.{l}.e.{e}.b\",\"shape\":[5,4],\"pad\":{\"dim\":1,"
        "\"to\":6,\"value\":1}}]},{\"buffer\":\"d\",\"mesh\":\"m\",\"bytes\":100,\"derived\":true}]}";
    struct refit_layout *layout = NULL;
    struct refit_error err;
    if (refit_layout_parse(text, strlen(text), "test", &layout, &err) || refit_coverage_check(layout, &err))
        fail_msg("%s", err.text);
    refit_layout_release(layout);
}

/* Random cuts of a cube into boxes, each stored with the cube's strides in a random order: always exact; with one
 * byte of one box changed it never is. */
static uint64_t random_state = 7;

static int below(int n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1;
    return (int)(random_state >> 33) % n;
}

static size_t add_boxes(char *text, size_t len, size_t used, struct refit_box box, const int64_t *stride, int *number)
{
    int dim = below(3);
    if (box.extent[dim] > 1 && below(3)) {
        struct refit_box rest = box;
        box.extent[dim] = 1 + below((int)box.extent[dim] - 1);
        rest.start[dim] += box.extent[dim];
        rest.extent[dim] -= box.extent[dim];
        used = add_boxes(text, len, used, box, stride, number);
        return add_boxes(text, len, used, rest, stride, number);
    }
    int64_t offset = 0;
    for (int d = 0; d < 3; d++)
        offset += box.start[d] * stride[d];
    return used + (size_t)snprintf(text + used, len - used,
                                   "%s{\"tensor\":\"t%d\",\"shape\":[%d,%d,%d],\"offset\":%d,\"stride\":[%d,%d,%d]}",
                                   used ? "," : "", (*number)++, (int)box.extent[0], (int)box.extent[1],
                                   (int)box.extent[2], (int)offset, (int)stride[0], (int)stride[1], (int)stride[2]);
}

static void random_cuts_are_proved_and_their_mutants_are_not(void **state)
{
    static char text[3000];
    for (int round = 0; round < 500; round++) {
        static const int orders[3][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
        struct refit_box cube = {.dims = 3, .extent = {1 + below(5), 1 + below(5), 1 + below(5)}};
        const int *order = orders[below(3)];
        int64_t stride[3], step = 1;
        struct refit_error err;
        int number = 0;
        for (int k = 0; k < 3; k++) {
            stride[order[k]] = step;
            step *= cube.extent[order[k]];
        }
        if (add_boxes(text, sizeof text, 0, cube, stride, &number) >= sizeof text)
            continue;
        expect_covered((uint64_t)step, text, "");
        assert_int_equal(check((uint64_t)step + 1, text, "", &err), REFIT_INVALID);
        char fill[64];
        snprintf(fill, sizeof fill, "{\"offset\":%d,\"bytes\":1}", below((int)step));
        expect_fault((uint64_t)step, text, fill, "is written twice");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_rows_cover),
        cmocka_unit_test(transposed_and_permuted_boxes_cover),
        cmocka_unit_test(strides_that_interleave_with_each_other_cover),
        cmocka_unit_test(rows_of_different_lengths_cover),
        cmocka_unit_test(fills_count),
        cmocka_unit_test(holes_are_named),
        cmocka_unit_test(overlaps_are_named),
        cmocka_unit_test(families_on_meshes_cover),
        cmocka_unit_test(random_cuts_are_proved_and_their_mutants_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
