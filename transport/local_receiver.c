/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of holders on the same host, all on one thread, and the operations of the endpoint.
 */
#include "transport/local_receiver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "transport/wire.h"

struct refit_local_flow *refit_local_flow_create(struct refit_local_receiver *receiver, int fd, uint32_t rank,
                                                 struct refit_local_supply *supply)
{
    struct refit_local_flow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return NULL;
    flow->fd = fd;
    flow->receiver = receiver;
    flow->rank = rank;
    flow->supply = supply;
    flow->next = receiver->flows;
    receiver->flows = flow;
    return flow;
}

/* ---- the end of a connection ---- */

/* The lock is held. */
static void flow_free(struct refit_local_flow *flow)
{
    for (struct refit_local_flow **at = &flow->receiver->flows; *at; at = &(*at)->next) {
        if (*at == flow) {
            *at = flow->next;
            break;
        }
    }
    refit_io_close(&flow->fd);
    refit_local_supply_release(flow->supply);
    free(flow);
}

static void flow_end(struct refit_local_flow *flow, const struct refit_error *why)
{
    struct refit_local_receiver *receiver = flow->receiver;
    pthread_mutex_lock(&receiver->grants.lock);
    if (!receiver->grants.stopped && !flow->said_goodbye)
        refit_log(REFIT_LOG_WARN, "holder connection ended: refit=%s source_rank=%u: %s",
                  receiver->base.config.refit_id, flow->rank, why->text);
    refit_local_flow_lost(flow);
    if (flow->ready) {
        if (flow->peer->owner == flow)
            flow->peer->owner = NULL;
        refit_peer_left(&receiver->grants, flow->peer, why->text);
    }
    flow_free(flow);
    refit_local_dispatch(receiver);
    pthread_mutex_unlock(&receiver->grants.lock);
    refit_listener_forget(receiver->base.config.listener);
}

/* ---- packets of a connection, on the events thread ---- */

/* The holder's memory is known: grants may go out. */
static enum refit_status flow_ready(struct refit_local_flow *flow, struct refit_error *err)
{
    struct refit_local_receiver *receiver = flow->receiver;
    enum refit_status status = refit_local_supply_build(flow->supply, flow->rank, receiver->base.config.plan, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiver->grants.lock);
    struct refit_local_flow *old = flow->peer->owner;
    if (old)
        shutdown(old->fd, SHUT_RDWR);
    flow->peer->owner = flow;
    flow->ready = true;
    refit_peer_joined(&receiver->grants, flow->peer);
    /* Under the lock, so that whoever heard of it can post. */
    if (!refit_frame_post(flow->fd, REFIT_FRAME_WELCOME, 0, 0, 0))
        status = refit_fail(err, REFIT_PEER, "the holder closed the connection");
    else
        refit_local_dispatch(receiver);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

static enum refit_status take_pieces(struct refit_local_flow *flow, const uint8_t *packet, size_t len, const int *fds,
                                     size_t fd_count, struct refit_error *err)
{
    bool more;
    enum refit_status status = refit_local_supply_add(flow->supply, packet, len, fds, fd_count, &more, err);
    if (status == REFIT_OK && !more)
        status = flow_ready(flow, err);
    if (status != REFIT_OK)
        refit_greeting_refuse(flow->fd, err);
    return status;
}

static enum refit_status take_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err)
{
    uint32_t type = 0;
    memcpy(&type, packet, len < sizeof type ? len : sizeof type);
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&flow->receiver->grants.lock);
    if (type == REFIT_FRAME_DIGESTS)
        status = refit_local_answer(flow, packet, len, err);
    else if (type == REFIT_FRAME_BYE && len == REFIT_FRAME_BYTES && flow->receiver->grants.finished)
        flow->said_goodbye = true;
    else
        status = refit_fail(err, REFIT_PEER, "sent a packet of unknown type %08x", type);
    pthread_mutex_unlock(&flow->receiver->grants.lock);
    return status;
}

static enum refit_status take_packet(struct refit_local_flow *flow, struct refit_error *err)
{
    uint8_t packet[REFIT_LOCAL_PACKET_MAX];
    int fds[REFIT_IO_FDS_MAX];
    size_t len, fd_count;
    enum refit_status status =
        refit_io_recv_fds(flow->fd, packet, sizeof packet, &len, fds, REFIT_IO_FDS_MAX, &fd_count, err);
    if (status != REFIT_OK)
        return status;
    if (len == 0)
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    if (!flow->ready)
        return take_pieces(flow, packet, len, fds, fd_count, err);
    for (size_t i = 0; i < fd_count; i++)
        refit_io_close(&fds[i]);
    return fd_count == 0 ? take_answer(flow, packet, len, err)
                         : refit_fail(err, REFIT_PEER, "sent descriptors after its list of pieces");
}

