/* SPDX-License-Identifier: Apache-2.0
 *
 * What holders say, on the receiver's events thread.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "transport/nccl_reshard.h"

/* ---- grants (the lock is held) ---- */

static struct refit_nccl_lane *lane_of(struct refit_nccl_receiver *receiver, struct refit_grant grant)
{
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    uint32_t rank = refit_plan_landing_rank(config->plan, grant.edge, grant.batch);
    int ordinal = refit_arena_device(config->arenas[rank - refit_plan_first_rank(config->plan)]);
    struct refit_nccl_lane *lane = receiver->lanes;
    while (lane->device->ordinal != ordinal) /* one was made for every arena */
        lane++;
    return lane;
}

static void grant(struct refit_nccl_flow *flow, struct refit_grant grant)
{
    struct refit_frame frame = {.type = REFIT_FRAME_GRANT, .edge = grant.edge->digest, .batch = grant.batch};
    if (flow->granted_count == 0)
        flow->heard_ns = refit_clock_ns(); /* from here on it owes */
    flow->granted[flow->granted_count++] =
        (struct refit_nccl_granted){.grant = grant,
                                    .lane = lane_of(flow->receiver, grant),
                                    .placed = refit_nccl_reshard_placed(flow->receiver, grant)};
    refit_count(&flow->receiver->base.base.counters.wire_bytes, REFIT_FRAME_BYTES);
    if (!refit_stream_post(&flow->stream, &frame))
        refit_stream_shutdown(&flow->stream);
}

void refit_nccl_dispatch(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_nccl_flow *flow = peer->flows;
    struct refit_grant next;
    if (refit_nccl_reshard_holds((struct refit_nccl_receiver *)receiving))
        return;
    while (flow && !flow->cut && flow->granted_count < REFIT_OWED_MAX && refit_peer_next(peer, &next))
        grant(flow, next);
}

static struct refit_nccl_granted *find_granted(struct refit_nccl_flow *flow, const struct refit_frame *frame)
{
    for (unsigned i = 0; i < flow->granted_count; i++)
        if (flow->granted[i].grant.edge->digest == frame->edge && flow->granted[i].grant.batch == frame->batch)
            return &flow->granted[i];
    return NULL;
}

void refit_nccl_flow_end(struct refit_nccl_flow *flow, size_t at, enum refit_status status)
{
    struct refit_nccl_granted granted = flow->granted[at];
    flow->granted[at] = flow->granted[--flow->granted_count];
    free(granted.digests);
    refit_grants_end(&flow->receiver->base.grants, flow->peer, granted.grant, status);
}

/* ---- the end of a connection (the lock is held) ---- */

void refit_nccl_flow_free(struct refit_nccl_flow *flow)
{
    for (unsigned i = 0; i < flow->granted_count; i++)
        free(flow->granted[i].digests);
    for (struct refit_nccl_flow **at = &flow->receiver->flows; *at; at = &(*at)->next) {
        if (*at == flow) {
            *at = flow->next;
            break;
        }
    }
    refit_stream_close(&flow->stream);
    free(flow->payload);
    free(flow);
}

void refit_nccl_flow_cut(struct refit_nccl_flow *flow)
{
    flow->cut = true;
    refit_stream_shutdown(&flow->stream);
    pthread_cond_broadcast(&flow->receiver->work);
}

void refit_nccl_flow_reap(struct refit_nccl_flow *flow, enum refit_status status, const char *why)
{
    struct refit_peer *peer = flow->peer;
    if (!flow->greeted || flow->reaped)
        return;
    flow->reaped = true;
    if (flow->heard_ns > peer->heard_ns)
        peer->heard_ns = flow->heard_ns;
    if (peer->flows == flow)
        peer->flows = NULL;
    while (flow->granted_count > 0)
        refit_nccl_flow_end(flow, flow->granted_count - 1, status);
    refit_peer_left(&flow->receiver->base.grants, peer, why);
}

/* The events thread and all lanes are done with it. */
static void bury(struct refit_nccl_flow *flow)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    refit_nccl_flow_reap(flow, grants->stopped ? REFIT_ABORTED : REFIT_PEER, flow->why.text);
    refit_listener_forget(grants->config->listener);
    refit_nccl_flow_free(flow);
}

void refit_nccl_flow_leave(struct refit_nccl_flow *flow)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    if (--flow->users > 0)
        return;
    if (flow->closed)
        bury(flow);
    pthread_cond_broadcast(&grants->event);
}

