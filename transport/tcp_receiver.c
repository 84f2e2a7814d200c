/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `tcp`: a few bulk threads, each with an epoll set of connections.
 *
 * A connection belongs to one thread, which alone reads it and alone frees it. Grants are sent by whoever posts or
 * completes, under the ledger's lock; there are so few of them that they always fit into the socket's buffer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "transport/frame.h"
#include "transport/grants.h"
#include "transport/listener.h"
#include "transport/rate.h"
#include "transport/tcp.h"
#include "transport/tcp_landing.h"
#include "transport/wire.h"

#define THREADS_MAX 4
#define TURN_BYTES (1u << 20) /* read from one connection before the next has its turn */
#define LOW_WATER_BYTES (512 << 10)

enum phase { FRAME, PAYLOAD, TRAILER };

struct inflow {
    int fd;
    uint32_t stream;
    struct tcp_receiver *receiver;
    struct bulk_thread *thread;
    struct refit_peer *peer;
    struct inflow *next; /* of the same peer */

    struct refit_grant granted[REFIT_GRANTS_PER_STREAM]; /* under the lock */
    unsigned granted_count;
    bool said_goodbye;

    enum phase phase;
    int low_water; /* SO_RCVLOWAT as it is; 0: as it came */
    struct refit_frame frame;
    size_t have; /* bytes of the frame or trailer */
    struct refit_grant landing_grant;
    struct refit_landing landing;
    uint8_t *trailer; /* owned */
    size_t trailer_bytes, trailer_capacity;
};

struct bulk_thread {
    pthread_t thread;
    int epoll;
    uint8_t *staging;     /* owned; of whichever connection it reads */
    unsigned connections; /* under the lock */
    struct tcp_receiver *receiver;
};

struct tcp_receiver {
    struct refit_endpoint base;
    struct refit_gate gate;
    struct refit_grants grants;
    struct refit_rate rate;
    struct bulk_thread threads[THREADS_MAX];
    unsigned thread_count;
    pthread_mutex_t abort_lock;
    bool aborted;
};

/* ---- grants (the lock is held) ---- */

static struct inflow *idlest(struct refit_peer *peer)
{
    struct inflow *best = NULL;
    for (struct inflow *flow = peer->owner; flow; flow = flow->next)
        if (!best || flow->granted_count < best->granted_count)
            best = flow;
    return best && best->granted_count < REFIT_GRANTS_PER_STREAM ? best : NULL;
}

static void grant_queued(struct tcp_receiver *receiver, struct refit_peer *peer)
{
    struct inflow *flow;
    while (peer->queue_count > 0 && (flow = idlest(peer)) != NULL) {
        struct refit_grant grant;
        refit_peer_next(peer, &grant);
        flow->granted[flow->granted_count++] = grant;
        refit_count(&receiver->base.counters.wire_bytes, REFIT_FRAME_BYTES);
        /* A connection that does not take 16 bytes is broken; its thread sees that and ends what was granted on it. */
        if (!refit_frame_post(flow->fd, REFIT_FRAME_GRANT, grant.edge->destination_rank, grant.batch, 0))
            shutdown(flow->fd, SHUT_RDWR);
    }
}

static bool find_granted(const struct inflow *flow, const struct refit_frame *frame, struct refit_grant *out)
{
    for (unsigned i = 0; i < flow->granted_count; i++) {
        if (flow->granted[i].edge->destination_rank == frame->destination_rank &&
            flow->granted[i].batch == frame->batch) {
            *out = flow->granted[i];
            return true;
        }
    }
    return false;
}

static void end_granted(struct inflow *flow, struct refit_grant grant, enum refit_status status)
{
    for (unsigned i = 0; i < flow->granted_count; i++) {
        if (flow->granted[i].edge == grant.edge && flow->granted[i].batch == grant.batch) {
            flow->granted[i] = flow->granted[--flow->granted_count];
            break;
        }
    }
    refit_grants_end(&flow->receiver->grants, grant, status);
}

/* ---- one connection, on its thread ---- */

