/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges and windows of host memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/io.h"
#include "memory/exchange.h"
#include "memory/slot.h"
#include "memory/window.h"

#define BYTES ((uint64_t)1000003) /* several chunks, the last one short */

static struct refit_deadline soon(void)
{
    return refit_deadline_in_ms(30000);
}

static struct refit_arena *host_slot(unsigned char value)
{
    struct refit_arena *slot = NULL;
    struct refit_error err;
    if (refit_slot_create("slot", BYTES, REFIT_PROTECT_UID, &slot, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    memset(refit_arena_host(slot, 0, refit_arena_bytes(slot)), value, refit_arena_bytes(slot));
    return slot;
}

static uint64_t count(const struct refit_arena *slot, unsigned char value)
{
    const unsigned char *bytes = refit_arena_host(slot, 0, BYTES);
    uint64_t found = 0;
    for (uint64_t i = 0; i < BYTES; i++)
        found += bytes[i] == value;
    return found;
}

static void bytes_change_places_and_back(void **state)
{
    struct refit_arena *a = host_slot(1), *b = host_slot(2);
    struct refit_exchange *exchange;
    struct refit_exchanged done;
    (void)state;
    assert_int_equal(refit_exchange_create(a, b, &exchange, NULL), REFIT_OK);
    assert_int_equal(refit_exchange_run(exchange, a, b, BYTES, soon(), &done, NULL), REFIT_OK);
    assert_true(done.bytes == BYTES && !done.torn);
    assert_true(count(a, 2) == BYTES && count(b, 1) == BYTES);
    /* The first part back: it is what undoes an exchange that failed there. */
    assert_int_equal(refit_exchange_run(exchange, a, b, 300000, soon(), &done, NULL), REFIT_OK);
    assert_true(count(a, 1) == 300000 && count(b, 2) == 300000);
    assert_int_equal(refit_exchange_run(exchange, a, b, 0, soon(), &done, NULL), REFIT_OK);
    assert_int_equal(done.bytes, 0);
    refit_exchange_destroy(exchange);
    refit_arena_release(a);
    refit_arena_release(b);
}

static void what_cannot_be_written_is_not_begun(void **state)
{
    struct refit_arena *a = host_slot(1), *b = host_slot(2), *mapped;
    struct refit_exchange *exchange;
    struct refit_exchanged done;
    int fd;
    (void)state;
    assert_int_equal(refit_slot_export(b, &fd, NULL), REFIT_OK);
    assert_int_equal(refit_slot_map(fd, BYTES, &mapped, NULL), REFIT_OK);
    assert_int_equal(refit_exchange_create(a, b, &exchange, NULL), REFIT_OK);
    assert_int_equal(refit_exchange_run(exchange, a, mapped, BYTES, soon(), &done, NULL), REFIT_INVALID);
    assert_int_equal(refit_exchange_run(exchange, a, b, 2 * BYTES, soon(), &done, NULL), REFIT_INVALID);
    assert_true(done.bytes == 0 && !done.torn && count(a, 1) == BYTES && count(b, 2) == BYTES);
    refit_exchange_destroy(exchange);
    refit_io_close(&fd);
    refit_arena_release(mapped);
    refit_arena_release(a);
    refit_arena_release(b);
}

static void a_window_shows_one_slot_after_another_at_one_address(void **state)
{
    struct refit_arena *slot[2] = {host_slot(1), host_slot(2)}, *mapped[2];
    struct refit_window *window;
    const unsigned char *at;
    (void)state;
    for (int i = 0; i < 2; i++) {
        int fd;
        assert_int_equal(refit_slot_export(slot[i], &fd, NULL), REFIT_OK);
        assert_int_equal(refit_slot_map(fd, BYTES, &mapped[i], NULL), REFIT_OK);
        refit_io_close(&fd);
    }
    assert_int_equal(refit_window_create(mapped[0], &window, NULL), REFIT_OK);
    at = refit_window_at(window, 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(refit_window_show(window, mapped[i % 2], NULL), REFIT_OK);
        assert_ptr_equal(refit_window_at(window, 0), at);
        assert_int_equal(at[0], 1 + i % 2);
        assert_int_equal(at[BYTES - 1], 1 + i % 2);
    }
    refit_window_destroy(window);
    for (int i = 0; i < 2; i++) {
        refit_arena_release(mapped[i]);
        refit_arena_release(slot[i]);
    }
}

static void a_window_takes_no_slot_of_another_size(void **state)
{
    struct refit_arena *a = host_slot(1), *small = NULL;
    struct refit_window *window;
    struct refit_error err;
    (void)state;
    assert_int_equal(refit_slot_create("small", 4096, REFIT_PROTECT_UID, &small, NULL), REFIT_OK);
    assert_int_equal(refit_window_create(a, &window, NULL), REFIT_OK);
    assert_int_equal(refit_window_show(window, a, NULL), REFIT_OK);
    assert_int_equal(refit_window_show(window, small, &err), REFIT_MISMATCH);
    assert_int_equal(*(const unsigned char *)refit_window_at(window, 5), 1);
    refit_window_destroy(window);
    refit_arena_release(small);
    refit_arena_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_change_places_and_back),
        cmocka_unit_test(what_cannot_be_written_is_not_begun),
        cmocka_unit_test(a_window_shows_one_slot_after_another_at_one_address),
        cmocka_unit_test(a_window_takes_no_slot_of_another_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
