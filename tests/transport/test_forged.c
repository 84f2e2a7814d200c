/* SPDX-License-Identifier: Apache-2.0
 *
 * A client that speaks the protocol by hand, and wrongly. Whatever it does, nothing outside the granted batch changes.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "tests/support/receive.h"
#include "tests/transport/pull.h"
#include "transport/frame.h"
#include "transport/greeting.h"
#include "transport/local_pieces.h"

#define WAIT_MS 20000

/* A receiver that waits for a holder, and the greeting that an honest one of source rank 0 would send. */
struct stage {
    struct world world;
    char directory[32];
    struct refit_listener *listener;
    const struct refit_transport *transport;
    struct refit_endpoint *receiver;
    struct refit_buf greeting;
    uint8_t *before; /* destination memory */
    int fd;          /* the client */
};

static void stage_open(struct stage *stage, const struct refit_transport *transport)
{
    struct refit_error err;
    memset(stage, 0, sizeof *stage);
    stage->fd = -1;
    stage->transport = transport;
    world_open(&stage->world, world_tiny_source, world_tiny_destination, WORLD_HEAP);
    stage->listener = listener_open(stage->directory);
    struct refit_endpoint_config config = world_receiver(&stage->world, stage->listener, 1);
    assert_int_equal(transport->open(&config, &stage->receiver, &err), REFIT_OK);
    config = world_holder(&stage->world, 0, 1);
    refit_buf_init(&stage->greeting, 1 << 20);
    assert_int_equal(refit_greeting_encode(&config, 0, 0, &stage->greeting, &err), REFIT_OK);
    stage->before = world_snapshot(&stage->world);
}

static void stage_close(struct stage *stage)
{
    if (stage->fd >= 0)
        close(stage->fd);
    stage->transport->close(stage->receiver);
    listener_close(stage->listener, stage->directory);
    refit_buf_release(&stage->greeting);
    free(stage->before);
    world_close(&stage->world);
}

static void dial(struct stage *stage)
{
    if (stage->fd >= 0)
        close(stage->fd);
    if (stage->transport == &refit_transport_tcp) {
        struct sockaddr_in address = {.sin_family = AF_INET};
        address.sin_port = htons(refit_listener_tcp_port(stage->listener));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        stage->fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(stage->fd, (struct sockaddr *)&address, sizeof address), 0);
    } else {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof address.sun_path, "%s/bulk.sock", stage->directory);
        stage->fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        assert_int_equal(connect(stage->fd, (struct sockaddr *)&address, sizeof address), 0);
    }
}

static void say(struct stage *stage, const void *data, size_t len)
{
    struct refit_error err;
    /* The receiver may have hung up already, which is what it should do. */
    (void)!refit_io_send_full(stage->fd, data, len, refit_deadline_in_ms(WAIT_MS), "client", &err);
}

static void greet(struct stage *stage)
{
    dial(stage);
    say(stage, stage->greeting.data, REFIT_GREETING_HEAD_BYTES);
    say(stage, stage->greeting.data + REFIT_GREETING_HEAD_BYTES, stage->greeting.len - REFIT_GREETING_HEAD_BYTES);
}

static bool hear(struct stage *stage, struct refit_frame *frame)
{
    return receive_full(stage->fd, frame, sizeof *frame, refit_deadline_in_ms(WAIT_MS));
}

/* The greeting with `len` bytes at `at` replaced is refused with `status`, and says something. */
static void refused(struct stage *stage, size_t at, const void *data, size_t len, enum refit_status status)
{
    struct refit_frame frame;
    char text[REFIT_REFUSAL_MAX];
    uint8_t saved[64];
    memcpy(saved, stage->greeting.data + at, len);
    memcpy(stage->greeting.data + at, data, len);
    greet(stage);
    memcpy(stage->greeting.data + at, saved, len);
    assert_true(hear(stage, &frame));
    assert_int_equal(frame.type, REFIT_FRAME_REFUSED);
    assert_int_equal(frame.argument, status);
    assert_true(frame.length > 10 && frame.length <= REFIT_REFUSAL_MAX);
    assert_true(receive_full(stage->fd, text, frame.length, refit_deadline_in_ms(WAIT_MS)));
    assert_false(hear(stage, &frame));
}

