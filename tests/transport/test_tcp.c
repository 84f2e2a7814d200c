/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/layouts/random_layout.h"
#include "tests/transport/pull.h"
#include "tests/transport/relay.h"

static void move_once(const char *source, const char *destination, enum world_memory memory, unsigned streams,
                      bool verify)
{
    struct world world;
    struct pair pair;
    world_open(&world, source, destination, memory);
    pair_open(&pair, &world, &refit_transport_tcp, streams, verify);
    struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    pair_finish(&pair);
    world_check_landed(&world);
    world_check_tallies(&world);
    struct refit_endpoint_stats stats;
    pair.transport->stats(pair.receiver, &stats);
    assert_int_equal(stats.payload_bytes, refit_plan_bytes(world.plan));
    pair_close(&pair);
    world_close(&world);
}

static void long_rows_land_with_any_number_of_streams(void **state)
{
    for (unsigned streams = 1; streams <= 4; streams++)
        move_once(world_rows_source, world_rows_destination, WORLD_HEAP, streams, true);
}

static void tiny_rows_are_packed_and_scattered(void **state)
{
    move_once(world_tiny_source, world_tiny_destination, WORLD_HEAP, 2, true);
}

static void columns_land_as_rows(void **state)
{
    move_once(world_rows_destination, world_rows_source, WORLD_HEAP, 2, true);
    move_once(world_tiny_destination, world_tiny_source, WORLD_HEAP, 1, true);
}

static void a_file_is_a_source(void **state)
{
    move_once(world_rows_source, world_rows_destination, WORLD_FILE, 2, true);
}

static void bytes_land_with_verification_off(void **state)
{
    move_once(world_rows_source, world_rows_destination, WORLD_HEAP, 2, false);
    move_once(world_tiny_source, world_tiny_destination, WORLD_HEAP, 1, false);
}

static void random_layouts_land(void **state)
{
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct random r = {.state = seed};
        struct model model = random_model(&r);
        struct world world;
        struct pair pair;
        struct refit_layout *source = random_layout(&r, &model, 4, true);
        struct refit_layout *destination = random_layout(&r, &model, 4, false);
        world_open_layouts(&world, source, destination, WORLD_HEAP);
        pair_open(&pair, &world, &refit_transport_tcp, 1 + (unsigned)(seed % 3), true);
        struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
        assert_int_equal(pull.ok, plan_batches(world.plan));
        pair_finish(&pair);
        world_check_landed(&world);
        world_check_tallies(&world);
        pair_close(&pair);
        world_close(&world);
    }
}

static void a_batch_that_is_sent_twice_is_tallied_once(void **state)
{
    struct world world;
    struct pair pair;
    world_open(&world, world_rows_source, world_rows_destination, WORLD_HEAP);
    pair_open(&pair, &world, &refit_transport_tcp, 2, true);
    for (int i = 0; i < 2; i++) {
        struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
        assert_int_equal(pull.ok, plan_batches(world.plan));
    }
    pair_finish(&pair);
    /* Against what one pass adds up to. */
    struct refit_tally *twice = world.tally;
    pair_close(&pair);
    struct refit_error err;
    refit_landed_release(world.landed);
    assert_int_equal(refit_landed_create(world.plan, &world.landed, &err), REFIT_OK);
    world.tally = refit_tally_create(refit_tally_count(twice));
    for (uint32_t i = 0; i < world.sources; i++) {
        refit_tally_destroy(world.source_ranks[i].tally);
        world.source_ranks[i].tally = refit_tally_create(refit_tally_count(twice));
    }
    pair_open(&pair, &world, &refit_transport_tcp, 1, true);
    pull_all(pair.transport, pair.receiver, &world, 0);
    pair_finish(&pair);
    world_check_tallies(&world);
    for (uint32_t id = 0; id < refit_tally_count(twice); id++)
        assert_true(refit_digest_equal(refit_tally_get(twice, id), refit_tally_get(world.tally, id)));
    pair_close(&pair);
    refit_tally_destroy(twice);
    world_close(&world);
}

