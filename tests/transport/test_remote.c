/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that receive, as refitd sees those that lie, break off or say nothing: here they are the test's. Slots are of
 * look-alike devices.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "tests/transport/pull.h"
#include "transport/address.h"
#include "transport/greeting.h"
#include "transport/remote.h"
#include "transport/remote_wire.h"

#define ENGINES 2 /* ranks of the destination */

static const struct refit_transport *const nccl = &refit_transport_nccl;

struct stage {
    struct world world;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver;
    struct refit_remote_engine engines[ENGINES];
    int ends[ENGINES]; /* the engines' */
    int holder[ENGINES]; /* its connections, which nobody answers */
    const struct refit_edge *edge;
    unsigned landing; /* the engine where batch 0 of it lands */
    struct refit_remote_packet packet;
    enum refit_status opened;
    struct refit_error err;
};

static void say(struct stage *stage, unsigned engine, const struct refit_remote_message *message, const void *payload,
                size_t len)
{
    struct refit_error err;
    must(refit_remote_send(stage->ends[engine], message, payload, len, NULL, 0, &err), &err);
}

/* What refitd says next to this engine; its descriptors are closed. */
static struct refit_remote_message hear(struct stage *stage, unsigned engine)
{
    struct refit_error err;
    enum refit_status status;
    do {
        must(refit_wire_wait(stage->ends[engine], POLLIN, -1, refit_deadline_in_ms(PULL_MS), &err), &err);
        status = refit_remote_receive(stage->ends[engine], &stage->packet, &err);
    } while (status == REFIT_BUSY);
    must(status, &err);
    refit_remote_packet_release(&stage->packet);
    return stage->packet.message;
}

static void *open_receiver(void *arg)
{
    struct stage *stage = arg;
    struct refit_endpoint_config config = world_receiver(&stage->world, stage->listener, 1);
    stage->opened = refit_remote_open(&config, stage->engines, ENGINES, refit_deadline_in_ms(PULL_MS), NULL,
                                      &stage->receiver, &stage->err);
    return NULL;
}

/* Engine 1 answers `answer` to OPEN. */
static void stage_open(struct stage *stage, const struct refit_remote_message *answer, const char *text)
{
    pthread_t thread;
    memset(stage, 0, sizeof *stage);
    world_open(&stage->world, world_tiny_source, world_tiny_destination, WORLD_DEVICE);
    stage->listener = listener_open(stage->directory);
    for (uint32_t i = 0; i < ENGINES; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
        stage->engines[i] = (struct refit_remote_engine){.rank = i, .pid = getpid(), .pidfd = -1, .sock = ends[0]};
        stage->ends[i] = ends[1];
        stage->holder[i] = -1;
    }
    stage->engines[1].pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0); /* one that can be seen to live */
    assert_true(stage->engines[1].pidfd >= 0);
    assert_int_equal(pthread_create(&thread, NULL, open_receiver, stage), 0);
    struct refit_remote_message ready = {.type = REFIT_REMOTE_OPENED, .value[0] = refit_plan_class(stage->world.plan)};
    for (unsigned i = 0; i < ENGINES; i++) {
        assert_int_equal(hear(stage, i).type, REFIT_REMOTE_OPEN);
        bool other = i == 1 && answer;
        say(stage, i, other ? answer : &ready, other ? text : NULL, other ? strlen(text) : 0);
    }
    /* Only a failure is told to them. */
    for (unsigned i = 0; i < ENGINES && answer; i++) {
        assert_int_equal(hear(stage, i).type, REFIT_REMOTE_CLOSE);
        say(stage, i, &(struct refit_remote_message){.type = REFIT_REMOTE_CLOSED}, NULL, 0);
    }
    pthread_join(thread, NULL);
}

static void stage_close(struct stage *stage)
{
    for (unsigned i = 0; i < ENGINES && stage->receiver; i++)
        say(stage, i, &(struct refit_remote_message){.type = REFIT_REMOTE_CLOSED}, NULL, 0);
    nccl->close(stage->receiver);
    for (unsigned i = 0; i < ENGINES; i++) {
        refit_io_close(&stage->ends[i]);
        refit_io_close(&stage->engines[i].sock);
        refit_io_close(&stage->engines[i].pidfd);
        refit_io_close(&stage->holder[i]);
    }
    listener_close(stage->listener, stage->directory);
    world_close(&stage->world);
}

