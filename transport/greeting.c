/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/greeting.h"

#include <string.h>
#include <sys/socket.h>

#include "base/cursor.h"
#include "transport/frame.h"
#include "transport/wire.h"

enum refit_status refit_greeting_encode(const struct refit_endpoint_config *holder, unsigned stream,
                                        struct refit_buf *out, struct refit_error *err)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(holder->plan, &count);
    uint32_t offered = 0;
    for (size_t i = 0; i < count; i++)
        offered += edges[i].source_rank == holder->rank;
    char id[REFIT_ID_MAX] = {0};
    size_t id_len = strlen(holder->refit_id);
    memcpy(id, holder->refit_id, id_len);

    refit_buf_append_u32(out, REFIT_GREETING_MAGIC);
    refit_buf_append_u32(out, REFIT_PROTOCOL_VERSION);
    refit_buf_append_u32(out, REFIT_PLANNER_VERSION);
    refit_buf_append_u32(out, holder->verify ? REFIT_GREETING_VERIFY : 0);
    refit_buf_append(out, holder->token, REFIT_TOKEN_BYTES);
    refit_buf_append_u32(out, holder->rank);
    refit_buf_append_u32(out, stream);
    refit_buf_append_u32(out, holder->streams);
    refit_buf_append_u32(out, offered);
    refit_buf_append_u32(out, (uint32_t)id_len);
    refit_buf_append(out, id, sizeof id);
    for (size_t i = 0; i < count; i++) {
        if (edges[i].source_rank != holder->rank)
            continue;
        refit_buf_append_u32(out, edges[i].destination_rank);
        refit_buf_append_u64(out, edges[i].digest);
    }
    return out->failed ? refit_fail_alloc(err, "a greeting", out->len) : REFIT_OK;
}

enum refit_status refit_greeting_decode(const uint8_t *head, struct refit_greeting *out, struct refit_error *err)
{
    struct refit_cursor at = refit_cursor_over(head, REFIT_GREETING_HEAD_BYTES);
    if (refit_cursor_u32(&at) != REFIT_GREETING_MAGIC)
        return refit_fail(err, REFIT_INVALID, "not a greeting of a refit holder");
    uint32_t protocol = refit_cursor_u32(&at);
    if (protocol != REFIT_PROTOCOL_VERSION)
        return refit_fail(err, REFIT_UNSUPPORTED, "protocol version %u offered, %u expected: install equal versions",
                          protocol, REFIT_PROTOCOL_VERSION);
    out->planner_version = refit_cursor_u32(&at);
    uint32_t flags = refit_cursor_u32(&at);
    memcpy(out->token, refit_cursor_bytes(&at, REFIT_TOKEN_BYTES), REFIT_TOKEN_BYTES);
    out->source_rank = refit_cursor_u32(&at);
    out->stream = refit_cursor_u32(&at);
    out->streams = refit_cursor_u32(&at);
    out->edges = refit_cursor_u32(&at);
    uint32_t id_len = refit_cursor_u32(&at);
    if ((flags & ~REFIT_GREETING_VERIFY) != 0 || id_len == 0 || id_len > REFIT_ID_MAX ||
        out->streams > REFIT_STREAMS_MAX || out->stream >= out->streams || out->edges > REFIT_RANKS_MAX)
        return refit_fail(err, REFIT_INVALID, "a field of the greeting is out of range");
    out->verify = flags & REFIT_GREETING_VERIFY;
    memset(out->refit_id, 0, sizeof out->refit_id);
    memcpy(out->refit_id, refit_cursor_bytes(&at, REFIT_ID_MAX), id_len);
    return REFIT_OK;
}

bool refit_token_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (size_t i = 0; i < REFIT_TOKEN_BYTES; i++)
        different |= (unsigned)(a[i] ^ b[i]);
    return different == 0;
}

/* An edge to a rank that another process receives is none of our business. */
static bool receives(const struct refit_endpoint_config *receiver, uint32_t rank)
{
    return rank < receiver->arena_count && receiver->arenas[rank];
}

