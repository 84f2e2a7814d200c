/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/holding.h"

#define LEAD_BATCHES 4 /* over the member that was sent least */

enum refit_status refit_holding_init(struct refit_holding *holding, struct refit_endpoint *endpoint,
                                     struct refit_error *err)
{
    const struct refit_endpoint_config *config = &endpoint->config;
    *holding = (struct refit_holding){.endpoint = endpoint};
    enum refit_status status = refit_view_of(config->plan, config->arenas, config->arena_count, &holding->view, err);
    if (status != REFIT_OK)
        return status;
    holding->sent = refit_batch_set_create(config->plan);
    if (!holding->sent)
        return refit_fail_alloc(err, "a holder's ledger", sizeof *holding);
    refit_fair_join(&holding->member, config->fair, (uint64_t)LEAD_BATCHES * refit_plan_batch_bytes(config->plan));
    refit_rate_init(&holding->rate, config->rate_bytes_per_s);
    pthread_mutex_init(&holding->threads_lock, NULL);
    pthread_mutex_init(&holding->lock, NULL);
    refit_cond_init(&holding->event);
    return REFIT_OK;
}

void refit_holding_release(struct refit_holding *holding)
{
    refit_fair_leave(&holding->member);
    refit_batch_set_destroy(holding->sent);
    refit_rate_release(&holding->rate);
    pthread_cond_destroy(&holding->event);
    pthread_mutex_destroy(&holding->lock);
    pthread_mutex_destroy(&holding->threads_lock);
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
