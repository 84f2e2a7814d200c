/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong under nccl: calls that fail, communicators that never come up, break in the middle or end with their
 * peer, devices without memory; and endpoints that are dropped or aborted meanwhile. After each the next refit lands,
 * and nothing is left.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "tests/transport/engines.h"
#include "tests/transport/pull.h"
#include "tests/transport/standins.h"

#ifdef __SANITIZE_THREAD__ /* kernels are the host's here, and watched */
#define HASTY_MS 8000
#else
#define HASTY_MS 1500
#endif
#define PATIENT_MS 30000 /* where it must not run out, on a busy machine neither */
#define BATCHES_MAX 256
#define DEVICE_BYTES ((size_t)1 << 30)

static const struct refit_transport *nccl; /* or engines that receive by it: set by main */
static uint32_t patience_ms; /* of endpoints that are opened */

/* Rank 0 of the source alone sends its edge to rank 0: 70 batches, unpacked at the receiver. */
struct side {
    struct world world;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver, *holder;
    json_t *card;
    const struct refit_edge *edge;
};

static int setup(void **state)
{
    (void)state;
    standins.cuda.total(DEVICE_BYTES);
    standins.cuda.reset();
    standins.nccl.reset();
    world_next_device(0);
    patience_ms = PATIENT_MS;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    standins_check_none_alive();
    return 0;
}

/* ---- one pair, kept up as a trainer keeps it ---- */

static enum refit_status open_receiver(struct side *side, struct refit_error *err)
{
    struct refit_endpoint_config config = world_receiver(&side->world, side->listener, 1);
    config.patience_ms = patience_ms;
    return nccl->open(&config, &side->receiver, err);
}

/* Where engines receive, that a holder has connected is known a moment later. */
static enum refit_status until_seen(struct side *side, struct refit_error *err)
{
    struct refit_holder_state seen = {.connected = !side->receiver};
    enum refit_status status = REFIT_TIMEOUT;
    while (!seen.connected && status == REFIT_TIMEOUT) {
        nccl->look(side->receiver, 0, &seen);
        status = seen.connected ? REFIT_OK : nccl->wait_done(side->holder, refit_deadline_in_ms(1), err);
    }
    return seen.connected ? REFIT_OK : status;
}

static enum refit_status open_holder(struct side *side, struct refit_error *err)
{
    struct refit_endpoint_config config = world_holder(&side->world, 0, 1);
    config.patience_ms = patience_ms;
    enum refit_status status = nccl->open(&config, &side->holder, err);
    if (status != REFIT_OK)
        return status;
    status = nccl->connect(side->holder, side->card, refit_deadline_in_ms(PULL_MS), err);
    if (status == REFIT_OK)
        status = until_seen(side, err);
    if (status == REFIT_OK)
        return status;
    nccl->close(side->holder);
    side->holder = NULL;
    return status;
}

static void side_open(struct side *side)
{
    struct refit_error err;
    memset(side, 0, sizeof *side);
    world_open(&side->world, world_rows_source, world_rows_destination, WORLD_DEVICE);
    side->listener = listener_open(side->directory);
    must(refit_listener_card(side->listener, "nccl", &side->card, &err), &err);
    engines_in_card(side->card, side->world.destinations);
    side->edge = world_edge(&side->world, 0, 0);
}

static void side_close(struct side *side)
{
    nccl->close(side->holder);
    nccl->close(side->receiver);
    json_decref(side->card);
    listener_close(side->listener, side->directory);
    world_close(&side->world);
}

/* What is to be there is; REFIT_OK: as many as could be were posted. */
static bool make_ends(struct side *side)
{
    struct refit_error err;
    if (!side->receiver && open_receiver(side, &err) != REFIT_OK)
        return false;
    return side->holder || open_holder(side, &err) == REFIT_OK;
}

