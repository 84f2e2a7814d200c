/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets: batches that are being pulled, and the workers that pull them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cursor.h"
#include "base/log.h"
#include "transport/local_receiver.h"
#include "transport/window.h"

/* ---- the life of a ticket (the lock is held) ---- */

static void ticket_free(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    if (ticket->flow && ticket->slot >= 0)
        ticket->flow->slots_used &= ~(1u << ticket->slot);
    refit_local_supply_release(ticket->supply);
    ticket->supply = NULL;
    ticket->flow = NULL;
    ticket->state = REFIT_TICKET_FREE;
    receiver->tickets_free++;
}

static void ticket_end(struct refit_local_receiver *receiver, struct refit_ticket *ticket, enum refit_status status)
{
    struct refit_endpoint_counters *counters = &receiver->base.counters;
    uint64_t bytes = refit_batch_bytes(ticket->grant.edge, ticket->grant.batch);
    if (status == REFIT_OK || status == REFIT_CORRUPT)
        refit_count(&counters->payload_bytes, bytes);
    if (ticket->slot >= 0 && ticket->copied)
        refit_count(&counters->copied_bytes, bytes);
    refit_grants_end(&receiver->grants, ticket->grant, status);
    ticket_free(receiver, ticket);
}

static void run_queue_add(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    ticket->state = REFIT_TICKET_QUEUED;
    ticket->next = NULL;
    if (receiver->run_last)
        receiver->run_last->next = ticket;
    else
        receiver->run_first = ticket;
    receiver->run_last = ticket;
    pthread_cond_signal(&receiver->work);
}

static struct refit_ticket *run_queue_take(struct refit_local_receiver *receiver)
{
    struct refit_ticket *ticket = receiver->run_first;
    if (ticket) {
        receiver->run_first = ticket->next;
        if (!receiver->run_first)
            receiver->run_last = NULL;
    }
    return ticket;
}

/* Copied and answered, whichever came last: is what landed what the holder meant? */
static void ticket_settle(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    enum refit_status status = ticket->status;
    if (status == REFIT_OK && receiver->base.config.verify) {
        if (ticket->flow && ticket->flow->fd >= 0 &&
            !refit_digests_match(&ticket->segments, 0, ticket->expected, ticket->digests))
            status = REFIT_CORRUPT;
        else
            refit_grants_tally(&receiver->grants, ticket->grant, &ticket->segments);
    }
    ticket_end(receiver, ticket, status);
    refit_local_dispatch(receiver);
}

/* ---- from a queue to a ticket (the lock is held) ---- */

static bool needs_ring(const struct refit_local_supply *supply, struct refit_grant grant)
{
    if (supply->complete)
        return false;
    const struct refit_edge *edge =
        refit_plan_edge(supply->plan, grant.edge->source_rank, grant.edge->destination_rank);
    return edge && !refit_window_bound(supply->arena, refit_walk_batch(supply->plan, edge, grant.batch));
}

static int free_slot(const struct refit_local_flow *flow)
{
    for (unsigned i = 0; i < flow->supply->ring_slots; i++)
        if (!(flow->slots_used & (1u << i)))
            return (int)i;
    return -1;
}

static bool reserve_digests(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    struct refit_error err;
    const struct refit_grant *grant = &ticket->grant;
    ticket->answered = 0;
    ticket->expected = 0;
    if (!receiver->base.config.verify)
        return true;
    if (refit_segments_of(&ticket->segments, refit_walk_batch(receiver->base.config.plan, grant->edge, grant->batch),
                          &err) != REFIT_OK)
        return false;
    ticket->expected = ticket->segments.count;
    size_t bytes = ticket->expected * REFIT_DIGEST_BYTES;
    if (bytes <= ticket->digest_capacity)
        return true;
    uint8_t *digests = realloc(ticket->digests, bytes);
    if (!digests)
        return false;
    ticket->digests = digests;
    ticket->digest_capacity = bytes;
    return true;
}

static struct refit_ticket *free_ticket(struct refit_local_receiver *receiver)
{
    for (unsigned i = 0; i < receiver->ticket_count; i++)
        if (receiver->tickets[i].state == REFIT_TICKET_FREE)
            return &receiver->tickets[i];
    return NULL;
}

