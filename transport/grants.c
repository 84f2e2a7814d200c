/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/grants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cursor.h"
#include "transport/places.h"

enum refit_status refit_grants_init(struct refit_grants *grants, const struct refit_endpoint_config *config,
                                    struct refit_error *err)
{
    *grants = (struct refit_grants){.config = config};
    refit_plan_edges(config->plan, &grants->edge_count);
    pthread_mutex_init(&grants->lock, NULL);
    refit_cond_init(&grants->event);
    grants->by_number = calloc(config->holder, sizeof(struct refit_peer *));
    if (!config->landed)
        grants->landed = refit_batch_set_create(config->plan);
    if (!grants->by_number || (!config->landed && !grants->landed)) {
        refit_grants_release(grants);
        return refit_fail_alloc(err, "a receiver's ledger", config->holder * sizeof(struct refit_peer *));
    }
    return REFIT_OK;
}

void refit_grants_release(struct refit_grants *grants)
{
    while (grants->peers) {
        struct refit_peer *peer = grants->peers;
        grants->peers = peer->next;
        free(peer->offered);
        free(peer);
    }
    free(grants->by_number);
    refit_batch_set_destroy(grants->landed);
    pthread_cond_destroy(&grants->event);
    pthread_mutex_destroy(&grants->lock);
}

struct refit_peer *refit_grants_peer(struct refit_grants *grants, uint32_t number)
{
    if (grants->by_number[number])
        return grants->by_number[number];
    struct refit_peer *peer = calloc(1, sizeof *peer);
    uint64_t *offered = calloc(grants->edge_count / 64 + 1, sizeof *offered);
    if (!peer || !offered) {
        free(peer);
        free(offered);
        return NULL;
    }
    peer->number = number;
    peer->offered = offered;
    peer->next = grants->peers;
    grants->peers = peer;
    grants->by_number[number] = peer;
    return peer;
}

static size_t edge_index(const struct refit_grants *grants, const struct refit_edge *edge)
{
    size_t count;
    return (size_t)(edge - refit_plan_edges(grants->config->plan, &count));
}

static bool offers(const struct refit_grants *grants, const struct refit_peer *peer, const struct refit_edge *edge)
{
    size_t index = edge_index(grants, edge);
    return peer->offered[index / 64] >> (index % 64) & 1;
}

void refit_peer_offers(struct refit_grants *grants, struct refit_peer *peer, const uint8_t *digests, uint32_t count)
{
    struct refit_cursor at = refit_cursor_over(digests, (size_t)count * sizeof(uint64_t));
    /* The streams of one holder offer the same; a holder that comes back may offer something else. */
    if (peer->connections == 0)
        memset(peer->offered, 0, (grants->edge_count / 64 + 1) * sizeof *peer->offered);
    for (uint32_t i = 0; i < count; i++) {
        const struct refit_edge *edge = refit_plan_edge(grants->config->plan, refit_cursor_u64(&at));
        size_t index = edge ? edge_index(grants, edge) : 0;
        if (edge)
            peer->offered[index / 64] |= UINT64_C(1) << (index % 64);
    }
}

static void tell(struct refit_grants *grants)
{
    pthread_cond_broadcast(&grants->event);
    refit_inbox_wake(grants->config->inbox);
}

void refit_peer_joined(struct refit_grants *grants, struct refit_peer *peer)
{
    peer->connections++;
    tell(grants);
}

void refit_peer_left(struct refit_grants *grants, struct refit_peer *peer, const char *why)
{
    snprintf(peer->lost, sizeof peer->lost, "%s", why);
    if (--peer->connections == 0)
        refit_peer_clear_queue(grants, peer, REFIT_PEER);
    tell(grants);
}

static enum refit_status check_batch(const struct refit_grants *grants, const struct refit_edge *edge, uint32_t batch,
                                     const struct refit_edge *known, struct refit_error *err)
{
    const struct refit_endpoint_config *config = grants->config;
    if (grants->stopped)
        return refit_fail(err, REFIT_ABORTED, "refit %s: the endpoint was aborted", config->refit_id);
    if (grants->finished)
        return refit_fail(err, REFIT_INVALID, "refit %s: post after finish", config->refit_id);
    if (!known || batch >= known->batches)
        return refit_fail(err, REFIT_INVALID, "refit %s: batch %u of edge %016llx is not in the plan",
                          config->refit_id, batch, (unsigned long long)edge->digest);
    if (!refit_places_bound(config, known))
        return refit_fail(err, REFIT_INVALID, "refit %s: a rank that wants edge %016llx has no arena", config->refit_id,
                          (unsigned long long)edge->digest);
    return REFIT_OK;
}