static enum refit_status begin_batch(struct inflow *flow, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &flow->receiver->base.config;
    const struct refit_frame *frame = &flow->frame;
    pthread_mutex_lock(&flow->receiver->grants.lock);
    bool granted = find_granted(flow, frame, &flow->landing_grant);
    pthread_mutex_unlock(&flow->receiver->grants.lock);
    if (!granted)
        return refit_fail(err, REFIT_PEER, "sent batch %u for rank %u, which was not granted", frame->batch,
                          frame->destination_rank);
    const struct refit_edge *edge = flow->landing_grant.edge;
    uint64_t expected = refit_batch_bytes(edge, frame->batch);
    if (frame->length != expected)
        return refit_fail(err, REFIT_PEER, "sent batch %u for rank %u with %u bytes, expected %llu", frame->batch,
                          frame->destination_rank, frame->length, (unsigned long long)expected);
    flow->phase = PAYLOAD;
    refit_landing_begin(&flow->landing, refit_walk_batch(config->plan, edge, frame->batch),
                        config->arenas[edge->destination_rank], flow->thread->staging);
    return REFIT_OK;
}

static enum refit_status take_goodbye(struct inflow *flow, struct refit_error *err)
{
    pthread_mutex_lock(&flow->receiver->grants.lock);
    bool expected = flow->receiver->grants.finished && !flow->said_goodbye;
    flow->said_goodbye = true;
    pthread_mutex_unlock(&flow->receiver->grants.lock);
    return expected ? REFIT_OK : refit_fail(err, REFIT_PEER, "said goodbye before it was told to");
}

