/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/box.h"

#define SIDE 6 /* boxes are in a cube of this side */

static uint64_t random_state = 42;

static int64_t below(int64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1;
    return (int64_t)(random_state >> 33) % n;
}

static struct refit_box random_box(uint32_t dims)
{
    struct refit_box box = {.dims = dims};
    for (uint32_t d = 0; d < dims; d++) {
        box.start[d] = below(SIDE);
        box.extent[d] = below(SIDE - box.start[d] + 1);
    }
    return box;
}

static bool has(const struct refit_box *box, const int64_t *point)
{
    for (uint32_t d = 0; d < box->dims; d++)
        if (point[d] < box->start[d] || point[d] >= box->start[d] + box->extent[d])
            return false;
    return true;
}

static void point_of(uint32_t dims, int64_t flat, int64_t *point)
{
    for (uint32_t d = dims; d-- > 0; flat /= SIDE)
        point[d] = flat % SIDE;
}

static int64_t cube(uint32_t dims)
{
    return dims == 0 ? 1 : SIDE * cube(dims - 1);
}

static void set_operations_agree_with_points(void **state)
{
    for (int round = 0; round < 2000; round++) {
        uint32_t dims = (uint32_t)below(5);
        struct refit_box a = random_box(dims), b = random_box(dims), both, rest[2 * REFIT_DIMS_MAX];
        bool shared = refit_box_intersect(&a, &b, &both), any = false;
        size_t count = refit_box_subtract(&a, &b, rest);
        uint64_t in_a = 0;
        bool contained = true;
        assert_true(count <= (dims ? 2 * dims : 1));
        for (int64_t flat = 0; flat < cube(dims); flat++) {
            int64_t point[REFIT_DIMS_MAX];
            int pieces = 0;
            point_of(dims, flat, point);
            for (size_t i = 0; i < count; i++)
                pieces += has(&rest[i], point);
            any |= has(&a, point) && has(&b, point);
            in_a += has(&a, point);
            contained &= !has(&b, point) || has(&a, point);
            assert_int_equal(has(&both, point), has(&a, point) && has(&b, point));
            assert_int_equal(pieces, has(&a, point) && !has(&b, point));
        }
        assert_int_equal(shared, any);
        assert_int_equal(refit_box_empty(&both), !any);
        assert_int_equal(refit_box_volume(&a), in_a);
        if (!refit_box_empty(&b))
            assert_int_equal(refit_box_contains(&a, &b), contained);
    }
}

static void flat_ranges_become_boxes_in_order(void **state)
{
    for (int round = 0; round < 2000; round++) {
        uint32_t dims = 1 + (uint32_t)below(4);
        int64_t shape[REFIT_DIMS_MAX], total = 1, next;
        struct refit_box boxes[2 * REFIT_DIMS_MAX];
        for (uint32_t d = 0; d < dims; d++)
            total *= shape[d] = 1 + below(5);
        int64_t begin = below(total + 1), end = begin + below(total - begin + 1);
        size_t count = refit_box_from_flat(dims, shape, (uint64_t)begin, (uint64_t)end, boxes);
        assert_true(count <= 2 * dims - 1);
        next = begin;
        for (size_t i = 0; i < count; i++) {
            for (uint64_t n = 0; n < refit_box_volume(&boxes[i]); n++) {
                uint64_t rest = n;
                int64_t flat = 0, place = 1;
                for (uint32_t d = dims; d-- > 0; place *= shape[d]) {
                    flat += (boxes[i].start[d] + (int64_t)(rest % (uint64_t)boxes[i].extent[d])) * place;
                    rest /= (uint64_t)boxes[i].extent[d];
                }
                assert_int_equal(flat, next++);
            }
        }
        assert_int_equal(next, end);
    }
}

static void scalars_are_boxes_of_one(void **state)
{
    struct refit_box scalar = refit_box_of_shape(0, NULL), out[2 * REFIT_DIMS_MAX];
    char text[REFIT_BOX_TEXT_MAX];
    assert_int_equal(refit_box_volume(&scalar), 1);
    assert_false(refit_box_empty(&scalar));
    assert_int_equal(refit_box_from_flat(0, NULL, 0, 1, out), 1);
    assert_int_equal(refit_box_from_flat(0, NULL, 0, 0, out), 0);
    assert_string_equal(refit_box_format(&scalar, text, sizeof text), "[]");
}

static void text_is_cut_but_ends(void **state)
{
    struct refit_box box = {.dims = 2, .start = {0, 64}, .extent = {128, 32}};
    char text[REFIT_BOX_TEXT_MAX], small[8];
    assert_string_equal(refit_box_format(&box, text, sizeof text), "[0:128, 64:96]");
    assert_true(strlen(refit_box_format(&box, small, sizeof small)) < sizeof small);
    struct refit_box same = box;
    assert_true(refit_box_equal(&box, &same));
    same.extent[1]++;
    assert_false(refit_box_equal(&box, &same));
}

static void boxes_reach_past_32_bits(void **state)
{
    const int64_t shape[2] = {INT64_C(3) << 32, 5};
    struct refit_box boxes[2 * REFIT_DIMS_MAX], whole = refit_box_of_shape(2, shape);
    assert_int_equal(refit_box_volume(&whole), UINT64_C(15) << 32);
    assert_int_equal(refit_box_from_flat(2, shape, (UINT64_C(5) << 32) + 1, (UINT64_C(5) << 33) + 2, boxes), 3);
    assert_int_equal(boxes[1].start[0], (INT64_C(1) << 32) + 1);
    assert_int_equal(boxes[1].extent[0], (INT64_C(1) << 32) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_operations_agree_with_points),
        cmocka_unit_test(flat_ranges_become_boxes_in_order),
        cmocka_unit_test(scalars_are_boxes_of_one),
        cmocka_unit_test(text_is_cut_but_ends),
        cmocka_unit_test(boxes_reach_past_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
