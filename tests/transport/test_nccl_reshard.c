/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast path of nccl: collectives of NCCL M2N's look-alike, both ends in this process, each rank on a device of its
 * own. What fits goes by it, everything else and everything after a failure by ordinary grants, and all bytes are right.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/transport/pull.h"
#include "tests/transport/standins.h"

#ifdef __SANITIZE_THREAD__ /* kernels are the host's here, and watched */
#define PATIENCE_MS 12000
#else
#define PATIENCE_MS 5000
#endif

static const struct refit_transport *const nccl = &refit_transport_nccl;

static int setup(void **state)
{
    (void)state;
    standins.cuda.total((size_t)1 << 30);
    standins.cuda.reset();
    standins.nccl.reset();
    world_next_device(0);
    setenv("REFIT_NCCL_RESHARD", "on", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    standins_check_none_alive();
    return 0;
}

/* ---- layouts ---- */

#define LAYOUT(ranks, axes, shape, entries)                                                                          \
    "{\"format\":\"refit-layout/1\",\"ranks\":" #ranks ",\"meshes\":{\"m\":{\"axes\":[" axes "],\"shape\":[" shape       \
    "]}},\"entries\":[" entries "]}"
#define T(name, dtype, shape, placements) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"mesh\":\"m\",\"placements\":[" placements "]}"
#define R "\"Replicate\""
#define S0 "\"Shard(0)\""
#define S1 "\"Shard(1)\""

/* Three tensors that fit: cut the other way round, cut to replicas, whole everywhere. */
static const char fits_source[] =
    LAYOUT(2, "\"s\"", "2", T("w", "BF16", "256,2048", S0) "," T("v", "F32", "128,96", S1) "," T("n", "F32", "512", R));
static const char fits_destination[] =
    LAYOUT(2, "\"t\"", "2", T("w", "BF16", "256,2048", S1) "," T("v", "F32", "128,96", R) "," T("n", "F32", "512", R));
/* Small ones for what is tried often, dense at both ends so that ordinary grants need no staging. */
static const char few_source[] =
    LAYOUT(2, "\"s\"", "2", T("w", "BF16", "16,64", R) "," T("v", "F32", "8,24", S0) "," T("n", "F32", "64", R));
static const char few_destination[] =
    LAYOUT(2, "\"t\"", "2", T("w", "BF16", "16,64", S0) "," T("v", "F32", "8,24", R) "," T("n", "F32", "64", R));
/* And two that do not: unevenly cut, and strided. */
static const char mixed_source[] =
    LAYOUT(2, "\"s\"", "2", T("w", "BF16", "256,2048", S0) "," T("u", "U8", "1001,300", S0) ","
           T("x", "F32", "128,64", S0) "," T("n", "F32", "512", R));
static const char mixed_destination[] =
    LAYOUT(2, "\"t\"", "2", T("w", "BF16", "256,2048", S1) "," T("u", "U8", "1001,300", S1) ","
           "{\"tensor\":\"x\",\"dtype\":\"F32\",\"shape\":[128,64],\"mesh\":\"m\",\"placements\":[" S1 "],\"order\":[1,0]},"
           T("n", "F32", "512", R));

/* ---- two ends ---- */

struct ends {
    struct world world;
    struct pair pair;
};

static struct refit_endpoint *open_holder(struct ends *ends, uint32_t rank)
{
    struct refit_error err;
    struct refit_endpoint *holder;
    struct refit_endpoint_config config = world_holder(&ends->world, rank, 1);
    config.patience_ms = PATIENCE_MS;
    must(nccl->open(&config, &holder, &err), &err);
    must(nccl->connect(holder, ends->pair.card, refit_deadline_in_ms(PULL_MS), &err), &err);
    return holder;
}

static void open_receiver(struct ends *ends, uint32_t holders, bool verify)
{
    struct refit_error err;
    ends->pair = (struct pair){.transport = nccl, .world = &ends->world};
    ends->pair.listener = listener_open(ends->pair.directory);
    struct refit_endpoint_config config = world_receiver(&ends->world, ends->pair.listener, 1);
    config.holder = holders;
    config.verify = verify;
    config.patience_ms = PATIENCE_MS;
    must(nccl->open(&config, &ends->pair.receiver, &err), &err);
    must(nccl->card(ends->pair.receiver, &ends->pair.card, &err), &err);
}

static void ends_open(struct ends *ends, const char *source, const char *destination)
{
    world_open(&ends->world, source, destination, WORLD_DEVICE);
    open_receiver(ends, ends->world.sources, true);
    for (uint32_t i = 0; i < ends->world.sources; i++)
        ends->pair.holders[i] = open_holder(ends, i);
}

static void ends_close(struct ends *ends)
{
    pair_close(&ends->pair);
    world_close(&ends->world);
}

static void land(struct ends *ends, unsigned again)
{
    assert_int_equal(pull_all(nccl, ends->pair.receiver, &ends->world, again).ok, plan_batches(ends->world.plan));
}

static void finish(struct ends *ends)
{
    pair_finish(&ends->pair);
    world_check_landed(&ends->world);
    world_check_tallies(&ends->world);
}

/* How many ranks called for how many tensors. */
static void expect_calls(unsigned ranks, unsigned tensors)
{
    assert_int_equal(standins_nccl_calls("ncclReshard"), ranks * tensors);
    assert_int_equal(standins_nccl_calls("ncclM2nGroupEnd"), tensors ? ranks : 0);
}

/* ---- what lands ---- */

static void what_fits_goes_by_one_call_each_and_nothing_else(void **state)
{
    struct ends ends;
    struct refit_endpoint_stats stats;
    (void)state;
    ends_open(&ends, fits_source, fits_destination);
    land(&ends, 0);
    finish(&ends);
    expect_calls(4, 3);
    /* Of all four ranks, and no communicator of two. */
    assert_int_equal(standins_nccl_calls("ncclCommInitRankConfig"), 4);
    nccl->stats(ends.pair.receiver, &stats);
    assert_int_equal(stats.payload_bytes, refit_plan_bytes(ends.world.plan));
    ends_close(&ends);
}

static void what_does_not_fit_goes_by_ordinary_grants_beside_it(void **state)
{
    struct ends ends;
    (void)state;
    ends_open(&ends, mixed_source, mixed_destination);
    land(&ends, 0);
    finish(&ends);
    expect_calls(4, 2);
    assert_true(standins_nccl_calls("ncclCommInitRankConfig") > 4);
    ends_close(&ends);
}

static void published_pairs_land_by_it(void **state)
{
    static const struct {
        const char *source, *destination;
        unsigned ranks;
    } pairs[] = {
        {LAYOUT(2, "\"s\"", "2", T("w", "F32", "8,8", S0)), LAYOUT(4, "\"t\"", "4", T("w", "F32", "8,8", S1)), 6},
        {LAYOUT(4, "\"tp\"", "4", T("w", "BF16", "64,48", S0)), LAYOUT(4, "\"dp\"", "4", T("w", "BF16", "64,48", R)), 8},
        {LAYOUT(4, "\"tp\"", "4", T("w", "BF16", "64,48", S1)),
         LAYOUT(4, "\"dp\",\"tp\"", "2,2", T("w", "BF16", "64,48", R "," S0)), 8},
        {LAYOUT(4, "\"dp\"", "4", T("w", "BF16", "64,48", R)), LAYOUT(4, "\"tp\"", "4", T("w", "BF16", "64,48", S1)), 8},
        {LAYOUT(4, "\"dp\",\"fsdp\"", "2,2", T("w", "BF16", "64,48", R "," S0)),
         LAYOUT(4, "\"kv\",\"dp\"", "2,2", T("w", "BF16", "64,48", S1 "," R)), 8},
        /* A stage of the pipeline, and experts of one rank each. */
        {LAYOUT(4, "\"pp\",\"ep\"", "2,2",
                "{\"tensor\":\"l.{l}.e.{e}\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":{\"range\":[0,2],"
                "\"axis\":\"pp\"},\"e\":{\"range\":[0,2],\"axis\":\"ep\"}},\"placements\":[" R "," R "]}"),
         LAYOUT(2, "\"tp\"", "2",
                "{\"tensor\":\"l.{l}.e.{e}\",\"dtype\":\"BF16\",\"shape\":[64,32],\"mesh\":\"m\",\"for\":{\"l\":[0,2],"
                "\"e\":[0,2]},\"placements\":[" S1 "]}"), 6},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct ends ends;
        setup(NULL);
        ends_open(&ends, pairs[i].source, pairs[i].destination);
        land(&ends, 0);
        finish(&ends);
        expect_calls(pairs[i].ranks, refit_layout_tensor_count(ends.world.destination));
        ends_close(&ends);
        standins_check_none_alive();
    }
}

static void the_next_refit_does_it_again(void **state)
{
    struct ends ends;
    struct refit_error err;
    (void)state;
    refit_transports_keep();
    world_open(&ends.world, mixed_source, mixed_destination, WORLD_DEVICE);
    for (unsigned round = 1; round <= 3; round++) {
        open_receiver(&ends, ends.world.sources, true);
        for (uint32_t i = 0; i < ends.world.sources; i++)
            ends.pair.holders[i] = open_holder(&ends, i);
        land(&ends, 0);
        pair_finish(&ends.pair);
        world_check_landed(&ends.world);
        assert_int_equal(standins_nccl_calls("ncclReshard"), round * 4 * 2);
        pair_close(&ends.pair);
        refit_landed_release(ends.world.landed);
        must(refit_landed_create(ends.world.plan, &ends.world.landed, &err), &err);
    }
    world_close(&ends.world);
    refit_transports_let_go();
}

/* ---- when it is not used ---- */

static void land_without(struct ends *ends)
{
    land(ends, 0);
    finish(ends);
    expect_calls(0, 0);
    ends_close(ends);
}

static void it_is_off_unless_switched_on(void **state)
{
    struct ends ends;
    (void)state;
    unsetenv("REFIT_NCCL_RESHARD");
    ends_open(&ends, fits_source, fits_destination);
    assert_null(json_object_get(ends.pair.card, "reshard"));
    land_without(&ends);
}

static void holders_with_another_library_or_none_go_on_as_before(void **state)
{
    (void)state;
    for (int older = 0; older < 2; older++) {
        struct ends ends;
        setup(NULL);
        world_open(&ends.world, fits_source, fits_destination, WORLD_DEVICE);
        open_receiver(&ends, ends.world.sources, true);
        assert_true(json_is_string(json_object_get(ends.pair.card, "reshard")));
        ends.pair.holders[0] = open_holder(&ends, 0);
        if (older) /* as to a holder that does not know it */
            json_object_del(ends.pair.card, "reshard");
        else
            json_object_set_new(ends.pair.card, "reshard", json_string("2-0000"));
        ends.pair.holders[1] = open_holder(&ends, 1);
        land_without(&ends);
    }
}

static void in_a_fleet_everything_is_granted(void **state)
{
    struct ends ends;
    (void)state;
    world_open(&ends.world, fits_source, fits_destination, WORLD_DEVICE);
    open_receiver(&ends, ends.world.sources + 1, true);
    for (uint32_t i = 0; i < ends.world.sources; i++)
        ends.pair.holders[i] = open_holder(&ends, i);
    land_without(&ends);
}

static void a_source_rank_that_never_comes_is_not_waited_for_for_ever(void **state)
{
    struct ends ends;
    (void)state;
    world_open(&ends.world, LAYOUT(2, "\"dp\"", "2", T("w", "BF16", "64,48", R)),
               LAYOUT(2, "\"tp\"", "2", T("w", "BF16", "64,48", S1)), WORLD_DEVICE);
    open_receiver(&ends, ends.world.sources, true);
    ends.pair.holders[0] = open_holder(&ends, 0);
    assert_int_equal(pull_from(nccl, ends.pair.receiver, &ends.world, 0).ok, plan_batches(ends.world.plan));
    expect_calls(0, 0);
    ends.pair.holders[1] = open_holder(&ends, 1);
    pair_finish(&ends.pair);
    world_check_landed(&ends.world);
    ends_close(&ends);
}

/* ---- what goes wrong ---- */

/* The exchange in which the look-alike compares what ranks describe has 12 messages of four ranks. */
static void a_bit_that_flips_is_seen_and_the_rest_is_sent_again(void **state)
{
    struct ends ends;
    (void)state;
    ends_open(&ends, fits_source, fits_destination);
    standins.nccl.corrupt(20);
    struct pull pull = pull_all(nccl, ends.pair.receiver, &ends.world, 1);
    assert_int_equal(pull.ok, plan_batches(ends.world.plan));
    assert_true(pull.corrupt > 0);
    finish(&ends);
    ends_close(&ends);
}

/* What of the pull ended with its connection is asked of holders that dial again. */
static void land_whatever_it_takes(struct ends *ends)
{
    struct refit_error err;
    struct refit_holder_state seen;
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(ends->world.plan, &count);
    unsigned missing = 1;
    for (int tries = 0; missing > 0 && tries < 200; tries++) {
        unsigned owed = 0;
        missing = 0;
        for (uint32_t i = 0; i < ends->world.sources; i++) {
            nccl->look(ends->pair.receiver, i, &seen);
            if (seen.connected && ends->pair.holders[i])
                continue;
            nccl->close(ends->pair.holders[i]);
            ends->pair.holders[i] = NULL;
            struct refit_endpoint_config config = world_holder(&ends->world, i, 1);
            config.patience_ms = PATIENCE_MS;
            if (nccl->open(&config, &ends->pair.holders[i], &err) == REFIT_OK &&
                nccl->connect(ends->pair.holders[i], ends->pair.card, refit_deadline_in_ms(PULL_MS), &err) != REFIT_OK) {
                nccl->close(ends->pair.holders[i]);
                ends->pair.holders[i] = NULL;
            }
        }
        for (size_t e = 0; e < count; e++) {
            struct refit_group group = refit_plan_group(ends->world.plan, REFIT_SOURCE, edges[e].source_group);
            for (uint32_t b = 0; b < edges[e].batches; b++) {
                bool lands = refit_landed_has(ends->world.landed, &edges[e], b);
                missing += !lands;
                owed += !lands && nccl->post(ends->pair.receiver, group.ranks[0], &edges[e], b, &err) == REFIT_OK;
            }
        }
        for (; owed > 0; owed--)
            (void)world_completion(&ends->world);
    }
    assert_int_equal(missing, 0);
}

static void every_call_fails_once_and_the_refit_goes_on(void **state)
{
    static const struct {
        const char *call;
        int most;
    } calls[] = {
        {"ncclM2nInit", 1},       {"ncclM2nGroupStart", 4}, {"ncclReshard", 12},       {"ncclM2nGroupEnd", 4},
        {"ncclM2nFinalize", 1},   {"ncclGetUniqueId", 1},   {"ncclCommInitRankConfig", 4}, {"ncclCommGetAsyncError", 12},
        {"ncclCommUserRank", 4},  {"ncclMemAlloc", 4},      {"ncclSend", 16},          {"ncclGroupEnd", 6},
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int nth = 1; nth <= calls[i].most; nth += 1 + calls[i].most / 4) {
            struct ends ends;
            setup(NULL);
            standins.nccl.fail_call(calls[i].call, nth, 3 /* ncclInternalError */);
            ends_open(&ends, few_source, few_destination);
            land_whatever_it_takes(&ends);
            assert_true(standins_nccl_calls(calls[i].call) >= nth);
            finish(&ends);
            ends_close(&ends);
            standins_check_none_alive();
        }
    }
}

/* The first to fail tells, and the others are broken off: no connection ends. */
static void after_a_failed_call_bytes_come_by_communicators_of_two(void **state)
{
    struct ends ends;
    (void)state;
    standins.nccl.fail_call("ncclM2nGroupEnd", 2, 3 /* ncclInternalError */);
    ends_open(&ends, fits_source, fits_destination);
    land(&ends, 0);
    finish(&ends);
    assert_true(standins_nccl_calls("ncclCommRevoke") > 0);
    assert_true(standins_nccl_calls("ncclCommInitRankConfig") > 4);
    ends_close(&ends);
}

static void await_calls(const char *call, int times)
{
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    while (standins_nccl_calls(call) < times && !refit_deadline_passed(deadline)) {
        struct timespec span = {.tv_nsec = 1000000};
        nanosleep(&span, NULL);
    }
    assert_true(standins_nccl_calls(call) >= times);
}

static void a_holder_that_ends_in_the_collective_is_waited_for_by_nobody(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        struct ends ends;
        setup(NULL);
        standins.nccl.delay_us(2000);
        standins.nccl.silent(silent);
        ends_open(&ends, few_source, few_destination);
        await_calls("ncclM2nGroupEnd", 4);
        nccl->abort(ends.pair.holders[1]);
        nccl->close(ends.pair.holders[1]);
        ends.pair.holders[1] = NULL;
        standins.nccl.delay_us(0);
        land_whatever_it_takes(&ends);
        finish(&ends);
        ends_close(&ends);
        standins_check_none_alive();
    }
}

