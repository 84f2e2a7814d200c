/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of holders on the same host, all on one thread, and what the endpoint does with them.
 */
#include "transport/local_receiver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/log.h"
#include "transport/wire.h"

struct refit_local_flow *refit_local_flow_create(struct refit_local_receiver *receiver, int fd, struct refit_peer *peer,
                                                 struct refit_local_supply *supply)
{
    struct refit_local_flow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return NULL;
    flow->fd = fd;
    flow->receiver = receiver;
    flow->peer = peer;
    flow->supply = supply;
    flow->next = receiver->flows;
    receiver->flows = flow;
    return flow;
}

void refit_local_flow_ready(struct refit_local_flow *flow)
{
    struct refit_local_flow *old = flow->peer->flows;
    /* A holder that dials again takes the place of its old connection, which may not know yet that it is dead. */
    if (old && old->fd >= 0)
        shutdown(old->fd, SHUT_RDWR);
    flow->peer->flows = flow;
    flow->heard_ns = refit_clock_ns();
    flow->ready = true;
    refit_peer_joined(&flow->receiver->base.grants, flow->peer);
}

/* ---- the end of a connection (the lock is held) ---- */

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

static void flow_cut(struct refit_local_flow *flow)
{
    flow->cut = true;
    if (flow->fd >= 0)
        shutdown(flow->fd, SHUT_RDWR);
    refit_local_flow_lost(flow);
}

static void flow_reap(struct refit_local_flow *flow, const char *why)
{
    struct refit_peer *peer = flow->peer;
    if (!flow->ready || flow->reaped)
        return;
    flow->reaped = true;
    peer->heard_ns = flow->heard_ns;
    if (peer->flows == flow)
        peer->flows = NULL;
    refit_peer_left(&flow->receiver->base.grants, peer, why);
}

/* By the events thread, the last that it does with it. */
static void flow_end(struct refit_local_flow *flow, const struct refit_error *why)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    pthread_mutex_lock(&grants->lock);
    if (!grants->stopped && !flow->said_goodbye && !flow->cut)
        refit_log_limited(REFIT_LOG_WARN, "holder connection ended", refit_log_text("refit", grants->config->refit_id),
                          refit_log_u64("holder", flow->peer->number), REFIT_LOG_CAUSE(why));
    flow_cut(flow);
    flow_reap(flow, why->text);
    flow_free(flow);
    pthread_mutex_unlock(&grants->lock);
    refit_listener_forget(grants->config->listener);
}

/* ---- packets of a connection, on the events thread ---- */

/* The holder's memory is known: grants may go out. */
static enum refit_status flow_built(struct refit_local_flow *flow, struct refit_error *err)
{
    struct refit_receiving *receiving = &flow->receiver->base;
    enum refit_status status =
        refit_local_supply_build(flow->supply, &receiving->base.config, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiving->grants.lock);
    /* Answered under the lock, so that whoever heard of it can post. */
    if (flow->cut || receiving->grants.finished)
        status = refit_fail(err, REFIT_NOT_FOUND, "refit %s needs no more bytes", receiving->base.config.refit_id);
    else if (!refit_frame_post_type(flow->fd, REFIT_FRAME_WELCOME))
        status = refit_fail(err, REFIT_PEER, "the holder closed the connection");
    else
        refit_local_flow_ready(flow);
    pthread_mutex_unlock(&receiving->grants.lock);
    return status;
}

static enum refit_status take_pieces(struct refit_local_flow *flow, const uint8_t *packet, size_t len, const int *fds,
                                     size_t fd_count, struct refit_error *err)
{
    bool more;
    enum refit_status status = refit_local_supply_add(flow->supply, packet, len, fds, fd_count, &more, err);
    if (status == REFIT_OK && !more)
        status = flow_built(flow, err);
    if (status != REFIT_OK)
        refit_greeting_refuse(&(struct refit_stream){.fd = flow->fd}, err);
    return status;
}

static enum refit_status take_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err)
{
    struct refit_grants *grants = &flow->receiver->base.grants;
    uint32_t type = 0;
    memcpy(&type, packet, len < sizeof type ? len : sizeof type);
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&grants->lock);
    flow->heard_ns = refit_clock_ns();
    if (flow->cut)
        status = refit_fail(err, REFIT_PEER, "dropped");
    else if (type == REFIT_FRAME_DIGESTS)
        status = refit_local_answer(flow, packet, len, err);
    else if (type == REFIT_FRAME_BYE && len == REFIT_FRAME_BYTES && grants->finished)
        flow->said_goodbye = true;
    else if (type != REFIT_FRAME_ALIVE || len != REFIT_FRAME_BYTES)
        status = refit_fail(err, REFIT_PEER, "sent a packet of unknown type %08x", type);
    pthread_mutex_unlock(&grants->lock);
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
    struct refit_endpoint *endpoint = &receiver->base.base;
    struct epoll_event events[16];
    while (!refit_endpoint_stopping(endpoint)) {
        int n = epoll_wait(receiver->epoll, events, 16, -1);
        for (int i = 0; i < n && !refit_endpoint_stopping(endpoint); i++) {
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
static enum refit_status add_flow(struct refit_local_receiver *receiver, int fd, const struct refit_greeting *greeting,
                                  const uint8_t *edges, struct refit_error *err)
{
    struct refit_peer *peer;
    enum refit_status status = refit_receiving_welcome(&receiver->base, greeting, edges, &peer, err);
    if (status != REFIT_OK)
        return status;
    struct refit_local_supply *supply = refit_local_supply_create();
    struct refit_local_flow *flow = supply ? refit_local_flow_create(receiver, fd, peer, supply) : NULL;
    if (!flow) {
        refit_local_supply_release(supply);
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = flow};
    if (!refit_frame_post_type(fd, REFIT_FRAME_WELCOME))
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
                               const struct refit_stream *stream, struct refit_error *err)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)refit_receiving_of_gate(gate);
    enum refit_status status = refit_greeting_check(greeting, &receiver->base.base.config, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiver->base.grants.lock);
    status = add_flow(receiver, stream->fd, greeting, edges, err);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    return status;
}

