/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges and windows of GPU memory: between slots there, between one there and one in host memory; every call of the
 * driver made to fail, work that is not done in time, a device that is lost.
 */
#include "memory/cuda.h"
#include "memory/exchange.h"
#include "memory/slot.h"
#include "memory/window.h"
#include "tests/memory/cuda_fixture.h"

#define BYTES ((uint64_t)200003) /* ends in the middle of a thread's words */

static struct refit_deadline soon(void)
{
    return refit_deadline_in_ms(20000);
}

static void set(struct refit_arena *slot, uint8_t value)
{
    uint64_t at = refit_arena_device_address(slot, 0, BYTES);
    if (refit_arena_kind(slot) == REFIT_ARENA_HOST)
        memset(refit_arena_host(slot, 0, BYTES), value, BYTES);
    else
        gpu_set(at, value, BYTES);
}

static uint64_t count(const struct refit_arena *slot, uint8_t value)
{
    static uint8_t bytes[BYTES];
    uint64_t found = 0;
    if (refit_arena_kind(slot) == REFIT_ARENA_HOST)
        memcpy(bytes, refit_arena_host(slot, 0, BYTES), BYTES);
    else
        gpu_read(bytes, refit_arena_device_address(slot, 0, BYTES), BYTES);
    for (uint64_t i = 0; i < BYTES; i++)
        found += bytes[i] == value;
    return found;
}

static struct refit_arena *slot_of(struct fixture *f, bool on_device, uint8_t value)
{
    struct refit_arena *slot = NULL;
    must(f, on_device ? refit_cuda_slot_create(0, BYTES, &slot, &f->err)
                      : refit_slot_create("staged", BYTES, REFIT_PROTECT_UID, &slot, &f->err));
    set(slot, value);
    return slot;
}

struct pair {
    struct refit_arena *live, *staged;
    struct refit_exchange *exchange;
};

static void open_pair(struct fixture *f, struct pair *pair, bool staged_on_device)
{
    pair->live = slot_of(f, true, 1);
    pair->staged = slot_of(f, staged_on_device, 2);
    must(f, refit_exchange_create(pair->live, pair->staged, &pair->exchange, &f->err));
}

static void close_pair(struct pair *pair)
{
    refit_exchange_destroy(pair->exchange);
    refit_arena_release(pair->live);
    refit_arena_release(pair->staged);
}

static void exchange_both_ways(struct fixture *f, bool staged_on_device)
{
    struct pair pair;
    struct refit_exchanged done;
    open_pair(f, &pair, staged_on_device);
    must(f, refit_exchange_run(pair.exchange, pair.live, pair.staged, BYTES, soon(), &done, &f->err));
    assert_true(done.bytes == BYTES && !done.torn);
    assert_true(count(pair.live, 2) == BYTES && count(pair.staged, 1) == BYTES);
    must(f, refit_exchange_run(pair.exchange, pair.live, pair.staged, 4096 + 5, soon(), &done, &f->err));
    assert_true(count(pair.live, 1) == 4096 + 5 && count(pair.staged, 2) == 4096 + 5);
    close_pair(&pair);
}

static void slots_on_a_device_exchange(void **state)
{
    exchange_both_ways(*state, true);
}

static void a_slot_on_a_device_and_one_in_host_memory_exchange(void **state)
{
    exchange_both_ways(*state, false);
}

/* The kernel that fails takes the context with it: nothing is known of the rest. */
static void a_device_that_is_lost_tears(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct pair pair;
    struct refit_exchanged done;
    open_pair(f, &pair, true);
    standin.fault(1);
    assert_int_not_equal(refit_exchange_run(pair.exchange, pair.live, pair.staged, BYTES, soon(), &done, &f->err), REFIT_OK);
    standin.fault(0);
    assert_true(done.torn && done.bytes == 0);
    close_pair(&pair);
}

static void work_that_is_not_done_in_time_tears(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct pair pair;
    struct refit_exchanged done;
    open_pair(f, &pair, true);
    standin.hold(1);
    assert_int_equal(refit_exchange_run(pair.exchange, pair.live, pair.staged, BYTES, refit_deadline_in_ms(20), &done, &f->err),
                     REFIT_TIMEOUT);
    standin.hold(0);
    assert_true(done.torn && done.bytes == 0);
    close_pair(&pair);
}

static void a_launch_that_fails_changes_nothing(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct pair pair;
    struct refit_exchanged done;
    open_pair(f, &pair, true);
    standin.fail_call("cuLaunchKernel", 1);
    assert_int_equal(refit_exchange_run(pair.exchange, pair.live, pair.staged, BYTES, soon(), &done, &f->err), REFIT_SYSTEM);
    assert_non_null(strstr(f->err.text, "cuLaunchKernel"));
    assert_true(done.bytes == 0 && !done.torn && count(pair.live, 1) == BYTES && count(pair.staged, 2) == BYTES);
    must(f, refit_exchange_run(pair.exchange, pair.live, pair.staged, BYTES, soon(), &done, &f->err));
    assert_true(count(pair.live, 2) == BYTES);
    close_pair(&pair);
}