/* The holder of rank 1, which comes up once it is told where, and is killed in the middle of its nth group. */
static int be_holder(int from, int dies_in)
{
    struct world world;
    struct refit_error err;
    struct refit_endpoint *holder;
    char text[REFIT_CARD_MAX] = {0};
    uint8_t token[REFIT_TOKEN_BYTES];
    if (read(from, token, sizeof token) != (ssize_t)sizeof token || read(from, text, sizeof text - 1) <= 0)
        return 1;
    json_t *card = json_loads(text, 0, NULL);
    world_next_device(4); /* not those of the parent: devices are the same for all */
    world_open(&world, few_source, few_destination, WORLD_DEVICE);
    standins.nccl.die_in_group(dies_in);
    struct refit_endpoint_config config = world_holder(&world, 1, 1);
    memcpy(config.token, token, sizeof token);
    if (nccl->open(&config, &holder, &err) != REFIT_OK ||
        nccl->connect(holder, card, refit_deadline_in_ms(PULL_MS), &err) != REFIT_OK)
        return 2;
    return nccl->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err) == REFIT_OK ? 0 : 3;
}

static void a_process_that_is_killed_in_the_collective_is_waited_for_by_nobody(void **state)
{
    (void)state;
    for (int dies_in = 1; dies_in <= 3; dies_in++) { /* in what ranks compare, and in rows */
        struct ends ends;
        int pipes[2], status;
        setup(NULL);
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(be_holder(pipes[0], dies_in));
        close(pipes[0]);
        world_open(&ends.world, few_source, few_destination, WORLD_DEVICE);
        open_receiver(&ends, ends.world.sources, true);
        ends.pair.holders[0] = open_holder(&ends, 0);
        char *text = json_dumps(ends.pair.card, JSON_COMPACT);
        assert_int_equal(write(pipes[1], ends.world.token, REFIT_TOKEN_BYTES), REFIT_TOKEN_BYTES);
        assert_int_equal(write(pipes[1], text, strlen(text)), (ssize_t)strlen(text));
        free(text);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        close(pipes[1]);
        land_whatever_it_takes(&ends);
        finish(&ends);
        ends_close(&ends);
        standins_check_none_alive();
    }
}