/* Posts what has not landed; how many did, or -1: none was missing. */
static int land_some(struct side *side, bool *landed)
{
    struct refit_error err;
    struct refit_holder_state seen;
    unsigned owed = 0, missing = 0;
    int ok = 0;
    for (uint32_t batch = 0; batch < side->edge->batches; batch++) {
        missing += !landed[batch];
        owed += !landed[batch] && nccl->post(side->receiver, 0, side->edge, batch, &err) == REFIT_OK;
    }
    for (unsigned i = 0; i < owed; i++) {
        struct refit_transfer_completion done = world_completion(&side->world);
        assert_true(done.status == REFIT_OK || done.status == REFIT_PEER);
        landed[done.batch] = done.status == REFIT_OK;
        ok += done.status == REFIT_OK;
    }
    nccl->look(side->receiver, 0, &seen);
    if (!seen.connected) {
        nccl->close(side->holder);
        side->holder = NULL;
    }
    return missing > 0 ? ok : -1;
}

/* As trainer and session do: whatever was not there is opened, who was lost dials again, what did not land is asked for
 * again. False: `tries` times in all nothing landed, and something is still missing. */
static bool land_all(struct side *side, unsigned tries)
{
    bool landed[BATCHES_MAX] = {false};
    assert_true(side->edge->batches <= BATCHES_MAX);
    while (tries > 0) {
        int some = make_ends(side) ? land_some(side, landed) : 0;
        if (some < 0)
            return true;
        tries -= some == 0;
    }
    return false;
}

static void finish(struct side *side)
{
    struct refit_error err;
    must(nccl->finish(side->receiver, refit_deadline_in_ms(PULL_MS), &err), &err);
    must(nccl->wait_done(side->holder, refit_deadline_in_ms(PULL_MS), &err), &err);
}

/* ---- every call made to fail once ---- */

/* The names of all that a refit calls. */
static unsigned calls_of(__typeof__(standin_cuda_called) *called, char names[64][48])
{
    unsigned count = 0;
    int times;
    const char *name;
    for (int i = 0; count < 64 && (name = called(i, &times)) != NULL; i++)
        snprintf(names[count++], 48, "%s", name);
    return count;
}

static void land_with(const char *what, int nth, void (*break_call)(const char *what, int nth))
{
    struct side side;
    side_open(&side);
    break_call(what, nth);
    bool all = land_all(&side, 30);
    standins.cuda.reset();
    standins.nccl.reset();
    if (!all && !land_all(&side, 5)) /* what is broken for good is made anew */
        fail_msg("after call %d of %s failed: not even the next refit landed", nth, what);
    finish(&side);
    side_close(&side);
    if (standins.cuda.live() + standins.nccl.live() != 0)
        fail_msg("after call %d of %s failed: %d objects of CUDA and %d of NCCL are left", nth, what, standins.cuda.live(),
                 standins.nccl.live());
}

static void fail_nccl(const char *what, int nth)
{
    standins.nccl.fail_call(what, nth, 1 /* ncclUnhandledCudaError */);
}

static void fail_cuda(const char *what, int nth)
{
    standins.cuda.fail_call(what, nth);
}

static void each_call_that_fails_once_costs_no_more_than_a_connection(void **state)
{
    char cuda[64][48], of_nccl[64][48];
    struct side side;
    patience_ms = HASTY_MS;
    side_open(&side);
    assert_true(land_all(&side, 5));
    finish(&side);
    side_close(&side);
    unsigned cuda_count = calls_of(standins.cuda.called, cuda), nccl_count = calls_of(standins.nccl.called, of_nccl);
    assert_true(cuda_count > 10 && nccl_count > 6);
    for (unsigned i = 0; i < nccl_count; i++)
        for (int nth = 1; nth <= 3; nth += 2)
            land_with(of_nccl[i], nth, fail_nccl);
    for (unsigned i = 0; i < cuda_count; i++) /* while opening, at the first group, later */
        land_with(cuda[i], 1 + (int)(i % 3), fail_cuda);
}

/* ---- communicators ---- */

