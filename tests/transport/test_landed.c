/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of landed batches, and the inbox: alone and with many threads.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/transport/world.h"

#define THREADS 4
#define ROUNDS 5000
#define WAIT_MS 60000

/* ---- landed ---- */

static void a_batch_is_marked_once_and_for_good(void **state)
{
    struct world world;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    const struct refit_edge *edge = world_edge(&world, 0, 0), *other = world_edge(&world, 1, 1);
    assert_true(edge->batches > 2);
    assert_false(refit_landed_has(world.landed, edge, 1));
    assert_true(refit_landed_mark(world.landed, edge, 1));
    assert_false(refit_landed_mark(world.landed, edge, 1));
    assert_true(refit_landed_has(world.landed, edge, 1));
    assert_false(refit_landed_has(world.landed, edge, 0));
    assert_false(refit_landed_has(world.landed, other, 1));
    assert_false(refit_landed_has(world.landed, edge, edge->batches));
    refit_landed_mark_all(world.landed);
    assert_true(refit_landed_has(world.landed, other, other->batches - 1));
    world_close(&world);
}

static void the_edge_of_another_plan_is_found_by_its_digest(void **state)
{
    struct world world, twin;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    world_open(&twin, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    const struct refit_edge *edge = world_edge(&twin, 2, 1);
    struct refit_edge unknown = *edge;
    unknown.digest ^= 1;
    assert_true(refit_landed_mark(world.landed, edge, 0));
    assert_true(refit_landed_has(world.landed, world_edge(&world, 2, 1), 0));
    assert_false(refit_landed_mark(world.landed, &unknown, 0));
    assert_false(refit_landed_has(world.landed, &unknown, 0));
    world_close(&world);
    world_close(&twin);
}

static void subscribers_hear_of_each_mark_until_they_leave(void **state)
{
    struct world world;
    struct refit_error err;
    eventfd_t times;
    int fds[20];
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    const struct refit_edge *edge = world_edge(&world, 0, 0);
    for (int i = 0; i < 20; i++) {
        fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_int_equal(refit_landed_subscribe(world.landed, fds[i], &err), REFIT_OK);
    }
    refit_landed_mark(world.landed, edge, 0);
    refit_landed_mark(world.landed, edge, 0);
    refit_landed_unsubscribe(world.landed, fds[3]);
    refit_landed_mark_all(world.landed);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(eventfd_read(fds[i], &times), 0);
        assert_int_equal(times, i == 3 ? 1 : 2);
        refit_landed_unsubscribe(world.landed, fds[i]);
        close(fds[i]);
    }
    world_close(&world);
}

struct race {
    struct world *world;
    const struct refit_edge *edge;
    atomic_uint firsts;
    atomic_bool wrong;
    uint8_t bytes[4096]; /* one for each batch, written before it is marked */
};

/* Two threads mark every batch, whoever sees a mark sees the byte. */
static void *mark_all_batches(void *arg)
{
    struct race *race = arg;
    for (uint32_t b = 0; b < race->edge->batches; b++)
        if (refit_landed_mark(race->world->landed, race->edge, b))
            atomic_fetch_add(&race->firsts, 1);
    return NULL;
}

static void *write_then_mark(void *arg)
{
    struct race *race = arg;
    for (uint32_t b = 0; b < race->edge->batches; b++) {
        race->bytes[b] = 1;
        if (refit_landed_mark(race->world->landed, race->edge, b))
            atomic_fetch_add(&race->firsts, 1);
    }
    return NULL;
}

static void *look_for_marks(void *arg)
{
    struct race *race = arg;
    for (uint32_t b = 0; b < race->edge->batches; b++) {
        while (!refit_landed_has(race->world->landed, race->edge, b))
            sched_yield();
        if (race->bytes[b] != 1)
            atomic_store(&race->wrong, true);
    }
    return NULL;
}

static void run_threads(struct race *race, void *(*run[THREADS])(void *))
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run[i], race), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void marks_of_many_threads_are_counted_once(void **state)
{
    struct world world;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    struct race race = {.world = &world, .edge = world_edge(&world, 0, 0)};
    void *(*markers[THREADS])(void *) = {mark_all_batches, mark_all_batches, mark_all_batches, mark_all_batches};
    run_threads(&race, markers);
    assert_int_equal(race.firsts, race.edge->batches);
    world_close(&world);
}

