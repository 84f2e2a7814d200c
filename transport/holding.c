/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/holding.h"

enum refit_status refit_holding_init(struct refit_holding *holding, struct refit_endpoint *endpoint,
                                     struct refit_error *err)
{
    pthread_condattr_t attributes;
    *holding = (struct refit_holding){.endpoint = endpoint, .sent = refit_batch_set_create(endpoint->config.plan)};
    if (!holding->sent)
        return refit_fail_alloc(err, "a holder's ledger", sizeof *holding);
    pthread_mutex_init(&holding->threads_lock, NULL);
    pthread_mutex_init(&holding->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&holding->event, &attributes);
    pthread_condattr_destroy(&attributes);
    return REFIT_OK;
}

void refit_holding_release(struct refit_holding *holding)
{
    refit_batch_set_destroy(holding->sent);
    pthread_cond_destroy(&holding->event);
    pthread_mutex_destroy(&holding->lock);
    pthread_mutex_destroy(&holding->threads_lock);
}

enum refit_status refit_holding_find(const struct refit_holding *holding, const struct refit_frame *frame,
                                     const struct refit_edge **out, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &holding->endpoint->config;
    const struct refit_edge *edge = refit_plan_edge(config->plan, config->rank, frame->destination_rank);
    if (!edge || frame->batch >= edge->batches)
        return refit_fail(err, REFIT_PEER, "the receiver asked for batch %u of rank %u, which is not in the plan",
                          frame->batch, frame->destination_rank);
    *out = edge;
    return REFIT_OK;
}

void refit_holding_tally(struct refit_holding *holding, const struct refit_edge *edge, uint32_t batch,
                         const struct refit_segments *segments)
{
    const struct refit_endpoint_config *config = &holding->endpoint->config;
    if (config->tally && config->verify && refit_batch_set_add(holding->sent, edge, batch))
        refit_segments_tally(segments, config->tally);
}

enum refit_status refit_holding_reconnect(struct refit_holding *holding, struct refit_error *err)
{
    pthread_mutex_lock(&holding->lock);
    enum refit_status status = REFIT_OK;
    if (holding->running > 0)
        status = refit_fail(err, REFIT_CONFLICT, "refit %s: this holder is connected already",
                            holding->endpoint->config.refit_id);
    else
        holding->connected = holding->done = false;
    holding->why = (struct refit_error){.status = REFIT_OK};
    pthread_mutex_unlock(&holding->lock);
    return status;
}

enum refit_status refit_holding_began(struct refit_holding *holding, struct refit_error *err)
{
    if (holding->stopped)
        return refit_fail(err, REFIT_ABORTED, "aborted");
    holding->connected = true;
    return REFIT_OK;
}

void refit_holding_ended(struct refit_holding *holding, enum refit_status status, const struct refit_error *why)
{
    pthread_mutex_lock(&holding->lock);
    holding->running--;
    if (status == REFIT_OK)
        holding->done = true;
    else if (holding->why.status == REFIT_OK)
        holding->why = *why;
    pthread_cond_broadcast(&holding->event);
    pthread_mutex_unlock(&holding->lock);
}

enum refit_status refit_holding_wait(struct refit_holding *holding, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    const char *refit_id = holding->endpoint->config.refit_id;
    struct timespec until = refit_deadline_timespec(deadline);
    enum refit_status status;
    pthread_mutex_lock(&holding->lock);
    bool late = false;
    while (holding->running > 0 && !holding->stopped && !late)
        late = pthread_cond_timedwait(&holding->event, &holding->lock, &until) != 0;
    if (holding->stopped)
        status = refit_fail(err, REFIT_ABORTED, "refit %s: the endpoint was aborted", refit_id);
    else if (!holding->connected)
        status = refit_fail(err, REFIT_INVALID, "refit %s: this holder has not connected", refit_id);
    else if (holding->running > 0)
        status = refit_fail(err, REFIT_TIMEOUT, "refit %s: the receiver did not finish in time", refit_id);
    else if (holding->done)
        status = REFIT_OK;
    else
        status = refit_fail(err, holding->why.status, "refit %s: %s", refit_id, holding->why.text);
    pthread_mutex_unlock(&holding->lock);
    return status;
}

void refit_holding_stop(struct refit_holding *holding)
{
    pthread_mutex_lock(&holding->lock);
    holding->stopped = true;
    pthread_cond_broadcast(&holding->event);
    pthread_mutex_unlock(&holding->lock);
}
