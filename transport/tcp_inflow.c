/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_inflow.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"

#define TURN_BYTES (1u << 20) /* read from one connection before the next has its turn */
#define LOW_WATER_BYTES (512 << 10)

static struct refit_endpoint *endpoint_of(struct refit_inflow *flow)
{
    return &flow->receiver->base.base;
}

/* ---- grants (the lock is held) ---- */

static struct refit_inflow *idlest(struct refit_peer *peer)
{
    struct refit_inflow *best = NULL;
    for (struct refit_inflow *flow = peer->flows; flow; flow = flow->next)
        if (!flow->cut && (!best || flow->granted_count < best->granted_count))
            best = flow;
    return best && best->granted_count < REFIT_INFLOW_GRANTS ? best : NULL;
}

static void grant(struct refit_inflow *flow, struct refit_grant grant)
{
    struct refit_frame frame = {.type = REFIT_FRAME_GRANT, .edge = grant.edge->digest, .batch = grant.batch};
    if (flow->granted_count == 0)
        flow->heard_ns = refit_clock_ns(); /* from here on it owes */
    flow->granted[flow->granted_count++] = grant;
    refit_count(&endpoint_of(flow)->counters.wire_bytes, REFIT_FRAME_BYTES);
    /* A connection that does not take so few bytes is broken; its thread sees that and ends what was granted on it. */
    if (!refit_stream_post(&flow->stream, &frame))
        refit_stream_shutdown(&flow->stream);
}

void refit_inflow_dispatch(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_inflow *flow;
    struct refit_grant next;
    (void)receiving;
    while (peer->queue_count > 0 && (flow = idlest(peer)) != NULL && refit_peer_next(peer, &next))
        grant(flow, next);
}

static bool find_granted(const struct refit_inflow *flow, const struct refit_frame *frame, struct refit_grant *out)
{
    for (unsigned i = 0; i < flow->granted_count; i++) {
        if (flow->granted[i].edge->digest == frame->edge && flow->granted[i].batch == frame->batch) {
            *out = flow->granted[i];
            return true;
        }
    }
    return false;
}

static void end_granted(struct refit_inflow *flow, struct refit_grant grant, enum refit_status status)
{
    for (unsigned i = 0; i < flow->granted_count; i++) {
        if (flow->granted[i].edge == grant.edge && flow->granted[i].batch == grant.batch) {
            flow->granted[i] = flow->granted[--flow->granted_count];
            refit_grants_end(&flow->receiver->base.grants, flow->peer, grant, status);
            return;
        }
    }
}

/* ---- one connection, on its thread ---- */

static enum refit_status begin_batch(struct refit_inflow *flow, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &endpoint_of(flow)->config;
    const struct refit_frame *frame = &flow->frame;
    pthread_mutex_lock(&flow->receiver->base.grants.lock);
    bool granted = find_granted(flow, frame, &flow->landing_grant);
    pthread_mutex_unlock(&flow->receiver->base.grants.lock);
    if (!granted)
        return refit_fail(err, REFIT_PEER, "sent batch %u of edge %016llx, which was not granted", frame->batch,
                          (unsigned long long)frame->edge);
    const struct refit_edge *edge = flow->landing_grant.edge;
    uint64_t expected = refit_batch_bytes(config->plan, edge, frame->batch);
    if (frame->length != expected)
        return refit_fail(err, REFIT_PEER, "sent batch %u of edge %016llx with %u bytes, expected %llu", frame->batch,
                          (unsigned long long)frame->edge, frame->length, (unsigned long long)expected);
    flow->phase = REFIT_INFLOW_PAYLOAD;
    return refit_landing_begin(&flow->landing, config, edge, frame->batch, refit_host_buffer_bytes(flow->thread->staging), err);
}

static enum refit_status take_goodbye(struct refit_inflow *flow, struct refit_error *err)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    bool expected = grants->finished && !flow->said_goodbye;
    flow->said_goodbye = true;
    pthread_mutex_unlock(&grants->lock);
    return expected ? REFIT_OK : refit_fail(err, REFIT_PEER, "said goodbye before it was told to");
}

static enum refit_status read_part(struct refit_inflow *flow, void *data, size_t want, struct refit_error *err)
{
    struct iovec iov = {.iov_base = (uint8_t *)data + flow->have, .iov_len = want - flow->have};
    size_t got;
    enum refit_status status = refit_stream_receive(&flow->stream, &iov, 1, &got, err);
    refit_count(&endpoint_of(flow)->counters.wire_bytes, got);
    flow->have += got;
    return status == REFIT_OK && flow->have < want ? REFIT_BUSY : status;
}