static enum refit_status check_edge(uint32_t source_rank, uint32_t rank, uint64_t digest,
                                    const struct refit_endpoint_config *receiver, size_t *matched,
                                    struct refit_error *err)
{
    if (!receives(receiver, rank))
        return REFIT_OK;
    const struct refit_edge *edge = refit_plan_edge(receiver->plan, source_rank, rank);
    if (!edge)
        return refit_fail(err, REFIT_MISMATCH,
                          "the receiver's plan has no edge from source rank %u to rank %u; plan again from the same "
                          "layouts", source_rank, rank);
    if (edge->digest != digest)
        return refit_fail(err, REFIT_MISMATCH,
                          "the edge from source rank %u to rank %u has digest %016llx here, %016llx was offered; plan "
                          "again from the same layouts", source_rank, rank,
                          (unsigned long long)edge->digest, (unsigned long long)digest);
    (*matched)++;
    return REFIT_OK;
}

static size_t edges_wanted(uint32_t source_rank, const struct refit_endpoint_config *receiver)
{
    size_t wanted = 0;
    for (size_t rank = 0; rank < receiver->arena_count; rank++)
        if (receiver->arenas[rank] && refit_plan_edge(receiver->plan, source_rank, (uint32_t)rank))
            wanted++;
    return wanted;
}

enum refit_status refit_greeting_check(const struct refit_greeting *greeting, const uint8_t *edges,
                                       const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    uint32_t ranks = refit_layout_ranks(refit_plan_source(receiver->plan));
    if (greeting->planner_version != REFIT_PLANNER_VERSION)
        return refit_fail(err, REFIT_MISMATCH, "planner version %u offered, %d expected: install equal versions",
                          greeting->planner_version, REFIT_PLANNER_VERSION);
    if (greeting->verify != receiver->verify)
        return refit_fail(err, REFIT_MISMATCH, "verification is %s at the holder and %s at the receiver",
                          greeting->verify ? "on" : "off", receiver->verify ? "on" : "off");
    if (greeting->source_rank >= ranks)
        return refit_fail(err, REFIT_MISMATCH, "source rank %u offered, the source layout has %u ranks",
                          greeting->source_rank, ranks);
    struct refit_cursor at = refit_cursor_over(edges, (size_t)greeting->edges * REFIT_GREETING_EDGE_BYTES);
    size_t matched = 0;
    int64_t last = -1;
    for (uint32_t i = 0; i < greeting->edges; i++) {
        uint32_t rank = refit_cursor_u32(&at);
        uint64_t digest = refit_cursor_u64(&at);
        if (rank <= last)
            return refit_fail(err, REFIT_INVALID, "offered edges must stand in the order of their destination ranks");
        last = rank;
        enum refit_status status = check_edge(greeting->source_rank, rank, digest, receiver, &matched, err);
        if (status != REFIT_OK)
            return status;
    }
    size_t wanted = edges_wanted(greeting->source_rank, receiver);
    if (matched != wanted)
        return refit_fail(err, REFIT_MISMATCH,
                          "source rank %u offers %zu of the %zu edges that the receiver's plan has",
                          greeting->source_rank, matched, wanted);
    return REFIT_OK;
}

enum refit_status refit_greeting_await(int fd, int wake, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_frame frame;
    enum refit_status status = refit_wire_recv(fd, &frame, sizeof frame, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    if (frame.type == REFIT_FRAME_WELCOME && frame.length == 0)
        return REFIT_OK;
    if (frame.type != REFIT_FRAME_REFUSED || frame.length > REFIT_REFUSAL_MAX)
        return refit_fail(err, REFIT_PEER, "the answer to the greeting is not a refit frame");
    char text[REFIT_REFUSAL_MAX + 1];
    status = refit_wire_recv(fd, text, frame.length, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    text[frame.length] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    return refit_fail(err, refit_refusal_status(frame.batch), "refused: %s", text);
}

void refit_greeting_refuse(int fd, const struct refit_error *why)
{
    size_t len = strnlen(why->text, REFIT_REFUSAL_MAX);
    struct refit_frame frame = {
        .type = REFIT_FRAME_REFUSED, .batch = (uint32_t)why->status, .length = (uint32_t)len};
    /* Two sends, since on a packet socket a frame is a packet. A peer that does not take 500 bytes gets no reason. */
    if (send(fd, &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE) == (ssize_t)sizeof frame)
        (void)!send(fd, why->text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool refit_frame_post(int fd, uint32_t type, uint32_t destination_rank, uint32_t batch, uint32_t length)
{
    struct refit_frame frame = {
        .type = type, .destination_rank = destination_rank, .batch = batch, .length = length};
    return send(fd, &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof frame;
}
