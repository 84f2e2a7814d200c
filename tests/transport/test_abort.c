/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers that die, stop, stall or change bytes under way; and endpoints that are aborted meanwhile.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "tests/transport/pull.h"
#include "tests/transport/relay.h"
#include "tests/transport/remote.h"
#include "tests/transport/side.h"

/* ---- the receiver's side ---- */

static enum refit_status completion(struct side *side)
{
    return world_completion(&side->world).status;
}

/* Some of the payload has arrived, but not all of a batch. */
static void until_under_way(struct side *side)
{
    side_until_crossed(side, world_batch_bytes(&side->world) / 4);
}

/* ---- tests ---- */

static void a_killed_holder_ends_its_batches_and_another_takes_over(void **state)
{
    struct side side;
    struct refit_error err;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_HEAP);
    struct remote remote = remote_start(&side.world, 0, world_slow_rate(&side.world));
    side_open(&side, &refit_transport_tcp, 0);
    remote_connect(&remote, side.card);
    side_post(&side, 0, 0);
    side_post(&side, 0, 1);
    until_under_way(&side);
    assert_int_equal(kill(remote.pid, SIGKILL), 0);
    assert_int_equal(completion(&side), REFIT_PEER);
    assert_int_equal(completion(&side), REFIT_PEER);
    remote_wait(&remote);
    assert_int_equal(side.transport->post(side.receiver, 0, side.edge, 0, &err), REFIT_PEER);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    side_post(&side, 0, 1);
    assert_int_equal(completion(&side), REFIT_OK);
    assert_int_equal(completion(&side), REFIT_OK);
    side.transport->close(holder);
    side_close(&side);
}

static void a_stopped_holder_does_not_delay_abort(void **state)
{
    struct side side;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_HEAP);
    struct remote remote = remote_start(&side.world, 0, world_slow_rate(&side.world));
    side_open(&side, &refit_transport_tcp, 0);
    remote_connect(&remote, side.card);
    side_post(&side, 0, 0);
    until_under_way(&side);
    int status;
    assert_int_equal(kill(remote.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(remote.pid, &status, WUNTRACED), remote.pid);
    struct refit_deadline deadline = refit_deadline_in_ms(REFIT_ABORT_MS);
    side.transport->abort(side.receiver);
    assert_false(refit_deadline_passed(deadline));
    uint8_t *after = world_snapshot(&side.world);
    assert_int_equal(kill(remote.pid, SIGCONT), 0);
    status = remote_wait(&remote);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(world_unchanged(&side.world, after));
    free(after);
    side_close(&side);
}

static void a_killed_holder_on_this_host_ends_its_batches(void **state)
{
    struct side side;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
    /* So slow that no digests come: the copies are made, and not believed. */
    struct remote remote = remote_start(&side.world, 0, 1);
    side_open(&side, &refit_transport_local, 0);
    remote_connect(&remote, side.card);
    side_post(&side, 0, 0);
    side_post(&side, 0, 1);
    assert_int_equal(kill(remote.pid, SIGKILL), 0);
    assert_int_equal(completion(&side), REFIT_PEER);
    assert_int_equal(completion(&side), REFIT_PEER);
    remote_wait(&remote);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_OK);
    side.transport->close(holder);
    side_close(&side);
}

static void a_holder_reads_no_byte_after_abort(void **state)
{
    struct side side;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
    /* The receiver hardly reads, so that the holder stands in the middle of a batch. */
    side_open(&side, &refit_transport_tcp, 1);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    side_post(&side, 0, 1);
    struct refit_deadline deadline = refit_deadline_in_ms(REFIT_ABORT_MS);
    side.transport->abort(holder);
    assert_false(refit_deadline_passed(deadline));
    /* Reading now would be a fault. */
    struct world_rank *source = &side.world.source_ranks[0];
    assert_int_equal(mprotect(source->bytes, source->size, PROT_NONE), 0);
    deadline = refit_deadline_in_ms(REFIT_ABORT_MS);
    side.transport->abort(side.receiver);
    assert_false(refit_deadline_passed(deadline));
    struct refit_error err;
    assert_int_equal(side.transport->wait_done(holder, refit_deadline_in_ms(0), &err), REFIT_ABORTED);
    assert_int_equal(side.transport->connect(holder, side.card, refit_deadline_in_ms(PULL_MS), &err), REFIT_ABORTED);
    side.transport->close(holder);
    side_close(&side);
}

static void *abort_run(void *arg)
{
    struct side *side = arg;
    side->transport->abort(side->receiver);
    return NULL;
}

