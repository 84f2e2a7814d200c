/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sender/replica.h"

#define TELL_MS 10000

static void start_followers(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++) {
        struct refit_replica *replica = &lead->replicas[i];
        if (pthread_create(&replica->thread, NULL, refit_follower_run, replica) == 0)
            continue;
        pthread_mutex_lock(&lead->lock);
        refit_fail(&replica->report.error, REFIT_NO_MEMORY, "%s: cannot start a thread", replica->report.url);
        replica->thread = pthread_self();
        replica->drained = true;
        replica->stage = REFIT_REPLICA_ENDED;
        pthread_mutex_unlock(&lead->lock);
    }
}

static void join_followers(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (!pthread_equal(lead->replicas[i].thread, pthread_self()))
            pthread_join(lead->replicas[i].thread, NULL);
}

static bool all_drained(const struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (!lead->replicas[i].drained)
            return false;
    return true;
}

static bool all_at_barrier(const struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i].stage == REFIT_REPLICA_WORKING)
            return false;
    return true;
}

/* Followers keep their deadlines themselves, so these waits need none. */
static void wait_until(struct refit_lead *lead, bool (*reached)(const struct refit_lead *lead))
{
    pthread_mutex_lock(&lead->lock);
    while (!reached(lead))
        pthread_cond_wait(&lead->changed, &lead->lock);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- did all get the same bytes? ---- */

/* A source that is written during the publish can give each replica whole, verified, different bytes. */
static enum refit_status compare(const struct refit_replica *a, const struct refit_replica *b, struct refit_error *err)
{
    struct refit_tensor tensor;
    bool same_layout = strcmp(refit_layout_digest(a->layout), refit_layout_digest(b->layout)) == 0;
    for (uint32_t i = 0; i < refit_layout_tensor_count(a->layout); i++) {
        uint32_t other = i;
        if (!same_layout) {
            refit_layout_tensor(a->layout, i, &tensor);
            if (!refit_layout_find(b->layout, tensor.name, &other))
                continue;
        }
        if (refit_digest_equal(refit_tally_get(a->tally, i), refit_tally_get(b->tally, other)))
            continue;
        refit_layout_tensor(a->layout, i, &tensor);
        return refit_fail(err, REFIT_CORRUPT, "%s and %s were sent different bytes of tensor %s: it was written while it "
                          "was being published; keep the memory unchanged until the sources are free", a->report.url,
                          b->report.url, tensor.name);
    }
    return REFIT_OK;
}

static enum refit_status compare_all(const struct refit_lead *lead, struct refit_error *err)
{
    const struct refit_replica *first = NULL;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = &lead->replicas[i];
        if (replica->stage != REFIT_REPLICA_STAGED)
            continue;
        enum refit_status status = first ? compare(first, replica, err) : REFIT_OK;
        if (status != REFIT_OK)
            return status;
        if (!first)
            first = replica;
    }
    return REFIT_OK;
}

/* ---- the decision ---- */

static void decide(struct refit_lead *lead)
{
    struct refit_error err = {0};
    enum refit_verdict verdict = lead->publish.stage_only ? REFIT_VERDICT_KEEP : REFIT_VERDICT_COMMIT;
    pthread_mutex_lock(&lead->lock);
    if (compare_all(lead, &err) != REFIT_OK)
        verdict = REFIT_VERDICT_ABORT;
    if (lead->cancelled) {
        refit_fail(&err, REFIT_ABORTED, "the sender was closed");
        verdict = REFIT_VERDICT_ABORT;
    }
    for (size_t i = 0; i < lead->replica_count; i++) {
        lead->replicas[i].verdict_error = err;
        lead->replicas[i].verdict = verdict;
    }
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- the report ---- */

static double since_begin(const struct refit_lead *lead)
{
    return (double)(refit_clock_ns() - lead->begun_ns) / 1e9;
}

static void fill_report(const struct refit_lead *lead, struct refit_report_store *store)
{
    enum refit_outcome wanted = lead->publish.stage_only ? REFIT_OUTCOME_STAGED : REFIT_OUTCOME_COMMITTED;
    struct refit_report *report = &store->report;
    report->version = lead->publish.version;
    report->seconds = since_begin(lead);
    report->replica_count = lead->replica_count;
    report->replicas = store->replicas;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = &lead->replicas[i];
        store->replicas[i] = replica->report;
        if (!report->digest[0])
            memcpy(report->digest, replica->digest, sizeof report->digest);
        if (replica->report.outcome != wanted && store->outcome.status == REFIT_OK)
            store->outcome = replica->report.error;
    }
}

static void send_report(struct refit_lead *lead, double sources_free_s)
{
    struct refit_report_store store = {.report.sources_free_s = sources_free_s};
    struct refit_error err;
    size_t len = 0;
    store.replicas = calloc(lead->replica_count, sizeof *store.replicas);
    if (store.replicas)
        fill_report(lead, &store);
    else
        refit_fail_alloc(&store.outcome, "a report", lead->replica_count * sizeof *store.replicas);
    json_t *json = refit_report_to_json(&store);
    char *text = json ? refit_json_canonical(json, &len) : NULL;
    if (!text)
        refit_log(REFIT_LOG_ERROR, "out of memory for the report of version %llu",
                  (unsigned long long)lead->publish.version);
    else if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_REPORT, text, len, refit_deadline_in_ms(TELL_MS), &err) !=
             REFIT_OK)
        refit_log(REFIT_LOG_WARN, "a rank did not get the report: %s", err.text);
    free(text);
    json_decref(json);
    refit_report_release(&store);
}

void *refit_conductor_run(void *context)
{
    struct refit_lead *lead = context;
    struct refit_error err;
    start_followers(lead);
    wait_until(lead, all_drained);
    double sources_free_s = since_begin(lead);
    if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_FREE, NULL, 0, refit_deadline_in_ms(TELL_MS), &err) != REFIT_OK)
        refit_log(REFIT_LOG_WARN, "a rank was not told that its memory is free: %s", err.text);
    wait_until(lead, all_at_barrier);
    decide(lead);
    join_followers(lead);
    send_report(lead, sources_free_s);
    return NULL;
}
