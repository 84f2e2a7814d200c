/* SPDX-License-Identifier: Apache-2.0
 *
 * What refitd says, done in the engine. After the end of the connection, as after CLOSE, all is given back before CLOSED
 * is said: refitd may have died, or think that we have.
 */
#include "transport/remote_executor.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/io.h"
#include "base/log.h"
#include "memory/cuda_probe.h"

#define OPEN_MS 10000

/* ---- opening ---- */

static enum refit_status check_open(const struct refit_remote_packet *packet, struct refit_remote_open *open,
                                    struct refit_error *err)
{
    if (packet->message.type != REFIT_REMOTE_OPEN || packet->len != sizeof *open)
        return refit_fail(err, REFIT_INVALID, "the first message must be OPEN");
    memcpy(open, packet->payload, sizeof *open);
    open->refit_id[sizeof open->refit_id - 1] = '\0';
    open->source[sizeof open->source - 1] = open->destination[sizeof open->destination - 1] = '\0';
    if (open->version != REFIT_REMOTE_VERSION)
        return refit_fail(err, REFIT_MISMATCH, "refitd speaks version %u, this library %d; use one release of both",
                          open->version, REFIT_REMOTE_VERSION);
    if (open->rank < open->first_rank || open->rank - open->first_rank >= open->rank_count || open->wanted > 1 ||
        open->holders < 1 || open->holders > REFIT_HOLDERS_MAX)
        return refit_fail(err, REFIT_INVALID, "rank %u of %u from %u on, %u holders", open->rank, open->rank_count,
                          open->first_rank, open->holders);
    return REFIT_OK;
}

/* The slot, for writing: nobody reads it while a refit fills it, and the engine's own mapping stays what it is. */
static enum refit_status map_slot(struct refit_remote_executor *executor, int fd, struct refit_error *err)
{
    const struct refit_remote_open *open = &executor->open;
    struct refit_cuda_slot_info info;
    int ordinal;
    enum refit_status status = refit_cuda_device_find(open->uuid, &ordinal, err);
    if (status == REFIT_OK)
        status = refit_cuda_slot_open(ordinal, fd, open->bytes, false, &executor->slot, err);
    if (status != REFIT_OK)
        return status;
    refit_cuda_slot_info(executor->slot, &info);
    if (memcmp(info.id, open->id, sizeof info.id) != 0)
        return refit_fail(err, REFIT_MISMATCH, "the descriptor is of another slot than refitd says");
    executor->arenas = calloc(open->rank_count, sizeof *executor->arenas);
    if (!executor->arenas)
        return refit_fail_alloc(err, "arenas of a refit", open->rank_count * sizeof *executor->arenas);
    executor->arenas[open->rank - open->first_rank] = executor->slot;
    return REFIT_OK;
}

static size_t count_batches(const struct refit_plan *plan)
{
    size_t count, batches = 1;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++)
        batches += edges[i].batches;
    return batches;
}

static enum refit_status open_endpoint(struct refit_remote_executor *executor, struct refit_error *err)
{
    const struct refit_remote_open *open = &executor->open;
    /* Without addresses: connections are handed over, by whom the token was proven. */
    enum refit_status status = refit_listener_start(&(struct refit_listener_config){.nccl = true}, &executor->listener, err);
    if (status == REFIT_OK)
        status = refit_inbox_create(count_batches(executor->plan), &executor->inbox, err);
    const struct refit_endpoint_config config = {
        .role = REFIT_RECEIVER,
        .refit_id = open->refit_id,
        .plan = executor->plan,
        .holder = open->holders,
        .arenas = executor->arenas,
        .arena_count = open->rank_count,
        .inbox = executor->inbox,
        .listener = executor->listener,
        .verify = open->verify,
        .streams = 1,
        .rate_bytes_per_s = open->rate,
        .nice = open->nice,
        .patience_ms = open->patience_ms,
        .partial = true,
        .on_landed = refit_remote_note_landed,
        .on_landed_context = executor,
    };
    return status == REFIT_OK ? refit_transport_nccl.open(&config, &executor->endpoint, err) : status;
}

static enum refit_status open_refit(struct refit_remote_executor *executor, const struct refit_remote_packet *packet,
                                    struct refit_error *err)
{
    enum refit_status status = check_open(packet, &executor->open, err);
    if (status == REFIT_OK)
        status = refit_remote_host_plan(executor->host, &executor->open, packet->fds, packet->fd_count, &executor->plan, err);
    if (status == REFIT_OK)
        status = map_slot(executor, packet->fds[2], err);
    if (status == REFIT_OK)
        status = open_endpoint(executor, err);
    if (status != REFIT_OK)
        return status;
    status = refit_bulk_thread_start(&executor->pump, refit_remote_pump_run, executor, err);
    executor->pumps = status == REFIT_OK;
    return status;
}

