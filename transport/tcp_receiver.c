/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `tcp`: a few bulk threads, each with an epoll set of connections.
 *
 * A connection belongs to one thread, which alone reads it and alone frees it. Grants are sent by whoever posts or
 * completes, under the ledger's lock; there are so few of them that they always fit into the socket's buffer.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/io.h"
#include "transport/tcp.h"
#include "transport/tcp_inflow.h"

static void *bulk_thread_run(void *arg)
{
    struct refit_bulk_thread *thread = arg;
    struct refit_endpoint *endpoint = &thread->receiver->base.base;
    struct epoll_event events[16];
    refit_bulk_thread_nice(endpoint->config.nice);
    while (!refit_endpoint_stopping(endpoint)) {
        int n = epoll_wait(thread->epoll, events, 16, -1);
        for (int i = 0; i < n && !refit_endpoint_stopping(endpoint); i++)
            if (events[i].data.ptr)
                refit_inflow_serve(events[i].data.ptr);
    }
    return NULL;
}

/* ---- a new connection, on the listener's thread ---- */

/* Where there is a GPU among the arenas, its copy engines fetch from the staging. */
static int device_of(const struct refit_endpoint_config *config)
{
    int device = -1;
    for (uint32_t i = 0; i < config->arena_count && device < 0; i++)
        if (config->arenas[i])
            device = refit_arena_device(config->arenas[i]);
    return device;
}

static enum refit_status thread_start(struct refit_tcp_receiver *receiver, struct refit_error *err)
{
    struct refit_bulk_thread *thread = &receiver->threads[receiver->thread_count];
    *thread = (struct refit_bulk_thread){.receiver = receiver};
    enum refit_status status = refit_host_buffer_create(device_of(&receiver->base.base.config), REFIT_LANDING_STAGING,
                                                        &thread->staging, err);
    if (status != REFIT_OK)
        return status;
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (thread->epoll < 0) {
        status = refit_fail_errno(err, errno, "epoll_create1");
        refit_host_buffer_destroy(thread->staging);
        return status;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    status = epoll_ctl(thread->epoll, EPOLL_CTL_ADD, receiver->base.base.wake, &event) == 0
                                   ? refit_bulk_thread_start(&thread->thread, bulk_thread_run, thread, err)
                                   : refit_fail_errno(err, errno, "epoll_ctl");
    if (status != REFIT_OK) {
        refit_io_close(&thread->epoll);
        refit_host_buffer_destroy(thread->staging);
        return status;
    }
    receiver->thread_count++;
    return REFIT_OK;
}

/* A thread per connection for the first few; then they are spread evenly. The lock is held. */
static enum refit_status pick_thread(struct refit_tcp_receiver *receiver, struct refit_bulk_thread **out,
                                     struct refit_error *err)
{
    struct refit_bulk_thread *best = NULL;
    for (unsigned i = 0; i < receiver->thread_count; i++)
        if (!best || receiver->threads[i].connections < best->connections)
            best = &receiver->threads[i];
    if (!best || (best->connections > 0 && receiver->thread_count < REFIT_TCP_THREADS_MAX)) {
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
    for (struct refit_inflow *flow = peer->flows; flow; flow = flow->next)
        if (flow->number == number)
            refit_stream_shutdown(&flow->stream);
}

/* The lock is held. */
static enum refit_status add_flow(struct refit_tcp_receiver *receiver, struct refit_inflow *flow,
                                  const struct refit_greeting *greeting, const uint8_t *edges, struct refit_error *err)
{
    enum refit_status status = refit_receiving_welcome(&receiver->base, greeting, edges, &flow->peer, err);
    if (status == REFIT_OK)
        status = pick_thread(receiver, &flow->thread, err);
    if (status != REFIT_OK)
        return status;
    flow->watched = refit_stream_waits(&flow->stream) ? EPOLLIN | EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.events = flow->watched, .data.ptr = flow};
    if (!refit_stream_post_type(&flow->stream, REFIT_FRAME_WELCOME))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    if (epoll_ctl(flow->thread->epoll, EPOLL_CTL_ADD, flow->stream.fd, &event) != 0)
        return refit_fail_errno(err, errno, "epoll_ctl");
    displace(flow->peer, flow->number);
    flow->heard_ns = refit_clock_ns();
    flow->next = flow->peer->flows;
    flow->peer->flows = flow;
    flow->thread->connections++;
    refit_peer_joined(&receiver->base.grants, flow->peer);
    refit_inflow_dispatch(&receiver->base, flow->peer);
    return REFIT_OK;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               const struct refit_stream *stream, struct refit_error *err)
{
    struct refit_tcp_receiver *receiver = (struct refit_tcp_receiver *)refit_receiving_of_gate(gate);
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    enum refit_status status = refit_greeting_check(greeting, config, err);
    if (status != REFIT_OK)
        return status;
    struct refit_inflow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    flow->stream = *stream;
    flow->receiver = receiver;
    flow->number = greeting->stream;
    refit_landing_init(&flow->landing, config->verify);
    pthread_mutex_lock(&receiver->base.grants.lock);
    status = add_flow(receiver, flow, greeting, edges, err);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    if (status != REFIT_OK) {
        flow->stream = (struct refit_stream){.fd = -1}; /* still the listener's */
        refit_inflow_free(flow);
    }
    return status;
}

/* ---- the kind (the lock is held) ---- */

static void cut(struct refit_receiving *receiving, struct refit_peer *peer)
{
    (void)receiving;
    for (struct refit_inflow *flow = peer->flows; flow; flow = flow->next) {
        flow->cut = true;
        refit_stream_shutdown(&flow->stream);
    }
}

static bool landing(const struct refit_receiving *receiving, const struct refit_peer *peer)
{
    (void)receiving;
    for (const struct refit_inflow *flow = peer->flows; flow; flow = flow->next)
        if (flow->cut && flow->active)
            return true;
    return false;
}

static void reap(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    (void)receiving;
    for (struct refit_inflow *flow = peer->flows, *next; flow; flow = next) {
        next = flow->next;
        if (flow->cut)
            refit_inflow_reap(flow, status, "dropped");
    }
}

/* What it sent may lie in the socket while its thread is busy with others: that the thread is behind is not its
 * silence. */
static bool is_heard(struct refit_inflow *flow)
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
    for (struct refit_inflow *flow = peer->flows; flow; flow = flow->next) {
        if (is_heard(flow))
            flow->heard_ns = refit_clock_ns();
        last = flow->heard_ns > last ? flow->heard_ns : last;
    }
    return last;
}