/* Source rank 0 dials engine by engine, and each says that it is connected. */
static void stage_hold(struct stage *stage)
{
    struct refit_address address;
    struct refit_error err;
    struct refit_endpoint_config config = world_holder(&stage->world, 0, ENGINES);
    must(refit_address_parse("127.0.0.1", refit_listener_tcp_port(stage->listener), &address, &err), &err);
    for (unsigned i = 0; i < ENGINES; i++) {
        struct refit_buf greeting;
        refit_buf_init(&greeting, 1 << 16);
        must(refit_greeting_encode(&config, i, REFIT_GREETING_NCCL, &greeting, &err), &err);
        must(refit_address_dial(&address.any, address.len, SOCK_STREAM, "refitd", -1, refit_deadline_in_ms(PULL_MS),
                                &stage->holder[i], &err), &err);
        must(refit_io_send_full(stage->holder[i], greeting.data, greeting.len, refit_deadline_in_ms(PULL_MS), "greeting",
                                &err), &err);
        refit_buf_release(&greeting);
        struct refit_remote_message admit = hear(stage, i);
        assert_int_equal(admit.type, REFIT_REMOTE_ADMIT);
        assert_int_equal(admit.holder, 0);
        say(stage, i, &(struct refit_remote_message){.type = REFIT_REMOTE_STATE, .argument = REFIT_REMOTE_CONNECTED}, NULL, 0);
    }
}

/* Batch 0 is granted, at the engine where it lands. */
static struct refit_remote_message stage_grant(struct stage *stage)
{
    struct refit_error err;
    enum refit_status status;
    stage->edge = world_edge(&stage->world, 0, 0);
    stage->landing = refit_plan_landing_rank(stage->world.plan, stage->edge, 0);
    while ((status = nccl->post(stage->receiver, 0, stage->edge, 0, &err)) == REFIT_NOT_FOUND)
        usleep(1000);
    must(status, &err);
    struct refit_remote_message post = hear(stage, stage->landing);
    assert_int_equal(post.type, REFIT_REMOTE_POST);
    assert_true(post.edge == stage->edge->digest && post.batch == 0 && post.holder == 0);
    return post;
}

static void stage_ready(struct stage *stage)
{
    stage_open(stage, NULL, NULL);
    must(stage->opened, &stage->err);
    stage_hold(stage);
    stage_grant(stage);
}

/* What was granted has ended, and the engine with it: the holder is dropped by the others, and nobody is let in. */
static void check_lost(struct stage *stage, const char *why)
{
    struct refit_holder_state seen;
    struct refit_error err;
    assert_int_equal(world_completion(&stage->world).status, REFIT_PEER);
    nccl->look(stage->receiver, 0, &seen);
    assert_true(!seen.connected && seen.lost && seen.owed == 0);
    assert_int_equal(nccl->post(stage->receiver, 0, stage->edge, 0, &err), REFIT_PEER);
    if (!strstr(stage->engines[stage->landing].why, why))
        fail_msg("\"%s\" does not say \"%s\"", stage->engines[stage->landing].why, why);
    assert_false(refit_landed_has(stage->world.landed, stage->edge, 0));
    for (uint32_t id = 0; id < refit_tally_count(stage->world.tally); id++)
        assert_true(refit_digest_equal(refit_tally_get(stage->world.tally, id), (struct refit_digest){{0}}));
}

/* ---- messages that make no sense ---- */

