/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/grants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum refit_status refit_grants_init(struct refit_grants *grants, const struct refit_endpoint_config *config,
                                    struct refit_error *err)
{
    pthread_condattr_t attributes;
    *grants = (struct refit_grants){.config = config, .ranks = refit_layout_ranks(refit_plan_source(config->plan))};
    pthread_mutex_init(&grants->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&grants->event, &attributes);
    pthread_condattr_destroy(&attributes);
    grants->by_rank = calloc(grants->ranks, sizeof(struct refit_peer *));
    grants->landed = refit_batch_set_create(config->plan);
    if (!grants->by_rank || !grants->landed) {
        refit_grants_release(grants);
        return refit_fail_alloc(err, "a receiver's ledger", grants->ranks * sizeof(struct refit_peer *));
    }
    return REFIT_OK;
}

void refit_grants_release(struct refit_grants *grants)
{
    while (grants->peers) {
        struct refit_peer *peer = grants->peers;
        grants->peers = peer->next;
        free(peer);
    }
    free(grants->by_rank);
    free(grants->ended);
    refit_batch_set_destroy(grants->landed);
    pthread_cond_destroy(&grants->event);
    pthread_mutex_destroy(&grants->lock);
}

struct refit_peer *refit_grants_peer(struct refit_grants *grants, uint32_t rank)
{
    if (grants->by_rank[rank])
        return grants->by_rank[rank];
    struct refit_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->rank = rank;
    peer->next = grants->peers;
    grants->peers = peer;
    grants->by_rank[rank] = peer;
    return peer;
}

static void tell(struct refit_grants *grants)
{
    grants->news = true;
    pthread_cond_broadcast(&grants->event);
}

void refit_peer_joined(struct refit_grants *grants, struct refit_peer *peer)
{
    peer->connections++;
    tell(grants);
}

void refit_peer_left(struct refit_grants *grants, struct refit_peer *peer, const char *why)
{
    struct refit_grant grant;
    snprintf(peer->lost, sizeof peer->lost, "%s", why);
    if (--peer->connections == 0)
        while (refit_peer_next(peer, &grant))
            refit_grants_end(grants, grant, REFIT_PEER);
    tell(grants);
}

/* Room for every batch that is out, so that ending one never has to allocate. */
static bool reserve_completion(struct refit_grants *grants)
{
    size_t need = grants->ended_count + grants->outstanding + 1;
    if (need <= grants->ended_capacity)
        return true;
    size_t capacity = need < 64 ? 64 : need * 2;
    struct refit_transfer_completion *ended = calloc(capacity, sizeof *ended);
    if (!ended)
        return false;
    for (size_t i = 0; i < grants->ended_count; i++)
        ended[i] = grants->ended[(grants->ended_first + i) % grants->ended_capacity];
    free(grants->ended);
    grants->ended = ended;
    grants->ended_first = 0;
    grants->ended_capacity = capacity;
    return true;
}

static enum refit_status check_post(const struct refit_grants *grants, const struct refit_edge *edge, uint32_t batch,
                                    const struct refit_edge *known, struct refit_error *err)
{
    const struct refit_endpoint_config *config = grants->config;
    if (grants->stopped)
        return refit_fail(err, REFIT_ABORTED, "refit %s: the endpoint was aborted", config->refit_id);
    if (grants->finished)
        return refit_fail(err, REFIT_INVALID, "refit %s: post after finish", config->refit_id);
    if (!known || batch >= known->batches)
        return refit_fail(err, REFIT_INVALID,
                          "refit %s: batch %u of the edge from rank %u to rank %u is not in the plan", config->refit_id,
                          batch, edge->source_rank, edge->destination_rank);
    if (edge->destination_rank >= config->arena_count || !config->arenas[edge->destination_rank])
        return refit_fail(err, REFIT_INVALID, "refit %s: no arena for destination rank %u", config->refit_id,
                          edge->destination_rank);
    return REFIT_OK;
}