static void ticket_start(struct refit_local_receiver *receiver, struct refit_ticket *ticket,
                         struct refit_local_flow *flow, struct refit_grant grant, int slot)
{
    receiver->tickets_free--;
    ticket->grant = grant;
    ticket->flow = flow;
    ticket->supply = flow->supply;
    ticket->supply->references++;
    ticket->slot = slot;
    ticket->copied = false;
    ticket->status = REFIT_OK;
    ticket->state = REFIT_TICKET_WAITING;
    ticket->answer_due = flow->fd >= 0 && (receiver->base.config.verify || slot >= 0);
    if (slot >= 0)
        flow->slots_used |= 1u << slot;
    if (!reserve_digests(receiver, ticket)) {
        ticket_end(receiver, ticket, REFIT_NO_MEMORY);
        return;
    }
    /* A holder that does not take 16 bytes is lost; the events thread sees that. */
    if (ticket->answer_due && !refit_frame_post(flow->fd, REFIT_FRAME_GRANT, grant.edge->destination_rank, grant.batch,
                                                (uint32_t)(slot + 1)))
        shutdown(flow->fd, SHUT_RDWR);
    if (slot < 0)
        run_queue_add(receiver, ticket);
}

/* One batch of the peer, if it has one that can start. */
static bool start_one(struct refit_local_receiver *receiver, struct refit_peer *peer)
{
    struct refit_local_flow *flow = peer->owner;
    struct refit_ticket *ticket = free_ticket(receiver);
    if (!flow || !ticket || peer->queue_count == 0)
        return false;
    struct refit_grant grant = peer->queue[peer->queue_first];
    int slot = -1;
    if (needs_ring(flow->supply, grant) && (slot = free_slot(flow)) < 0)
        return false;
    refit_peer_next(peer, &grant);
    ticket_start(receiver, ticket, flow, grant, slot);
    return true;
}

void refit_local_dispatch(struct refit_local_receiver *receiver)
{
    struct refit_peer *peers = receiver->grants.peers;
    bool more = peers != NULL;
    while (more && receiver->tickets_free > 0) {
        /* Once around, from where the last turn ended. */
        struct refit_peer *start = receiver->turn ? receiver->turn : peers, *peer = start;
        more = false;
        do {
            struct refit_peer *next = peer->next ? peer->next : peers;
            if (receiver->tickets_free > 0 && start_one(receiver, peer)) {
                more = true;
                receiver->turn = next;
            }
            peer = next;
        } while (peer != start);
    }
}

/* ---- the holder's answers (the lock is held) ---- */

static struct refit_ticket *answered_ticket(struct refit_local_flow *flow, uint32_t rank, uint32_t batch)
{
    struct refit_local_receiver *receiver = flow->receiver;
    for (unsigned i = 0; i < receiver->ticket_count; i++) {
        struct refit_ticket *ticket = &receiver->tickets[i];
        if (ticket->state != REFIT_TICKET_FREE && ticket->flow == flow && ticket->answer_due &&
            ticket->grant.edge->destination_rank == rank && ticket->grant.batch == batch)
            return ticket;
    }
    return NULL;
}

enum refit_status refit_local_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err)
{
    struct refit_cursor at = refit_cursor_over(packet, len);
    refit_cursor_u32(&at); /* the type, which the caller has looked at */
    uint32_t rank = refit_cursor_u32(&at);
    uint32_t batch = refit_cursor_u32(&at);
    uint32_t count = refit_cursor_u32(&at);
    uint32_t first = refit_cursor_u32(&at);
    uint32_t total = refit_cursor_u32(&at);
    struct refit_ticket *ticket = answered_ticket(flow, rank, batch);
    if (at.failed || !ticket)
        return refit_fail(err, REFIT_PEER, "sent digests of batch %u for rank %u, which was not granted", batch, rank);
    if (total != ticket->expected || first != ticket->answered || count > ticket->expected - ticket->answered ||
        refit_cursor_left(&at) != (size_t)count * REFIT_DIGEST_BYTES)
        return refit_fail(err, REFIT_PEER,
                          "sent digests %u to %u of %u of batch %u, expected those from %zu of %zu", first,
                          first + count, total, batch, ticket->answered, ticket->expected);
    if (count > 0)
        memcpy(ticket->digests + ticket->answered * REFIT_DIGEST_BYTES, at.at, (size_t)count * REFIT_DIGEST_BYTES);
    ticket->answered += count;
    if (ticket->answered < ticket->expected)
        return REFIT_OK;
    ticket->answer_due = false;
    if (ticket->slot >= 0)
        run_queue_add(flow->receiver, ticket);
    else if (ticket->copied)
        ticket_settle(flow->receiver, ticket);
    return REFIT_OK;
}