static void *events_run(void *arg)
{
    struct refit_local_receiver *receiver = arg;
    struct epoll_event events[16];
    while (!refit_endpoint_stopping(&receiver->base)) {
        int n = epoll_wait(receiver->epoll, events, 16, -1);
        for (int i = 0; i < n && !refit_endpoint_stopping(&receiver->base); i++) {
            struct refit_error err;
            struct refit_local_flow *flow = events[i].data.ptr;
            enum refit_status status = flow ? take_packet(flow, &err) : REFIT_OK;
            if (status != REFIT_OK && status != REFIT_BUSY)
                flow_end(flow, &err);
        }
    }
    return NULL;
}

/* ---- a new connection, on the listener's thread ---- */

/* The lock is held. */
static enum refit_status add_flow(struct refit_local_receiver *receiver, int fd, uint32_t rank, struct refit_error *err)
{
    if (receiver->grants.stopped || receiver->grants.finished)
        return refit_fail(err, REFIT_NOT_FOUND, "refit %s needs no more bytes", receiver->base.config.refit_id);
    struct refit_peer *peer = refit_grants_peer(&receiver->grants, rank);
    struct refit_local_supply *supply = peer ? refit_local_supply_create() : NULL;
    struct refit_local_flow *flow = supply ? refit_local_flow_create(receiver, fd, rank, supply) : NULL;
    if (!flow) {
        refit_local_supply_release(supply);
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    }
    flow->peer = peer;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = flow};
    enum refit_status status = REFIT_OK;
    if (!refit_frame_post(fd, REFIT_FRAME_WELCOME, 0, 0, 0))
        status = refit_fail(err, REFIT_PEER, "the holder closed the connection");
    else if (epoll_ctl(receiver->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        status = refit_fail_errno(err, errno, "epoll_ctl");
    if (status != REFIT_OK) {
        flow->fd = -1; /* still the listener's */
        flow_free(flow);
    }
    return status;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               int fd, struct refit_error *err)
{
    struct refit_local_receiver *receiver =
        (struct refit_local_receiver *)((char *)gate - offsetof(struct refit_local_receiver, gate));
    enum refit_status status = refit_greeting_check(greeting, edges, &receiver->base.config, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiver->grants.lock);
    status = add_flow(receiver, fd, greeting->source_rank, err);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

/* ---- operations ---- */

static enum refit_status receiver_card(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err)
{
    if (!endpoint->config.listener)
        return refit_fail(err, REFIT_INVALID, "local: the sources are in this process, nobody dials");
    return refit_listener_card(endpoint->config.listener, "local", out, err);
}

static enum refit_status receiver_post(struct refit_endpoint *endpoint, const struct refit_edge *edge, uint32_t batch,
                                       struct refit_error *err)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)endpoint;
    struct refit_peer *peer;
    pthread_mutex_lock(&receiver->grants.lock);
    enum refit_status status = refit_grants_post(&receiver->grants, edge, batch, &peer, err);
    if (status == REFIT_OK)
        refit_local_dispatch(receiver);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

static enum refit_status receiver_poll(struct refit_endpoint *endpoint, struct refit_transfer_completion *out,
                                       size_t max, size_t *count, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    return refit_grants_poll(&((struct refit_local_receiver *)endpoint)->grants, out, max, count, deadline, err);
}

static enum refit_status receiver_finish(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)endpoint;
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&receiver->grants.lock);
    bool first = !receiver->grants.finished;
    receiver->grants.finished = true;
    for (struct refit_local_flow *flow = receiver->flows; flow && first; flow = flow->next)
        if (flow->fd >= 0 && !refit_frame_post(flow->fd, REFIT_FRAME_DONE, 0, 0, 0))
            shutdown(flow->fd, SHUT_RDWR);
    if (receiver->has_events)
        status = refit_grants_wait_empty(&receiver->grants, deadline, err);
    pthread_mutex_unlock(&receiver->grants.lock);
    return status;
}

static void stop_threads(struct refit_local_receiver *receiver)
{
    pthread_mutex_lock(&receiver->grants.lock);
    refit_grants_stop(&receiver->grants);
    pthread_cond_broadcast(&receiver->work);
    for (struct refit_local_flow *flow = receiver->flows; flow; flow = flow->next)
        if (flow->fd >= 0)
            shutdown(flow->fd, SHUT_RDWR);
    pthread_mutex_unlock(&receiver->grants.lock);
    for (unsigned i = 0; i < receiver->worker_count; i++)
        pthread_join(receiver->workers[i], NULL);
    if (receiver->has_events)
        pthread_join(receiver->events, NULL);
}