enum refit_status refit_grants_post(struct refit_grants *grants, const struct refit_edge *edge, uint32_t batch,
                                    struct refit_peer **out, struct refit_error *err)
{
    const struct refit_edge *known = refit_plan_edge(grants->config->plan, edge->source_rank, edge->destination_rank);
    enum refit_status status = check_post(grants, edge, batch, known, err);
    if (status != REFIT_OK)
        return status;
    struct refit_peer *peer = grants->by_rank[edge->source_rank];
    if (!peer || (peer->connections == 0 && peer->lost[0] == '\0'))
        return refit_fail(err, REFIT_NOT_FOUND, "refit %s: source rank %u has not connected yet",
                          grants->config->refit_id, edge->source_rank);
    if (peer->connections == 0)
        return refit_fail(err, REFIT_PEER, "refit %s: source rank %u is gone: %s", grants->config->refit_id,
                          edge->source_rank, peer->lost);
    if (peer->queue_count == REFIT_QUEUE_MAX)
        return refit_fail(err, REFIT_BUSY, "refit %s: %d batches of source rank %u are queued; poll first",
                          grants->config->refit_id, REFIT_QUEUE_MAX, edge->source_rank);
    if (!reserve_completion(grants))
        return refit_fail_alloc(err, "completions", grants->outstanding);
    unsigned slot = (peer->queue_first + peer->queue_count++) % REFIT_QUEUE_MAX;
    peer->queue[slot] = (struct refit_grant){.edge = known, .batch = batch};
    grants->outstanding++;
    *out = peer;
    return REFIT_OK;
}

bool refit_peer_next(struct refit_peer *peer, struct refit_grant *out)
{
    if (peer->queue_count == 0)
        return false;
    *out = peer->queue[peer->queue_first];
    peer->queue_first = (peer->queue_first + 1) % REFIT_QUEUE_MAX;
    peer->queue_count--;
    return true;
}

void refit_grants_end(struct refit_grants *grants, struct refit_grant grant, enum refit_status status)
{
    size_t slot = (grants->ended_first + grants->ended_count++) % grants->ended_capacity;
    grants->ended[slot] = (struct refit_transfer_completion){
        .source_rank = grant.edge->source_rank,
        .destination_rank = grant.edge->destination_rank,
        .batch = grant.batch,
        .status = status,
    };
    grants->outstanding--;
    pthread_cond_broadcast(&grants->event);
}

void refit_grants_tally(struct refit_grants *grants, struct refit_grant grant, const struct refit_segments *segments)
{
    const struct refit_endpoint_config *config = grants->config;
    if (config->tally && config->verify && refit_batch_set_add(grants->landed, grant.edge, grant.batch))
        refit_segments_tally(segments, config->tally);
}

static size_t take_ended(struct refit_grants *grants, struct refit_transfer_completion *out, size_t max)
{
    size_t count = grants->ended_count < max ? grants->ended_count : max;
    for (size_t i = 0; i < count; i++)
        out[i] = grants->ended[(grants->ended_first + i) % grants->ended_capacity];
    if (grants->ended_capacity)
        grants->ended_first = (grants->ended_first + count) % grants->ended_capacity;
    grants->ended_count -= count;
    return count;
}

enum refit_status refit_grants_poll(struct refit_grants *grants, struct refit_transfer_completion *out, size_t max,
                                    size_t *count, struct refit_deadline deadline, struct refit_error *err)
{
    struct timespec until = refit_deadline_timespec(deadline);
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&grants->lock);
    while (grants->ended_count == 0 && !grants->news && !grants->stopped)
        if (pthread_cond_timedwait(&grants->event, &grants->lock, &until) != 0)
            break;
    if (grants->stopped)
        status = refit_fail(err, REFIT_ABORTED, "refit %s: the endpoint was aborted", grants->config->refit_id);
    else
        *count = take_ended(grants, out, max);
    grants->news = false;
    pthread_mutex_unlock(&grants->lock);
    return status;
}

void refit_grants_stop(struct refit_grants *grants)
{
    grants->stopped = true;
    pthread_cond_broadcast(&grants->event);
}

static unsigned connections(const struct refit_grants *grants)
{
    unsigned count = 0;
    for (const struct refit_peer *peer = grants->peers; peer; peer = peer->next)
        count += peer->connections;
    return count;
}

enum refit_status refit_grants_wait_empty(struct refit_grants *grants, struct refit_deadline deadline,
                                          struct refit_error *err)
{
    struct timespec until = refit_deadline_timespec(deadline);
    while (connections(grants) > 0 && !grants->stopped)
        if (pthread_cond_timedwait(&grants->event, &grants->lock, &until) != 0)
            return refit_fail(err, REFIT_TIMEOUT, "refit %s: %u connections did not say goodbye in time",
                              grants->config->refit_id, connections(grants));
    if (grants->stopped)
        return refit_fail(err, REFIT_ABORTED, "refit %s: the endpoint was aborted", grants->config->refit_id);
    return REFIT_OK;
}
