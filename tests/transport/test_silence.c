/* SPDX-License-Identifier: Apache-2.0
 *
 * Holders that fall silent or stall: seen by look, ended by drop, and nothing of them lands any more.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/transport/pull.h"
#include "tests/transport/remote.h"
#include "tests/transport/side.h"

#define MORE_THAN_FRAMES 1000 /* some payload has crossed */
#define SIGNS 3
#define NS_PER_MS INT64_C(1000000)

static const struct refit_transport *const both[] = {&refit_transport_tcp, &refit_transport_local};

static struct refit_holder_state look(struct side *side, uint32_t holder)
{
    struct refit_holder_state seen;
    side->transport->look(side->receiver, holder, &seen);
    return seen;
}

static void until_connected(struct side *side, uint32_t holder)
{
    struct refit_transfer_completion done;
    while (!look(side, holder).connected)
        refit_inbox_take(side->world.inbox, &done, 1, refit_deadline_in_ms(PULL_MS));
}

/* Looks every few milliseconds, as a scheduler does. */
static void until_silent(struct side *side, uint32_t holder, int64_t ms)
{
    struct refit_transfer_completion done;
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    while (refit_clock_ns() - look(side, holder).heard_ns < ms * NS_PER_MS) {
        assert_false(refit_deadline_passed(deadline));
        refit_inbox_take(side->world.inbox, &done, 1, refit_deadline_in_ms(5));
    }
}

static void dropped(struct side *side, uint32_t holder, unsigned batches)
{
    side->transport->drop(side->receiver, holder);
    struct refit_holder_state seen = look(side, holder);
    assert_true(!seen.connected && seen.lost && seen.owed == 0);
    for (unsigned i = 0; i < batches; i++) {
        struct refit_transfer_completion done = world_completion(&side->world);
        assert_int_equal(done.holder, holder);
        assert_int_equal(done.status, REFIT_PEER);
    }
}

static void a_stopped_holder_is_silent_and_another_has_its_batches(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side side;
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        struct remote remote = remote_start(&side.world, 7, i == 0 ? world_slow_rate(&side.world) : 1);
        side_open(&side, both[i], 0);
        remote_connect(&remote, side.card);
        until_connected(&side, 7);
        side_post(&side, 7, 0);
        side_post(&side, 7, 1);
        if (i == 0)
            side_until_crossed(&side, world_batch_bytes(&side.world) / 4);
        remote_stop(&remote);
        until_silent(&side, 7, 300);
        assert_int_equal(look(&side, 7).owed, 2);
        dropped(&side, 7, 2);
        struct refit_endpoint *holder = side_hold(&side, 8, 0);
        for (uint32_t batch = 0; batch < 2; batch++) {
            side_post(&side, 8, batch);
            assert_int_equal(world_completion(&side.world).status, REFIT_OK);
        }
        /* What the stopped one has still to say changes nothing. */
        uint8_t *before = world_snapshot(&side.world);
        assert_int_equal(kill(remote.pid, SIGCONT), 0);
        int status = remote_wait(&remote);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
        assert_true(world_unchanged(&side.world, before));
        free(before);
        side.transport->close(holder);
        side_close(&side);
    }
}

/* Rate limits are no silence: of the holder, of the receiver. It is heard again and again long before a batch is whole. */
static void a_slow_holder_is_not_silent(void **state)
{
    for (int i = 0; i < 3; i++) { /* what a local receiver copies slowly, its holder has answered */
        struct side side;
        struct refit_transfer_completion done;
        struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        uint64_t rate = world_batch_bytes(&side.world) / 8; /* a batch takes eight seconds */
        side_open(&side, both[i / 2], i == 1 ? rate : 0);
        struct refit_endpoint *holder = side_hold(&side, 0, i == 1 ? 0 : rate);
        side_post(&side, 0, 0);
        int64_t last = look(&side, 0).heard_ns;
        for (unsigned signs = 0; signs < SIGNS;) {
            assert_int_equal(refit_inbox_take(side.world.inbox, &done, 1, refit_deadline_in_ms(5)), 0);
            struct refit_holder_state seen = look(&side, 0);
            assert_int_equal(seen.owed, 1);
            assert_false(refit_deadline_passed(deadline));
            signs += seen.heard_ns > last;
            last = seen.heard_ns;
        }
        side.transport->close(holder);
        side_close(&side);
    }
}