static enum refit_status read_part(struct inflow *flow, void *data, size_t want, struct refit_error *err)
{
    ssize_t n = recv(flow->fd, (uint8_t *)data + flow->have, want - flow->have, MSG_DONTWAIT);
    if (n > 0) {
        flow->have += (size_t)n;
        refit_count(&flow->receiver->base.counters.wire_bytes, (uint64_t)n);
        return flow->have == want ? REFIT_OK : REFIT_BUSY;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return REFIT_BUSY;
    if (n == 0 || refit_wire_is_hangup(errno))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    return refit_fail_errno(err, errno, "receive");
}

static enum refit_status read_frame(struct inflow *flow, struct refit_error *err)
{
    enum refit_status status = read_part(flow, &flow->frame, sizeof flow->frame, err);
    if (status != REFIT_OK)
        return status;
    flow->have = 0;
    if (flow->frame.type == REFIT_FRAME_DATA)
        return begin_batch(flow, err);
    if (flow->frame.type == REFIT_FRAME_BYE && flow->frame.length == 0)
        return take_goodbye(flow, err);
    return refit_fail(err, REFIT_PEER, "sent a frame of unknown type %08x", flow->frame.type);
}

static enum refit_status begin_trailer(struct inflow *flow, struct refit_error *err)
{
    const struct refit_segments *segments = &flow->landing.segments;
    size_t count = segments->digesting ? segments->count : 0;
    flow->phase = TRAILER;
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
static void set_low_water(struct inflow *flow)
{
    int bytes = flow->phase == PAYLOAD && flow->landing.left >= LOW_WATER_BYTES ? LOW_WATER_BYTES : 1;
    if (bytes != flow->low_water)
        setsockopt(flow->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    flow->low_water = bytes;
}

static enum refit_status read_payload(struct inflow *flow, size_t *got, bool *drained, struct refit_error *err)
{
    struct tcp_receiver *receiver = flow->receiver;
    set_low_water(flow);
    enum refit_status status =
        refit_landing_receive(&flow->landing, flow->fd, &receiver->base.counters, got, drained, err);
    refit_count(&receiver->base.counters.wire_bytes, *got);
    if (status == REFIT_OK)
        status = refit_rate_wait(&receiver->rate, *got, receiver->base.wake, err);
    if (status == REFIT_OK && flow->landing.left == 0)
        status = begin_trailer(flow, err);
    set_low_water(flow);
    return status;
}

/* The whole batch is in the arena: is it what the holder meant to send? */
static enum refit_status complete_batch(struct inflow *flow, struct refit_error *err)
{
    struct tcp_receiver *receiver = flow->receiver;
    const struct refit_segments *segments = &flow->landing.segments;
    size_t expected = (flow->trailer_bytes - sizeof(uint32_t)) / REFIT_DIGEST_BYTES;
    uint32_t count;
    memcpy(&count, flow->trailer, sizeof count);
    if (count != expected)
        return refit_fail(err, REFIT_PEER, "sent %u segment digests for batch %u, expected %zu", count,
                          flow->landing_grant.batch, expected);
    bool equal = refit_digests_match(segments, 0, expected, flow->trailer + sizeof count);
    refit_count(&receiver->base.counters.payload_bytes,
                refit_batch_bytes(flow->landing_grant.edge, flow->landing_grant.batch));
    if (equal)
        refit_grants_tally(&receiver->grants, flow->landing_grant, segments);
    flow->phase = FRAME;
    flow->have = 0;
    pthread_mutex_lock(&receiver->grants.lock);
    end_granted(flow, flow->landing_grant, equal ? REFIT_OK : REFIT_CORRUPT);
    grant_queued(receiver, flow->peer);
    pthread_mutex_unlock(&receiver->grants.lock);
    return REFIT_OK;
}

static enum refit_status read_trailer(struct inflow *flow, struct refit_error *err)
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
static enum refit_status step(struct inflow *flow, size_t *turn, struct refit_error *err)
{
    size_t got = 0;
    bool drained = false;
    enum refit_status status;
    switch (flow->phase) {
    case PAYLOAD: status = read_payload(flow, &got, &drained, err); break;
    case TRAILER: status = read_trailer(flow, err); break;
    case FRAME:
    default: status = read_frame(flow, err); break;
    }
    *turn -= drained || got > *turn ? *turn : got;
    return status;
}

/* ---- the end of a connection ---- */

static void unlink_flow(struct inflow *flow)
{
    for (struct inflow **at = (struct inflow **)&flow->peer->owner; *at; at = &(*at)->next) {
        if (*at == flow) {
            *at = flow->next;
            return;
        }
    }
}

static void flow_free(struct inflow *flow)
{
    refit_io_close(&flow->fd);
    refit_landing_release(&flow->landing);
    free(flow->trailer);
    free(flow);
}

static void flow_end(struct inflow *flow, const struct refit_error *why)
{
    struct tcp_receiver *receiver = flow->receiver;
    pthread_mutex_lock(&receiver->grants.lock);
    if (!receiver->grants.stopped && !flow->said_goodbye)
        refit_log(REFIT_LOG_WARN, "holder connection ended: refit=%s source_rank=%u stream=%u: %s",
                  receiver->base.config.refit_id, flow->peer->rank, flow->stream, why->text);
    unlink_flow(flow);
    while (flow->granted_count > 0)
        end_granted(flow, flow->granted[0], REFIT_PEER);
    flow->thread->connections--;
    refit_peer_left(&receiver->grants, flow->peer, why->text);
    grant_queued(receiver, flow->peer);
    pthread_mutex_unlock(&receiver->grants.lock);
    refit_listener_forget(receiver->base.config.listener);
    flow_free(flow);
}

static void serve(struct inflow *flow)
{
    struct refit_error err = {.status = REFIT_OK};
    size_t turn = TURN_BYTES;
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK && turn > 0 && !refit_endpoint_stopping(&flow->receiver->base))
        status = step(flow, &turn, &err);
    if (status != REFIT_OK && status != REFIT_BUSY)
        flow_end(flow, &err);
}

static void *bulk_thread_run(void *arg)
{
    struct bulk_thread *thread = arg;
    struct refit_endpoint *endpoint = &thread->receiver->base;
    struct epoll_event events[16];
    refit_bulk_thread_nice(endpoint->config.nice);
    while (!refit_endpoint_stopping(endpoint)) {
        int n = epoll_wait(thread->epoll, events, 16, -1);
        for (int i = 0; i < n && !refit_endpoint_stopping(endpoint); i++)
            if (events[i].data.ptr)
                serve(events[i].data.ptr);
    }
    return NULL;
}

/* ---- a new connection, on the listener's thread ---- */

static enum refit_status thread_start(struct tcp_receiver *receiver, struct refit_error *err)
{
    struct bulk_thread *thread = &receiver->threads[receiver->thread_count];
    *thread = (struct bulk_thread){.receiver = receiver, .staging = malloc(REFIT_LANDING_STAGING)};
    if (!thread->staging)
        return refit_fail_alloc(err, "staging of a thread", REFIT_LANDING_STAGING);
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (thread->epoll < 0) {
        free(thread->staging);
        return refit_fail_errno(err, errno, "epoll_create1");
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    enum refit_status status = epoll_ctl(thread->epoll, EPOLL_CTL_ADD, receiver->base.wake, &event) == 0
                                   ? refit_bulk_thread_start(&thread->thread, bulk_thread_run, thread, err)
                                   : refit_fail_errno(err, errno, "epoll_ctl");
    if (status != REFIT_OK) {
        refit_io_close(&thread->epoll);
        free(thread->staging);
        return status;
    }
    receiver->thread_count++;
    return REFIT_OK;
}

/* A thread per connection for the first few; then they are spread evenly. The lock is held. */
static enum refit_status pick_thread(struct tcp_receiver *receiver, struct bulk_thread **out, struct refit_error *err)
{
    struct bulk_thread *best = NULL;
    for (unsigned i = 0; i < receiver->thread_count; i++)
        if (!best || receiver->threads[i].connections < best->connections)
            best = &receiver->threads[i];
    if (!best || (best->connections > 0 && receiver->thread_count < THREADS_MAX)) {
        enum refit_status status = thread_start(receiver, err);
        if (status != REFIT_OK)
            return status;
        best = &receiver->threads[receiver->thread_count - 1];
    }
    *out = best;
    return REFIT_OK;
}

/* A holder that dials again takes the place of its old connection, which may not know yet that it is dead. */
static void displace(struct refit_peer *peer, uint32_t stream)
{
    for (struct inflow *flow = peer->owner; flow; flow = flow->next)
        if (flow->stream == stream)
            shutdown(flow->fd, SHUT_RDWR);
}

/* The lock is held. */
static enum refit_status add_flow(struct tcp_receiver *receiver, struct inflow *flow, uint32_t rank,
                                  struct refit_error *err)
{
    if (receiver->grants.stopped || receiver->grants.finished)
        return refit_fail(err, REFIT_NOT_FOUND, "refit %s needs no more bytes", receiver->base.config.refit_id);
    flow->peer = refit_grants_peer(&receiver->grants, rank);
    if (!flow->peer)
        return refit_fail_alloc(err, "a source rank's ledger", sizeof *flow->peer);
    enum refit_status status = pick_thread(receiver, &flow->thread, err);
    if (status != REFIT_OK)
        return status;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = flow};
    if (!refit_frame_post(flow->fd, REFIT_FRAME_WELCOME, 0, 0, 0))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    if (epoll_ctl(flow->thread->epoll, EPOLL_CTL_ADD, flow->fd, &event) != 0)
        return refit_fail_errno(err, errno, "epoll_ctl");
    displace(flow->peer, flow->stream);
    flow->next = flow->peer->owner;
    flow->peer->owner = flow;
    flow->thread->connections++;
    refit_peer_joined(&receiver->grants, flow->peer);
    grant_queued(receiver, flow->peer);
    return REFIT_OK;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               int fd, struct refit_error *err)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)((char *)gate - offsetof(struct tcp_receiver, gate));
    enum refit_status status = refit_greeting_check(greeting, edges, &receiver->base.config, err);
    if (status != REFIT_OK)
        return status;
    struct inflow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    flow->fd = fd;
    flow->receiver = receiver;
    flow->stream = greeting->stream;
    refit_landing_init(&flow->landing, receiver->base.config.verify);
    pthread_mutex_lock(&receiver->grants.lock);
    status = add_flow(receiver, flow, greeting->source_rank, err);
    pthread_mutex_unlock(&receiver->grants.lock);
    if (status != REFIT_OK) {
        flow->fd = -1; /* still the listener's */
        flow_free(flow);
    }
    return status;
}

