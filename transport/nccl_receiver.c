/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoint that lands over `nccl`: opening it, new connections, and what the ledger asks of it.
 */
#include "transport/nccl_receiver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/io.h"
#include "transport/nccl_endpoints.h"
#include "transport/nccl_reshard.h"

#define GRANTED_STREAMS 8 /* as if a holder had so many: 20 batches, two groups of 4 MiB each and some */

/* ---- a new connection, on the listener's thread ---- */

/* The lock is held. */
static enum refit_status add_flow(struct refit_nccl_receiver *receiver, struct refit_nccl_flow *flow,
                                  const struct refit_greeting *greeting, const uint8_t *edges, struct refit_error *err)
{
    enum refit_status status = refit_receiving_welcome(&receiver->base, greeting, edges, &flow->peer, err);
    if (status != REFIT_OK)
        return status;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = flow};
    if (!refit_stream_post_type(&flow->stream, REFIT_FRAME_WELCOME))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection");
    if (epoll_ctl(receiver->epoll, EPOLL_CTL_ADD, flow->stream.fd, &event) != 0)
        return refit_fail_errno(err, errno, "epoll_ctl");
    flow->heard_ns = refit_clock_ns();
    flow->next = receiver->flows;
    receiver->flows = flow;
    return REFIT_OK;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               const struct refit_stream *stream, struct refit_error *err)
{
    struct refit_nccl_receiver *receiver = (struct refit_nccl_receiver *)refit_receiving_of_gate(gate);
    enum refit_status status = refit_greeting_check(greeting, &receiver->base.base.config, err);
    if (status != REFIT_OK)
        return status;
    struct refit_nccl_flow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    flow->stream = *stream;
    flow->receiver = receiver;
    pthread_mutex_lock(&receiver->base.grants.lock);
    status = add_flow(receiver, flow, greeting, edges, err);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    if (status != REFIT_OK)
        free(flow); /* the stream is still the listener's */
    return status;
}

static bool ranks_may_share(const struct refit_nccl_receiver *receiver)
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsigned capabilities = receiver->lanes[0].device->nccl->capabilities;
    return (capabilities & REFIT_NCCL_MULTI_RANK_GPU) && allowed && strcmp(allowed, "1") == 0;
}

/* Two processes that share a GPU, which NCCL takes for a mistake unless it is told otherwise; within one process the turn
 * is one, and each end would wait for the other's. */
enum refit_status refit_nccl_receiver_check(const struct refit_nccl_receiver *receiver,
                                            const struct refit_nccl_hello *hello, struct refit_error *err)
{
    struct refit_nccl_id process = refit_nccl_process();
    bool one = refit_nccl_id_equal(&process, &hello->process);
    for (unsigned i = 0; i < receiver->lane_count; i++) {
        const struct refit_nccl_device *device = receiver->lanes[i].device;
        for (uint32_t d = 0; d < hello->device_count; d++)
            if (refit_nccl_id_equal(&device->uuid, &hello->devices[d]) && (one || !ranks_may_share(receiver)))
                return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": holder and receiver are on one GPU (device "
                                  "%d here), and NCCL takes one rank per GPU; use tcp, or two processes with NCCL 2.30.3 "
                                  "or newer and NCCL_MULTI_RANK_GPU_ENABLE=1", device->ordinal);
    }
    return REFIT_OK;
}

/* ---- the kind (the lock is held, but in join and free) ---- */

static struct refit_nccl_receiver *of(const struct refit_receiving *receiving)
{
    return (struct refit_nccl_receiver *)(uintptr_t)receiving;
}

static void cut(struct refit_receiving *receiving, struct refit_peer *peer)
{
    for (struct refit_nccl_flow *flow = of(receiving)->flows; flow; flow = flow->next)
        if (flow->peer == peer)
            refit_nccl_flow_cut(flow);
}

static bool landing(const struct refit_receiving *receiving, const struct refit_peer *peer)
{
    for (const struct refit_nccl_flow *flow = of(receiving)->flows; flow; flow = flow->next)
        if (flow->peer == peer && flow->cut && flow->users > 0)
            return true;
    return false;
}

static void reap(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    for (struct refit_nccl_flow *flow = of(receiving)->flows; flow; flow = flow->next)
        if (flow->peer == peer && flow->cut)
            refit_nccl_flow_reap(flow, status, "dropped");
}

/* What it said may lie in the socket; that our thread is behind is not its silence. */
static int64_t heard(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_nccl_flow *flow = peer->flows;
    if (!flow)
        return peer->heard_ns;
    if (refit_nccl_reshard_holds(of(receiving))) /* nothing is asked of it */
        flow->heard_ns = refit_clock_ns();
    if (refit_stream_pending(&flow->stream) > 0)
        flow->heard_ns = refit_clock_ns();
    return flow->heard_ns;
}

static void say_done(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_nccl_flow *flow = peer->flows;
    (void)receiving;
    if (flow && !refit_stream_post_type(&flow->stream, REFIT_FRAME_DONE))
        refit_stream_shutdown(&flow->stream);
}

