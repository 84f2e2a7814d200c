/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/greeting.h"

#include <string.h>
#include <sys/socket.h>

#include "base/cursor.h"
#include "transport/frame.h"
#include "transport/view.h"

/* A part of a replica has the memory of some of its plan's ranks only. */
static bool has_memory(const struct refit_view *view, const struct refit_edge *edge)
{
    const struct refit_arena *arena;
    struct refit_walk walk;
    return refit_view_window(view, edge, 0, &arena, &walk);
}

enum refit_status refit_greeting_encode(const struct refit_endpoint_config *holder, unsigned stream, uint32_t flags,
                                        struct refit_buf *out, struct refit_error *err)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(holder->plan, &count);
    if (count > REFIT_OFFER_MAX)
        return refit_fail(err, REFIT_UNSUPPORTED, "a holder with %zu edges, at most %u can be offered", count,
                          REFIT_OFFER_MAX);
    struct refit_view view;
    enum refit_status status = refit_view_of(holder->plan, holder->arenas, holder->arena_count, &view, err);
    if (status != REFIT_OK)
        return status;
    uint32_t offered = 0;
    for (size_t i = 0; i < count; i++)
        offered += has_memory(&view, &edges[i]);
    char id[REFIT_WIRE_ID_MAX] = {0};
    size_t id_len = strlen(holder->refit_id);
    memcpy(id, holder->refit_id, id_len);

    refit_buf_append_u32(out, REFIT_GREETING_MAGIC);
    refit_buf_append_u32(out, REFIT_PROTOCOL_VERSION);
    refit_buf_append_u32(out, REFIT_PLANNER_VERSION);
    refit_buf_append_u32(out, flags | (holder->verify ? REFIT_GREETING_VERIFY : 0));
    refit_buf_append(out, holder->token, REFIT_TOKEN_BYTES);
    refit_buf_append_u32(out, holder->holder);
    refit_buf_append_u32(out, stream);
    refit_buf_append_u32(out, holder->streams);
    refit_buf_append_u32(out, offered);
    refit_buf_append_u32(out, (uint32_t)id_len);
    refit_buf_append(out, id, sizeof id);
    for (size_t i = 0; i < count; i++)
        if (has_memory(&view, &edges[i]))
            refit_buf_append_u64(out, edges[i].digest);
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
    out->holder = refit_cursor_u32(&at);
    out->stream = refit_cursor_u32(&at);
    out->streams = refit_cursor_u32(&at);
    out->edges = refit_cursor_u32(&at);
    uint32_t id_len = refit_cursor_u32(&at);
    if ((flags & ~(REFIT_GREETING_VERIFY | REFIT_GREETING_NCCL)) != 0 || id_len == 0 || id_len > REFIT_WIRE_ID_MAX ||
        out->streams > REFIT_STREAMS_MAX || out->stream >= out->streams || out->edges > REFIT_OFFER_MAX)
        return refit_fail(err, REFIT_INVALID, "a field of the greeting is out of range");
    out->verify = flags & REFIT_GREETING_VERIFY;
    out->nccl = flags & REFIT_GREETING_NCCL;
    memset(out->refit_id, 0, sizeof out->refit_id);
    memcpy(out->refit_id, refit_cursor_bytes(&at, REFIT_WIRE_ID_MAX), id_len);
    return REFIT_OK;
}

bool refit_token_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (size_t i = 0; i < REFIT_TOKEN_BYTES; i++)
        different |= (unsigned)(a[i] ^ b[i]);
    return different == 0;
}

enum refit_status refit_greeting_check(const struct refit_greeting *greeting,
                                       const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    if (greeting->planner_version != REFIT_PLANNER_VERSION)
        return refit_fail(err, REFIT_MISMATCH, "planner version %u offered, %d expected: install equal versions",
                          greeting->planner_version, REFIT_PLANNER_VERSION);
    if (greeting->verify != receiver->verify)
        return refit_fail(err, REFIT_MISMATCH, "verification is %s at the holder and %s at the receiver",
                          greeting->verify ? "on" : "off", receiver->verify ? "on" : "off");
    if (greeting->holder >= receiver->holder)
        return refit_fail(err, REFIT_MISMATCH, "holder %u offered, the receiver knows of %u", greeting->holder,
                          receiver->holder);
    return REFIT_OK;
}

enum refit_status refit_greeting_await(struct refit_stream *stream, int wake, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    struct refit_frame frame;
    enum refit_status status = refit_stream_receive_all(stream, &frame, sizeof frame, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    if (frame.type == REFIT_FRAME_WELCOME && frame.length == 0)
        return REFIT_OK;
    if (frame.type != REFIT_FRAME_REFUSED || frame.length > REFIT_REFUSAL_MAX)
        return refit_fail(err, REFIT_PEER, "the answer to the greeting is not a refit frame");
    char text[REFIT_REFUSAL_MAX + 1];
    status = refit_stream_receive_all(stream, text, frame.length, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    text[frame.length] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    return refit_fail(err, refit_refusal_status(frame.argument), "refused: %s", text);
}

void refit_greeting_refuse(struct refit_stream *stream, const struct refit_error *why)
{
    size_t len = strnlen(why->text, REFIT_REFUSAL_MAX);
    struct refit_frame frame = {
        .type = REFIT_FRAME_REFUSED, .argument = (uint32_t)why->status, .length = (uint32_t)len};
    /* Two sends, since on a packet socket a frame is a packet. A peer that does not take 500 bytes gets no reason. */
    if (refit_stream_try(stream, &frame, sizeof frame, MSG_MORE))
        (void)refit_stream_try(stream, why->text, len, 0);
}