static void say_done(struct refit_receiving *receiving, struct refit_peer *peer)
{
    (void)receiving;
    for (struct refit_inflow *flow = peer->flows; flow; flow = flow->next)
        if (!refit_stream_post(&flow->stream, &(struct refit_frame){.type = REFIT_FRAME_DONE}))
            refit_stream_shutdown(&flow->stream);
}

static void join(struct refit_receiving *receiving)
{
    struct refit_tcp_receiver *receiver = (struct refit_tcp_receiver *)receiving;
    for (unsigned i = 0; i < receiver->thread_count; i++)
        pthread_join(receiver->threads[i].thread, NULL);
}

static void receiver_free(struct refit_receiving *receiving)
{
    struct refit_tcp_receiver *receiver = (struct refit_tcp_receiver *)receiving;
    while (receiver->reaped) {
        struct refit_inflow *flow = receiver->reaped;
        receiver->reaped = flow->next;
        refit_listener_forget(receiving->base.config.listener);
        refit_inflow_free(flow);
    }
    for (unsigned i = 0; i < receiver->thread_count; i++) {
        refit_io_close(&receiver->threads[i].epoll);
        refit_host_buffer_destroy(receiver->threads[i].staging);
    }
    refit_receiving_release(receiving);
    free(receiver);
}

static const struct refit_receiving_kind kind = {
    .name = "tcp",
    .dispatch = refit_inflow_dispatch,
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
    struct refit_tcp_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "an endpoint", sizeof *receiver);
    enum refit_status status = refit_receiving_init(&receiver->base, &kind, config, err);
    if (status != REFIT_OK) {
        free(receiver);
        return status;
    }
    status = refit_receiving_listen(&receiver->base, REFIT_GATE_TCP, admit, err);
    if (status != REFIT_OK) {
        receiver_free(&receiver->base);
        return status;
    }
    *out = &receiver->base.base;
    return REFIT_OK;
}
