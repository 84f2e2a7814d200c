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
#include "transport/places.h"

/* ---- the life of a ticket (the lock is held) ---- */

static void ticket_free(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    if (ticket->flow) {
        ticket->flow->tickets--;
        if (ticket->slot >= 0)
            ticket->flow->slots_used &= ~(1u << ticket->slot);
    }
    for (struct refit_ticket **at = &receiver->tickets; *at; at = &(*at)->next) {
        if (*at == ticket) {
            *at = ticket->next;
            break;
        }
    }
    refit_local_supply_release(ticket->supply);
    refit_segments_release(&ticket->segments);
    free(ticket->digests);
    free(ticket);
}

static void ticket_end(struct refit_local_receiver *receiver, struct refit_ticket *ticket, enum refit_status status)
{
    struct refit_endpoint_counters *counters = &receiver->base.base.counters;
    uint64_t bytes = refit_batch_bytes(receiver->base.base.config.plan, ticket->grant.edge, ticket->grant.batch);
    if (status == REFIT_OK || status == REFIT_CORRUPT)
        refit_count(&counters->payload_bytes, bytes);
    if (ticket->slot >= 0 && ticket->copied)
        refit_count(&counters->copied_bytes, bytes);
    refit_grants_end(&receiver->base.grants, ticket->peer, ticket->grant, status);
    ticket_free(receiver, ticket);
}

static void run_queue_add(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    ticket->state = REFIT_TICKET_QUEUED;
    ticket->next_run = NULL;
    if (receiver->run_last)
        receiver->run_last->next_run = ticket;
    else
        receiver->run_first = ticket;
    receiver->run_last = ticket;
    pthread_cond_signal(&receiver->work);
}

static struct refit_ticket *run_queue_take(struct refit_local_receiver *receiver)
{
    struct refit_ticket *ticket = receiver->run_first;
    if (ticket) {
        receiver->run_first = ticket->next_run;
        if (!receiver->run_first)
            receiver->run_last = NULL;
    }
    return ticket;
}

static void run_queue_remove(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    struct refit_ticket *last = NULL;
    for (struct refit_ticket **at = &receiver->run_first; *at;) {
        if (*at == ticket) {
            *at = ticket->next_run;
        } else {
            last = *at;
            at = &last->next_run;
        }
    }
    receiver->run_last = last;
}

/* Copied and answered, whichever came last: is what landed what the holder meant? */
static void ticket_settle(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    struct refit_peer *peer = ticket->peer;
    enum refit_status status = ticket->status;
    if (status == REFIT_OK && receiver->base.base.config.verify && ticket->flow && ticket->flow->fd >= 0 &&
        !refit_digests_match(&ticket->segments, 0, ticket->expected, ticket->digests))
        status = REFIT_CORRUPT;
    if (status == REFIT_OK)
        refit_grants_landed(&receiver->base.grants, ticket->grant, &ticket->segments);
    ticket_end(receiver, ticket, status);
    refit_local_dispatch(&receiver->base, peer);
}

/* ---- from a queue to a ticket (the lock is held) ---- */

static int free_slot(const struct refit_local_flow *flow)
{
    for (unsigned i = 0; i < flow->supply->ring_slots; i++)
        if (!(flow->slots_used & (1u << i)))
            return (int)i;
    return -1;
}

static bool reserve_digests(const struct refit_endpoint_config *config, struct refit_ticket *ticket)
{
    const struct refit_edge *edge = ticket->grant.edge;
    uint32_t batch = ticket->grant.batch, rank = refit_plan_landing_rank(config->plan, edge, batch);
    struct refit_error err;
    if (!config->verify)
        return true;
    if (refit_segments_of(&ticket->segments, refit_walk_batch(config->plan, edge, batch, rank), &err) != REFIT_OK)
        return false;
    ticket->expected = ticket->segments.count;
    ticket->digests = malloc(ticket->expected * REFIT_DIGEST_BYTES + 1);
    return ticket->digests != NULL;
}

