/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/holding.h"

#include <stdlib.h>

#define LEAD_BATCHES 4 /* over the member that was sent least */

static enum refit_status ledger_init(struct refit_holding *holding, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &holding->base.config;
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

static void ledger_release(struct refit_holding *holding)
{
    refit_fair_leave(&holding->member);
    refit_batch_set_destroy(holding->sent);
    refit_rate_release(&holding->rate);
    pthread_cond_destroy(&holding->event);
    pthread_mutex_destroy(&holding->lock);
    pthread_mutex_destroy(&holding->threads_lock);
}

/* Before dialling: nothing may be running. */
static enum refit_status forget_connections(struct refit_holding *holding, struct refit_error *err)
{
    pthread_mutex_lock(&holding->lock);
    enum refit_status status = REFIT_OK;
    if (holding->running > 0)
        status = refit_fail(err, REFIT_CONFLICT, "refit %s: this holder is connected already",
                            holding->base.config.refit_id);
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

static void hang_up(struct refit_holding *holding)
{
    if (holding->kind->hang_up)
        holding->kind->hang_up(holding);
}

/* threads_lock is held. */
static void end_threads(struct refit_holding *holding)
{
    hang_up(holding);
    holding->kind->reap(holding);
}

/* ---- operations ---- */

static enum refit_status holding_connect(struct refit_endpoint *endpoint, const json_t *card,
                                         struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_holding *holding = (struct refit_holding *)endpoint;
    pthread_mutex_lock(&holding->threads_lock);
    enum refit_status status = forget_connections(holding, err);
    if (status == REFIT_OK) {
        holding->kind->reap(holding);
        status = holding->kind->dial(holding, card, deadline, err);
        if (status != REFIT_OK)
            end_threads(holding);
    }
    pthread_mutex_unlock(&holding->threads_lock);
    return status;
}

static enum refit_status holding_wait_done(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                           struct refit_error *err)
{
    struct refit_holding *holding = (struct refit_holding *)endpoint;
    const char *refit_id = holding->base.config.refit_id;
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

static void holding_abort(struct refit_endpoint *endpoint)
{
    struct refit_holding *holding = (struct refit_holding *)endpoint;
    refit_endpoint_stop(endpoint);
    pthread_mutex_lock(&holding->lock);
    holding->stopped = true;
    pthread_cond_broadcast(&holding->event);
    pthread_mutex_unlock(&holding->lock);
    hang_up(holding);
    /* A connect that is dialling sees the wake descriptor and leaves. */
    pthread_mutex_lock(&holding->threads_lock);
    holding->kind->reap(holding);
    pthread_mutex_unlock(&holding->threads_lock);
}

static void holding_close(struct refit_endpoint *endpoint)
{
    struct refit_holding *holding = (struct refit_holding *)endpoint;
    if (holding->kind->release)
        holding->kind->release(holding);
    ledger_release(holding);
    refit_endpoint_release(endpoint);
    free(holding);
}

static const struct refit_endpoint_ops holding_ops = {
    .connect = holding_connect,
    .wait_done = holding_wait_done,
    .abort = holding_abort,
    .close = holding_close,
};

enum refit_status refit_holding_open(struct refit_holding *holding, const struct refit_holding_kind *kind,
                                     const struct refit_endpoint_config *config, struct refit_error *err)
{
    holding->kind = kind;
    enum refit_status status = refit_endpoint_init(&holding->base, &holding_ops, config, err);
    if (status != REFIT_OK)
        return status;
    status = ledger_init(holding, err);
    if (status != REFIT_OK)
        refit_endpoint_release(&holding->base);
    return status;
}
