/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layouts/dtype.h"

static void names_round_trip(void **state)
{
    for (unsigned i = 0; i < REFIT_DTYPE_COUNT; i++) {
        enum refit_dtype dtype = REFIT_DTYPE_COUNT;
        assert_true(refit_dtype_parse(refit_dtype_name((enum refit_dtype)i), &dtype));
        assert_int_equal(dtype, i);
    }
}

static void unknown_names_are_not_parsed(void **state)
{
    static const char *const names[] = {"", "bf16", "BF16 ", "F8", "torch.bfloat16"};
    enum refit_dtype dtype = REFIT_DTYPE_F32;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_false(refit_dtype_parse(names[i], &dtype));
    assert_int_equal(dtype, REFIT_DTYPE_F32);
}

static void a_unit_is_the_smallest_whole_number_of_bytes(void **state)
{
    for (unsigned i = 0; i < REFIT_DTYPE_COUNT; i++) {
        enum refit_dtype dtype = (enum refit_dtype)i;
        uint32_t bits = refit_dtype_bits(dtype), elements = 1;
        while (bits * elements % 8 != 0)
            elements++;
        assert_int_equal(refit_dtype_unit_elements(dtype), elements);
        assert_int_equal(refit_dtype_unit_bytes(dtype), bits * elements / 8);
    }
    assert_int_equal(refit_dtype_bits(REFIT_DTYPE_F4), 4);
    assert_int_equal(refit_dtype_bits(REFIT_DTYPE_F6_E2M3), 6);
    assert_int_equal(refit_dtype_bits(REFIT_DTYPE_F8_E8M0), 8);
    assert_int_equal(refit_dtype_bits(REFIT_DTYPE_BF16), 16);
    assert_int_equal(refit_dtype_bits(REFIT_DTYPE_C64), 64);
}

static void numbers_outside_the_list_have_a_name_and_no_size(void **state)
{
    assert_string_equal(refit_dtype_name(REFIT_DTYPE_COUNT), "unknown");
    assert_int_equal(refit_dtype_unit_bytes(REFIT_DTYPE_COUNT), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(unknown_names_are_not_parsed),
        cmocka_unit_test(a_unit_is_the_smallest_whole_number_of_bytes),
        cmocka_unit_test(numbers_outside_the_list_have_a_name_and_no_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
