/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `tcp`: a few bulk threads, each with an epoll set of connections.
 *
 * A connection belongs to one thread, which alone reads it and alone frees it. Grants are sent by whoever posts or
 * completes, under the ledger's lock; there are so few of them that they always fit into the socket's buffer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "transport/receiving.h"
#include "transport/tcp.h"
#include "transport/tcp_landing.h"

#define THREADS_MAX 4
#define TURN_BYTES (1u << 20) /* read from one connection before the next has its turn */
#define LOW_WATER_BYTES (512 << 10)

enum phase { FRAME, PAYLOAD, TRAILER };

struct inflow {
    struct refit_stream stream;
    uint32_t number; /* of the holder's streams */
    struct tcp_receiver *receiver;
    struct bulk_thread *thread;
    struct refit_peer *peer;
    struct inflow *next; /* of the same peer, or of those that are reaped */

    /* Under the lock. */
    struct refit_grant granted[REFIT_GRANTS_PER_STREAM];
    unsigned granted_count;
    bool said_goodbye;
    bool active; /* its thread is reading it */
    bool cut;    /* its thread must not begin to */
    bool reaped; /* nothing is granted on it any more, and its peer has forgotten it */
    int64_t heard_ns;
    size_t heard_pending;

    enum phase phase;
    _Atomic int low_water; /* SO_RCVLOWAT as it is; 0: as it came */
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
    struct refit_receiving base;
    struct inflow *reaped; /* until their threads free them */
    struct bulk_thread threads[THREADS_MAX];
    unsigned thread_count;
};

static struct refit_endpoint *endpoint_of(struct inflow *flow)
{
    return &flow->receiver->base.base;
}

/* ---- grants (the lock is held) ---- */

static struct inflow *idlest(struct refit_peer *peer)
{
    struct inflow *best = NULL;
    for (struct inflow *flow = peer->flows; flow; flow = flow->next)
        if (!flow->cut && (!best || flow->granted_count < best->granted_count))
            best = flow;
    return best && best->granted_count < REFIT_GRANTS_PER_STREAM ? best : NULL;
}

static void grant(struct inflow *flow, struct refit_grant grant)
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

static void dispatch(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct inflow *flow;
    struct refit_grant next;
    (void)receiving;
    while (peer->queue_count > 0 && (flow = idlest(peer)) != NULL && refit_peer_next(peer, &next))
        grant(flow, next);
}

static bool find_granted(const struct inflow *flow, const struct refit_frame *frame, struct refit_grant *out)
{
    for (unsigned i = 0; i < flow->granted_count; i++) {
        if (flow->granted[i].edge->digest == frame->edge && flow->granted[i].batch == frame->batch) {
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
            refit_grants_end(&flow->receiver->base.grants, flow->peer, grant, status);
            return;
        }
    }
}

/* ---- one connection, on its thread ---- */

static enum refit_status begin_batch(struct inflow *flow, struct refit_error *err)
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
    flow->phase = PAYLOAD;
    return refit_landing_begin(&flow->landing, config, edge, frame->batch, flow->thread->staging, err);
}

static enum refit_status take_goodbye(struct inflow *flow, struct refit_error *err)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    bool expected = grants->finished && !flow->said_goodbye;
    flow->said_goodbye = true;
    pthread_mutex_unlock(&grants->lock);
    return expected ? REFIT_OK : refit_fail(err, REFIT_PEER, "said goodbye before it was told to");
}

static enum refit_status read_part(struct inflow *flow, void *data, size_t want, struct refit_error *err)
{
    struct iovec iov = {.iov_base = (uint8_t *)data + flow->have, .iov_len = want - flow->have};
    size_t got;
    enum refit_status status = refit_stream_receive(&flow->stream, &iov, 1, &got, err);
    refit_count(&endpoint_of(flow)->counters.wire_bytes, got);
    flow->have += got;
    return status == REFIT_OK && flow->have < want ? REFIT_BUSY : status;
}

static enum refit_status read_frame(struct inflow *flow, struct refit_error *err)
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
        setsockopt(flow->stream.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    flow->low_water = bytes;
}

