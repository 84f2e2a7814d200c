/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes over nccl, from device to device, over the look-alikes of CUDA and NCCL: both ends in this process, each rank on
 * a device of its own. The look-alike ends the process when two communicators are at work on one device.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "memory/ops.h"
#include "tests/layouts/random_layout.h"
#include "tests/transport/engines.h"
#include "tests/transport/pull.h"
#include "tests/transport/standins.h"

static const struct refit_transport *nccl; /* or engines that receive by it: set by main */

static int setup(void **state)
{
    (void)state;
    standins.cuda.total((size_t)1 << 30);
    standins.cuda.reset();
    standins.nccl.reset();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    standins_check_none_alive();
    return 0;
}

/* ---- what lands ---- */

static void finish_and_check(struct pair *pair, struct world *world)
{
    pair_finish(pair);
    world_check_landed(world);
    struct refit_endpoint_stats stats;
    nccl->stats(pair->receiver, &stats);
    assert_int_equal(stats.payload_bytes, refit_plan_bytes(world->plan));
    assert_true(stats.wire_bytes > stats.payload_bytes);
}

static void move_once(const char *source, const char *destination, bool verify)
{
    struct world world;
    struct pair pair;
    world_open(&world, source, destination, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, verify);
    assert_int_equal(pull_all(nccl, pair.receiver, &world, 0).ok, plan_batches(world.plan));
    finish_and_check(&pair, &world);
    if (verify)
        world_check_tallies(&world);
    pair_close(&pair);
    world_close(&world);
}

static void rows_become_columns_and_columns_rows(void **state)
{
    move_once(world_rows_source, world_rows_destination, true);
    move_once(world_rows_destination, world_rows_source, true);
}

/* As world_tiny_source, a tenth: kernels are the host's here. */
static const char tiny_source[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[3]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[20000,32],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[3001,7],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}";
static const char tiny_destination[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[20000,32],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[3001,7],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"],"
    "\"order\":[1,0]}]}";

static void tiny_rows_are_packed_and_unpacked(void **state)
{
    move_once(tiny_source, tiny_destination, true);
    move_once(tiny_destination, tiny_source, true);
}

static void bytes_land_with_verification_off(void **state)
{
    move_once(world_rows_source, world_rows_destination, false);
    move_once(tiny_source, tiny_destination, false);
}

static void random_layouts_land(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct random r = {.state = seed};
        struct model model = random_model(&r);
        struct world world;
        struct pair pair;
        struct refit_layout *source = random_layout(&r, &model, 4, true);
        struct refit_layout *destination = random_layout(&r, &model, 4, false);
        world_open_layouts(&world, source, destination, WORLD_DEVICE);
        pair_open(&pair, &world, nccl, 1, true);
        assert_int_equal(pull_all(nccl, pair.receiver, &world, 0).ok, plan_batches(world.plan));
        pair_finish(&pair);
        world_check_landed(&world);
        world_check_tallies(&world);
        pair_close(&pair);
        world_close(&world);
    }
}

/* A window that is dense at both ends is sent from where it is to where it goes. */
static void dense_windows_are_not_staged(void **state)
{
    static const char one[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[1]}},\"entries\":["
        "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[1024,1024],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}";
    struct world world;
    struct pair pair;
    struct refit_endpoint_stats stats;
    world_open(&world, one, one, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, true);
    assert_int_equal(pull_all(nccl, pair.receiver, &world, 0).ok, plan_batches(world.plan));
    finish_and_check(&pair, &world);
    nccl->stats(pair.receiver, &stats);
    assert_int_equal(stats.copied_bytes, 0);
    nccl->stats(pair.holders[0], &stats);
    assert_int_equal(stats.copied_bytes, 0);
    pair_close(&pair);
    world_close(&world);
}

/* The ranks of the group are on devices of their own. */
static void spread_to_a_group(bool peers)
{
    static const char one[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[1]}},\"entries\":["
        "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[40,3000],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";
    static const char three[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[3]}},\"entries\":["
        "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[40,3000],\"mesh\":\"m\",\"placements\":[\"Replicate\"],"
        "\"order\":[1,0]}]}";
    struct refit_memory_between_devices before, after;
    struct world world;
    struct pair pair;
    gpu_need_switches();
    standins.cuda.peers(peers);
    refit_memory_between_devices(&before);
    world_open(&world, one, three, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, true);
    assert_int_equal(pull_all(nccl, pair.receiver, &world, 0).ok, plan_batches(world.plan));
    finish_and_check(&pair, &world);
    refit_memory_between_devices(&after);
    uint64_t bytes = 2 * refit_plan_bytes(world.plan);
    assert_int_equal(after.direct_bytes - before.direct_bytes, peers ? bytes : 0);
    assert_int_equal(after.by_host_bytes - before.by_host_bytes, peers ? 0 : bytes);
    pair_close(&pair);
    world_close(&world);
    standins.cuda.peers(1);
}