/* ---- what refitd says ---- */

/* Of the pump's, under its lock. NULL when out of memory. */
static struct refit_remote_holder *find_holder(struct refit_remote_executor *executor, uint32_t number)
{
    for (size_t i = 0; i < executor->holder_count; i++)
        if (executor->holders[i].number == number)
            return &executor->holders[i];
    struct refit_remote_holder *all = reallocarray(executor->holders, executor->holder_count + 1, sizeof *all);
    if (!all)
        return NULL;
    executor->holders = all;
    all[executor->holder_count] = (struct refit_remote_holder){.number = number, .told = UINT32_MAX};
    return &all[executor->holder_count++];
}

/* From now on the pump looks at it. */
static enum refit_status note_holder(struct refit_remote_executor *executor, uint32_t number, bool dropped,
                                     struct refit_error *err)
{
    pthread_mutex_lock(&executor->small);
    struct refit_remote_holder *holder = find_holder(executor, number);
    if (holder)
        holder->dropped |= dropped;
    pthread_mutex_unlock(&executor->small);
    return holder ? REFIT_OK : refit_fail_alloc(err, "a holder", sizeof *holder);
}

static enum refit_status hand_over(struct refit_remote_executor *executor, const struct refit_remote_message *m,
                                   int edges_fd, struct refit_stream *stream, struct refit_error *err)
{
    struct refit_greeting greeting = {.planner_version = REFIT_PLANNER_VERSION, .verify = executor->open.verify,
                                      .nccl = true, .holder = m->holder, .streams = 1, .edges = m->argument};
    char *edges = NULL;
    size_t len = 0;
    memcpy(greeting.refit_id, executor->open.refit_id, sizeof greeting.refit_id);
    enum refit_status status = note_holder(executor, m->holder, false, err);
    if (status == REFIT_OK)
        status = refit_remote_read(edges_fd, REFIT_OFFER_MAX * (size_t)REFIT_GREETING_EDGE_BYTES, "edges that are offered",
                                   &edges, &len, err);
    if (status == REFIT_OK && len != (size_t)m->argument * REFIT_GREETING_EDGE_BYTES)
        status = refit_fail(err, REFIT_INVALID, "%zu bytes for %u edges", len, m->argument);
    if (status == REFIT_OK)
        status = refit_listener_hand_over(executor->listener, &greeting, (uint8_t *)edges, stream, err);
    free(edges);
    return status;
}

static void on_admit(struct refit_remote_executor *executor, struct refit_remote_packet *packet)
{
    struct refit_error err;
    if (packet->fd_count != 2)
        return;
    struct refit_stream stream = {.fd = packet->fds[0]};
    packet->fds[0] = -1;
    if (hand_over(executor, &packet->message, packet->fds[1], &stream, &err) == REFIT_OK)
        return;
    refit_greeting_refuse(&stream, &err);
    refit_stream_close(&stream);
}

static enum refit_status post(struct refit_remote_executor *executor, const struct refit_remote_message *m,
                              struct refit_error *err)
{
    const struct refit_edge *edge = refit_plan_edge(executor->plan, m->edge);
    if (!edge || m->batch >= edge->batches ||
        refit_plan_landing_rank(executor->plan, edge, m->batch) != executor->open.rank)
        return refit_fail(err, REFIT_INVALID, "batch %u of edge %016llx does not land at rank %u", m->batch,
                          (unsigned long long)m->edge, executor->open.rank);
    return refit_transport_nccl.post(executor->endpoint, m->holder, edge, m->batch, err);
}

/* What can't be asked for has ended, as for a holder that is gone. It is said with all that ended, behind the news of that. */
static enum refit_status on_post(struct refit_remote_executor *executor, const struct refit_remote_message *m,
                                 struct refit_error *err)
{
    if (post(executor, m, err) == REFIT_OK)
        return REFIT_OK;
    if (!refit_inbox_reserve(executor->inbox))
        return refit_fail(err, REFIT_PEER, "refitd granted more batches than there are");
    refit_inbox_put(executor->inbox, &(struct refit_transfer_completion){.holder = m->holder, .edge = m->edge,
                                                                         .batch = m->batch, .status = REFIT_PEER});
    return REFIT_OK;
}

static enum refit_status on_drop(struct refit_remote_executor *executor, uint32_t number, struct refit_error *err)
{
    refit_transport_nccl.drop(executor->endpoint, number);
    enum refit_status status = note_holder(executor, number, true, err);
    refit_inbox_wake(executor->inbox);
    return status;
}