static void join(struct refit_receiving *receiving)
{
    struct refit_nccl_receiver *receiver = of(receiving);
    pthread_mutex_lock(&receiving->grants.lock);
    pthread_cond_broadcast(&receiver->work);
    pthread_mutex_unlock(&receiving->grants.lock);
    refit_nccl_reshard_join(receiver);
    for (unsigned i = 0; i < receiver->lane_count; i++) {
        if (receiver->lanes[i].runs)
            pthread_join(receiver->lanes[i].thread, NULL);
        receiver->lanes[i].runs = false;
    }
    if (receiver->has_events)
        pthread_join(receiver->events, NULL);
    receiver->has_events = false;
}

static void receiver_free(struct refit_receiving *receiving)
{
    struct refit_nccl_receiver *receiver = of(receiving);
    while (receiver->flows) {
        refit_listener_forget(receiving->base.config.listener);
        refit_nccl_flow_free(receiver->flows);
    }
    refit_nccl_reshard_release(receiver);
    for (unsigned i = 0; i < receiver->lane_count; i++)
        refit_nccl_lane_release(&receiver->lanes[i]);
    refit_io_close(&receiver->epoll);
    pthread_cond_destroy(&receiver->work);
    refit_receiving_release(receiving);
    free(receiver);
}

static const struct refit_receiving_kind kind = {
    .name = "nccl",
    .dispatch = refit_nccl_dispatch,
    .cut = cut,
    .landing = landing,
    .reap = reap,
    .heard = heard,
    .say_done = say_done,
    .join = join,
    .free = receiver_free,
};

/* ---- opening ---- */

static bool has_lane(const struct refit_nccl_receiver *receiver, const struct refit_nccl_device *device)
{
    for (unsigned i = 0; i < receiver->lane_count; i++)
        if (receiver->lanes[i].device == device)
            return true;
    return false;
}

static enum refit_status add_lane(struct refit_nccl_receiver *receiver, const struct refit_arena *arena,
                                  struct refit_error *err)
{
    struct refit_nccl_device *device;
    enum refit_status status = refit_nccl_device_of(arena, &device, err);
    if (status != REFIT_OK)
        return status;
    if (has_lane(receiver, device)) {
        refit_nccl_device_release(device);
        return REFIT_OK;
    }
    if (receiver->lane_count == REFIT_NCCL_DEVICES_MAX) {
        refit_nccl_device_release(device);
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": memory of more than %d devices at one receiver",
                          REFIT_NCCL_DEVICES_MAX);
    }
    return refit_nccl_lane_open(&receiver->lanes[receiver->lane_count++], receiver, device, err);
}

static enum refit_status add_lanes(struct refit_nccl_receiver *receiver, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < config->arena_count && status == REFIT_OK; i++)
        if (config->arenas[i])
            status = add_lane(receiver, config->arenas[i], err);
    if (status == REFIT_OK && receiver->lane_count == 0)
        status = refit_fail(err, REFIT_INVALID, "nccl receiver: no memory to land in");
    return status;
}

static enum refit_status start(struct refit_nccl_receiver *receiver, struct refit_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    receiver->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (receiver->epoll < 0 || epoll_ctl(receiver->epoll, EPOLL_CTL_ADD, receiver->base.base.wake, &event) != 0)
        return refit_fail_errno(err, errno, "epoll of an endpoint");
    enum refit_status status = refit_bulk_thread_start(&receiver->events, refit_nccl_events_run, receiver, err);
    receiver->has_events = status == REFIT_OK;
    for (unsigned i = 0; i < receiver->lane_count && status == REFIT_OK; i++) {
        status = refit_bulk_thread_start(&receiver->lanes[i].thread, refit_nccl_lane_run, &receiver->lanes[i], err);
        receiver->lanes[i].runs = status == REFIT_OK;
    }
    if (status == REFIT_OK)
        status = refit_nccl_reshard_open(receiver, err);
    return status == REFIT_OK ? refit_receiving_listen(&receiver->base, REFIT_GATE_NCCL, admit, err) : status;
}

enum refit_status refit_nccl_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                           struct refit_error *err)
{
    if (!config->listener)
        return refit_fail(err, REFIT_INVALID, "nccl receiver: needs a listener");
    struct refit_nccl_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "an endpoint", sizeof *receiver);
    receiver->epoll = -1;
    /* One connection per holder, and so many batches that one group is gathered behind another. */
    struct refit_endpoint_config own = *config;
    own.streams = GRANTED_STREAMS;
    enum refit_status status = refit_receiving_init(&receiver->base, &kind, &own, err);
    if (status != REFIT_OK) {
        free(receiver);
        return status;
    }
    refit_cond_init(&receiver->work);
    status = add_lanes(receiver, err);
    if (status == REFIT_OK)
        status = start(receiver, err);
    if (status != REFIT_OK) {
        refit_transport_nccl.close(&receiver->base.base);
        return status;
    }
    *out = &receiver->base.base;
    return REFIT_OK;
}