static enum refit_status read_payload(struct inflow *flow, size_t *got, bool *drained, struct refit_error *err)
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
static enum refit_status complete_batch(struct inflow *flow, struct refit_error *err)
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
    flow->phase = FRAME;
    flow->have = 0;
    pthread_mutex_lock(&receiving->grants.lock);
    end_granted(flow, landed, equal ? REFIT_OK : REFIT_CORRUPT);
    dispatch(receiving, flow->peer);
    pthread_mutex_unlock(&receiving->grants.lock);
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

/* ---- the end of a connection (the lock is held, but in flow_free) ---- */

static void unlink_flow(struct inflow *flow, struct inflow **list)
{
    for (struct inflow **at = list; *at; at = &(*at)->next) {
        if (*at == flow) {
            *at = flow->next;
            return;
        }
    }
}

static void unlink_from_peer(struct inflow *flow)
{
    struct inflow *first = flow->peer->flows;
    unlink_flow(flow, &first);
    flow->peer->flows = first;
}

static void flow_free(struct inflow *flow)
{
    refit_stream_close(&flow->stream);
    refit_landing_release(&flow->landing);
    free(flow->trailer);
    free(flow);
}

static void flow_reap(struct inflow *flow, enum refit_status status, const char *why)
{
    struct tcp_receiver *receiver = flow->receiver;
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
    dispatch(&receiver->base, flow->peer);
}

/* By its thread, the last that it does with it. */
static void flow_end(struct inflow *flow, const char *why)
{
    struct tcp_receiver *receiver = flow->receiver;
    struct refit_grants *grants = &receiver->base.grants;
    if (!grants->stopped && !flow->said_goodbye && !flow->cut)
        refit_log(REFIT_LOG_WARN, "holder connection ended: refit=%s holder=%u stream=%u: %s",
                  grants->config->refit_id, flow->peer->number, flow->number, why);
    if (!flow->reaped)
        flow_reap(flow, REFIT_PEER, why);
    unlink_flow(flow, &receiver->reaped);
    refit_listener_forget(grants->config->listener);
    flow_free(flow);
}

/* ---- turns of a thread ---- */

/* False: the connection has been cut, and is gone now. */
static bool turn_begin(struct inflow *flow)
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

static void turn_end(struct inflow *flow, enum refit_status status, const struct refit_error *err)
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

static void serve(struct inflow *flow)
{
    struct refit_error err = {.status = REFIT_OK};
    size_t turn = TURN_BYTES;
    enum refit_status status = REFIT_OK;
    if (!turn_begin(flow))
        return;
    while (status == REFIT_OK && turn > 0 && !refit_endpoint_stopping(endpoint_of(flow)))
        status = step(flow, &turn, &err);
    turn_end(flow, status, &err);
}

static void *bulk_thread_run(void *arg)
{
    struct bulk_thread *thread = arg;
    struct refit_endpoint *endpoint = &thread->receiver->base.base;
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
    enum refit_status status = epoll_ctl(thread->epoll, EPOLL_CTL_ADD, receiver->base.base.wake, &event) == 0
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
static void displace(struct refit_peer *peer, uint32_t number)
{
    for (struct inflow *flow = peer->flows; flow; flow = flow->next)
        if (flow->number == number)
            refit_stream_shutdown(&flow->stream);
}

/* The lock is held. */
static enum refit_status add_flow(struct tcp_receiver *receiver, struct inflow *flow,
                                  const struct refit_greeting *greeting, const uint8_t *edges, struct refit_error *err)
{
    enum refit_status status = refit_receiving_welcome(&receiver->base, greeting, edges, &flow->peer, err);
    if (status == REFIT_OK)
        status = pick_thread(receiver, &flow->thread, err);
    if (status != REFIT_OK)
        return status;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = flow};
    if (!refit_frame_post_type(flow->stream.fd, REFIT_FRAME_WELCOME))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    if (epoll_ctl(flow->thread->epoll, EPOLL_CTL_ADD, flow->stream.fd, &event) != 0)
        return refit_fail_errno(err, errno, "epoll_ctl");
    displace(flow->peer, flow->number);
    flow->heard_ns = refit_clock_ns();
    flow->next = flow->peer->flows;
    flow->peer->flows = flow;
    flow->thread->connections++;
    refit_peer_joined(&receiver->base.grants, flow->peer);
    dispatch(&receiver->base, flow->peer);
    return REFIT_OK;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               int fd, struct refit_error *err)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)refit_receiving_of_gate(gate);
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    enum refit_status status = refit_greeting_check(greeting, config, err);
    if (status != REFIT_OK)
        return status;
    struct inflow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    flow->stream.fd = fd;
    flow->receiver = receiver;
    flow->number = greeting->stream;
    refit_landing_init(&flow->landing, config->verify);
    pthread_mutex_lock(&receiver->base.grants.lock);
    status = add_flow(receiver, flow, greeting, edges, err);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    if (status != REFIT_OK) {
        flow->stream.fd = -1; /* still the listener's */
        flow_free(flow);
    }
    return status;
}