static enum refit_status read_frame(struct refit_inflow *flow, struct refit_error *err)
{
    enum refit_status status = read_part(flow, &flow->frame, sizeof flow->frame, err);
    if (status != REFIT_OK)
        return status;
    flow->have = 0;
    if (flow->frame.type == REFIT_FRAME_DATA)
        return begin_batch(flow, err);
    if (flow->frame.type == REFIT_FRAME_ALIVE && flow->frame.length == 0)
        return REFIT_OK;
    if (flow->frame.type == REFIT_FRAME_BYE && flow->frame.length == 0)
        return take_goodbye(flow, err);
    return refit_fail(err, REFIT_PEER, "sent a frame of unknown type %08x", flow->frame.type);
}

static enum refit_status begin_trailer(struct refit_inflow *flow, struct refit_error *err)
{
    const struct refit_segments *segments = &flow->landing.segments;
    size_t count = segments->digesting ? segments->count : 0;
    flow->phase = REFIT_INFLOW_TRAILER;
    flow->have = 0;
    flow->trailer_bytes = sizeof(uint32_t) + count * REFIT_DIGEST_BYTES;
    if (flow->trailer_bytes <= flow->trailer_capacity)
        return REFIT_OK;
    uint8_t *trailer = realloc(flow->trailer, flow->trailer_bytes);
    if (!trailer)
        return refit_fail_alloc(err, "digests of a batch", flow->trailer_bytes);
    flow->trailer = trailer;
    flow->trailer_capacity = flow->trailer_bytes;
    return REFIT_OK;
}

/* Wake us for so much and not for every segment. Only while at least that much of the batch is due, for the kernel
 * keeps what is less until more comes. */
