/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/receiving.h"

static enum refit_status receiving_card(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err)
{
    if (!endpoint->config.listener)
        return refit_fail(err, REFIT_INVALID, "card: the sources are in this process, nobody dials");
    return refit_listener_card(endpoint->config.listener, ((struct refit_receiving *)endpoint)->kind->name, out, err);
}

static enum refit_status receiving_post(struct refit_endpoint *endpoint, uint32_t holder, const struct refit_edge *edge,
                                        uint32_t batch, struct refit_error *err)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    struct refit_peer *peer;
    pthread_mutex_lock(&receiving->grants.lock);
    enum refit_status status = refit_grants_post(&receiving->grants, holder, edge, batch, &peer, err);
    if (status == REFIT_OK)
        receiving->kind->dispatch(receiving, peer);
    pthread_mutex_unlock(&receiving->grants.lock);
    return status;
}

static void receiving_look(struct refit_endpoint *endpoint, uint32_t holder, struct refit_holder_state *out)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    pthread_mutex_lock(&receiving->grants.lock);
    struct refit_peer *peer = holder < endpoint->config.holder ? receiving->grants.by_number[holder] : NULL;
    if (peer)
        *out = (struct refit_holder_state){
            .connected = peer->connections > 0,
            .lost = peer->connections == 0 && peer->lost[0] != '\0',
            .owed = peer->owed,
            .heard_ns = receiving->kind->heard(receiving, peer),
            .payload_bytes = peer->payload_bytes,
        };
    pthread_mutex_unlock(&receiving->grants.lock);
}

/* The lock is held, and let go while something is still landing. */
static void end_peer(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    refit_peer_clear_queue(&receiving->grants, peer, status);
    receiving->kind->cut(receiving, peer);
    while (receiving->kind->landing(receiving, peer))
        pthread_cond_wait(&receiving->grants.event, &receiving->grants.lock);
    receiving->kind->reap(receiving, peer, status);
}

static void receiving_drop(struct refit_endpoint *endpoint, uint32_t holder)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    pthread_mutex_lock(&receiving->grants.lock);
    struct refit_peer *peer = holder < endpoint->config.holder ? receiving->grants.by_number[holder] : NULL;
    if (peer && !receiving->grants.stopped)
        end_peer(receiving, peer, REFIT_PEER);
    pthread_mutex_unlock(&receiving->grants.lock);
}

static enum refit_status receiving_finish(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                          struct refit_error *err)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    pthread_mutex_lock(&receiving->grants.lock);
    if (!receiving->grants.finished)
        for (struct refit_peer *peer = receiving->grants.peers; peer; peer = peer->next)
            receiving->kind->say_done(receiving, peer);
    receiving->grants.finished = true;
    enum refit_status status = refit_grants_wait_empty(&receiving->grants, deadline, err);
    pthread_mutex_unlock(&receiving->grants.lock);
    return status;
}

static void stop(struct refit_receiving *receiving)
{
    struct refit_grants *grants = &receiving->grants;
    pthread_mutex_lock(&grants->lock);
    grants->stopped = true;
    for (struct refit_peer *peer = grants->peers; peer; peer = peer->next) {
        refit_peer_clear_queue(grants, peer, REFIT_ABORTED);
        receiving->kind->cut(receiving, peer);
    }
    pthread_cond_broadcast(&grants->event);
    pthread_mutex_unlock(&grants->lock);
    receiving->kind->join(receiving);
    pthread_mutex_lock(&grants->lock);
    for (struct refit_peer *peer = grants->peers; peer; peer = peer->next)
        end_peer(receiving, peer, REFIT_ABORTED);
    pthread_mutex_unlock(&grants->lock);
    refit_inbox_wake(receiving->base.config.inbox);
}

static void receiving_abort(struct refit_endpoint *endpoint)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    refit_endpoint_stop(endpoint);
    pthread_mutex_lock(&receiving->abort_lock);
    if (!receiving->aborted) {
        if (receiving->listening)
            refit_listener_unregister(endpoint->config.listener, &receiving->gate);
        stop(receiving);
        receiving->aborted = true;
    }
    pthread_mutex_unlock(&receiving->abort_lock);
}

static void receiving_close(struct refit_endpoint *endpoint)
{
    struct refit_receiving *receiving = (struct refit_receiving *)endpoint;
    receiving->kind->free(receiving);
}

static const struct refit_endpoint_ops receiving_ops = {
    .card = receiving_card,
    .post = receiving_post,
    .look = receiving_look,
    .drop = receiving_drop,
    .finish = receiving_finish,
    .abort = receiving_abort,
    .close = receiving_close,
};

enum refit_status refit_receiving_init(struct refit_receiving *receiving, const struct refit_receiving_kind *kind,
                                       const struct refit_endpoint_config *config, struct refit_error *err)
{
    enum refit_status status = refit_endpoint_init(&receiving->base, &receiving_ops, config, err);
    if (status != REFIT_OK)
        return status;
    status = refit_grants_init(&receiving->grants, &receiving->base.config, err);
    if (status != REFIT_OK) {
        refit_endpoint_release(&receiving->base);
        return status;
    }
    receiving->kind = kind;
    refit_rate_init(&receiving->rate, config->rate_bytes_per_s);
    pthread_mutex_init(&receiving->abort_lock, NULL);
    return REFIT_OK;
}

void refit_receiving_release(struct refit_receiving *receiving)
{
    refit_grants_release(&receiving->grants);
    refit_rate_release(&receiving->rate);
    pthread_mutex_destroy(&receiving->abort_lock);
    refit_endpoint_release(&receiving->base);
}

enum refit_status refit_receiving_listen(struct refit_receiving *receiving, enum refit_gate_kind kind,
                                         enum refit_status (*admit)(struct refit_gate *gate,
                                                                    const struct refit_greeting *greeting,
                                                                    const uint8_t *edges,
                                                                    const struct refit_stream *stream,
                                                                    struct refit_error *err),
                                         struct refit_error *err)
{
    receiving->gate = (struct refit_gate){.kind = kind, .config = &receiving->base.config, .admit = admit};
    enum refit_status status = refit_listener_register(receiving->base.config.listener, &receiving->gate, err);
    receiving->listening = status == REFIT_OK;
    return status;
}

enum refit_status refit_receiving_welcome(struct refit_receiving *receiving, const struct refit_greeting *greeting,
                                          const uint8_t *edges, struct refit_peer **out, struct refit_error *err)
{
    if (receiving->grants.stopped || receiving->grants.finished)
        return refit_fail(err, REFIT_NOT_FOUND, "refit %s needs no more bytes", receiving->base.config.refit_id);
    struct refit_peer *peer = refit_grants_peer(&receiving->grants, greeting->holder);
    if (!peer)
        return refit_fail_alloc(err, "a holder's ledger", sizeof *peer);
    refit_peer_offers(&receiving->grants, peer, edges, greeting->edges);
    *out = peer;
    return REFIT_OK;
}