/* ---- the kind (the lock is held, but in join and free) ---- */

static void cut(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)receiving;
    for (struct refit_local_flow *flow = receiver->flows; flow; flow = flow->next)
        if (flow->peer == peer)
            flow_cut(flow);
}

static void reap(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)receiving;
    refit_local_end_lost(receiver, peer, status);
    for (struct refit_local_flow *flow = receiver->flows; flow; flow = flow->next)
        if (flow->peer == peer && flow->cut)
            flow_reap(flow, "dropped");
}

/* While it owes no answer, whatever is owed waits for our own workers. */
static int64_t heard(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_local_flow *flow = peer->flows;
    int pending = 0;
    (void)receiving;
    if (!flow)
        return peer->heard_ns;
    if ((peer->owed > 0 && !refit_local_answer_due(flow)) ||
        (flow->fd >= 0 && ioctl(flow->fd, FIONREAD, &pending) == 0 && pending > 0))
        flow->heard_ns = refit_clock_ns();
    return flow->heard_ns;
}

static void say_done(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_local_flow *flow = peer->flows;
    (void)receiving;
    if (flow && flow->fd < 0)
        flow_reap(flow, "done");
    else if (flow && !refit_frame_post_type(flow->fd, REFIT_FRAME_DONE))
        shutdown(flow->fd, SHUT_RDWR);
}

static void join(struct refit_receiving *receiving)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)receiving;
    pthread_mutex_lock(&receiving->grants.lock);
    pthread_cond_broadcast(&receiver->work);
    pthread_cond_broadcast(&receiver->paced);
    pthread_mutex_unlock(&receiving->grants.lock);
    for (unsigned i = 0; i < receiver->worker_count; i++)
        pthread_join(receiver->workers[i], NULL);
    if (receiver->has_events)
        pthread_join(receiver->events, NULL);
}

static void receiver_free(struct refit_receiving *receiving)
{
    struct refit_local_receiver *receiver = (struct refit_local_receiver *)receiving;
    while (receiver->flows) {
        if (receiver->flows->fd >= 0)
            refit_listener_forget(receiving->base.config.listener);
        flow_free(receiver->flows);
    }
    refit_io_close(&receiver->epoll);
    pthread_cond_destroy(&receiver->work);
    pthread_cond_destroy(&receiver->paced);
    refit_receiving_release(receiving);
    free(receiver);
}

static const struct refit_receiving_kind kind = {
    .name = "local",
    .dispatch = refit_local_dispatch,
    .cut = cut,
    .landing = refit_local_landing,
    .reap = reap,
    .heard = heard,
    .say_done = say_done,
    .join = join,
    .free = receiver_free,
};

/* ---- opening ---- */

static enum refit_status start_workers(struct refit_local_receiver *receiver, struct refit_error *err)
{
    for (unsigned i = 0; i < receiver->base.base.config.streams; i++) {
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
    enum refit_status status = refit_receiving_init(&receiver->base, &kind, config, err);
    if (status != REFIT_OK) {
        free(receiver);
        return status;
    }
    pthread_cond_init(&receiver->work, NULL);
    refit_cond_init(&receiver->paced);
    status = start_workers(receiver, err);
    if (status != REFIT_OK) {
        refit_transport_local.close(&receiver->base.base);
        return status;
    }
    *out = receiver;
    return REFIT_OK;
}

static enum refit_status start_events(struct refit_local_receiver *receiver, struct refit_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    receiver->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (receiver->epoll < 0 || epoll_ctl(receiver->epoll, EPOLL_CTL_ADD, receiver->base.base.wake, &event) != 0)
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
    status = start_events(receiver, err);
    if (status == REFIT_OK)
        status = refit_receiving_listen(&receiver->base, REFIT_GATE_LOCAL, admit, err);
    if (status != REFIT_OK) {
        refit_transport_local.close(&receiver->base.base);
        return status;
    }
    *out = &receiver->base.base;
    return REFIT_OK;
}
