/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cursor.h"
#include "base/error.h"

static void a_cursor_never_runs_past_its_end(void **state)
{
    const uint8_t bytes[] = {1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9};
    struct refit_cursor c = refit_cursor_over(bytes, sizeof bytes);
    assert_int_equal(refit_cursor_u8(&c), 1);
    assert_int_equal(refit_cursor_u32(&c), 2);
    assert_int_equal(refit_cursor_u64(&c), 3);
    assert_int_equal(refit_cursor_left(&c), 1);
    assert_false(refit_cursor_done(&c));
    assert_int_equal(refit_cursor_u32(&c), 0);
    assert_true(c.failed);
    assert_int_equal(refit_cursor_u8(&c), 0); /* failed for good, though one byte is left */
    assert_null(refit_cursor_bytes(&c, 1));
}

static void a_buffer_stops_at_its_ceiling_and_stays_failed(void **state)
{
    struct refit_buf buf;
    refit_buf_init(&buf, 10);
    assert_true(refit_buf_append(&buf, "12345", 5));
    assert_true(refit_buf_append_u32(&buf, 7));
    assert_false(refit_buf_append_u64(&buf, 1));
    assert_false(refit_buf_append(&buf, "x", 1));
    assert_int_equal(buf.len, 9);
    refit_buf_clear(&buf);
    assert_true(refit_buf_printf(&buf, "%d-%d", 12, 34));
    assert_memory_equal(buf.data, "12-34", 5);
    assert_false(refit_buf_printf(&buf, "%s", "123456"));
    refit_buf_release(&buf);
}

static void deadlines_do_not_overflow(void **state)
{
    assert_true(refit_deadline_passed((struct refit_deadline){0}));
    assert_int_equal(refit_deadline_left_ms((struct refit_deadline){0}), 0);
    assert_int_equal(refit_deadline_left_ms(refit_deadline_in_ms(INT64_MAX)), INT_MAX);
    struct refit_deadline soon = refit_deadline_in_ms(1), late = refit_deadline_in_ms(1000000);
    assert_true(refit_deadline_earlier(late, soon).at_ns == soon.at_ns);
}

static void errors_carry_their_reason_and_their_way_up(void **state)
{
    struct refit_error err;
    assert_int_equal(refit_fail_errno(&err, ENOENT, "%s: open", "a.bin"), REFIT_SYSTEM);
    assert_string_equal(err.text, "a.bin: open: No such file or directory (errno 2)");
    assert_int_equal(refit_fail_errno(&err, ENOMEM, "map"), REFIT_NO_MEMORY);
    assert_int_equal(refit_fail(&err, REFIT_PEER, "closed"), REFIT_PEER);
    assert_int_equal(refit_error_prefix(&err, REFIT_PEER, "rank %d", 3), REFIT_PEER);
    assert_string_equal(err.text, "rank 3: closed");
    assert_int_equal(refit_error_prefix(NULL, REFIT_BUSY, "rank %d", 3), REFIT_BUSY);
    assert_int_equal(refit_fail(NULL, REFIT_BUSY, "nobody listens"), REFIT_BUSY);
    for (int i = 0; i < 50; i++) /* a prefix per hop can't overflow */
        assert_int_equal(refit_error_prefix(&err, REFIT_PEER, "a rather long prefix number %d", i), REFIT_PEER);
    assert_true(strlen(err.text) < REFIT_ERROR_TEXT_MAX);
}

static void every_status_has_a_name_and_an_action(void **state)
{
    for (int s = REFIT_OK; s <= REFIT_SYSTEM; s++) {
        assert_string_not_equal(refit_status_name((enum refit_status)s), "unknown");
        assert_true(strlen(refit_status_action((enum refit_status)s)) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cursor_never_runs_past_its_end),
        cmocka_unit_test(a_buffer_stops_at_its_ceiling_and_stays_failed),
        cmocka_unit_test(deadlines_do_not_overflow),
        cmocka_unit_test(errors_carry_their_reason_and_their_way_up),
        cmocka_unit_test(every_status_has_a_name_and_an_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
