/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/lead.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "sender/replica.h"
#include "sender/served.h"

/* Of the deadline, a part is kept for committing those that are staged: a fifth, at most this. */
#define RESERVE_MS 10000
#define LEAVING_MS 2000

static void set_name(struct refit_lead *lead, const char *name)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (name && *name)
        snprintf(lead->name, sizeof lead->name, "%s", name);
    else
        snprintf(lead->name, sizeof lead->name, "%s-%d", host, (int)getpid());
}

static enum refit_status check_transport(const char *name, struct refit_error *err)
{
    if (!name || strcmp(name, "auto") == 0 || refit_transport_find(name))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "transport \"%s\" is not known; expected auto, tcp or local", name);
}

static enum refit_status add_replicas(struct refit_lead *lead, const char *const *urls,
                                      struct refit_credentials *credentials, struct refit_error *err)
{
    for (size_t i = 0; i < lead->replica_count; i++) {
        struct refit_replica *replica = &lead->replicas[i];
        enum refit_status status = refit_control_init(&replica->control, urls[i], err);
        if (status != REFIT_OK)
            return status;
        replica->control.credentials = credentials;
        for (size_t k = 0; k < i; k++)
            if (strcmp(lead->replicas[k].control.url.text, replica->control.url.text) == 0)
                return refit_fail(err, REFIT_INVALID, "replica %s is given twice", replica->control.url.text);
        replica->lead = lead;
        replica->number = (uint32_t)i;
        replica->stage = REFIT_REPLICA_ENDED;
    }
    return REFIT_OK;
}

enum refit_status refit_lead_create(const struct refit_lead_config *config, struct refit_lead **out,
                                    struct refit_error *err)
{
    if (config->replica_count == 0)
        return refit_fail(err, REFIT_INVALID, "no replica is named; give at least one URL");
    struct refit_lead *lead = calloc(1, sizeof *lead);
    if (!lead)
        return refit_fail_alloc(err, "the lead", sizeof *lead);
    lead->rank_count = config->ranks;
    lead->takeover = config->takeover;
    snprintf(lead->transport, sizeof lead->transport, "%s", config->transport ? config->transport : "auto");
    lead->replica_count = config->replica_count;
    set_name(lead, config->name);
    pthread_mutex_init(&lead->lock, NULL);
    pthread_mutex_init(&lead->telling, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lead->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    lead->replicas = calloc(lead->replica_count, sizeof *lead->replicas);
    enum refit_status status = lead->replicas ? check_transport(config->transport, err)
                                              : refit_fail_alloc(err, "replicas", lead->replica_count);
    if (status == REFIT_OK)
        status = add_replicas(lead, config->replicas, config->credentials, err);
    if (status != REFIT_OK)
        refit_lead_destroy(lead);
    else
        *out = lead;
    return status;
}

/* What stage_only left behind must not wait for its time to live, nor another lead for ours. */
static void *leave(void *context)
{
    struct refit_replica *replica = context;
    struct refit_deadline deadline = refit_deadline_in_ms(LEAVING_MS);
    struct refit_error err;
    if (replica->staged_kept && refit_control_abort(&replica->control, replica->ticket.id, "its lead closed", deadline,
                                                    &err) != REFIT_OK)
        refit_log(REFIT_LOG_WARN, "a staged refit could not be aborted: %s", err.text);
    if (refit_control_resign(&replica->control, replica->lead->name, replica->epoch, deadline, &err) != REFIT_OK)
        refit_log(REFIT_LOG_INFO, "the lead could not resign, its time to live ends it: %s", err.text);
    return NULL;
}

static void leave_all(struct refit_lead *lead)
{
    /* On threads: replicas don't wait for each other, and the caller's thread may not block SIGPIPE. */
    struct refit_error err;
    for (size_t i = 0; i < lead->replica_count; i++) {
        struct refit_replica *replica = &lead->replicas[i];
        if (replica->epoch == 0)
            continue;
        replica->leaving = refit_thread_start(&replica->thread, leave, replica, "a thread to resign", &err) == REFIT_OK;
        if (!replica->leaving)
            refit_log(REFIT_LOG_WARN, "the lead could not resign, its time to live ends it: %s", err.text);
    }
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i].leaving)
            pthread_join(lead->replicas[i].thread, NULL);
}

void refit_lead_end(struct refit_lead *lead)
{
    refit_lead_cancel(lead);
    refit_lead_join(lead);
    leave_all(lead);
}

void refit_lead_destroy(struct refit_lead *lead)
{
    if (!lead)
        return;
    for (size_t i = 0; lead->replicas && i < lead->replica_count; i++) {
        refit_layout_release(lead->replicas[i].layout);
        refit_tally_destroy(lead->replicas[i].tally);
        json_decref(lead->replicas[i].ticket.card);
    }
    for (size_t i = 0; i < lead->told_count; i++)
        refit_layout_release(lead->told[i]);
    refit_layout_release(lead->source);
    pthread_cond_destroy(&lead->changed);
    pthread_mutex_destroy(&lead->telling);
    pthread_mutex_destroy(&lead->lock);
    free(lead->replicas);
    free(lead);
}

void refit_lead_set_ranks(struct refit_lead *lead, struct refit_ranks *ranks)
{
    lead->ranks = ranks;
}

/* The ranks make their plans anew for another source, and must be told the destinations again. */
void refit_lead_set_source(struct refit_lead *lead, struct refit_layout *source)
{
    for (size_t i = 0; i < lead->told_count; i++)
        refit_layout_release(lead->told[i]);
    lead->told_count = 0;
    refit_layout_release(lead->source);
    lead->source = refit_layout_retain(source);
}