static const uint32_t wrong_number = 0x7fffffff;

static void greetings_that_differ_are_refused(void **state)
{
    struct stage stage;
    uint32_t flags = 0;
    stage_open(&stage, &refit_transport_tcp);
    refused(&stage, 0, &wrong_number, 4, REFIT_INVALID);              /* magic */
    refused(&stage, 4, &wrong_number, 4, REFIT_UNSUPPORTED);          /* protocol */
    refused(&stage, 8, &wrong_number, 4, REFIT_MISMATCH);             /* planner version */
    refused(&stage, 12, &flags, 4, REFIT_MISMATCH);                   /* verification off */
    refused(&stage, 12, &wrong_number, 4, REFIT_INVALID);             /* unknown flags */
    refused(&stage, 16, "not the token...", 16, REFIT_NOT_FOUND);     /* token */
    refused(&stage, 32, &wrong_number, 4, REFIT_MISMATCH);            /* holder */
    refused(&stage, 36, &wrong_number, 4, REFIT_INVALID);             /* stream */
    refused(&stage, 40, &wrong_number, 4, REFIT_INVALID);             /* streams */
    refused(&stage, 44, &wrong_number, 4, REFIT_INVALID);             /* edges */
    refused(&stage, 48, &wrong_number, 4, REFIT_INVALID);             /* id length */
    assert_true(world_unchanged(&stage.world, stage.before));
    stage_close(&stage);
}

static void an_unknown_refit_and_a_slow_greeting_end_at_their_deadline(void **state)
{
    struct stage stage;
    struct refit_frame frame;
    stage_open(&stage, &refit_transport_tcp);
    dial(&stage);
    say(&stage, stage.greeting.data, 7);
    int slow = stage.fd;
    stage.fd = -1;
    refused(&stage, 52, "another-refit", 13, REFIT_NOT_FOUND);
    close(stage.fd);
    stage.fd = slow;
    assert_true(hear(&stage, &frame));
    assert_int_equal(frame.type, REFIT_FRAME_REFUSED);
    stage_close(&stage);
}

static void garbage_is_refused(void **state)
{
    struct stage stage;
    struct refit_frame frame;
    uint8_t garbage[4096];
    stage_open(&stage, &refit_transport_tcp);
    for (int i = 0; i < 20; i++) {
        refit_io_random(garbage, sizeof garbage);
        dial(&stage);
        say(&stage, garbage, sizeof garbage);
        assert_true(hear(&stage, &frame));
        assert_int_equal(frame.type, REFIT_FRAME_REFUSED);
    }
    assert_true(world_unchanged(&stage.world, stage.before));
    stage_close(&stage);
}

/* An admitted client, and a batch that it was granted. */
static const struct refit_edge *admit(struct stage *stage, struct refit_frame *grant)
{
    struct refit_error err;
    struct refit_frame frame;
    greet(stage);
    assert_true(hear(stage, &frame));
    assert_int_equal(frame.type, REFIT_FRAME_WELCOME);
    const struct refit_edge *edge = world_edge(&stage->world, 0, 1);
    assert_int_equal(stage->transport->post(stage->receiver, 0, edge, 0, &err), REFIT_OK);
    assert_true(hear(stage, grant));
    assert_int_equal(grant->type, REFIT_FRAME_GRANT);
    assert_true(grant->edge == edge->digest);
    return edge;
}

static enum refit_status completion_of(struct stage *stage)
{
    struct refit_transfer_completion done = world_completion(&stage->world);
    assert_int_equal(done.holder, 0);
    assert_true(done.edge == world_edge(&stage->world, 0, 1)->digest);
    return done.status;
}