static struct refit_ticket *ticket_create(struct refit_local_flow *flow, struct refit_grant grant, int slot)
{
    const struct refit_endpoint_config *config = &flow->receiver->base.base.config;
    struct refit_ticket *ticket = calloc(1, sizeof *ticket);
    if (!ticket)
        return NULL;
    *ticket = (struct refit_ticket){.state = REFIT_TICKET_WAITING,
                                    .grant = grant,
                                    .peer = flow->peer,
                                    .flow = flow,
                                    .supply = flow->supply,
                                    .slot = slot,
                                    .after_answer = slot >= 0 || flow->supply->relay,
                                    .next = flow->receiver->tickets};
    refit_segments_init(&ticket->segments, config->verify);
    ticket->answer_due = flow->fd >= 0 && (config->verify || ticket->after_answer);
    flow->receiver->tickets = ticket;
    flow->supply->references++;
    flow->tickets++;
    if (slot >= 0)
        flow->slots_used |= 1u << slot;
    if (!reserve_digests(config, ticket)) {
        ticket_free(flow->receiver, ticket);
        return NULL;
    }
    return ticket;
}

static void ticket_start(struct refit_local_flow *flow, struct refit_grant grant, int slot)
{
    struct refit_local_receiver *receiver = flow->receiver;
    bool owed = refit_local_answer_due(flow);
    struct refit_ticket *ticket = ticket_create(flow, grant, slot);
    if (!ticket) {
        refit_grants_end(&receiver->base.grants, flow->peer, grant, REFIT_NO_MEMORY);
        return;
    }
    struct refit_frame frame = {.type = REFIT_FRAME_GRANT,
                                .edge = grant.edge->digest,
                                .batch = grant.batch,
                                .argument = (uint32_t)(slot + 1)};
    if (!owed)
        flow->heard_ns = refit_clock_ns(); /* from here on it owes */
    /* A holder that does not take so few bytes is lost; the events thread sees that. */
    if (ticket->answer_due && !refit_frame_post(flow->fd, &frame))
        shutdown(flow->fd, SHUT_RDWR);
    if (!ticket->after_answer)
        run_queue_add(receiver, ticket);
}

/* The next batch of the peer, if it can start. */
static bool start_one(struct refit_local_flow *flow)
{
    struct refit_peer *peer = flow->peer;
    struct refit_grant grant = peer->queue[peer->queue_first];
    const struct refit_arena *arena;
    struct refit_walk walk;
    int slot = -1;
    if (!refit_local_supply_window(flow->supply, grant.edge, grant.batch, &arena, &walk) &&
        (slot = free_slot(flow)) < 0)
        return false;
    refit_peer_next(peer, &grant);
    ticket_start(flow, grant, slot);
    return true;
}

void refit_local_dispatch(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_local_flow *flow = peer->flows;
    (void)receiving;
    while (flow && !flow->cut && peer->queue_count > 0 && flow->tickets < REFIT_OWED_MAX && start_one(flow))
        ;
}

/* ---- the holder's answers, and its end (the lock is held) ---- */

static struct refit_ticket *answered_ticket(struct refit_local_flow *flow, const struct refit_frame *frame)
{
    struct refit_ticket *ticket = flow->receiver->tickets;
    while (ticket && (ticket->flow != flow || !ticket->answer_due || ticket->grant.edge->digest != frame->edge ||
                      ticket->grant.batch != frame->batch))
        ticket = ticket->next;
    return ticket;
}