/* ---- operations ---- */

static enum refit_status receiver_card(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err)
{
    return refit_listener_card(endpoint->config.listener, "tcp", out, err);
}

static enum refit_status receiver_post(struct refit_endpoint *endpoint, const struct refit_edge *edge, uint32_t batch,
                                       struct refit_error *err)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)endpoint;
    struct refit_peer *peer;
    pthread_mutex_lock(&receiver->grants.lock);
    enum refit_status status = refit_grants_post(&receiver->grants, edge, batch, &peer, err);
    if (status == REFIT_OK)
        grant_queued(receiver, peer);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

static enum refit_status receiver_poll(struct refit_endpoint *endpoint, struct refit_transfer_completion *out,
                                       size_t max, size_t *count, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    return refit_grants_poll(&((struct tcp_receiver *)endpoint)->grants, out, max, count, deadline, err);
}

static void for_each_flow(struct tcp_receiver *receiver, void (*act)(struct inflow *flow))
{
    for (struct refit_peer *peer = receiver->grants.peers; peer; peer = peer->next)
        for (struct inflow *flow = peer->owner; flow; flow = flow->next)
            act(flow);
}

static void say_done(struct inflow *flow)
{
    if (!refit_frame_post(flow->fd, REFIT_FRAME_DONE, 0, 0, 0))
        shutdown(flow->fd, SHUT_RDWR);
}