/* What an admitted client offers is what it can be asked for, and no more. */
static void edges_that_are_not_offered_are_not_asked_for(void **state)
{
    struct stage stage;
    struct refit_frame frame;
    struct refit_error err;
    uint64_t unknown = 1;
    stage_open(&stage, &refit_transport_tcp);
    uint32_t two = 2, none = 0;
    memcpy(stage.greeting.data + 44, &two, 4);
    memcpy(stage.greeting.data + REFIT_GREETING_HEAD_BYTES, &world_edge(&stage.world, 0, 1)->digest, 8);
    memcpy(stage.greeting.data + REFIT_GREETING_HEAD_BYTES + 8, &unknown, 8);
    greet(&stage);
    assert_true(hear(&stage, &frame));
    assert_int_equal(frame.type, REFIT_FRAME_WELCOME);
    const struct refit_edge *other = world_edge(&stage.world, 0, 0), *edge = world_edge(&stage.world, 0, 1);
    assert_int_equal(stage.transport->post(stage.receiver, 0, other, 0, &err), REFIT_UNSUPPORTED);
    assert_int_equal(stage.transport->post(stage.receiver, 0, edge, 0, &err), REFIT_OK);
    close(stage.fd);
    stage.fd = -1;
    assert_int_equal(completion_of(&stage), REFIT_PEER);
    /* When it comes back without any edge, the old offer is void. */
    memcpy(stage.greeting.data + 44, &none, 4);
    stage.greeting.len = REFIT_GREETING_HEAD_BYTES;
    greet(&stage);
    assert_true(hear(&stage, &frame));
    assert_int_equal(frame.type, REFIT_FRAME_WELCOME);
    assert_int_equal(stage.transport->post(stage.receiver, 0, edge, 0, &err), REFIT_UNSUPPORTED);
    stage_close(&stage);
}

static void ends_the_connection(struct stage *stage, struct refit_frame frame)
{
    struct refit_frame grant, more;
    admit(stage, &grant);
    say(stage, &frame, sizeof frame);
    assert_int_equal(completion_of(stage), REFIT_PEER);
    assert_false(hear(stage, &more));
    assert_true(world_unchanged(&stage->world, stage->before));
}

static void frames_that_were_not_asked_for_end_the_connection(void **state)
{
    struct stage stage;
    stage_open(&stage, &refit_transport_tcp);
    uint32_t bytes = (uint32_t)refit_batch_bytes(stage.world.plan, world_edge(&stage.world, 0, 1), 0);
    uint64_t edge = world_edge(&stage.world, 0, 1)->digest;
    struct refit_frame good = {.type = REFIT_FRAME_DATA, .edge = edge, .batch = 0, .length = bytes}, bad;
    bad = good, bad.batch = 1;
    ends_the_connection(&stage, bad);
    bad = good, bad.batch = UINT32_MAX;
    ends_the_connection(&stage, bad);
    bad = good, bad.edge = world_edge(&stage.world, 0, 0)->digest;
    ends_the_connection(&stage, bad);
    bad = good, bad.edge ^= 1;
    ends_the_connection(&stage, bad);
    bad = good, bad.length = bytes - 1;
    ends_the_connection(&stage, bad);
    bad = good, bad.length = bytes + 1;
    ends_the_connection(&stage, bad);
    bad = good, bad.length = UINT32_MAX;
    ends_the_connection(&stage, bad);
    bad = good, bad.type = 0;
    ends_the_connection(&stage, bad);
    bad = good, bad.type = REFIT_FRAME_GRANT;
    ends_the_connection(&stage, bad);
    bad = (struct refit_frame){.type = REFIT_FRAME_BYE};
    ends_the_connection(&stage, bad);
    bad = (struct refit_frame){.type = REFIT_FRAME_ALIVE, .length = 1};
    ends_the_connection(&stage, bad);
    stage_close(&stage);
}

/* Nothing of rank 0, and nothing of rank 1 outside the granted batch, has changed. */
static void only_the_grant_changed(struct stage *stage, const struct refit_edge *edge, uint32_t batch)
{
    struct refit_walk walk = refit_walk_batch(stage->world.plan, edge, batch, 1);
    struct refit_strip strip;
    uint8_t *after = world_snapshot(&stage->world);
    uint64_t skip = stage->world.destination_ranks[0].size;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        for (uint64_t i = 0; i < strip.count; i++)
            memset(after + skip + strip.offset + (uint64_t)((int64_t)i * strip.stride), WORLD_GUARD, strip.run_bytes);
    assert_memory_equal(after, stage->before, skip + stage->world.destination_ranks[1].size);
    free(after);
}