static void set_low_water(struct refit_inflow *flow)
{
    uint64_t left = flow->phase == REFIT_INFLOW_PAYLOAD ? flow->landing.left : 0;
    uint64_t hidden = refit_stream_hidden(&flow->stream);
    int bytes = left >= LOW_WATER_BYTES && left - LOW_WATER_BYTES >= hidden ? LOW_WATER_BYTES : 1;
    if (bytes != flow->low_water)
        setsockopt(flow->stream.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    flow->low_water = bytes;
}

static enum refit_status read_payload(struct refit_inflow *flow, size_t *got, bool *drained, struct refit_error *err)
{
    struct refit_endpoint *endpoint = endpoint_of(flow);
    set_low_water(flow);
    enum refit_status status =
        refit_landing_receive(&flow->landing, &flow->stream, &endpoint->counters, got, drained, err);
    refit_count(&endpoint->counters.wire_bytes, *got);
    if (status == REFIT_OK)
        status = refit_rate_wait(&flow->receiver->base.rate, *got, endpoint->wake, flow->stream.fd, err);
    if (status == REFIT_OK && flow->landing.left == 0)
        status = begin_trailer(flow, err);
    set_low_water(flow);
    return status;
}

/* The whole batch is in every place: is it what the holder meant to send? */
static enum refit_status complete_batch(struct refit_inflow *flow, struct refit_error *err)
{
    struct refit_receiving *receiving = &flow->receiver->base;
    const struct refit_grant landed = flow->landing_grant;
    const struct refit_segments *segments = &flow->landing.segments;
    size_t expected = (flow->trailer_bytes - sizeof(uint32_t)) / REFIT_DIGEST_BYTES;
    uint32_t count;
    memcpy(&count, flow->trailer, sizeof count);
    if (count != expected)
        return refit_fail(err, REFIT_PEER, "sent %u segment digests for batch %u, expected %zu", count, landed.batch,
                          expected);
    bool equal = refit_digests_match(segments, 0, expected, flow->trailer + sizeof count);
    refit_count(&receiving->base.counters.payload_bytes,
                refit_batch_bytes(receiving->base.config.plan, landed.edge, landed.batch));
    if (equal)
        refit_grants_landed(&receiving->grants, landed, segments);
    flow->phase = REFIT_INFLOW_FRAME;
    flow->have = 0;
    pthread_mutex_lock(&receiving->grants.lock);
    end_granted(flow, landed, equal ? REFIT_OK : REFIT_CORRUPT);
    refit_inflow_dispatch(receiving, flow->peer);
    pthread_mutex_unlock(&receiving->grants.lock);
    return REFIT_OK;
}

static enum refit_status read_trailer(struct refit_inflow *flow, struct refit_error *err)
{
    /* The count is looked at first: a holder that sends fewer would leave us waiting for the rest. */
    enum refit_status status;
    if (flow->have < sizeof(uint32_t)) {
        status = read_part(flow, flow->trailer, sizeof(uint32_t), err);
        if (status != REFIT_OK)
            return status;
        uint32_t count;
        memcpy(&count, flow->trailer, sizeof count);
        if (sizeof count + (uint64_t)count * REFIT_DIGEST_BYTES != flow->trailer_bytes)
            return complete_batch(flow, err);
    }
    if (flow->have < flow->trailer_bytes) {
        status = read_part(flow, flow->trailer, flow->trailer_bytes, err);
        if (status != REFIT_OK)
            return status;
    }
    return complete_batch(flow, err);
}

/* One read; *turn falls by what came, and to nothing when there is no more. REFIT_BUSY: wait for more. Other: the
 * connection has to end. */
static enum refit_status step(struct refit_inflow *flow, size_t *turn, struct refit_error *err)
{
    size_t got = 0;
    bool drained = false;
    enum refit_status status;
    switch (flow->phase) {
    case REFIT_INFLOW_PAYLOAD: status = read_payload(flow, &got, &drained, err); break;
    case REFIT_INFLOW_TRAILER: status = read_trailer(flow, err); break;
    case REFIT_INFLOW_FRAME:
    default: status = read_frame(flow, err); break;
    }
    *turn -= drained || got > *turn ? *turn : got;
    return status;
}

/* ---- the end of a connection (the lock is held, but in flow_free) ---- */

static void unlink_flow(struct refit_inflow *flow, struct refit_inflow **list)
{
    for (struct refit_inflow **at = list; *at; at = &(*at)->next) {
        if (*at == flow) {
            *at = flow->next;
            return;
        }
    }
}

static void unlink_from_peer(struct refit_inflow *flow)
{
    struct refit_inflow *first = flow->peer->flows;
    unlink_flow(flow, &first);
    flow->peer->flows = first;
}

void refit_inflow_free(struct refit_inflow *flow)
{
    refit_stream_close(&flow->stream);
    refit_landing_release(&flow->landing);
    free(flow->trailer);
    free(flow);
}

void refit_inflow_reap(struct refit_inflow *flow, enum refit_status status, const char *why)
{
    struct refit_tcp_receiver *receiver = flow->receiver;
    unlink_from_peer(flow);
    if (flow->heard_ns > flow->peer->heard_ns)
        flow->peer->heard_ns = flow->heard_ns;
    flow->cut = flow->reaped = true;
    flow->next = receiver->reaped;
    receiver->reaped = flow;
    while (flow->granted_count > 0)
        end_granted(flow, flow->granted[0], status);
    flow->thread->connections--;
    refit_peer_left(&receiver->base.grants, flow->peer, why);
    refit_inflow_dispatch(&receiver->base, flow->peer);
}

/* By its thread, the last that it does with it. */
static void flow_end(struct refit_inflow *flow, const char *why)
{
    struct refit_tcp_receiver *receiver = flow->receiver;
    struct refit_grants *grants = &receiver->base.grants;
    if (!grants->stopped && !flow->said_goodbye && !flow->cut)
        refit_log_limited(REFIT_LOG_WARN, "holder connection ended", refit_log_text("refit", grants->config->refit_id),
                          refit_log_u64("holder", flow->peer->number), refit_log_u64("stream", flow->number),
                          refit_log_text("reason", why));
    if (!flow->reaped)
        refit_inflow_reap(flow, REFIT_PEER, why);
    unlink_flow(flow, &receiver->reaped);
    refit_listener_forget(grants->config->listener);
    refit_inflow_free(flow);
}

/* ---- turns of a thread ---- */

/* False: the connection has been cut, and is gone now. */
static bool turn_begin(struct refit_inflow *flow)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    flow->active = !flow->cut;
    bool active = flow->active;
    if (!active && !grants->stopped)
        flow_end(flow, "dropped");
    pthread_mutex_unlock(&grants->lock);
    return active;
}

/* What TLS has taken from the socket beyond this turn is not seen by poll; that there is room to send is, at once. */
static void watch(struct refit_inflow *flow)
{
    struct epoll_event event = {.events = refit_stream_waits(&flow->stream) ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = flow};
    if (event.events != flow->watched && epoll_ctl(flow->thread->epoll, EPOLL_CTL_MOD, flow->stream.fd, &event) == 0)
        flow->watched = event.events;
}

static void turn_end(struct refit_inflow *flow, enum refit_status status, const struct refit_error *err)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    flow->active = false;
    flow->heard_ns = refit_clock_ns();
    if (flow->cut)
        pthread_cond_broadcast(&grants->event);
    if (status != REFIT_OK && status != REFIT_BUSY && !grants->stopped)
        flow_end(flow, err->text);
    pthread_mutex_unlock(&grants->lock);
}

void refit_inflow_serve(struct refit_inflow *flow)
{
    struct refit_error err = {.status = REFIT_OK};
    size_t turn = TURN_BYTES;
    enum refit_status status = REFIT_OK;
    if (!turn_begin(flow))
        return;
    while (status == REFIT_OK && turn > 0 && !refit_endpoint_stopping(endpoint_of(flow)))
        status = step(flow, &turn, &err);
    watch(flow);
    turn_end(flow, status, &err);
}
