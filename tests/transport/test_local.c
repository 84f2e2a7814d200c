/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/layouts/random_layout.h"
#include "tests/transport/pull.h"

/* Moves all and returns how many bytes took an extra copy. */
static uint64_t move_once(const char *source, const char *destination, enum world_memory memory, unsigned streams,
                          bool verify)
{
    struct world world;
    struct pair pair;
    world_open(&world, source, destination, memory);
    pair_open(&pair, &world, &refit_transport_local, streams, verify);
    struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    pair_finish(&pair);
    world_check_landed(&world);
    if (verify)
        world_check_tallies(&world);
    struct refit_endpoint_stats stats;
    pair.transport->stats(pair.receiver, &stats);
    assert_int_equal(stats.payload_bytes, refit_plan_bytes(world.plan));
    assert_int_equal(stats.wire_bytes, 0);
    uint64_t needed = refit_plan_bytes(world.plan);
    pair_close(&pair);
    world_close(&world);
    assert_true(stats.copied_bytes <= needed);
    return stats.copied_bytes == needed ? UINT64_MAX : stats.copied_bytes;
}

static void sealed_memory_is_pulled_without_an_extra_copy(void **state)
{
    for (unsigned streams = 1; streams <= 3; streams++)
        assert_int_equal(move_once(world_rows_source, world_rows_destination, WORLD_SEALED, streams, true), 0);
    assert_int_equal(move_once(world_tiny_source, world_tiny_destination, WORLD_SEALED, 2, true), 0);
    assert_int_equal(move_once(world_rows_destination, world_rows_source, WORLD_SEALED, 1, false), 0);
}

static void memory_that_could_shrink_is_read_and_not_mapped(void **state)
{
    assert_int_equal(move_once(world_rows_source, world_rows_destination, WORLD_UNSEALED, 2, true), 0);
}

static void a_file_is_read_in_place(void **state)
{
    assert_int_equal(move_once(world_rows_source, world_rows_destination, WORLD_FILE, 1, true), 0);
    assert_int_equal(move_once(world_tiny_source, world_tiny_destination, WORLD_FILE, 2, true), 0);
}

static void heap_goes_through_the_ring_and_is_reported(void **state)
{
    assert_true(move_once(world_rows_source, world_rows_destination, WORLD_HEAP, 1, true) == UINT64_MAX);
    assert_true(move_once(world_tiny_source, world_tiny_destination, WORLD_HEAP, 3, true) == UINT64_MAX);
    assert_true(move_once(world_tiny_source, world_tiny_destination, WORLD_HEAP, 2, false) == UINT64_MAX);
}

static void only_batches_that_touch_heap_go_through_the_ring(void **state)
{
    uint64_t copied = move_once(world_rows_source, world_rows_destination, WORLD_MIXED, 2, true);
    assert_true(copied > 0 && copied != UINT64_MAX);
}

static void random_layouts_land(void **state)
{
    for (uint64_t seed = 101; seed <= 120; seed++) {
        struct random r = {.state = seed};
        struct model model = random_model(&r);
        struct world world;
        struct pair pair;
        struct refit_layout *source = random_layout(&r, &model, 4, true);
        struct refit_layout *destination = random_layout(&r, &model, 4, false);
        world_open_layouts(&world, source, destination, (enum world_memory)(seed % 5));
        pair_open(&pair, &world, &refit_transport_local, 1 + (unsigned)(seed % 3), true);
        struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
        assert_int_equal(pull.ok, plan_batches(world.plan));
        pair_finish(&pair);
        world_check_landed(&world);
        world_check_tallies(&world);
        pair_close(&pair);
        world_close(&world);
    }
}

static void sources_in_this_process_need_no_holder(void **state)
{
    struct world world;
    struct refit_error err;
    struct refit_plan *plan;
    struct refit_endpoint *receiver;
    struct refit_arena *sources[WORLD_RANKS_MAX];
    world_open(&world, world_rows_source, world_rows_destination, WORLD_FILE);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
    assert_int_equal(refit_plan_build(world.source, world.destination, scope, &plan, &err), REFIT_OK);
    for (uint32_t i = 0; i < world.sources; i++)
        sources[i] = world.source_ranks[i].arena;
    struct refit_endpoint_config config = world_receiver(&world, NULL, 2);
    assert_int_equal(refit_local_open_source(&config, plan, sources, world.sources, &receiver, &err), REFIT_OK);
    struct pull pull = pull_from(&refit_transport_local, receiver, &world, 0);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    assert_int_equal(refit_transport_local.finish(receiver, refit_deadline_in_ms(PULL_MS), &err), REFIT_OK);
    world_check_landed(&world);
    for (uint32_t id = 0; id < refit_tally_count(world.tally); id++) {
        struct refit_digest digest = refit_tally_get(world.tally, id);
        assert_true(digest.d[0] != 0 || digest.d[1] != 0);
    }
    refit_transport_local.close(receiver);
    refit_plan_release(plan);
    world_close(&world);
}

static void a_source_that_is_cut_short_is_an_error_and_no_signal(void **state)
{
    struct world world;
    struct pair pair;
    world_open(&world, world_rows_source, world_rows_destination, WORLD_UNSEALED);
    pair_open(&pair, &world, &refit_transport_local, 1, false);
    /* The holder's own mapping is gone with it, so that only the receiver reads. */
    for (uint32_t i = 0; i < world.sources; i++)
        assert_int_equal(ftruncate(world.source_ranks[i].fd, 4096), 0);
    struct pull pull = pull_all(pair.transport, pair.receiver, &world, 0);
    assert_int_equal(pull.ok, 0);
    assert_int_equal(pull.corrupt, plan_batches(world.plan));
    pair_close(&pair);
    world_close(&world);
}

static void a_card_of_another_transport_is_refused(void **state)
{
    struct world world;
    struct refit_error err;
    struct refit_endpoint *holder;
    world_open(&world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    struct refit_endpoint_config config = world_holder(&world, 0, 1);
    assert_int_equal(refit_transport_local.open(&config, &holder, &err), REFIT_OK);
    json_t *card = json_pack("{s:s, s:s, s:i}", "transport", "tcp", "address", "127.0.0.1", "port", 1);
    assert_int_equal(refit_transport_local.connect(holder, card, refit_deadline_in_ms(PULL_MS), &err), REFIT_INVALID);
    json_decref(card);
    card = json_pack("{s:s, s:s}", "transport", "local", "path", "/tmp/refit-no-such-socket");
    assert_int_equal(refit_transport_local.connect(holder, card, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
    json_decref(card);
    refit_transport_local.close(holder);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sealed_memory_is_pulled_without_an_extra_copy),
        cmocka_unit_test(memory_that_could_shrink_is_read_and_not_mapped),
        cmocka_unit_test(a_file_is_read_in_place),
        cmocka_unit_test(heap_goes_through_the_ring_and_is_reported),
        cmocka_unit_test(only_batches_that_touch_heap_go_through_the_ring),
        cmocka_unit_test(random_layouts_land),
        cmocka_unit_test(sources_in_this_process_need_no_holder),
        cmocka_unit_test(a_source_that_is_cut_short_is_an_error_and_no_signal),
        cmocka_unit_test(a_card_of_another_transport_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