static void send_payload(struct stage *stage, const struct refit_edge *edge, uint64_t len, uint32_t count,
                         const void *digests, size_t digest_bytes)
{
    struct refit_frame data = {.type = REFIT_FRAME_DATA, .edge = edge->digest, .batch = 0,
                               .length = (uint32_t)refit_batch_bytes(stage->world.plan, edge, 0)};
    uint8_t *payload = calloc(1, len + 1);
    assert_non_null(payload);
    say(stage, &data, sizeof data);
    say(stage, payload, len);
    free(payload);
    if (len == data.length) {
        say(stage, &count, sizeof count);
        say(stage, digests, digest_bytes);
    }
}

static void a_wrong_digest_is_corrupt_and_the_batch_may_be_asked_again(void **state)
{
    struct stage stage;
    struct refit_frame grant, more;
    struct refit_error err;
    struct refit_segments segments;
    uint8_t zeros[4096] = {1};
    stage_open(&stage, &refit_transport_tcp);
    const struct refit_edge *edge = admit(&stage, &grant);
    refit_segments_init(&segments, false);
    assert_int_equal(refit_segments_of(&segments, refit_walk_batch(stage.world.plan, edge, 0, 1), &err), REFIT_OK);
    uint32_t count = (uint32_t)segments.count;
    for (int i = 0; i < 2; i++) {
        send_payload(&stage, edge, refit_batch_bytes(stage.world.plan, edge, 0), count, zeros,
                     count * REFIT_DIGEST_BYTES);
        assert_int_equal(completion_of(&stage), REFIT_CORRUPT);
        only_the_grant_changed(&stage, edge, 0);
        assert_int_equal(stage.transport->post(stage.receiver, 0, edge, 0, &err), REFIT_OK);
        assert_true(hear(&stage, &grant));
    }
    send_payload(&stage, edge, refit_batch_bytes(stage.world.plan, edge, 0), count + 1, zeros, 0);
    assert_int_equal(completion_of(&stage), REFIT_PEER);
    assert_false(hear(&stage, &more));
    /* What never matched is in no tally. */
    for (uint32_t id = 0; id < refit_tally_count(stage.world.tally); id++)
        assert_int_equal(refit_tally_get(stage.world.tally, id).d[0], 0);
    refit_segments_release(&segments);
    stage_close(&stage);
}

static void a_batch_that_is_cut_short_can_be_had_from_the_next_connection(void **state)
{
    struct stage stage;
    struct refit_frame grant;
    struct refit_error err;
    struct refit_endpoint *holder;
    json_t *card;
    stage_open(&stage, &refit_transport_tcp);
    const struct refit_edge *edge = admit(&stage, &grant);
    send_payload(&stage, edge, refit_batch_bytes(stage.world.plan, edge, 0) / 3, 0, NULL, 0);
    close(stage.fd);
    stage.fd = -1;
    assert_int_equal(completion_of(&stage), REFIT_PEER);
    only_the_grant_changed(&stage, edge, 0);
    assert_int_equal(stage.transport->post(stage.receiver, 0, edge, 0, &err), REFIT_PEER);
    struct refit_endpoint_config config = world_holder(&stage.world, 0, 1);
    assert_int_equal(stage.transport->open(&config, &holder, &err), REFIT_OK);
    assert_int_equal(stage.transport->card(stage.receiver, &card, &err), REFIT_OK);
    assert_int_equal(stage.transport->connect(holder, card, refit_deadline_in_ms(WAIT_MS), &err), REFIT_OK);
    assert_int_equal(stage.transport->post(stage.receiver, 0, edge, 0, &err), REFIT_OK);
    assert_int_equal(completion_of(&stage), REFIT_OK);
    json_decref(card);
    stage.transport->close(holder);
    stage_close(&stage);
}