/* What a holder may owe at a time. */
static uint32_t owed_max(const struct refit_grants *grants, const struct refit_peer *peer)
{
    unsigned streams = grants->config->streams > peer->connections ? grants->config->streams : peer->connections;
    return streams * REFIT_GRANTS_PER_STREAM + REFIT_QUEUE_MAX;
}

static enum refit_status check_peer(const struct refit_grants *grants, const struct refit_peer *peer, uint32_t holder,
                                    const struct refit_edge *edge, struct refit_error *err)
{
    const char *id = grants->config->refit_id;
    if (!peer || (peer->connections == 0 && peer->lost[0] == '\0'))
        return refit_fail(err, REFIT_NOT_FOUND, "refit %s: holder %u has not connected yet", id, holder);
    if (peer->connections == 0)
        return refit_fail(err, REFIT_PEER, "refit %s: holder %u is gone: %s", id, holder, peer->lost);
    if (!offers(grants, peer, edge))
        return refit_fail(err, REFIT_UNSUPPORTED, "refit %s: holder %u does not offer edge %016llx", id, holder,
                          (unsigned long long)edge->digest);
    if (peer->queue_count == REFIT_QUEUE_MAX || peer->owed >= owed_max(grants, peer))
        return refit_fail(err, REFIT_BUSY, "refit %s: holder %u owes %u batches; take completions first", id, holder,
                          peer->owed);
    return REFIT_OK;
}

enum refit_status refit_grants_post(struct refit_grants *grants, uint32_t holder, const struct refit_edge *edge,
                                    uint32_t batch, struct refit_peer **out, struct refit_error *err)
{
    const struct refit_edge *known = refit_plan_edge(grants->config->plan, edge->digest);
    if (holder >= grants->config->holder)
        return refit_fail(err, REFIT_INVALID, "refit %s: holder %u of %u", grants->config->refit_id, holder,
                          grants->config->holder);
    struct refit_peer *peer = grants->by_number[holder];
    enum refit_status status = check_batch(grants, edge, batch, known, err);
    if (status == REFIT_OK)
        status = check_peer(grants, peer, holder, known, err);
    if (status != REFIT_OK)
        return status;
    if (!refit_inbox_reserve(grants->config->inbox))
        return refit_fail(err, REFIT_BUSY, "refit %s: the inbox is full; take completions first",
                          grants->config->refit_id);
    unsigned slot = (peer->queue_first + peer->queue_count++) % REFIT_QUEUE_MAX;
    peer->queue[slot] = (struct refit_grant){.edge = known, .batch = batch};
    peer->owed++;
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

void refit_peer_clear_queue(struct refit_grants *grants, struct refit_peer *peer, enum refit_status status)
{
    struct refit_grant grant;
    while (refit_peer_next(peer, &grant))
        refit_grants_end(grants, peer, grant, status);
}

void refit_grants_end(struct refit_grants *grants, struct refit_peer *peer, struct refit_grant grant,
                      enum refit_status status)
{
    peer->owed--;
    if (status == REFIT_OK)
        peer->payload_bytes += refit_batch_bytes(grants->config->plan, grant.edge, grant.batch);
    refit_inbox_put(grants->config->inbox, &(struct refit_transfer_completion){.holder = peer->number,
                                                                               .edge = grant.edge->digest,
                                                                               .batch = grant.batch,
                                                                               .status = status});
}

void refit_grants_landed(struct refit_grants *grants, struct refit_grant grant, const struct refit_segments *segments)
{
    const struct refit_endpoint_config *config = grants->config;
    if (config->on_landed)
        config->on_landed(config->on_landed_context, grant.edge, grant.batch, segments);
    bool first = config->landed ? refit_landed_mark(config->landed, grant.edge, grant.batch)
                                : refit_batch_set_add(grants->landed, grant.edge, grant.batch);
    if (first && config->tally && config->verify)
        refit_segments_tally(segments, config->tally);
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