static void a_communicator_that_never_comes_up_is_given_up(void **state)
{
    struct ends ends;
    (void)state;
    standins.nccl.init_hangs(1);
    ends_open(&ends, few_source, few_destination);
    await_calls("ncclCommAbort", 4);
    standins.nccl.init_hangs(0);
    land_whatever_it_takes(&ends);
    finish(&ends);
    ends_close(&ends);
}

static void abort_and_drop_in_the_middle_leave_nothing_at_work(void **state)
{
    (void)state;
    for (int drops = 0; drops < 2; drops++) {
        struct ends ends;
        setup(NULL);
        standins.nccl.delay_us(2000);
        ends_open(&ends, few_source, few_destination);
        await_calls("ncclM2nGroupEnd", 4);
        if (drops)
            nccl->drop(ends.pair.receiver, 0);
        else
            nccl->abort(ends.pair.receiver);
        uint8_t *before = world_snapshot(&ends.world);
        struct timespec span = {.tv_nsec = 20000000};
        nanosleep(&span, NULL);
        assert_true(drops || world_unchanged(&ends.world, before));
        free(before);
        standins.nccl.delay_us(0);
        if (drops) {
            land_whatever_it_takes(&ends);
            finish(&ends);
        }
        ends_close(&ends);
        standins_check_none_alive();
    }
}