static void devices_of_a_group_read_what_landed_on_one_of_them(void **state)
{
    spread_to_a_group(true);
}

static void where_they_cannot_it_goes_by_the_host(void **state)
{
    spread_to_a_group(false);
}

static void a_batch_that_is_sent_twice_is_tallied_once(void **state)
{
    struct world world;
    struct pair pair;
    world_open(&world, tiny_source, tiny_destination, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pull_all(nccl, pair.receiver, &world, 0).ok, plan_batches(world.plan));
    pair_finish(&pair);
    world_check_tallies(&world);
    pair_close(&pair);
    world_close(&world);
}

static void a_bit_that_flips_under_way_is_seen_and_the_batch_asked_again(void **state)
{
    struct world world;
    struct pair pair;
    gpu_need_switches();
    world_open(&world, world_rows_source, world_rows_destination, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, true);
    standins.nccl.corrupt(3);
    struct pull pull = pull_all(nccl, pair.receiver, &world, 1);
    assert_int_equal(pull.corrupt, 1);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    pair_finish(&pair);
    world_check_landed(&world);
    world_check_tallies(&world);
    pair_close(&pair);
    world_close(&world);
}

/* ---- communicators ---- */

static void refit_once(struct world *world)
{
    struct pair pair;
    struct refit_error err;
    refit_landed_release(world->landed);
    must(refit_landed_create(world->plan, &world->landed, &err), &err);
    pair_open(&pair, world, nccl, 1, true);
    assert_int_equal(pull_all(nccl, pair.receiver, world, 0).ok, plan_batches(world->plan));
    pair_finish(&pair);
    pair_close(&pair);
}

static void the_next_refit_finds_the_communicators_of_the_last(void **state)
{
    struct world world;
    gpu_need_switches();
    world_open(&world, world_rows_source, world_rows_destination, WORLD_DEVICE);
    refit_transports_keep();
    refit_once(&world);
    int made = standins_nccl_calls("ncclCommInitRankConfig");
    assert_true(made > 0 && made <= 2 * 3 * 2); /* both ends of each pair of devices */
    refit_once(&world);
    assert_int_equal(standins_nccl_calls("ncclCommInitRankConfig"), made);
    world_check_landed(&world);
    assert_true(standins.nccl.live() > 0);
    refit_transports_let_go();
    assert_int_equal(standins.nccl.live(), 0);
    world_close(&world);
}

/* ---- who can't ---- */

static void another_version_is_named_before_anything_is_made(void **state)
{
    struct world world;
    struct pair pair;
    struct refit_error err;
    struct refit_endpoint *holder;
    world_open(&world, tiny_source, tiny_destination, WORLD_DEVICE);
    pair_open(&pair, &world, nccl, 1, true);
    struct refit_endpoint_config config = world_holder(&world, 0, 1);
    config.holder = 40;
    must(nccl->open(&config, &holder, &err), &err);
    json_object_set_new(pair.card, "version", json_integer(22907));
    assert_int_equal(nccl->connect(holder, pair.card, refit_deadline_in_ms(PULL_MS), &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "2.29.7"));
    assert_non_null(strstr(err.text, "here"));
    nccl->close(holder);
    pair_close(&pair);
    world_close(&world);
}

static void memory_of_the_host_is_refused_with_the_reason(void **state)
{
    struct world world;
    struct refit_error err;
    struct refit_endpoint *endpoint;
    char directory[32];
    world_open(&world, tiny_source, tiny_destination, WORLD_HEAP);
    struct refit_listener *listener = listener_open(directory);
    struct refit_endpoint_config config = world_receiver(&world, listener, 1);
    assert_int_equal(nccl->open(&config, &endpoint, &err), REFIT_UNSUPPORTED);
    assert_non_null(strstr(err.text, "in the host"));
    config = world_holder(&world, 0, 1);
    assert_int_equal(nccl->open(&config, &endpoint, &err), REFIT_UNSUPPORTED);
    listener_close(listener, directory);
    world_close(&world);
}