/* ---- local ---- */

struct forged {
    struct refit_frame frame;
    struct refit_local_memory memory;
    struct refit_local_piece piece;
};

static void pieces_refused(struct stage *stage, const struct forged *packet, const int fds[static 2])
{
    struct refit_frame answer;
    struct refit_error err;
    greet(stage);
    assert_true(hear(stage, &answer));
    assert_int_equal(answer.type, REFIT_FRAME_WELCOME);
    assert_int_equal(refit_io_send_fds(stage->fd, packet, sizeof *packet, fds, 2, &err), REFIT_OK);
    assert_true(hear(stage, &answer));
    assert_int_equal(answer.type, REFIT_FRAME_REFUSED);
    assert_true(world_unchanged(&stage->world, stage->before));
}

static int ring_of(size_t bytes, bool sealed)
{
    int fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (sealed)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

static void pieces_that_lie_are_refused(void **state)
{
    struct stage stage;
    int ends[2];
    stage_open(&stage, &refit_transport_local);
    assert_int_equal(pipe(ends), 0);
    int ring = ring_of(REFIT_BATCH_BYTES_MAX, true), loose = ring_of(REFIT_BATCH_BYTES_MAX, false);
    int fds[2] = {ring, ring_of(8192, false)};
    struct forged good = {.frame = {.type = REFIT_FRAME_PIECES, .length = 1, .argument = 1},
                          .memory = {.side = REFIT_SOURCE, .rank = 0, .arenas = 1},
                          .piece = {.fd_number = 1, .bytes = 4096}}, bad;
    memcpy(good.memory.layout, refit_layout_digest(stage.world.source), sizeof good.memory.layout);
    bad = good, bad.piece.bytes = 8193;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.bytes = UINT64_MAX, bad.piece.fd_offset = 2;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.offset = UINT64_MAX - 4096;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.fd_number = 2;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.fd_number = 0; /* the ring is no memory */
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.arena = 1;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.memory.arenas = 2;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.memory.rank = 3;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.memory.side = 2;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.frame.argument = 2; /* a ring of another size */
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.frame.argument = 1000;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.frame.argument = 0;
    pieces_refused(&stage, &bad, fds);
    bad = good, bad.piece.device[0] = 1; /* a GPU's slot is whole */
    pieces_refused(&stage, &bad, fds);
    bad.piece.bytes = UINT64_MAX, bad.piece.fd_offset = 1;
    pieces_refused(&stage, &bad, fds);
    bad.piece.fd_offset = 0, bad.piece.fd_number = 2;
    pieces_refused(&stage, &bad, fds);
    pieces_refused(&stage, &good, (int[2]){ring, ends[0]});  /* no file */
    pieces_refused(&stage, &good, (int[2]){loose, fds[1]});  /* a ring that is not sealed */
    close(ring);
    close(loose);
    close(fds[1]);
    close(ends[0]);
    close(ends[1]);
    stage_close(&stage);
}

static void forged_greetings_are_refused_on_the_unix_socket(void **state)
{
    struct stage stage;
    stage_open(&stage, &refit_transport_local);
    refused(&stage, 16, "not the token...", 16, REFIT_NOT_FOUND);
    refused(&stage, 32, &wrong_number, 4, REFIT_MISMATCH);
    refused(&stage, 44, &wrong_number, 4, REFIT_INVALID);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greetings_that_differ_are_refused),
        cmocka_unit_test(an_unknown_refit_and_a_slow_greeting_end_at_their_deadline),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(edges_that_are_not_offered_are_not_asked_for),
        cmocka_unit_test(frames_that_were_not_asked_for_end_the_connection),
        cmocka_unit_test(a_wrong_digest_is_corrupt_and_the_batch_may_be_asked_again),
        cmocka_unit_test(a_batch_that_is_cut_short_can_be_had_from_the_next_connection),
        cmocka_unit_test(pieces_that_lie_are_refused),
        cmocka_unit_test(forged_greetings_are_refused_on_the_unix_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