static void a_holder_that_was_dropped_may_dial_again(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side side;
        struct refit_error err;
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        side_open(&side, both[i], 0);
        struct refit_endpoint *holder = side_hold(&side, 3, 1);
        side_post(&side, 3, 0);
        dropped(&side, 3, 1);
        assert_int_equal(side.transport->post(side.receiver, 3, side.edge, 0, &err), REFIT_PEER);
        assert_int_equal(side.transport->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
        must(side.transport->connect(holder, side.card, refit_deadline_in_ms(PULL_MS), &err), &err);
        assert_true(look(&side, 3).connected);
        side.transport->close(holder);
        holder = side_hold(&side, 3, 0);
        side_post(&side, 3, 0);
        assert_int_equal(world_completion(&side.world).status, REFIT_OK);
        side.transport->drop(side.receiver, 9); /* nobody, and nobody's number */
        side.transport->drop(side.receiver, WORLD_HOLDERS);
        side.transport->close(holder);
        side_close(&side);
    }
}

static void a_holder_that_dials_twice_keeps_the_connections_it_has(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side side;
        struct refit_error err;
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        side_open(&side, both[i], 0);
        struct refit_endpoint *holder = side_hold(&side, 3, 0);
        side_post(&side, 3, 0);
        assert_int_equal(side.transport->connect(holder, side.card, refit_deadline_in_ms(PULL_MS), &err), REFIT_CONFLICT);
        assert_int_equal(world_completion(&side.world).status, REFIT_OK);
        side_post(&side, 3, 1);
        assert_int_equal(world_completion(&side.world).status, REFIT_OK);
        side.transport->close(holder);
        side_close(&side);
    }
}

/* Drops in the middle of whatever is in flight: when drop returns, no byte changes any more. */
static void nothing_lands_after_drop(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side side;
        struct refit_transfer_completion done;
        struct refit_error err;
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        side_open(&side, both[i], 0);
        for (unsigned round = 0; round < 30; round++) {
            struct refit_endpoint *holder = side_hold(&side, 5, 0);
            unsigned owed = 0;
            uint32_t batch = 0;
            while (batch < 6 && side.transport->post(side.receiver, 5, side.edge, batch, &err) == REFIT_OK)
                batch++, owed++;
            /* Every round meets it elsewhere. */
            for (unsigned spin = 0; spin < round * 2000; spin++)
                __asm__ volatile("" ::: "memory");
            side.transport->drop(side.receiver, 5);
            uint8_t *before = world_snapshot(&side.world);
            assert_int_equal(look(&side, 5).owed, 0);
            for (; owed > 0; owed--) {
                done = world_completion(&side.world);
                assert_true(done.status == REFIT_OK || done.status == REFIT_PEER);
            }
            side.transport->close(holder);
            assert_true(world_unchanged(&side.world, before));
            free(before);
        }
        side_close(&side);
    }
}

/* A drop waits for no rate limit. */
static void a_receiver_at_its_rate_limit_drops_at_once(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct side side;
        world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
        side_open(&side, both[i], 1);
        struct refit_endpoint *holder = side_hold(&side, 5, 0);
        side_post(&side, 5, 0);
        if (i == 0)
            side_until_crossed(&side, MORE_THAN_FRAMES);
        struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
        dropped(&side, 5, 1);
        assert_false(refit_deadline_passed(deadline));
        side.transport->close(holder);
        side_close(&side);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_holder_is_silent_and_another_has_its_batches),
        cmocka_unit_test(a_slow_holder_is_not_silent),
        cmocka_unit_test(a_holder_that_was_dropped_may_dial_again),
        cmocka_unit_test(a_holder_that_dials_twice_keeps_the_connections_it_has),
        cmocka_unit_test(nothing_lands_after_drop),
        cmocka_unit_test(a_receiver_at_its_rate_limit_drops_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