static void what_was_not_granted_costs_the_engine_its_place(void **state)
{
    static const struct {
        struct refit_remote_message message;
        bool right_edge;
        size_t payload;
        const char *why;
    } cases[] = {
        {{.type = REFIT_REMOTE_ENDED, .edge = 1234}, false, 0, "which was not granted"},
        {{.type = REFIT_REMOTE_ENDED, .batch = 1}, true, 0, "which was not granted"},
        {{.type = REFIT_REMOTE_ENDED, .holder = 1}, true, 0, "which was not granted to holder 1"},
        {{.type = REFIT_REMOTE_ENDED, .holder = UINT32_MAX}, true, 0, "for holder 4294967295"},
        {{.type = REFIT_REMOTE_ENDED}, true, 0, "0 of "}, /* without its digests */
        {{.type = REFIT_REMOTE_DIGESTS, .edge = 1234}, false, 16, "which was not granted"},
        {{.type = REFIT_REMOTE_DIGESTS}, true, REFIT_REMOTE_PAYLOAD_MAX, "bytes of digests"},
        {{.type = REFIT_REMOTE_DIGESTS}, true, 15, "15 bytes of digests"},
        {{.type = REFIT_REMOTE_DIGESTS, .argument = 1}, true, 16, "from 1 on"},
        {{.type = REFIT_REMOTE_STATE, .holder = 7}, false, 0, "which has not dialled"},
        {{.type = REFIT_REMOTE_DROPPED}, false, 0, "unasked"},
        {{.type = REFIT_REMOTE_OPENED}, false, 0, "opened twice"},
        {{.type = REFIT_REMOTE_POST}, false, 0, "a message of type"},
        {{.type = 77}, false, 0, "a message of type 77"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stage stage;
        uint8_t payload[REFIT_REMOTE_PAYLOAD_MAX] = {0};
        stage_ready(&stage);
        struct refit_remote_message message = cases[i].message;
        if (cases[i].right_edge)
            message.edge = stage.edge->digest;
        say(&stage, stage.landing, &message, payload, cases[i].payload);
        check_lost(&stage, cases[i].why);
        stage_close(&stage);
    }
}

static void what_is_no_message_costs_the_engine_its_place(void **state)
{
    static uint8_t bytes[sizeof(struct refit_remote_message) + REFIT_REMOTE_PAYLOAD_MAX + 1];
    const size_t sizes[] = {1, sizeof(struct refit_remote_message) - 1, sizeof bytes};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct stage stage;
        stage_ready(&stage);
        assert_int_equal(send(stage.ends[stage.landing], bytes, sizes[i], 0), (ssize_t)sizes[i]);
        check_lost(&stage, i < 2 ? "a message of" : "longer than");
        stage_close(&stage);
    }
    struct stage stage;
    struct refit_error err;
    stage_ready(&stage);
    must(refit_remote_send(stage.ends[stage.landing], &(struct refit_remote_message){.type = REFIT_REMOTE_ALIVE}, NULL, 0,
                           &(int){0}, 1, &err), &err);
    check_lost(&stage, "it sent descriptors");
    stage_close(&stage);
}

/* ---- what ends ---- */

/* A batch that an engine says is verified counts, with the digests that it says. */
static void digests_are_tallied_once(void **state)
{
    struct stage stage;
    stage_ready(&stage);
    struct refit_segments segments;
    struct refit_error err;
    refit_segments_init(&segments, true);
    must(refit_segments_of(&segments, refit_walk_batch(stage.world.plan, stage.edge, 0, stage.landing), &err), &err);
    for (int times = 0; times < 2; times++) {
        uint8_t digests[REFIT_REMOTE_PAYLOAD_MAX];
        memset(digests, 1, sizeof digests);
        struct refit_remote_message message = {.type = REFIT_REMOTE_DIGESTS, .edge = stage.edge->digest};
        say(&stage, stage.landing, &message, digests, segments.count * REFIT_DIGEST_BYTES);
        message.type = REFIT_REMOTE_ENDED;
        say(&stage, stage.landing, &message, NULL, 0);
        assert_int_equal(world_completion(&stage.world).status, REFIT_OK);
        if (times == 0)
            stage_grant(&stage);
    }
    assert_true(refit_landed_has(stage.world.landed, stage.edge, 0));
    struct refit_digest sum = {{0}};
    for (size_t i = 0; i < segments.count; i++)
        if (segments.items[i].counted && segments.items[i].tensor == segments.items[0].tensor)
            for (int k = 0; k < 2; k++)
                sum.d[k] += UINT64_C(0x0101010101010101);
    assert_true(refit_digest_equal(refit_tally_get(stage.world.tally, segments.items[0].tensor), sum));
    refit_segments_release(&segments);
    stage_close(&stage);
}