/* Holders are told, and refitd waits for them. */
static void on_finish(struct refit_remote_executor *executor)
{
    struct refit_error ignored;
    (void)!refit_transport_nccl.finish(executor->endpoint, refit_deadline_in_ms(0), &ignored);
}

static enum refit_status handle(struct refit_remote_executor *executor, struct refit_remote_packet *packet,
                                struct refit_error *err)
{
    const struct refit_remote_message *m = &packet->message;
    if (m->holder >= executor->open.holders)
        return refit_fail(err, REFIT_PEER, "refitd named holder %u of %u", m->holder, executor->open.holders);
    switch (m->type) {
    case REFIT_REMOTE_ADMIT: on_admit(executor, packet); return REFIT_OK;
    case REFIT_REMOTE_POST: return on_post(executor, m, err);
    case REFIT_REMOTE_DROP: return on_drop(executor, m->holder, err);
    case REFIT_REMOTE_FINISH: on_finish(executor); return REFIT_OK;
    case REFIT_REMOTE_CLOSE: return refit_fail(err, REFIT_ABORTED, "closed");
    default: return refit_fail(err, REFIT_PEER, "refitd sent a message of type %u", m->type);
    }
}

/* ---- the thread ---- */

static enum refit_status await_packet(struct refit_remote_executor *executor, struct refit_remote_packet *packet,
                                      struct refit_deadline deadline, struct refit_error *err)
{
    enum refit_status status;
    do {
        status = refit_wire_wait(executor->sock, POLLIN, executor->wake, deadline, err);
        if (status == REFIT_OK)
            status = refit_remote_receive(executor->sock, packet, err);
    } while (status == REFIT_BUSY);
    return status;
}

static enum refit_status begin(struct refit_remote_executor *executor, struct refit_remote_packet *packet,
                               struct refit_error *err)
{
    struct refit_error ignored;
    enum refit_status status = await_packet(executor, packet, refit_deadline_in_ms(OPEN_MS), err);
    if (status != REFIT_OK)
        return status;
    status = open_refit(executor, packet, err);
    refit_remote_packet_release(packet);
    const struct refit_remote_message opened = {.type = REFIT_REMOTE_OPENED, .argument = (uint32_t)status,
                                                .value[0] = status == REFIT_OK ? refit_plan_class(executor->plan) : 0};
    const char *text = status == REFIT_OK ? "" : err->text;
    if (refit_remote_say(executor, &opened, text, strnlen(text, 255), &ignored) != REFIT_OK && status == REFIT_OK) {
        *err = ignored;
        status = ignored.status;
    }
    return status;
}

static void end_pump(struct refit_remote_executor *executor)
{
    if (!executor->pumps)
        return;
    atomic_store_explicit(&executor->pump_ends, true, memory_order_release);
    eventfd_write(executor->wake, 1); /* it may wait for room */
    refit_inbox_wake(executor->inbox);
    pthread_join(executor->pump, NULL);
}

static void give_back(struct refit_remote_executor *executor)
{
    end_pump(executor);
    refit_transport_nccl.close(executor->endpoint);
    refit_listener_stop(executor->listener);
    refit_inbox_destroy(executor->inbox);
    refit_arena_release(executor->slot);
    free(executor->arenas);
    refit_plan_release(executor->plan);
    while (executor->landed) {
        struct refit_remote_landed *landed = executor->landed;
        executor->landed = landed->next;
        free(landed);
    }
    free(executor->holders);
}

void *refit_remote_executor_run(void *arg)
{
    struct refit_remote_executor *executor = arg;
    struct refit_error err;
    struct refit_remote_packet *packet = malloc(sizeof *packet);
    enum refit_status status =
        packet ? begin(executor, packet, &err) : refit_fail_alloc(&err, "a message of refitd", sizeof *packet);
    while (status == REFIT_OK) {
        status = await_packet(executor, packet, REFIT_FOREVER, &err);
        if (status == REFIT_OK) {
            status = handle(executor, packet, &err);
            refit_remote_packet_release(packet);
        }
    }
    if (status != REFIT_ABORTED)
        refit_log_limited(REFIT_LOG_WARN, "receiving in the engine ended", refit_log_text("refit", executor->open.refit_id),
                          REFIT_LOG_CAUSE(&err));
    give_back(executor);
    free(packet);
    /* Its queue may be full; then the end of the connection says it, once refitd has read what is there. */
    const struct refit_remote_message closed = {.type = REFIT_REMOTE_CLOSED};
    (void)!refit_remote_send(executor->sock, &closed, NULL, 0, NULL, 0, &err);
    refit_io_close(&executor->sock);
    atomic_store_explicit(&executor->over, true, memory_order_release);
    return NULL;
}