static void hang_up(struct inflow *flow)
{
    shutdown(flow->fd, SHUT_RDWR);
}

static enum refit_status receiver_finish(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)endpoint;
    pthread_mutex_lock(&receiver->grants.lock);
    if (!receiver->grants.finished)
        for_each_flow(receiver, say_done);
    receiver->grants.finished = true;
    enum refit_status status = refit_grants_wait_empty(&receiver->grants, deadline, err);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

static void join_threads(struct tcp_receiver *receiver)
{
    for (unsigned i = 0; i < receiver->thread_count; i++)
        pthread_join(receiver->threads[i].thread, NULL);
}

static void receiver_abort(struct refit_endpoint *endpoint)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)endpoint;
    refit_endpoint_stop(endpoint);
    pthread_mutex_lock(&receiver->abort_lock);
    if (!receiver->aborted) {
        refit_listener_unregister(endpoint->config.listener, &receiver->gate);
        pthread_mutex_lock(&receiver->grants.lock);
        refit_grants_stop(&receiver->grants);
        for_each_flow(receiver, hang_up);
        pthread_mutex_unlock(&receiver->grants.lock);
        join_threads(receiver);
        receiver->aborted = true;
    }
    pthread_mutex_unlock(&receiver->abort_lock);
}

static void receiver_free(struct tcp_receiver *receiver)
{
    refit_grants_release(&receiver->grants);
    refit_rate_release(&receiver->rate);
    pthread_mutex_destroy(&receiver->abort_lock);
    refit_endpoint_release(&receiver->base);
    free(receiver);
}

static void receiver_close(struct refit_endpoint *endpoint)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)endpoint;
    for (struct refit_peer *peer = receiver->grants.peers; peer; peer = peer->next) {
        while (peer->owner) {
            struct inflow *flow = peer->owner;
            peer->owner = flow->next;
            refit_listener_forget(endpoint->config.listener);
            flow_free(flow);
        }
    }
    for (unsigned i = 0; i < receiver->thread_count; i++) {
        refit_io_close(&receiver->threads[i].epoll);
        free(receiver->threads[i].staging);
    }
    receiver_free(receiver);
}

static const struct refit_endpoint_ops receiver_ops = {
    .card = receiver_card,
    .post = receiver_post,
    .poll = receiver_poll,
    .finish = receiver_finish,
    .abort = receiver_abort,
    .close = receiver_close,
};

enum refit_status refit_tcp_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                          struct refit_error *err)
{
    if (!config->listener)
        return refit_fail(err, REFIT_INVALID, "tcp receiver: needs a listener");
    struct tcp_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "an endpoint", sizeof *receiver);
    enum refit_status status = refit_endpoint_init(&receiver->base, &receiver_ops, config, err);
    if (status != REFIT_OK)
        goto fail_alloc;
    status = refit_grants_init(&receiver->grants, &receiver->base.config, err);
    if (status != REFIT_OK)
        goto fail_endpoint;
    refit_rate_init(&receiver->rate, config->rate_bytes_per_s);
    pthread_mutex_init(&receiver->abort_lock, NULL);
    receiver->gate = (struct refit_gate){.local = false, .config = &receiver->base.config, .admit = admit};
    status = refit_listener_register(config->listener, &receiver->gate, err);
    if (status != REFIT_OK) {
        receiver_free(receiver);
        return status;
    }
    *out = &receiver->base;
    return REFIT_OK;
fail_endpoint:
    refit_endpoint_release(&receiver->base);
fail_alloc:
    free(receiver);
    return status;
}