static enum refit_status exchange_once(struct fixture *f, bool staged_on_device)
{
    struct refit_arena *live = NULL, *staged = NULL;
    struct refit_exchange *exchange = NULL;
    struct refit_exchanged done;
    enum refit_status status = refit_cuda_slot_create(0, BYTES, &live, &f->err);
    if (status == REFIT_OK)
        status = staged_on_device ? refit_cuda_slot_create(0, BYTES, &staged, &f->err)
                                  : refit_slot_create("staged", BYTES, REFIT_PROTECT_UID, &staged, &f->err);
    if (status == REFIT_OK)
        status = refit_exchange_create(live, staged, &exchange, &f->err);
    if (status == REFIT_OK)
        status = refit_exchange_run(exchange, live, staged, BYTES, soon(), &done, &f->err);
    refit_exchange_destroy(exchange);
    refit_arena_release(live);
    refit_arena_release(staged);
    return status;
}

static enum refit_status on_device(struct fixture *f)
{
    return exchange_once(f, true);
}

static enum refit_status over_the_bus(struct fixture *f)
{
    return exchange_once(f, false);
}

static void each_call_of_an_exchange_may_fail(void **state)
{
    gpu_need_switches();
    assert_true(fail_each_call(*state, on_device) > 0);
    assert_true(fail_each_call(*state, over_the_bus) > 0);
}

/* --- windows ----------------------------------------------------------------------------------------------- */

static enum refit_status open_again(struct fixture *f, const struct refit_arena *slot, struct refit_arena **out)
{
    int fd = -1;
    enum refit_status status = refit_cuda_slot_export(slot, &fd, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_slot_open(0, fd, BYTES, true, out, &f->err);
    if (fd >= 0)
        close(fd);
    return status;
}

static uint8_t shown_at(const void *at)
{
    uint8_t byte;
    gpu_read(&byte, (uint64_t)(uintptr_t)at, 1);
    return byte;
}

static void a_window_shows_one_slot_after_another(void **state)
{
    struct fixture *f = *state;
    struct refit_arena *slot[2], *opened[2];
    struct refit_window *window;
    for (int i = 0; i < 2; i++) {
        slot[i] = slot_of(f, true, (uint8_t)(1 + i));
        must(f, open_again(f, slot[i], &opened[i]));
    }
    must(f, refit_window_create(opened[0], &window, &f->err));
    const uint8_t *at = refit_window_at(window, 0);
    for (int i = 0; i < 6; i++) {
        must(f, refit_window_show(window, opened[i % 2], &f->err));
        assert_ptr_equal(refit_window_at(window, 0), at);
        assert_true(shown_at(at) == 1 + i % 2 && shown_at(at + BYTES - 1) == 1 + i % 2);
    }
    struct refit_arena *host = slot_of(f, false, 3);
    assert_int_equal(refit_window_show(window, host, &f->err), REFIT_MISMATCH);
    assert_true(shown_at(at + 7) == 2);
    refit_arena_release(host);
    refit_window_destroy(window);
    for (int i = 0; i < 2; i++) {
        refit_arena_release(opened[i]);
        refit_arena_release(slot[i]);
    }
}

static void a_mapping_that_fails_shows_nothing_and_then_what_it_showed(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    static const char *const calls[] = {"cuMemMap", "cuMemSetAccess"};
    struct refit_arena *a = slot_of(f, true, 1), *b = slot_of(f, true, 2);
    struct refit_window *window;
    must(f, refit_window_create(a, &window, &f->err));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        must(f, refit_window_show(window, a, &f->err));
        standin.fail_call(calls[i], 1);
        assert_int_equal(refit_window_show(window, b, &f->err), REFIT_SYSTEM);
        assert_non_null(strstr(f->err.text, calls[i]));
        must(f, refit_window_show(window, a, &f->err));
        assert_int_equal(shown_at(refit_window_at(window, 9)), 1);
    }
    refit_window_destroy(window);
    refit_arena_release(a);
    refit_arena_release(b);
}

static enum refit_status show_once(struct fixture *f)
{
    struct refit_arena *slot = NULL;
    struct refit_window *window = NULL;
    enum refit_status status = refit_cuda_slot_create(0, BYTES, &slot, &f->err);
    if (status == REFIT_OK)
        status = refit_window_create(slot, &window, &f->err);
    if (status == REFIT_OK)
        status = refit_window_show(window, slot, &f->err);
    refit_window_destroy(window);
    refit_arena_release(slot);
    return status;
}

static void each_call_of_a_window_may_fail(void **state)
{
    gpu_need_switches();
    assert_true(fail_each_call(*state, show_once) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(slots_on_a_device_exchange),
        CASE(a_slot_on_a_device_and_one_in_host_memory_exchange),
        CASE(a_device_that_is_lost_tears),
        CASE(work_that_is_not_done_in_time_tears),
        CASE(a_launch_that_fails_changes_nothing),
        CASE(each_call_of_an_exchange_may_fail),
        CASE(a_window_shows_one_slot_after_another),
        CASE(a_mapping_that_fails_shows_nothing_and_then_what_it_showed),
        CASE(each_call_of_a_window_may_fail),
    };
    return cmocka_run_group_tests(tests, cuda_open, NULL);
}