/* By the events thread, the last that it does with it. */
static void flow_close(struct refit_nccl_flow *flow, const struct refit_error *why)
{
    struct refit_nccl_receiver *receiver = flow->receiver;
    struct refit_grants *grants = &receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    if (flow->why.status == REFIT_OK)
        flow->why = *why;
    if (!grants->stopped && !flow->said_goodbye && !flow->reaped)
        refit_log_limited(REFIT_LOG_WARN, "holder connection ended", refit_log_text("refit", grants->config->refit_id),
                          refit_log_u64("holder", flow->peer->number), REFIT_LOG_CAUSE(&flow->why));
    epoll_ctl(receiver->epoll, EPOLL_CTL_DEL, flow->stream.fd, NULL);
    refit_nccl_flow_cut(flow);
    flow->closed = true;
    if (flow->users == 0)
        bury(flow);
    pthread_mutex_unlock(&grants->lock);
}

/* ---- frames (the lock is held) ---- */

static enum refit_status take_hello(struct refit_nccl_flow *flow, struct refit_error *err)
{
    struct refit_receiving *receiving = &flow->receiver->base;
    struct refit_nccl_flow *old = flow->peer->flows;
    enum refit_status status = refit_nccl_hello_decode(flow->payload, flow->frame.length, &flow->hello, err);
    if (status == REFIT_OK)
        status = refit_nccl_check_versions(flow->receiver->lanes[0].device->nccl->version, (int)flow->hello.version,
                                           "the holder", err);
    flow->hello.reshards = flow->frame.argument == REFIT_HELLO_RESHARDS;
    flow->hello.rank = flow->frame.batch;
    if (status == REFIT_OK && receiving->grants.finished)
        status = refit_fail(err, REFIT_NOT_FOUND, "refit %s needs no more bytes", receiving->base.config.refit_id);
    if (status == REFIT_OK)
        status = refit_nccl_receiver_check(flow->receiver, &flow->hello, err);
    if (status != REFIT_OK) {
        refit_greeting_refuse(&flow->stream, err);
        return status;
    }
    if (!refit_stream_post_type(&flow->stream, REFIT_FRAME_WELCOME))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    /* A holder that dials again takes the place of its old connection, which may not know yet that it is dead. */
    if (old)
        refit_nccl_flow_cut(old);
    flow->peer->flows = flow;
    flow->greeted = true;
    refit_nccl_reshard_greeted(flow);
    refit_peer_joined(&receiving->grants, flow->peer);
    refit_nccl_dispatch(receiving, flow->peer);
    return REFIT_OK;
}

static enum refit_status take_ready(struct refit_nccl_flow *flow, struct refit_error *err)
{
    const struct refit_frame *frame = &flow->frame;
    struct refit_nccl_granted *granted = find_granted(flow, frame);
    if (!granted || granted->ready)
        return refit_fail(err, REFIT_PEER, "is ready for batch %u of edge %016llx, which was not granted", frame->batch,
                          (unsigned long long)frame->edge);
    if (frame->argument >= flow->hello.device_count)
        return refit_fail(err, REFIT_PEER, "has batch %u on its device %u of %u", frame->batch, frame->argument,
                          flow->hello.device_count);
    granted->ready = true;
    granted->source = frame->argument;
    return REFIT_OK;
}

static enum refit_status take_digests(struct refit_nccl_flow *flow, struct refit_error *err)
{
    const struct refit_frame *frame = &flow->frame;
    struct refit_nccl_granted *granted = find_granted(flow, frame);
    if (!granted || !granted->going || granted->digests)
        return refit_fail(err, REFIT_PEER, "sent digests of batch %u of edge %016llx, which is not on its way",
                          frame->batch, (unsigned long long)frame->edge);
    if (frame->length != granted->expected * REFIT_DIGEST_BYTES)
        return refit_fail(err, REFIT_PEER, "sent %u bytes of digests for batch %u, expected %zu digests", frame->length,
                          frame->batch, granted->expected);
    granted->digests = flow->payload;
    flow->payload = NULL;
    return REFIT_OK;
}

/* To the lane that asked. */
static enum refit_status take_answer(struct refit_nccl_flow *flow, enum refit_nccl_answer answer, struct refit_error *err)
{
    struct refit_nccl_receiver *receiver = flow->receiver;
    for (unsigned i = 0; i < receiver->lane_count; i++) {
        struct refit_nccl_lane *lane = &receiver->lanes[i];
        if (lane->flow == flow && lane->asked == flow->frame.edge && lane->answer == REFIT_NCCL_NO_ANSWER) {
            lane->answer = answer;
            return REFIT_OK;
        }
    }
    return refit_fail(err, REFIT_PEER, "answered for a group that was not asked for");
}

static enum refit_status take_goodbye(struct refit_nccl_flow *flow, struct refit_error *err)
{
    bool expected = flow->receiver->base.grants.finished && !flow->said_goodbye;
    flow->said_goodbye = true;
    return expected ? REFIT_OK : refit_fail(err, REFIT_PEER, "said goodbye before it was told to");
}