static void who_sees_a_mark_sees_the_bytes(void **state)
{
    struct world world;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    struct race race = {.world = &world, .edge = world_edge(&world, 0, 0)};
    assert_true(race.edge->batches <= sizeof race.bytes);
    void *(*mixed[THREADS])(void *) = {write_then_mark, look_for_marks, look_for_marks, look_for_marks};
    run_threads(&race, mixed);
    assert_false(race.wrong);
    world_close(&world);
}

/* ---- the inbox ---- */

static struct refit_transfer_completion numbered(uint32_t number)
{
    return (struct refit_transfer_completion){.holder = number, .status = REFIT_OK};
}

static void completions_come_in_order_and_reservations_bound_them(void **state)
{
    struct refit_inbox *inbox;
    struct refit_error err;
    struct refit_transfer_completion done[4];
    assert_int_equal(refit_inbox_create(3, &inbox, &err), REFIT_OK);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 3; i++)
            assert_true(refit_inbox_reserve(inbox));
        assert_false(refit_inbox_reserve(inbox));
        for (uint32_t i = 0; i < 3; i++) {
            done[0] = numbered(10 * round + i);
            refit_inbox_put(inbox, &done[0]);
        }
        assert_false(refit_inbox_reserve(inbox));
        assert_int_equal(refit_inbox_take(inbox, done, 2, refit_deadline_in_ms(WAIT_MS)), 2);
        assert_int_equal(done[1].holder, 10 * round + 1);
        assert_int_equal(refit_inbox_take(inbox, done, 4, refit_deadline_in_ms(WAIT_MS)), 1);
        assert_int_equal(done[0].holder, 10 * round + 2);
    }
    assert_int_equal(refit_inbox_take(inbox, done, 4, refit_deadline_in_ms(0)), 0);
    refit_inbox_destroy(inbox);
}

static void *wake_run(void *arg)
{
    refit_inbox_wake(arg);
    return NULL;
}

static void an_event_wakes_the_taker_once(void **state)
{
    struct refit_inbox *inbox;
    struct refit_error err;
    struct refit_transfer_completion done;
    pthread_t thread;
    assert_int_equal(refit_inbox_create(1, &inbox, &err), REFIT_OK);
    struct refit_deadline deadline = refit_deadline_in_ms(WAIT_MS);
    assert_int_equal(pthread_create(&thread, NULL, wake_run, inbox), 0);
    assert_int_equal(refit_inbox_take(inbox, &done, 1, deadline), 0);
    assert_false(refit_deadline_passed(deadline));
    pthread_join(thread, NULL);
    deadline = refit_deadline_in_ms(1);
    assert_int_equal(refit_inbox_take(inbox, &done, 1, deadline), 0);
    assert_true(refit_deadline_passed(deadline));
    refit_inbox_destroy(inbox);
}

static void *put_run(void *arg)
{
    struct refit_inbox *inbox = arg;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        while (!refit_inbox_reserve(inbox))
            sched_yield();
        struct refit_transfer_completion one = numbered(i);
        refit_inbox_put(inbox, &one);
    }
    return NULL;
}

static void no_completion_of_many_threads_is_lost(void **state)
{
    struct refit_inbox *inbox;
    struct refit_error err;
    struct refit_transfer_completion done[16];
    pthread_t threads[THREADS];
    uint64_t count = 0, sum = 0;
    assert_int_equal(refit_inbox_create(8, &inbox, &err), REFIT_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_run, inbox), 0);
    while (count < THREADS * ROUNDS) {
        size_t got = refit_inbox_take(inbox, done, 16, refit_deadline_in_ms(WAIT_MS));
        assert_true(got > 0);
        for (size_t i = 0; i < got; i++)
            sum += done[i].holder;
        count += got;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(sum, (uint64_t)THREADS * ROUNDS * (ROUNDS - 1) / 2);
    refit_inbox_destroy(inbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_marked_once_and_for_good),
        cmocka_unit_test(the_edge_of_another_plan_is_found_by_its_digest),
        cmocka_unit_test(subscribers_hear_of_each_mark_until_they_leave),
        cmocka_unit_test(marks_of_many_threads_are_counted_once),
        cmocka_unit_test(who_sees_a_mark_sees_the_bytes),
        cmocka_unit_test(completions_come_in_order_and_reservations_bound_them),
        cmocka_unit_test(an_event_wakes_the_taker_once),
        cmocka_unit_test(no_completion_of_many_threads_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