void refit_local_flow_lost(struct refit_local_flow *flow)
{
    struct refit_local_receiver *receiver = flow->receiver;
    for (unsigned i = 0; i < receiver->ticket_count; i++) {
        struct refit_ticket *ticket = &receiver->tickets[i];
        if (ticket->state == REFIT_TICKET_FREE || ticket->flow != flow)
            continue;
        ticket->flow = NULL;
        ticket->status = REFIT_PEER;
        /* One that is queued or running ends when its worker is through with it. */
        if (ticket->state == REFIT_TICKET_WAITING)
            ticket_end(receiver, ticket, REFIT_PEER);
    }
}

/* ---- workers ---- */

static enum refit_status pull(struct refit_local_receiver *receiver, struct refit_ticket *ticket,
                              struct refit_error *err)
{
    const struct refit_endpoint_config *config = &receiver->base.config;
    const struct refit_edge *edge = ticket->grant.edge;
    const struct refit_local_supply *supply = ticket->supply;
    struct refit_arena *arena = config->arenas[edge->destination_rank];
    struct refit_walk to = refit_walk_batch(config->plan, edge, ticket->grant.batch);
    struct refit_completion completion;
    enum refit_status status = refit_rate_wait(&receiver->rate, to.left, receiver->base.wake, err);
    if (status != REFIT_OK)
        return status;
    if (ticket->slot >= 0) {
        const uint8_t *slot = supply->ring + (size_t)ticket->slot * REFIT_BATCH_BYTES;
        status = refit_memory_scatter(arena, to, slot, &ticket->segments, &completion, err);
    } else {
        const struct refit_edge *there = refit_plan_edge(supply->plan, edge->source_rank, edge->destination_rank);
        if (!there || there->digest != edge->digest)
            return refit_fail(err, REFIT_MISMATCH, "the edge from rank %u to rank %u differs between the sides' plans",
                              edge->source_rank, edge->destination_rank);
        struct refit_walk from = refit_walk_batch(supply->plan, there, ticket->grant.batch);
        refit_local_supply_populate(supply, from);
        status = refit_memory_copy(arena, to, supply->arena, from, &ticket->segments, &completion, err);
    }
    if (status == REFIT_OK)
        status = refit_completion_wait(&completion, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    return status;
}

/* The lock is held, but for the copy itself. */
static void work(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    struct refit_error err;
    if (!ticket->flow) {
        ticket_settle(receiver, ticket);
        return;
    }
    ticket->state = REFIT_TICKET_RUNNING;
    pthread_mutex_unlock(&receiver->grants.lock);
    int64_t start = refit_clock_ns();
    enum refit_status status = pull(receiver, ticket, &err);
    refit_count(&receiver->base.counters.pack_ns, (uint64_t)(refit_clock_ns() - start));
    if (status != REFIT_OK && status != REFIT_ABORTED)
        refit_log(REFIT_LOG_WARN, "batch not pulled: refit=%s source_rank=%u destination_rank=%u batch=%u: %s",
                  receiver->base.config.refit_id, ticket->grant.edge->source_rank, ticket->grant.edge->destination_rank,
                  ticket->grant.batch, err.text);
    pthread_mutex_lock(&receiver->grants.lock);
    ticket->copied = true;
    if (ticket->status == REFIT_OK)
        ticket->status = status;
    ticket->state = REFIT_TICKET_WAITING;
    if (!ticket->answer_due || !ticket->flow)
        ticket_settle(receiver, ticket);
}

void *refit_local_worker(void *arg)
{
    struct refit_local_receiver *receiver = arg;
    refit_bulk_thread_nice(receiver->base.config.nice);
    pthread_mutex_lock(&receiver->grants.lock);
    while (!receiver->grants.stopped) {
        struct refit_ticket *ticket = run_queue_take(receiver);
        if (ticket)
            work(receiver, ticket);
        else
            pthread_cond_wait(&receiver->work, &receiver->grants.lock);
    }
    pthread_mutex_unlock(&receiver->grants.lock);
    return NULL;
}