static void one_that_never_comes_up_ends_at_its_deadline(void **state)
{
    struct side side;
    struct refit_error err;
    patience_ms = HASTY_MS;
    side_open(&side);
    must(open_receiver(&side, &err), &err);
    must(open_holder(&side, &err), &err);
    standins.nccl.init_hangs(1);
    must(nccl->post(side.receiver, 0, side.edge, 0, &err), &err);
    assert_int_equal(world_completion(&side.world).status, REFIT_PEER);
    assert_int_equal(nccl->wait_done(side.holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
    standins.nccl.init_hangs(0);
    nccl->close(side.holder);
    side.holder = NULL;
    assert_true(land_all(&side, 5));
    finish(&side);
    side_close(&side);
}

static void one_that_never_comes_up_does_not_delay_abort(void **state)
{
    struct side side;
    struct refit_error err;
    struct refit_holder_state seen;
    side_open(&side);
    must(open_receiver(&side, &err), &err);
    must(open_holder(&side, &err), &err);
    standins.nccl.init_hangs(1);
    must(nccl->post(side.receiver, 0, side.edge, 0, &err), &err);
    while (standins_nccl_calls("ncclCommInitRankConfig") < 2)
        nccl->look(side.receiver, 0, &seen);
    nccl->abort(side.receiver);
    nccl->abort(side.holder);
    assert_int_equal(world_completion(&side.world).status, REFIT_ABORTED);
    side_close(&side);
}

static void an_error_after_half_the_groups_is_made_good_by_a_new_one(void **state)
{
    struct side side;
    side_open(&side);
    standins.nccl.error_after_groups(2, 6 /* ncclRemoteError */);
    assert_true(land_all(&side, 8));
    assert_true(standins_nccl_calls("ncclCommInitRankConfig") > 2);
    assert_true(standins_nccl_calls("ncclCommAbort") >= 2);
    finish(&side);
    side_close(&side);
}

/* ---- memory ---- */

static void a_device_that_is_full_fails_the_refit_and_takes_the_next(void **state)
{
    patience_ms = HASTY_MS;
    /* What the arenas take is allocated before; each step lets one more allocation of the transport through. */
    for (size_t extra = 0; extra <= (size_t)128 << 20; extra = extra ? extra * 16 : 4096) {
        struct side side;
        side_open(&side);
        standins.cuda.total(extra + 1);
        (void)land_all(&side, 2);
        standins.cuda.total(DEVICE_BYTES);
        assert_true(land_all(&side, 6));
        finish(&side);
        side_close(&side);
    }
}

static void a_lost_context_ends_what_was_on_it(void **state)
{
    patience_ms = HASTY_MS;
    for (int nth = 1; nth <= 3; nth += 2) {
        struct side side;
        side_open(&side);
        standins.cuda.fault(nth);
        (void)land_all(&side, 3);
        standins.cuda.fault(0);
        side_close(&side);
        standins_check_none_alive();
        side_open(&side); /* the context is given back with the last of its memory */
        assert_true(land_all(&side, 5));
        finish(&side);
        side_close(&side);
    }
}

/* ---- drop and abort in the middle ---- */

static void nothing_lands_after_drop(void **state)
{
    struct side side;
    struct refit_error err;
    struct refit_holder_state seen;
    side_open(&side);
    must(open_receiver(&side, &err), &err);
    for (unsigned round = 0; round < 12; round++) {
        unsigned owed = 0;
        must(open_holder(&side, &err), &err);
        for (uint32_t batch = 0; batch < side.edge->batches; batch++)
            owed += nccl->post(side.receiver, 0, side.edge, batch, &err) == REFIT_OK;
        assert_true(owed > 0);
        /* Every round meets it elsewhere. */
        while (standins_nccl_calls("ncclRecv") < (int)(round % 4 * 4))
            nccl->look(side.receiver, 0, &seen);
        nccl->drop(side.receiver, 0);
        uint8_t *before = world_snapshot(&side.world);
        for (; owed > 0; owed--) {
            enum refit_status status = world_completion(&side.world).status;
            assert_true(status == REFIT_OK || status == REFIT_PEER);
        }
        assert_int_equal(nccl->wait_done(side.holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
        assert_true(world_unchanged(&side.world, before));
        free(before);
        nccl->close(side.holder);
        side.holder = NULL;
        standins.nccl.reset();
    }
    assert_true(land_all(&side, 5));
    finish(&side);
    side_close(&side);
}

/* The devices stand still while both ends are aborted: what is queued comes to nothing. */
static void abort_waits_for_the_device_and_nothing_more_is_written(void **state)
{
    struct side side;
    struct refit_error err;
    side_open(&side);
    must(open_receiver(&side, &err), &err);
    must(open_holder(&side, &err), &err);
    standins.nccl.delay_us(20000);
    for (uint32_t batch = 0; batch < 8; batch++)
        must(nccl->post(side.receiver, 0, side.edge, batch, &err), &err);
    struct refit_holder_state seen;
    while (standins_nccl_calls("ncclRecv") == 0)
        nccl->look(side.receiver, 0, &seen);
    nccl->abort(side.receiver);
    uint8_t *after = world_snapshot(&side.world);
    nccl->abort(side.holder);
    for (uint32_t batch = 0; batch < 8; batch++) {
        enum refit_status status = world_completion(&side.world).status;
        assert_true(status == REFIT_OK || status == REFIT_ABORTED);
    }
    assert_true(world_unchanged(&side.world, after));
    free(after);
    side_close(&side);
}

/* ---- a peer in another process ---- */

struct child {
    pid_t pid;
    int to;
};

/* A holder that comes up once it is told where, and is killed in the middle of its nth group. */
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
    world_next_device(5); /* not those of the parent: devices are the same for all */
    world_open(&world, world_rows_source, world_rows_destination, WORLD_DEVICE);
    standins.nccl.die_in_group(dies_in);
    struct refit_endpoint_config config = world_holder(&world, 0, 1);
    memcpy(config.token, token, sizeof token);
    if (nccl->open(&config, &holder, &err) != REFIT_OK ||
        nccl->connect(holder, card, refit_deadline_in_ms(PULL_MS), &err) != REFIT_OK)
        return 2;
    enum refit_status status = nccl->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err);
    nccl->close(holder);
    return status == REFIT_OK ? 0 : 3;
}

/* Forked while this process has no other thread. */
static struct child child_start(int dies_in)
{
    int ends[2];
    struct child child;
    assert_int_equal(pipe(ends), 0);
    child.pid = fork();
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        close(ends[1]);
        _exit(be_holder(ends[0], dies_in));
    }
    close(ends[0]);
    child.to = ends[1];
    return child;
}

static void child_connect(const struct child *child, const struct side *side)
{
    char *text = json_dumps(side->card, JSON_COMPACT);
    assert_int_equal(write(child->to, side->world.token, REFIT_TOKEN_BYTES), REFIT_TOKEN_BYTES);
    assert_int_equal(write(child->to, text, strlen(text)), (ssize_t)strlen(text));
    free(text);
}

static void until_connected(struct side *side)
{
    struct refit_holder_state seen;
    struct refit_transfer_completion done;
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    do {
        assert_false(refit_deadline_passed(deadline));
        assert_int_equal(refit_inbox_take(side->world.inbox, &done, 1, refit_deadline_in_ms(5)), 0);
        nccl->look(side->receiver, 0, &seen);
    } while (!seen.connected);
}

/* Over sockets its end is noticed by NCCL; over NVLink by our own connection. */
static void a_peer_that_dies_in_a_group_ends_its_batches_and_another_takes_over(void **state)
{
    for (int silent = 0; silent < 2; silent++) {
        struct side side;
        struct refit_error err;
        int status;
        struct child child = child_start(2);
        side_open(&side);
        standins.nccl.silent(silent);
        must(open_receiver(&side, &err), &err);
        child_connect(&child, &side);
        until_connected(&side);
        unsigned owed = 0, ok = 0;
        for (uint32_t batch = 0; batch < side.edge->batches; batch++)
            owed += nccl->post(side.receiver, 0, side.edge, batch, &err) == REFIT_OK;
        for (unsigned i = 0; i < owed; i++)
            ok += world_completion(&side.world).status == REFIT_OK;
        assert_true(ok < owed);
        assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
        close(child.to);
        assert_true(WIFSIGNALED(status));
        assert_true(land_all(&side, 5));
        finish(&side);
        side_close(&side);
        standins.nccl.reset();
    }
}

/* Lands what a holder sends, slowly, until it is killed. Says where. */
static int be_receiver(int to)
{
    struct side side;
    struct refit_error err;
    char text[REFIT_CARD_MAX] = {0};
    world_next_device(2); /* and so it lands on 5 and 6, and the parent's has 0 to send from */
    side_open(&side);
    if (open_receiver(&side, &err) != REFIT_OK)
        return 1;
    char *card = json_dumps(side.card, JSON_COMPACT);
    snprintf(text, sizeof text, "%s", card);
    if (write(to, side.world.token, REFIT_TOKEN_BYTES) != REFIT_TOKEN_BYTES ||
        write(to, text, sizeof text) != (ssize_t)sizeof text)
        return 2;
    standins.nccl.delay_us(100000);
    until_connected(&side);
    for (uint32_t batch = 0;; batch = (batch + 1) % side.edge->batches)
        if (nccl->post(side.receiver, 0, side.edge, batch, &err) == REFIT_BUSY)
            (void)world_completion(&side.world);
}

/* It has a device of the trainer's, which others want. */
static void a_receiver_that_is_stopped_in_a_group_loses_the_device(void **state)
{
    int ends[2], status;
    struct side side;
    struct refit_error err;
    char text[REFIT_CARD_MAX];
    patience_ms = 3 * HASTY_MS; /* it runs out when the child is stopped, and not before */
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(be_receiver(ends[1]));
    side_open(&side);
    assert_int_equal(read(ends[0], side.world.token, REFIT_TOKEN_BYTES), REFIT_TOKEN_BYTES);
    for (size_t have = 0; have < sizeof text;) {
        ssize_t n = read(ends[0], text + have, sizeof text - have);
        assert_true(n > 0);
        have += (size_t)n;
    }
    json_decref(side.card);
    side.card = json_loads(text, 0, NULL);
    must(open_holder(&side, &err), &err);
    while (standins_nccl_calls("ncclSend") == 0)
        assert_int_equal(nccl->wait_done(side.holder, refit_deadline_in_ms(5), &err), REFIT_TIMEOUT);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_int_equal(nccl->wait_done(side.holder, refit_deadline_in_ms(PULL_MS), &err), REFIT_PEER);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]);
    close(ends[1]);
    side_close(&side);
}