static enum refit_status take_frame(struct refit_nccl_flow *flow, struct refit_error *err)
{
    const struct refit_frame *frame = &flow->frame;
    if (!flow->greeted)
        return frame->type == REFIT_FRAME_HELLO ? take_hello(flow, err)
                                                : refit_fail(err, REFIT_PEER, "did not say which devices it has");
    if (refit_nccl_reshard_take(flow))
        return REFIT_OK;
    switch (frame->type) {
    case REFIT_FRAME_ALIVE: return REFIT_OK;
    case REFIT_FRAME_READY: return take_ready(flow, err);
    case REFIT_FRAME_DIGESTS: return take_digests(flow, err);
    case REFIT_FRAME_STARTED: return take_answer(flow, REFIT_NCCL_STARTED, err);
    case REFIT_FRAME_DENIED:
        return take_answer(flow, frame->argument == REFIT_DENIED_BUSY ? REFIT_NCCL_DENIED : REFIT_NCCL_UNKNOWN, err);
    case REFIT_FRAME_FREE: flow->retry_ns = 0; return REFIT_OK;
    case REFIT_FRAME_BYE: return take_goodbye(flow, err);
    default: return refit_fail(err, REFIT_PEER, "sent a frame of unknown type %08x", frame->type);
    }
}

static enum refit_status handle(struct refit_nccl_flow *flow, struct refit_error *err)
{
    struct refit_nccl_receiver *receiver = flow->receiver;
    pthread_mutex_lock(&receiver->base.grants.lock);
    flow->heard_ns = refit_clock_ns();
    enum refit_status status = flow->cut ? refit_fail(err, REFIT_PEER, "dropped") : take_frame(flow, err);
    pthread_cond_broadcast(&receiver->work);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    free(flow->payload);
    flow->payload = NULL;
    return status;
}

/* ---- bytes ---- */

/* What may follow a frame. Digests are held against what is expected before room is made for them. */
static enum refit_status check_length(struct refit_nccl_flow *flow, struct refit_error *err)
{
    const struct refit_frame *frame = &flow->frame;
    struct refit_grants *grants = &flow->receiver->base.grants;
    size_t most = 0;
    if (frame->type == REFIT_FRAME_HELLO)
        most = REFIT_NCCL_HELLO_MAX;
    if (frame->type == REFIT_FRAME_DIGESTS) {
        pthread_mutex_lock(&grants->lock);
        const struct refit_nccl_granted *granted = find_granted(flow, frame);
        most = granted && granted->going ? granted->expected * REFIT_DIGEST_BYTES : 0;
        pthread_mutex_unlock(&grants->lock);
    }
    if (frame->length > most)
        return refit_fail(err, REFIT_PEER, "sent a frame of type %08x with %u bytes, at most %zu are expected",
                          frame->type, frame->length, most);
    flow->payload = malloc(frame->length + 1);
    return flow->payload ? REFIT_OK : refit_fail_alloc(err, "what follows a frame", frame->length);
}

static enum refit_status read_some(struct refit_nccl_flow *flow, uint8_t *at, size_t want, struct refit_error *err)
{
    struct iovec iov = {.iov_base = at, .iov_len = want};
    size_t got;
    enum refit_status status = refit_stream_receive(&flow->stream, &iov, 1, &got, err);
    refit_count(&flow->receiver->base.base.counters.wire_bytes, got);
    flow->have += got;
    return status;
}

/* A frame with all that follows it; REFIT_BUSY: it has not come yet. */
static enum refit_status read_frame(struct refit_nccl_flow *flow, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (flow->have < REFIT_FRAME_BYTES && status == REFIT_OK)
        status = read_some(flow, (uint8_t *)&flow->frame + flow->have, REFIT_FRAME_BYTES - flow->have, err);
    if (status == REFIT_OK && !flow->payload)
        status = check_length(flow, err);
    size_t total = REFIT_FRAME_BYTES + (size_t)flow->frame.length;
    while (status == REFIT_OK && flow->have < total)
        status = read_some(flow, flow->payload + (flow->have - REFIT_FRAME_BYTES), total - flow->have, err);
    if (status == REFIT_OK)
        flow->have = 0;
    return status;
}

#define TURN_FRAMES 64 /* of one connection, before the next has its turn */

static void flow_serve(struct refit_nccl_flow *flow)
{
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < TURN_FRAMES && status == REFIT_OK; i++) {
        status = read_frame(flow, &err);
        if (status == REFIT_OK)
            status = handle(flow, &err);
    }
    if (status != REFIT_OK && status != REFIT_BUSY)
        flow_close(flow, &err);
}

void *refit_nccl_events_run(void *arg)
{
    struct refit_nccl_receiver *receiver = arg;
    struct refit_endpoint *endpoint = &receiver->base.base;
    struct epoll_event events[16];
    while (!refit_endpoint_stopping(endpoint)) {
        int n = epoll_wait(receiver->epoll, events, 16, -1);
        for (int i = 0; i < n && !refit_endpoint_stopping(endpoint); i++)
            if (events[i].data.ptr)
                flow_serve(events[i].data.ptr);
    }
    return NULL;
}
