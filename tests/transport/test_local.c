/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/layouts/random_layout.h"
#include "base/io.h"
#include "tests/standins/standin_cuda.h"
#include "tests/support/gpu.h"
#include "tests/transport/pull.h"
#include "tests/transport/side.h"
#include "transport/endpoint.h"
#include "transport/local_pieces.h"

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

/* Real GPUs need not reach each other. */
static void need_reach(void)
{
    struct refit_error err;
    for (int i = 0; world_on_devices() && i < gpu_devices(); i++) {
        if (refit_cuda_peers(0, i, &err) == REFIT_OK && refit_cuda_peers(i, 0, &err) == REFIT_OK)
            continue;
        print_message("skipped: %s\n", err.text);
        skip();
    }
}

static void sealed_memory_is_pulled_without_an_extra_copy(void **state)
{
    need_reach();
    for (unsigned streams = 1; streams <= 3; streams++)
        assert_int_equal(move_once(world_rows_source, world_rows_destination, WORLD_SEALED, streams, true), 0);
    assert_int_equal(move_once(world_tiny_source, world_tiny_destination, WORLD_SEALED, 2, true), 0);
    assert_int_equal(move_once(world_rows_destination, world_rows_source, WORLD_SEALED, 1, false), 0);
}

static void memory_that_could_shrink_is_read_and_not_mapped(void **state)
{
    need_reach();
    assert_int_equal(move_once(world_rows_source, world_rows_destination, WORLD_UNSEALED, 2, true), 0);
}

static void a_file_is_read_in_place(void **state)
{
    need_reach();
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
    if (world_on_devices())
        skip(); /* a slot there is of one kind */
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
    if (world_on_devices())
        skip(); /* nobody makes a GPU's slot shorter */
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

/* ---- slots on GPUs: the ranks' devices are different ones, as far as there are ---- */

/* Kernels are the host's here. */
static const char small_source[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[3]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[6000,32],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}";
static const char small_destination[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[6000,32],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]}]}";

static void check_none_alive(void)
{
    __typeof__(standin_cuda_live) *live;
    *(void **)(void *)&live = gpu_switch("standin_cuda_live");
    if (live)
        assert_int_equal(live(), 0);
}

static void set_peers(int allowed)
{
    __typeof__(standin_cuda_peers) *peers;
    *(void **)(void *)&peers = gpu_switch("standin_cuda_peers");
    peers(allowed);
}

static void fail_call(const char *call, int nth)
{
    __typeof__(standin_cuda_fail_call) *make_fail;
    *(void **)(void *)&make_fail = gpu_switch("standin_cuda_fail_call");
    make_fail(call, nth);
}

static void a_gpus_slot_that_is_out_of_reach_goes_through_the_ring(void **state)
{
    gpu_need_switches();
    set_peers(0);
    world_next_device(0);
    assert_true(move_once(world_rows_source, world_rows_destination, WORLD_SEALED, 2, true) == UINT64_MAX);
    set_peers(1);
    check_none_alive();
}

/* What fails on the way is asked for again. Without digests the holder makes no call: all are the receiver's. */
static void move_with(const char *call, int nth)
{
    struct world world;
    struct pair pair;
    world_open(&world, small_source, small_destination, WORLD_SEALED);
    pair_open(&pair, &world, &refit_transport_local, 1, false);
    fail_call(call, nth);
    struct pull pull = pull_all(pair.transport, pair.receiver, &world, 3);
    fail_call("", 0);
    assert_int_equal(pull.ok, plan_batches(world.plan));
    pair_finish(&pair);
    world_check_landed(&world);
    pair_close(&pair);
    world_close(&world);
    check_none_alive();
}

static void any_call_that_fails_in_a_pull_costs_a_try_and_leaks_nothing(void **state)
{
    static const char *const calls[] = {"cuCtxPushCurrent_v2", "cuEventCreate", "cuLaunchKernel", "cuEventRecord",
                                        "cuEventQuery"};
    gpu_need_switches();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (int nth = 1; nth <= 3; nth++)
            move_with(calls[i], nth);
}

/* For one of the receiver's devices, for another, or for none, and then its bytes take the ring. */
static void a_slot_that_does_not_open_is_no_failure(void **state)
{
    static const char *const calls[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                        "cuMemSetAccess", "cuMemExportToShareableHandle"};
    gpu_need_switches();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct world world;
        struct pair pair;
        struct refit_endpoint_stats stats;
        world_open(&world, small_source, small_destination, WORLD_SEALED);
        fail_call(calls[i], 1);
        pair_open(&pair, &world, &refit_transport_local, 1, true);
        fail_call("", 0);
        assert_int_equal(pull_all(pair.transport, pair.receiver, &world, 0).ok, plan_batches(world.plan));
        pair_finish(&pair);
        world_check_landed(&world);
        pair.transport->stats(pair.receiver, &stats);
        assert_true(stats.copied_bytes < refit_plan_bytes(world.plan));
        pair_close(&pair);
        world_close(&world);
        check_none_alive();
    }
}

#define OWED (REFIT_GRANTS_PER_STREAM + REFIT_QUEUE_MAX)