static void an_engine_that_can_not_open_fails_the_open_in_its_words(void **state)
{
    struct stage stage;
    stage_open(&stage, &(struct refit_remote_message){.type = REFIT_REMOTE_OPENED, .argument = REFIT_NO_MEMORY},
               "no room for a second mapping");
    assert_int_equal(stage.opened, REFIT_NO_MEMORY);
    assert_non_null(strstr(stage.err.text, "rank 1"));
    assert_non_null(strstr(stage.err.text, "no room for a second mapping"));
    assert_true(stage.engines[0].ended && stage.engines[1].ended);
    stage_close(&stage);
    stage_open(&stage, &(struct refit_remote_message){.type = REFIT_REMOTE_OPENED, .value[0] = 5}, "");
    assert_int_equal(stage.opened, REFIT_MISMATCH);
    assert_non_null(strstr(stage.err.text, "it plans something else"));
    stage_close(&stage);
}

static void a_connection_out_of_turn_is_refused(void **state)
{
    struct stage stage;
    struct refit_address address;
    struct refit_error err;
    struct refit_buf greeting;
    struct refit_frame answer;
    stage_open(&stage, NULL, NULL);
    struct refit_endpoint_config config = world_holder(&stage.world, 0, ENGINES);
    must(refit_address_parse("127.0.0.1", refit_listener_tcp_port(stage.listener), &address, &err), &err);
    for (unsigned streams = 1; streams <= ENGINES; streams++) { /* one for all of them; the second before the first */
        config.streams = streams;
        refit_buf_init(&greeting, 1 << 16);
        must(refit_greeting_encode(&config, streams - 1, REFIT_GREETING_NCCL, &greeting, &err), &err);
        must(refit_address_dial(&address.any, address.len, SOCK_STREAM, "refitd", -1, refit_deadline_in_ms(PULL_MS),
                                &stage.holder[0], &err), &err);
        must(refit_io_send_full(stage.holder[0], greeting.data, greeting.len, refit_deadline_in_ms(PULL_MS), "", &err), &err);
        struct refit_stream stream = {.fd = stage.holder[0]};
        must(refit_stream_receive_all(&stream, &answer, sizeof answer, -1, refit_deadline_in_ms(PULL_MS), &err), &err);
        assert_int_equal(answer.type, REFIT_FRAME_REFUSED);
        assert_int_equal(answer.argument, streams == 1 ? REFIT_MISMATCH : REFIT_BUSY);
        refit_io_close(&stage.holder[0]);
        refit_buf_release(&greeting);
    }
    stage_close(&stage);
}

/* It lives and may write, so nothing says that it has ended before it says so. */
static void an_engine_that_is_silent_is_lost_but_has_not_ended(void **state)
{
    struct stage stage;
    stage_ready(&stage);
    check_lost(&stage, "it is silent");
    /* Engine 0 lives, and is silent as well; neither is waited for beyond that. */
    nccl->abort(stage.receiver);
    assert_false(stage.engines[0].ended);
    assert_false(stage.engines[1].ended);
    nccl->close(stage.receiver);
    stage.receiver = NULL;
    assert_false(refit_remote_ended(&stage.engines[0]));
    assert_false(refit_remote_ended(&stage.engines[1]));
    say(&stage, 1, &(struct refit_remote_message){.type = REFIT_REMOTE_CLOSED}, NULL, 0);
    assert_true(refit_remote_ended(&stage.engines[1]));
    /* No process to look at: the end of its connection is taken for its end. */
    refit_io_close(&stage.ends[0]);
    assert_true(refit_remote_ended(&stage.engines[0]));
    stage_close(&stage);
}

static void the_end_of_its_process_is_the_end_of_an_engine(void **state)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    struct refit_remote_engine engine = {.pidfd = (int)syscall(SYS_pidfd_open, child, 0), .pid = child};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    engine.sock = ends[0];
    refit_io_close(&ends[1]); /* closed, but not gone */
    assert_false(refit_remote_ended(&engine));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(refit_remote_ended(&engine));
    refit_io_close(&engine.sock);
    refit_io_close(&engine.pidfd);
}

int main(void)
{
    setenv("REFIT_TEST_IN_ENGINE", "1", 1); /* destinations are slots */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_its_process_is_the_end_of_an_engine),
        cmocka_unit_test(what_was_not_granted_costs_the_engine_its_place),
        cmocka_unit_test(what_is_no_message_costs_the_engine_its_place),
        cmocka_unit_test(digests_are_tallied_once),
        cmocka_unit_test(an_engine_that_can_not_open_fails_the_open_in_its_words),
        cmocka_unit_test(a_connection_out_of_turn_is_refused),
        cmocka_unit_test(an_engine_that_is_silent_is_lost_but_has_not_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