/* ---- the kind (the lock is held) ---- */

static void cut(struct refit_receiving *receiving, struct refit_peer *peer)
{
    (void)receiving;
    for (struct inflow *flow = peer->flows; flow; flow = flow->next) {
        flow->cut = true;
        refit_stream_shutdown(&flow->stream);
    }
}

static bool landing(const struct refit_receiving *receiving, const struct refit_peer *peer)
{
    (void)receiving;
    for (const struct inflow *flow = peer->flows; flow; flow = flow->next)
        if (flow->cut && flow->active)
            return true;
    return false;
}

static void reap(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    (void)receiving;
    for (struct inflow *flow = peer->flows, *next; flow; flow = next) {
        next = flow->next;
        if (flow->cut)
            flow_reap(flow, status, "dropped");
    }
}

/* What it sent may lie in the socket while its thread is busy with others: that the thread is behind is not its silence. */
static bool is_heard(struct inflow *flow)
{
    size_t pending = refit_stream_pending(&flow->stream);
    size_t enough = flow->low_water > 1 ? (size_t)flow->low_water : 1;
    bool more = pending != flow->heard_pending;
    flow->heard_pending = pending;
    return flow->active || more || pending >= enough;
}

static int64_t heard(struct refit_receiving *receiving, struct refit_peer *peer)
{
    int64_t last = peer->heard_ns;
    (void)receiving;
    for (struct inflow *flow = peer->flows; flow; flow = flow->next) {
        if (is_heard(flow))
            flow->heard_ns = refit_clock_ns();
        last = flow->heard_ns > last ? flow->heard_ns : last;
    }
    return last;
}

static void say_done(struct refit_receiving *receiving, struct refit_peer *peer)
{
    (void)receiving;
    for (struct inflow *flow = peer->flows; flow; flow = flow->next)
        if (!refit_stream_post(&flow->stream, &(struct refit_frame){.type = REFIT_FRAME_DONE}))
            refit_stream_shutdown(&flow->stream);
}

static void join(struct refit_receiving *receiving)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)receiving;
    for (unsigned i = 0; i < receiver->thread_count; i++)
        pthread_join(receiver->threads[i].thread, NULL);
}

static void receiver_free(struct refit_receiving *receiving)
{
    struct tcp_receiver *receiver = (struct tcp_receiver *)receiving;
    while (receiver->reaped) {
        struct inflow *flow = receiver->reaped;
        receiver->reaped = flow->next;
        refit_listener_forget(receiving->base.config.listener);
        flow_free(flow);
    }
    for (unsigned i = 0; i < receiver->thread_count; i++) {
        refit_io_close(&receiver->threads[i].epoll);
        free(receiver->threads[i].staging);
    }
    refit_receiving_release(receiving);
    free(receiver);
}

static const struct refit_receiving_kind kind = {
    .name = "tcp",
    .dispatch = dispatch,
    .cut = cut,
    .landing = landing,
    .reap = reap,
    .heard = heard,
    .say_done = say_done,
    .join = join,
    .free = receiver_free,
};

enum refit_status refit_tcp_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                          struct refit_error *err)
{
    if (!config->listener)
        return refit_fail(err, REFIT_INVALID, "tcp receiver: needs a listener");
    struct tcp_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "an endpoint", sizeof *receiver);
    enum refit_status status = refit_receiving_init(&receiver->base, &kind, config, err);
    if (status != REFIT_OK) {
        free(receiver);
        return status;
    }
    status = refit_receiving_listen(&receiver->base, false, admit, err);
    if (status != REFIT_OK) {
        receiver_free(&receiver->base);
        return status;
    }
    *out = &receiver->base.base;
    return REFIT_OK;
}