/* Every byte that crosses the sockets is counted by a relay between the two sides. */
static void no_byte_is_sent_that_nobody_needs(void **state)
{
    struct world world;
    struct refit_error err;
    char directory[32];
    world_open(&world, world_rows_source, world_rows_destination, WORLD_HEAP);
    struct refit_listener *listener = listener_open(directory);
    struct refit_endpoint_config config = world_receiver(&world, listener, 2);
    struct refit_endpoint *receiver, *holders[WORLD_RANKS_MAX];
    assert_int_equal(refit_transport_tcp.open(&config, &receiver, &err), REFIT_OK);
    struct relay *relay = relay_start(refit_listener_tcp_port(listener), NULL, NULL);
    json_t *card = relay_card(relay);
    for (uint32_t i = 0; i < world.sources; i++) {
        config = world_holder(&world, i, 2);
        assert_int_equal(refit_transport_tcp.open(&config, &holders[i], &err), REFIT_OK);
        assert_int_equal(refit_transport_tcp.connect(holders[i], card, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    }
    struct pull pull = pull_all(&refit_transport_tcp, receiver, &world, 0);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    assert_int_equal(refit_transport_tcp.finish(receiver, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    uint64_t needed = refit_plan_bytes(world.plan), up, down, sent = 0;
    for (uint32_t i = 0; i < world.sources; i++) {
        struct refit_endpoint_stats stats;
        refit_transport_tcp.stats(holders[i], &stats);
        assert_int_equal(refit_transport_tcp.wait_done(holders[i], refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
        refit_transport_tcp.close(holders[i]);
        sent += stats.payload_bytes;
    }
    relay_stop(relay, &up, &down);
    assert_int_equal(sent, needed);
    assert_true(up >= needed);
    assert_true(up - needed < needed / 200 + 6 * 512);
    assert_true(down < needed / 1000 + 6 * 64);
    refit_transport_tcp.close(receiver);
    json_decref(card);
    listener_close(listener, directory);
    world_close(&world);
}

struct early {
    struct refit_endpoint *holder;
    const json_t *card;
    enum refit_status status;
};

static void *connect_early(void *arg)
{
    struct early *early = arg;
    struct refit_error err;
    early->status = refit_transport_tcp.connect(early->holder, early->card, refit_deadline_in_ms(PULL_MS), &err);
    return NULL;
}

static void a_holder_that_dials_before_the_endpoint_is_open_waits_for_it(void **state)
{
    struct world world;
    struct refit_error err;
    char directory[32];
    json_t *card;
    pthread_t thread;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    struct refit_listener *listener = listener_open(directory);
    assert_int_equal(refit_listener_card(listener, "tcp", &card, &err), REFIT_OK);
    struct early early = {.card = card};
    struct refit_endpoint_config config = world_holder(&world, 0, 1);
    assert_int_equal(refit_transport_tcp.open(&config, &early.holder, &err), REFIT_OK);
    assert_int_equal(pthread_create(&thread, NULL, connect_early, &early), 0);
    struct refit_endpoint *receiver;
    config = world_receiver(&world, listener, 1);
    assert_int_equal(refit_transport_tcp.open(&config, &receiver, &err), REFIT_OK);
    pthread_join(thread, NULL);
    assert_int_equal(early.status, REFIT_OK);
    refit_transport_tcp.close(early.holder);
    refit_transport_tcp.close(receiver);
    json_decref(card);
    listener_close(listener, directory);
    world_close(&world);
}

static void a_post_before_the_holder_came_says_so(void **state)
{
    struct world world;
    struct refit_error err;
    char directory[32];
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    struct refit_listener *listener = listener_open(directory);
    struct refit_endpoint_config config = world_receiver(&world, listener, 1);
    struct refit_endpoint *receiver;
    size_t count;
    struct refit_transfer_completion done;
    assert_int_equal(refit_transport_tcp.open(&config, &receiver, &err), REFIT_OK);
    const struct refit_edge *edges = refit_plan_edges(world.plan, &count);
    assert_int_equal(refit_transport_tcp.post(receiver, 0, &edges[0], 0, &err), REFIT_NOT_FOUND);
    assert_int_equal(refit_transport_tcp.post(receiver, 0, &edges[0], edges[0].batches, &err), REFIT_INVALID);
    assert_int_equal(refit_transport_tcp.post(receiver, WORLD_HOLDERS, &edges[0], 0, &err), REFIT_INVALID);
    refit_transport_tcp.abort(receiver);
    assert_int_equal(refit_transport_tcp.post(receiver, 0, &edges[0], 0, &err), REFIT_ABORTED);
    assert_int_equal(refit_inbox_take(world.inbox, &done, 1, refit_deadline_in_ms(PULL_MS)), 0);
    assert_int_equal(refit_transport_tcp.wait_done(receiver, refit_deadline_in_ms(0), &err), REFIT_INVALID);
    refit_transport_tcp.close(receiver);
    listener_close(listener, directory);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_rows_land_with_any_number_of_streams),
        cmocka_unit_test(tiny_rows_are_packed_and_scattered),
        cmocka_unit_test(columns_land_as_rows),
        cmocka_unit_test(a_file_is_a_source),
        cmocka_unit_test(bytes_land_with_verification_off),
        cmocka_unit_test(random_layouts_land),
        cmocka_unit_test(a_batch_that_is_sent_twice_is_tallied_once),
        cmocka_unit_test(no_byte_is_sent_that_nobody_needs),
        cmocka_unit_test(a_holder_that_dials_before_the_endpoint_is_open_waits_for_it),
        cmocka_unit_test(a_post_before_the_holder_came_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