static void a_peer_that_is_stopped_in_a_group_is_dropped_and_does_not_delay_abort(void **state)
{
    struct side side;
    struct refit_error err;
    struct refit_transfer_completion done;
    int status;
    struct child child = child_start(0);
    side_open(&side);
    must(open_receiver(&side, &err), &err);
    child_connect(&child, &side);
    until_connected(&side);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
    must(nccl->post(side.receiver, 0, side.edge, 0, &err), &err);
    struct refit_holder_state seen;
    do {
        assert_int_equal(refit_inbox_take(side.world.inbox, &done, 1, refit_deadline_in_ms(5)), 0);
        nccl->look(side.receiver, 0, &seen);
    } while (refit_clock_ns() - seen.heard_ns < INT64_C(400000000));
    nccl->drop(side.receiver, 0);
    assert_int_equal(world_completion(&side.world).status, REFIT_PEER);
    assert_true(land_all(&side, 5)); /* by another */
    uint8_t *before = world_snapshot(&side.world);
    assert_int_equal(kill(child.pid, SIGCONT), 0);
    assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
    close(child.to);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(world_unchanged(&side.world, before));
    free(before);
    finish(&side);
    side_close(&side);
}

int main(void)
{
    nccl = engines_or_nccl();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_peer_that_dies_in_a_group_ends_its_batches_and_another_takes_over),
        TEST(a_peer_that_is_stopped_in_a_group_is_dropped_and_does_not_delay_abort),
        TEST(a_receiver_that_is_stopped_in_a_group_loses_the_device),
        TEST(one_that_never_comes_up_ends_at_its_deadline),
        TEST(one_that_never_comes_up_does_not_delay_abort),
        TEST(an_error_after_half_the_groups_is_made_good_by_a_new_one),
        TEST(nothing_lands_after_drop),
        TEST(abort_waits_for_the_device_and_nothing_more_is_written),
        TEST(a_device_that_is_full_fails_the_refit_and_takes_the_next),
        TEST(a_lost_context_ends_what_was_on_it),
        TEST(each_call_that_fails_once_costs_no_more_than_a_connection),
    };
    return cmocka_run_group_tests(tests, standins_open, NULL);
}