enum refit_status refit_local_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err)
{
    struct refit_frame frame = {.type = 0};
    struct refit_cursor at = refit_cursor_over(packet, len);
    const uint8_t *head = refit_cursor_bytes(&at, sizeof frame);
    if (head)
        memcpy(&frame, head, sizeof frame);
    uint32_t first = refit_cursor_u32(&at);
    uint32_t total = refit_cursor_u32(&at);
    struct refit_ticket *ticket = answered_ticket(flow, &frame);
    if (at.failed || !ticket)
        return refit_fail(err, REFIT_PEER, "sent digests of batch %u of edge %016llx, which was not granted",
                          frame.batch, (unsigned long long)frame.edge);
    if (total != ticket->expected || first != ticket->answered ||
        frame.length > ticket->expected - ticket->answered ||
        refit_cursor_left(&at) != (size_t)frame.length * REFIT_DIGEST_BYTES)
        return refit_fail(err, REFIT_PEER,
                          "sent %u digests from %u on, of %u, of batch %u; expected those from %zu of %zu",
                          frame.length, first, total, frame.batch, ticket->answered, ticket->expected);
    if (frame.length > 0)
        memcpy(ticket->digests + ticket->answered * REFIT_DIGEST_BYTES, at.at,
               (size_t)frame.length * REFIT_DIGEST_BYTES);
    ticket->answered += frame.length;
    if (ticket->answered < ticket->expected)
        return REFIT_OK;
    ticket->answer_due = false;
    if (ticket->after_answer)
        run_queue_add(flow->receiver, ticket);
    else if (ticket->copied)
        ticket_settle(flow->receiver, ticket);
    return REFIT_OK;
}

bool refit_local_answer_due(const struct refit_local_flow *flow)
{
    for (const struct refit_ticket *ticket = flow->receiver->tickets; ticket; ticket = ticket->next)
        if (ticket->flow == flow && ticket->answer_due)
            return true;
    return false;
}

void refit_local_flow_lost(struct refit_local_flow *flow)
{
    struct refit_local_receiver *receiver = flow->receiver;
    for (struct refit_ticket *ticket = receiver->tickets, *next; ticket; ticket = next) {
        next = ticket->next;
        if (ticket->flow != flow)
            continue;
        ticket->flow = NULL;
        ticket->status = receiver->base.grants.stopped ? REFIT_ABORTED : REFIT_PEER;
        /* One that is queued or running ends when its worker is through with it. */
        if (ticket->state == REFIT_TICKET_WAITING)
            ticket_end(receiver, ticket, ticket->status);
    }
    flow->tickets = 0;
    flow->slots_used = 0;
    pthread_cond_broadcast(&receiver->paced);
}

bool refit_local_landing(const struct refit_receiving *receiving, const struct refit_peer *peer)
{
    const struct refit_local_receiver *receiver = (const struct refit_local_receiver *)receiving;
    for (const struct refit_ticket *ticket = receiver->tickets; ticket; ticket = ticket->next)
        if (ticket->peer == peer && !ticket->flow && ticket->state == REFIT_TICKET_RUNNING)
            return true;
    return false;
}

void refit_local_end_lost(struct refit_local_receiver *receiver, struct refit_peer *peer, enum refit_status status)
{
    for (struct refit_ticket *ticket = receiver->tickets, *next; ticket; ticket = next) {
        next = ticket->next;
        if (ticket->peer != peer || ticket->flow)
            continue;
        run_queue_remove(receiver, ticket);
        ticket_end(receiver, ticket, status);
    }
}

/* ---- workers ---- */