/* ---- devices that others want ---- */

static void *land_in_thread(void *arg)
{
    land(arg, 0);
    return NULL;
}

static void two_receivers_of_the_same_devices_have_them_by_turns(void **state)
{
    struct ends ends[2];
    pthread_t threads[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        world_next_device(0); /* the sources' devices are the same, and the destinations' */
        ends_open(&ends[i], mixed_source, mixed_destination);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, land_in_thread, &ends[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        finish(&ends[i]);
    expect_calls(8, 2);
    for (int i = 0; i < 2; i++)
        ends_close(&ends[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_fits_goes_by_one_call_each_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(what_does_not_fit_goes_by_ordinary_grants_beside_it, setup, teardown),
        cmocka_unit_test_setup_teardown(published_pairs_land_by_it, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_refit_does_it_again, setup, teardown),
        cmocka_unit_test_setup_teardown(it_is_off_unless_switched_on, setup, teardown),
        cmocka_unit_test_setup_teardown(holders_with_another_library_or_none_go_on_as_before, setup, teardown),
        cmocka_unit_test_setup_teardown(in_a_fleet_everything_is_granted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_source_rank_that_never_comes_is_not_waited_for_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bit_that_flips_is_seen_and_the_rest_is_sent_again, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_fails_once_and_the_refit_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(after_a_failed_call_bytes_come_by_communicators_of_two, setup, teardown),
        cmocka_unit_test_setup_teardown(a_holder_that_ends_in_the_collective_is_waited_for_by_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_process_that_is_killed_in_the_collective_is_waited_for_by_nobody, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_communicator_that_never_comes_up_is_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(abort_and_drop_in_the_middle_leave_nothing_at_work, setup, teardown),
        cmocka_unit_test_setup_teardown(two_receivers_of_the_same_devices_have_them_by_turns, setup, teardown),
    };
    return cmocka_run_group_tests(tests, standins_open, NULL);
}