/* Source rank 0 in a process of its own, which ends when it is told. */
static pid_t far_holder(struct world *world, int *to)
{
    int ends[2];
    char text[REFIT_CARD_MAX] = {0};
    struct refit_error err;
    struct refit_endpoint *holder;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    *to = ends[1];
    if (pid > 0) {
        close(ends[0]);
        return pid;
    }
    close(ends[1]);
    uint8_t token[REFIT_TOKEN_BYTES];
    if (read(ends[0], token, sizeof token) != sizeof token || read(ends[0], text, sizeof text - 1) <= 0)
        _exit(1);
    json_t *card = json_loads(text, 0, NULL);
    world_next_device(0);
    world_open(world, world_rows_source, world_rows_destination, WORLD_SEALED);
    struct refit_endpoint_config config = world_holder(world, 0, 1);
    memcpy(config.token, token, sizeof token);
    config.rate_bytes_per_s = 4 << 20;
    if (refit_transport_local.open(&config, &holder, &err) != REFIT_OK ||
        refit_transport_local.connect(holder, card, refit_deadline_in_ms(PULL_MS), &err) != REFIT_OK)
        _exit(2);
    (void)!refit_transport_local.wait_done(holder, refit_deadline_in_ms(PULL_MS), &err);
    _exit(3);
}

static void tell(int to, const struct world *world, const json_t *card)
{
    char *text = json_dumps(card, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(write(to, world->token, REFIT_TOKEN_BYTES), REFIT_TOKEN_BYTES);
    assert_int_equal(write(to, text, strlen(text)), (ssize_t)strlen(text));
    free(text);
}

static void a_holder_that_dies_takes_no_slot_and_no_receiver_with_it(void **state)
{
    static struct world far;
    struct side side;
    struct refit_transfer_completion done;
    int to, status;
    pid_t pid = far_holder(&far, &to); /* before this process has threads */
    world_next_device(3);
    world_open(&side.world, world_rows_source, world_rows_destination, WORLD_SEALED);
    side_open(&side, &refit_transport_local, 0);
    tell(to, &side.world, side.card);
    uint32_t batches = side.edge->batches < OWED ? side.edge->batches : OWED;
    for (uint32_t batch = 0; batch < batches; batch++)
        side_post(&side, 0, batch);
    done = world_completion(&side.world);
    assert_int_equal(done.status, REFIT_OK);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(to);
    bool landed[OWED] = {false};
    landed[done.batch] = true;
    for (uint32_t i = 1; i < batches; i++) {
        done = world_completion(&side.world);
        assert_true(done.status == REFIT_OK || done.status == REFIT_PEER);
        landed[done.batch] = done.status == REFIT_OK;
    }
    struct refit_endpoint *next = side_hold(&side, 0, 0);
    for (uint32_t batch = 0; batch < batches; batch++) {
        if (landed[batch])
            continue;
        side_post(&side, 0, batch);
        assert_int_equal(world_completion(&side.world).status, REFIT_OK);
    }
    struct refit_endpoint_stats stats;
    side.transport->stats(side.receiver, &stats);
    if (gpu_switch("standin_cuda_reset"))
        assert_int_equal(stats.copied_bytes, 0);
    side.transport->close(next);
    side_close(&side);
    check_none_alive();
}

/* The listener's socket is reached by another user: it gets no descriptor of a GPU's memory. */
static void another_user_gets_no_gpus_descriptor(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PULL_MS / 1000};
    struct world world;
    struct refit_error err;
    if (geteuid() != 0) {
        print_message("skipped: only root becomes somebody else\n");
        skip();
    }
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), ring = memfd_create("ring", MFD_CLOEXEC), told;
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address.sun_family), 0); /* a name of the kernel's */
    socklen_t len = sizeof address;
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &len), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct { struct refit_frame frame; struct refit_local_memory memory; struct refit_local_piece piece; } packet;
        int fds[4], sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        size_t bytes, count;
        if (setresuid(65534, 65534, 65534) != 0 || connect(sock, (struct sockaddr *)&address, len) != 0)
            _exit(1);
        enum refit_status status = refit_io_recv_fds(sock, &packet, sizeof packet, &bytes, fds, 4, &count, &err);
        _exit(status == REFIT_OK && packet.frame.length == 0 && count == 1 &&
              !(packet.memory.flags & REFIT_LOCAL_LISTED) ? 0 : 2);
    }
    int sock = accept(listener, NULL, NULL);
    world_open(&world, small_source, small_destination, WORLD_SEALED);
    struct refit_view view;
    assert_int_equal(refit_view_of(world.source_ranks[0].plan, &world.source_ranks[0].arena, 1, &view, &err), REFIT_OK);
    assert_int_equal(refit_local_pieces_send(sock, &view, false, ring, 1, -1, refit_deadline_in_ms(PULL_MS), &err),
                     REFIT_OK);
    assert_int_equal(waitpid(pid, &told, 0), pid);
    assert_int_equal(told, 0);
    close(sock);
    close(ring);
    close(listener);
    world_close(&world);
}

static int on_devices(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_holder_that_dies_takes_no_slot_and_no_receiver_with_it),
        cmocka_unit_test(another_user_gets_no_gpus_descriptor),
        cmocka_unit_test(a_gpus_slot_that_is_out_of_reach_goes_through_the_ring),
        cmocka_unit_test(a_slot_that_does_not_open_is_no_failure),
        cmocka_unit_test(any_call_that_fails_in_a_pull_costs_a_try_and_leaks_nothing),
    };
    return cmocka_run_group_tests_name("GPUs", tests, NULL, NULL);
}

int main(void)
{
    if (world_on_devices() && on_devices() != 0)
        return 1;
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