/* By the landing rank first, then from its memory to the others of the group. */
static enum refit_status pull(struct refit_local_receiver *receiver, struct refit_ticket *ticket,
                              struct refit_places *places, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    const struct refit_grant grant = ticket->grant;
    const struct refit_local_supply *supply = ticket->supply;
    const struct refit_arena *arena;
    struct refit_walk from;
    struct refit_completion completion;
    enum refit_status status = refit_places_of(places, config, grant.edge, grant.batch, err);
    if (status != REFIT_OK)
        return status;
    const struct refit_place *first = &places->items[0];
    if (ticket->slot >= 0) {
        const uint8_t *slot = supply->ring + (size_t)ticket->slot * REFIT_BATCH_BYTES_MAX;
        status = refit_memory_scatter(first->arena, first->walk, slot, &ticket->segments, &completion, err);
    } else if (refit_local_supply_window(supply, grant.edge, grant.batch, &arena, &from)) {
        refit_local_supply_populate(supply, arena, from);
        if (refit_arena_kind(arena) == REFIT_ARENA_CUDA && !refit_memory_reaches(first->arena, arena))
            refit_count(&receiver->base.base.counters.copied_bytes, from.left);
        status = refit_memory_copy(first->arena, first->walk, arena, from, &ticket->segments, &completion, err);
    } else {
        return refit_fail(err, REFIT_INVALID, "the holder's memory does not have the batch any more");
    }
    status = refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    return status == REFIT_OK ? refit_places_spread(places, err) : status;
}

/* Waits for the rate limit, unless the ticket is lost meanwhile. The lock is held. */
static void pace(struct refit_local_receiver *receiver, struct refit_ticket *ticket)
{
    struct refit_grants *grants = &receiver->base.grants;
    uint64_t bytes = refit_batch_bytes(grants->config->plan, ticket->grant.edge, ticket->grant.batch);
    struct refit_deadline due = {.at_ns = refit_clock_ns()};
    due.at_ns += refit_rate_take(&receiver->base.rate, bytes, due.at_ns);
    struct timespec until = refit_deadline_timespec(due);
    while (!refit_deadline_passed(due) && ticket->flow && !grants->stopped)
        pthread_cond_timedwait(&receiver->paced, &grants->lock, &until);
}

/* The lock is held, but for the copy itself. */
static void work(struct refit_local_receiver *receiver, struct refit_ticket *ticket, struct refit_places *places)
{
    struct refit_endpoint *endpoint = &receiver->base.base;
    struct refit_grants *grants = &receiver->base.grants;
    struct refit_error err;
    ticket->state = REFIT_TICKET_RUNNING;
    pace(receiver, ticket);
    if (!ticket->flow || grants->stopped) {
        ticket->state = REFIT_TICKET_WAITING;
        ticket_settle(receiver, ticket);
        pthread_cond_broadcast(&grants->event);
        return;
    }
    pthread_mutex_unlock(&grants->lock);
    int64_t start = refit_clock_ns();
    enum refit_status status = pull(receiver, ticket, places, &err);
    refit_count(&endpoint->counters.pack_ns, (uint64_t)(refit_clock_ns() - start));
    if (status != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "batch not pulled", refit_log_text("refit", endpoint->config.refit_id),
                          refit_log_u64("holder", ticket->peer->number), refit_log_u64("edge", ticket->grant.edge->digest),
                          refit_log_u64("batch", ticket->grant.batch), REFIT_LOG_CAUSE(&err));
    pthread_mutex_lock(&grants->lock);
    ticket->copied = true;
    if (ticket->status == REFIT_OK)
        ticket->status = status;
    ticket->state = REFIT_TICKET_WAITING;
    if (!ticket->flow)
        pthread_cond_broadcast(&grants->event);
    if (!ticket->answer_due || !ticket->flow)
        ticket_settle(receiver, ticket);
}

void *refit_local_worker(void *arg)
{
    struct refit_local_receiver *receiver = arg;
    struct refit_grants *grants = &receiver->base.grants;
    struct refit_places places;
    refit_places_init(&places);
    refit_bulk_thread_nice(grants->config->nice);
    pthread_mutex_lock(&grants->lock);
    while (!grants->stopped) {
        struct refit_ticket *ticket = run_queue_take(receiver);
        if (ticket)
            work(receiver, ticket, &places);
        else
            pthread_cond_wait(&receiver->work, &grants->lock);
    }
    pthread_mutex_unlock(&grants->lock);
    refit_places_release(&places);
    return NULL;
}