/* ---- what ranks say ---- */

static enum refit_status take_served(struct refit_replica *replica, const struct refit_served *served,
                                     const void *tally, size_t len, struct refit_error *err)
{
    replica->report.bytes_moved += served->payload_bytes;
    replica->report.wire_bytes += served->wire_bytes;
    if (served->outcome.status != REFIT_OK) {
        *err = served->outcome;
        return served->outcome.status;
    }
    return refit_served_add(tally, len, replica->tally, err);
}

void refit_lead_on_served(struct refit_lead *lead, uint32_t rank, const void *body, size_t len)
{
    struct refit_served served;
    struct refit_error err;
    const void *tally = NULL;
    size_t tally_len = 0;
    if (refit_served_read(body, len, &served, &tally, &tally_len, &err) != REFIT_OK ||
        served.replica >= lead->replica_count) {
        refit_fail(&err, REFIT_PEER, "what it served can't be understood");
        refit_lead_on_lost(lead, rank, &err);
        return;
    }
    pthread_mutex_lock(&lead->lock);
    struct refit_replica *replica = &lead->replicas[served.replica];
    if (replica->posted && served.attempt == replica->attempt) {
        if (take_served(replica, &served, tally, tally_len, &err) != REFIT_OK &&
            replica->served_error.status == REFIT_OK)
            refit_fail(&replica->served_error, err.status, "rank %u: %s", rank, err.text);
        replica->served++;
        pthread_cond_broadcast(&lead->changed);
    }
    pthread_mutex_unlock(&lead->lock);
}

void refit_lead_on_lost(struct refit_lead *lead, uint32_t rank, const struct refit_error *why)
{
    pthread_mutex_lock(&lead->lock);
    if (lead->rank_lost.status == REFIT_OK)
        refit_fail(&lead->rank_lost, why->status, "rank %u: %s", rank, why->text);
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- a publish ---- */

static void reset_replica(struct refit_replica *replica)
{
    replica->stage = REFIT_REPLICA_WORKING;
    replica->verdict = REFIT_VERDICT_NONE;
    replica->drained = false;
    replica->posted = false;
    replica->served = 0;
    replica->served_error = (struct refit_error){0};
    if (replica->staged_kept == 0)
        replica->digest[0] = '\0';
    replica->phase = REFIT_CONTROL_REQUESTED;
    replica->bytes_done = replica->bytes_due = 0;
    replica->report = (struct refit_replica_report){.outcome = REFIT_OUTCOME_ABORTED};
    snprintf(replica->report.url, sizeof replica->report.url, "%s", replica->control.url.text);
}

static void set_barrier(struct refit_lead *lead)
{
    int64_t left_ms = refit_deadline_left_ms(lead->publish.deadline);
    int64_t reserve_ms = left_ms / 5 < RESERVE_MS ? left_ms / 5 : RESERVE_MS;
    lead->barrier = refit_deadline_in_ms(left_ms - reserve_ms);
}

enum refit_status refit_lead_begin(struct refit_lead *lead, const struct refit_lead_publish *publish,
                                   struct refit_error *err)
{
    uint8_t random[16];
    refit_io_random(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(lead->publish_id + 2 * i, 3, "%02x", random[i]);
    lead->publish = *publish;
    lead->begun_ns = refit_clock_ns();
    set_barrier(lead);
    pthread_mutex_lock(&lead->lock);
    lead->cancelled = false;
    for (size_t i = 0; i < lead->replica_count; i++)
        reset_replica(&lead->replicas[i]);
    pthread_mutex_unlock(&lead->lock);
    enum refit_status status =
        refit_thread_start(&lead->conductor, refit_conductor_run, lead, "the conductor's thread", err);
    lead->running = status == REFIT_OK;
    return status;
}

void refit_lead_cancel(struct refit_lead *lead)
{
    pthread_mutex_lock(&lead->lock);
    lead->cancelled = true;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

void refit_lead_join(struct refit_lead *lead)
{
    if (lead->running)
        pthread_join(lead->conductor, NULL);
    lead->running = false;
}

size_t refit_lead_replicas(const struct refit_lead *lead)
{
    return lead->replica_count;
}

void refit_lead_progress(struct refit_lead *lead, struct refit_replica_progress *out)
{
    pthread_mutex_lock(&lead->lock);
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = &lead->replicas[i];
        out[i] = (struct refit_replica_progress){.url = replica->control.url.text,
                                                 .phase = refit_control_phase_name(replica->phase),
                                                 .bytes_done = replica->bytes_done,
                                                 .bytes_due = replica->bytes_due};
    }
    pthread_mutex_unlock(&lead->lock);
}

bool refit_lead_given_up(struct refit_lead *lead, struct refit_error *err)
{
    pthread_mutex_lock(&lead->lock);
    bool cancelled = lead->cancelled;
    struct refit_error lost = lead->rank_lost;
    pthread_mutex_unlock(&lead->lock);
    if (cancelled)
        refit_fail(err, REFIT_ABORTED, "the sender was closed");
    else if (lost.status != REFIT_OK)
        refit_fail(err, lost.status, "%s", lost.text);
    else if (refit_deadline_passed(lead->barrier))
        refit_fail(err, REFIT_TIMEOUT, "not staged before the deadline");
    else
        return false;
    return true;
}