static void receiver_abort(struct refit_endpoint *endpoint)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)endpoint;
    refit_endpoint_stop(endpoint);
    pthread_mutex_lock(&receiver->abort_lock);
    if (!receiver->aborted) {
        if (endpoint->config.listener)
            refit_listener_unregister(endpoint->config.listener, &receiver->gate);
        stop_threads(receiver);
        receiver->aborted = true;
    }
    pthread_mutex_unlock(&receiver->abort_lock);
}

static void receiver_close(struct refit_endpoint *endpoint)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)endpoint;
    for (unsigned i = 0; i < receiver->ticket_count; i++) {
        refit_local_supply_release(receiver->tickets[i].supply);
        refit_segments_release(&receiver->tickets[i].segments);
        free(receiver->tickets[i].digests);
    }
    while (receiver->flows) {
        if (receiver->flows->fd >= 0)
            refit_listener_forget(endpoint->config.listener);
        flow_free(receiver->flows);
    }
    refit_io_close(&receiver->epoll);
    refit_grants_release(&receiver->grants);
    refit_rate_release(&receiver->rate);
    pthread_cond_destroy(&receiver->work);
    pthread_mutex_destroy(&receiver->abort_lock);
    refit_endpoint_release(endpoint);
    free(receiver);
}

static const struct refit_endpoint_ops receiver_ops = {
    .card = receiver_card,
    .post = receiver_post,
    .poll = receiver_poll,
    .finish = receiver_finish,
    .abort = receiver_abort,
    .close = receiver_close,
};

/* ---- opening ---- */

static enum refit_status start_workers(struct refit_local_receiver *receiver, struct refit_error *err)
{
    for (unsigned i = 0; i < receiver->base.config.streams; i++) {
        enum refit_status status =
            refit_bulk_thread_start(&receiver->workers[i], refit_local_worker, receiver, err);
        if (status != REFIT_OK)
            return status;
        receiver->worker_count++;
    }
    return REFIT_OK;
}

enum refit_status refit_local_receiver_create(const struct refit_endpoint_config *config,
                                              struct refit_local_receiver **out, struct refit_error *err)
{
    struct refit_local_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "an endpoint", sizeof *receiver);
    receiver->epoll = -1;
    enum refit_status status = refit_endpoint_init(&receiver->base, &receiver_ops, config, err);
    if (status != REFIT_OK)
        goto fail_alloc;
    status = refit_grants_init(&receiver->grants, &receiver->base.config, err);
    if (status != REFIT_OK)
        goto fail_endpoint;
    refit_rate_init(&receiver->rate, config->rate_bytes_per_s);
    pthread_cond_init(&receiver->work, NULL);
    pthread_mutex_init(&receiver->abort_lock, NULL);
    receiver->ticket_count = receiver->tickets_free = config->streams * REFIT_GRANTS_PER_STREAM;
    for (unsigned i = 0; i < receiver->ticket_count; i++)
        refit_segments_init(&receiver->tickets[i].segments, config->verify);
    status = start_workers(receiver, err);
    if (status != REFIT_OK) {
        receiver->base.config.listener = NULL; /* not registered yet */
        receiver_abort(&receiver->base);
        receiver_close(&receiver->base);
        return status;
    }
    *out = receiver;
    return REFIT_OK;
fail_endpoint:
    refit_endpoint_release(&receiver->base);
fail_alloc:
    free(receiver);
    return status;
}

static enum refit_status start_events(struct refit_local_receiver *receiver, struct refit_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    receiver->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (receiver->epoll < 0 || epoll_ctl(receiver->epoll, EPOLL_CTL_ADD, receiver->base.wake, &event) != 0)
        return refit_fail_errno(err, errno, "epoll");
    enum refit_status status = refit_bulk_thread_start(&receiver->events, events_run, receiver, err);
    receiver->has_events = status == REFIT_OK;
    return status;
}

enum refit_status refit_local_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                            struct refit_error *err)
{
    struct refit_local_receiver *receiver;
    if (!config->listener)
        return refit_fail(err, REFIT_INVALID, "local receiver: needs a listener");
    enum refit_status status = refit_local_receiver_create(config, &receiver, err);
    if (status != REFIT_OK)
        return status;
    receiver->gate = (struct refit_gate){.local = true, .config = &receiver->base.config, .admit = admit};
    status = start_events(receiver, err);
    if (status == REFIT_OK)
        status = refit_listener_register(config->listener, &receiver->gate, err);
    if (status != REFIT_OK) {
        receiver_abort(&receiver->base);
        receiver_close(&receiver->base);
        return status;
    }
    *out = &receiver->base;
    return REFIT_OK;
}
