/* SPDX-License-Identifier: Apache-2.0
 *
 * Documents that would pass the memory limit are refused before they are parsed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_heap.h"
#include "memory/document.h"
#include "memory/slot.h"

static uint64_t left;

uint64_t __wrap_refit_memory_available(const char **limit_path);
uint64_t __wrap_refit_memory_available(const char **limit_path)
{
    *limit_path = "memory.max";
    return left;
}

static char text[200000];

static int set_up(void **state)
{
    for (size_t i = 0; i + 1 < sizeof text; i += 2)
        memcpy(text + i, "[]", 2);
    left = refit_json_heap(text, sizeof text);
    return 0;
}

static void a_document_that_fits_is_let_in(void **state)
{
    uint64_t bytes;
    assert_int_equal(refit_document_enter(text, sizeof text, 1, "layout", &bytes, NULL), REFIT_OK);
    assert_int_equal(bytes, left);
    refit_document_leave(bytes);
}

static void one_that_does_not_fit_is_refused_by_name(void **state)
{
    struct refit_error err;
    uint64_t bytes;
    assert_int_equal(refit_document_enter(text, sizeof text, 2, "layout", &bytes, &err), REFIT_NO_MEMORY);
    assert_non_null(strstr(err.text, "layout"));
    assert_non_null(strstr(err.text, "memory.max"));
    assert_int_equal(bytes, 0);
    assert_int_equal(refit_document_enter(text, sizeof text, 1, "layout", &bytes, NULL), REFIT_OK);
    refit_document_leave(bytes);
}

static void those_that_are_read_at_once_count_together(void **state)
{
    uint64_t first, second;
    assert_int_equal(refit_document_enter(text, sizeof text, 1, "layout", &first, NULL), REFIT_OK);
    assert_int_equal(refit_document_enter(text, sizeof text, 1, "layout", &second, NULL), REFIT_NO_MEMORY);
    refit_document_leave(first);
    assert_int_equal(refit_document_enter(text, sizeof text, 1, "layout", &second, NULL), REFIT_OK);
    refit_document_leave(second);
}

static void small_ones_are_let_in_unasked(void **state)
{
    uint64_t bytes;
    left = 0;
    assert_int_equal(refit_document_enter("{}", 2, 1, "commit", &bytes, NULL), REFIT_OK);
    refit_document_leave(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_document_that_fits_is_let_in, set_up),
        cmocka_unit_test_setup(one_that_does_not_fit_is_refused_by_name, set_up),
        cmocka_unit_test_setup(those_that_are_read_at_once_count_together, set_up),
        cmocka_unit_test_setup(small_ones_are_let_in_unasked, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