static void a_listener_says_nccl_only_when_it_was_told_to(void **state)
{
    struct refit_error err;
    struct refit_listener *listener;
    json_t *card;
    struct refit_listener_config config = {.tcp_address = "127.0.0.1"};
    must(refit_listener_start(&config, &listener, &err), &err);
    assert_int_equal(refit_listener_card(listener, "nccl", &card, &err), REFIT_UNSUPPORTED);
    refit_listener_stop(listener);
    config.nccl = true;
    must(refit_listener_start(&config, &listener, &err), &err);
    must(refit_listener_card(listener, "nccl", &card, &err), &err);
    assert_true(json_is_integer(json_object_get(card, "version")));
    json_decref(card);
    refit_listener_stop(listener);
}

/* ---- dialling ---- */

static void a_post_before_the_holder_came_says_so(void **state)
{
    struct world world;
    struct refit_error err;
    char directory[32];
    struct refit_endpoint *receiver;
    size_t count;
    world_open(&world, tiny_source, tiny_destination, WORLD_DEVICE);
    struct refit_listener *listener = listener_open(directory);
    struct refit_endpoint_config config = world_receiver(&world, listener, 1);
    must(nccl->open(&config, &receiver, &err), &err);
    const struct refit_edge *edges = refit_plan_edges(world.plan, &count);
    assert_int_equal(nccl->post(receiver, 0, &edges[0], 0, &err), REFIT_NOT_FOUND);
    assert_int_equal(nccl->post(receiver, 0, &edges[0], edges[0].batches, &err), REFIT_INVALID);
    nccl->abort(receiver);
    assert_int_equal(nccl->post(receiver, 0, &edges[0], 0, &err), REFIT_ABORTED);
    nccl->close(receiver);
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
    early->status = nccl->connect(early->holder, early->card, refit_deadline_in_ms(PULL_MS), &err);
    return NULL;
}

static void a_holder_that_dials_before_the_endpoint_is_open_waits_for_it(void **state)
{
    struct world world;
    struct refit_error err;
    char directory[32];
    json_t *card;
    pthread_t thread;
    world_open(&world, tiny_source, tiny_destination, WORLD_DEVICE);
    struct refit_listener *listener = listener_open(directory);
    must(refit_listener_card(listener, "nccl", &card, &err), &err);
    engines_in_card(card, world.destinations);
    struct early early = {.card = card};
    struct refit_endpoint_config config = world_holder(&world, 0, 1);
    must(nccl->open(&config, &early.holder, &err), &err);
    assert_int_equal(pthread_create(&thread, NULL, connect_early, &early), 0);
    struct refit_endpoint *receiver, *plain;
    config = world_receiver(&world, listener, 1);
    /* The same refit over tcp is another gate: its holders and these do not meet. */
    struct refit_inbox *inbox;
    must(refit_inbox_create(16, &inbox, &err), &err);
    struct refit_endpoint_config other = config;
    other.inbox = inbox;
    must(refit_transport_tcp.open(&other, &plain, &err), &err);
    must(nccl->open(&config, &receiver, &err), &err);
    pthread_join(thread, NULL);
    assert_int_equal(early.status, REFIT_OK);
    nccl->close(early.holder);
    nccl->close(receiver);
    refit_transport_tcp.close(plain);
    refit_inbox_destroy(inbox);
    json_decref(card);
    listener_close(listener, directory);
    world_close(&world);
}

int main(void)
{
    nccl = engines_or_nccl();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(rows_become_columns_and_columns_rows),
        TEST(tiny_rows_are_packed_and_unpacked),
        TEST(bytes_land_with_verification_off),
        TEST(random_layouts_land),
        TEST(dense_windows_are_not_staged),
        TEST(devices_of_a_group_read_what_landed_on_one_of_them),
        TEST(where_they_cannot_it_goes_by_the_host),
        TEST(a_batch_that_is_sent_twice_is_tallied_once),
        TEST(a_bit_that_flips_under_way_is_seen_and_the_batch_asked_again),
        TEST(the_next_refit_finds_the_communicators_of_the_last),
        TEST(another_version_is_named_before_anything_is_made),
        TEST(memory_of_the_host_is_refused_with_the_reason),
        TEST(a_listener_says_nccl_only_when_it_was_told_to),
        TEST(a_post_before_the_holder_came_says_so),
        TEST(a_holder_that_dials_before_the_endpoint_is_open_waits_for_it),
    };
    return cmocka_run_group_tests(tests, standins_open, NULL);
}
