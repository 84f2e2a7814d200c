/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/rate.h"

#define SECOND INT64_C(1000000000)

static void waits_add_up_to_the_rate(void **state)
{
    struct refit_rate rate;
    refit_rate_init(&rate, 1000000);
    int64_t now = 100 * SECOND;
    /* What was saved up while nothing moved is at most 20 ms. */
    assert_int_equal(refit_rate_take(&rate, 20000, now), 0);
    for (int64_t i = 1; i <= 100; i++)
        assert_int_equal(refit_rate_take(&rate, 10000, now), i * SECOND / 100);
    now += 2 * SECOND;
    assert_int_equal(refit_rate_take(&rate, 20000, now), 0);
    assert_int_equal(refit_rate_take(&rate, 1000, now), SECOND / 1000);
    refit_rate_release(&rate);
}

static void no_rate_never_waits(void **state)
{
    struct refit_rate rate;
    struct refit_error err;
    refit_rate_init(&rate, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(refit_rate_take(&rate, UINT32_MAX, SECOND), 0);
    assert_int_equal(refit_rate_wait(&rate, UINT32_MAX, -1, -1, &err), REFIT_OK);
    refit_rate_release(&rate);
}

static void a_wait_ends_when_the_endpoint_is_aborted(void **state)
{
    struct refit_rate rate;
    struct refit_error err;
    int wake = eventfd(1, EFD_CLOEXEC);
    refit_rate_init(&rate, 1);
    assert_int_equal(refit_rate_wait(&rate, 1 << 20, wake, -1, &err), REFIT_ABORTED);
    refit_rate_release(&rate);
    close(wake);
}

static void a_wait_ends_when_the_connection_hangs_up(void **state)
{
    struct refit_rate rate;
    struct refit_error err;
    int ends[2], wake = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    refit_rate_init(&rate, 1);
    shutdown(ends[0], SHUT_RDWR);
    assert_int_equal(refit_rate_wait(&rate, 1 << 20, wake, ends[0], &err), REFIT_PEER);
    refit_rate_release(&rate);
    close(ends[0]);
    close(ends[1]);
    close(wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_add_up_to_the_rate),
        cmocka_unit_test(no_rate_never_waits),
        cmocka_unit_test(a_wait_ends_when_the_endpoint_is_aborted),
        cmocka_unit_test(a_wait_ends_when_the_connection_hangs_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