static void abort_from_other_threads_ends_what_is_owed(void **state)
{
    const struct refit_transport *transports[] = {&refit_transport_tcp, &refit_transport_local};
    for (int i = 0; i < 2; i++) {
        struct side side;
        struct refit_error err;
        pthread_t threads[3];
        world_open(&side.world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
        side_open(&side, transports[i], 1);
        struct refit_endpoint *holder = side_hold(&side, 0, 0);
        side_post(&side, 0, 0);
        for (int t = 0; t < 3; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, abort_run, &side), 0);
        enum refit_status status = completion(&side);
        assert_true(status == REFIT_ABORTED || status == REFIT_OK);
        for (int t = 0; t < 3; t++)
            pthread_join(threads[t], NULL);
        assert_int_equal(side.transport->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
        side.transport->close(holder);
        side_close(&side);
    }
}

/* ---- bytes that change or stop under way ---- */

struct damage {
    uint64_t at;     /* byte of the connection */
    bool cut;        /* end the connection there; otherwise flip a bit */
    atomic_int left; /* how often */
};

static size_t do_damage(void *ctx, uint64_t before, uint8_t *data, size_t len)
{
    struct damage *damage = ctx;
    if (damage->at < before || damage->at >= before + len || atomic_fetch_sub(&damage->left, 1) <= 0)
        return len;
    if (damage->cut)
        return (size_t)(damage->at - before);
    data[damage->at - before] ^= 0x10;
    return len;
}

static void a_bit_that_flips_under_way_is_seen_and_the_batch_asked_again(void **state)
{
    struct side side;
    struct damage damage = {.left = 1};
    uint64_t up, down;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_HEAP);
    damage.at = world_batch_bytes(&side.world) / 2;
    side_open(&side, &refit_transport_tcp, 0);
    struct relay *relay = relay_start(refit_listener_tcp_port(side.listener), do_damage, &damage);
    json_decref(side.card);
    side.card = relay_card(relay);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_CORRUPT);
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_OK);
    side.transport->close(holder);
    relay_stop(relay, &up, &down);
    side_close(&side);
}

static void a_trainer_that_writes_between_two_tries_makes_the_tallies_differ(void **state)
{
    struct side side;
    struct damage damage = {.left = 1};
    uint64_t up, down;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_HEAP);
    damage.at = world_batch_bytes(&side.world) / 2;
    side_open(&side, &refit_transport_tcp, 0);
    struct relay *relay = relay_start(refit_listener_tcp_port(side.listener), do_damage, &damage);
    json_decref(side.card);
    side.card = relay_card(relay);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_CORRUPT);
    side.world.source_ranks[0].bytes[0] ^= 1;
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_OK);
    struct refit_digest sent = refit_tally_get(side.world.source_ranks[0].tally, 0);
    assert_false(refit_digest_equal(sent, refit_tally_get(side.world.tally, 0)));
    side.transport->close(holder);
    relay_stop(relay, &up, &down);
    side_close(&side);
}

static void a_cut_connection_is_made_again_by_the_same_holder_and_tallies_agree(void **state)
{
    struct side side;
    struct refit_error err;
    struct damage damage = {.cut = true, .left = 1};
    uint64_t up, down;
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_HEAP);
    damage.at = world_batch_bytes(&side.world) * 3 / 2; /* of the second batch */
    side_open(&side, &refit_transport_tcp, 0);
    struct relay *relay = relay_start(refit_listener_tcp_port(side.listener), do_damage, &damage);
    json_decref(side.card);
    side.card = relay_card(relay);
    struct refit_endpoint *holder = side_hold(&side, 0, 0);
    side_post(&side, 0, 0);
    assert_int_equal(completion(&side), REFIT_OK);
    side_post(&side, 0, 1);
    assert_int_equal(completion(&side), REFIT_PEER);
    assert_int_equal(side.transport->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
    assert_int_equal(side.transport->connect(holder, side.card, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    for (uint32_t batch = 0; batch < 2; batch++) {
        side_post(&side, 0, batch);
        assert_int_equal(completion(&side), REFIT_OK);
    }
    assert_int_equal(side.transport->finish(side.receiver, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    assert_int_equal(side.transport->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    for (uint32_t id = 0; id < refit_tally_count(side.world.tally); id++)
        assert_true(refit_digest_equal(refit_tally_get(side.world.source_ranks[0].tally, id),
                                       refit_tally_get(side.world.tally, id)));
    side.transport->close(holder);
    relay_stop(relay, &up, &down);
    side_close(&side);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_holder_ends_its_batches_and_another_takes_over),
        cmocka_unit_test(a_stopped_holder_does_not_delay_abort),
        cmocka_unit_test(a_killed_holder_on_this_host_ends_its_batches),
        cmocka_unit_test(a_holder_reads_no_byte_after_abort),
        cmocka_unit_test(abort_from_other_threads_ends_what_is_owed),
        cmocka_unit_test(a_bit_that_flips_under_way_is_seen_and_the_batch_asked_again),
        cmocka_unit_test(a_trainer_that_writes_between_two_tries_makes_the_tallies_differ),
        cmocka_unit_test(a_cut_connection_is_made_again_by_the_same_holder_and_tallies_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
