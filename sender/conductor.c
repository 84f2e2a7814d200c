/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sender/agree.h"
#include "sender/follower.h"

#define TELL_MS 10000
#define GRACE_MS 250 /* staged replicas wait for those that still work: this, or a tenth of the time so far */

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

/* When the barrier opens: at once when nobody works any more, else a while after the first is staged; INT64_MAX when
 * neither is in sight. */
static int64_t barrier_opens_ns(const struct refit_lead *lead)
{
    bool working = false;
    int64_t first_ns = INT64_MAX, grace_ns = (int64_t)GRACE_MS * 1000000;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = &lead->replicas[i];
        working |= replica->stage == REFIT_REPLICA_WORKING;
        if (replica->stage == REFIT_REPLICA_STAGED && replica->staged_ns < first_ns)
            first_ns = replica->staged_ns;
    }
    if (!working)
        return 0;
    if (first_ns == INT64_MAX)
        return INT64_MAX;
    int64_t tenth_ns = (first_ns - lead->begun_ns) / 10;
    return first_ns + (tenth_ns > grace_ns ? tenth_ns : grace_ns);
}

/* ---- the decision ---- */

static void decide(struct refit_lead *lead)
{
    struct refit_error err = {0};
    enum refit_verdict verdict = lead->publish.stage_only ? REFIT_VERDICT_KEEP : REFIT_VERDICT_COMMIT;
    pthread_mutex_lock(&lead->lock);
    if (refit_agree_all(lead, &err) != REFIT_OK)
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

static void free_sources(struct refit_lead *lead)
{
    struct refit_error err;
    if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_FREE, NULL, 0, refit_deadline_in_ms(TELL_MS), &err) != REFIT_OK)
        refit_log(REFIT_LOG_WARN, "a rank was not told that its memory is free: %s", err.text);
}

/* Followers keep their deadlines themselves, so this ends. Sources are free and the barrier opens in either order:
 * a replica that hangs may still read the sources when the others commit. Returns when the sources were free. */
static double direct(struct refit_lead *lead)
{
    bool freed = false, decided = false;
    double sources_free_s = 0;
    while (!freed || !decided) {
        pthread_mutex_lock(&lead->lock);
        int64_t opens_ns = decided ? INT64_MAX : barrier_opens_ns(lead);
        bool drained = !freed && all_drained(lead), opened = opens_ns <= refit_clock_ns();
        if (!drained && !opened) {
            struct timespec until = refit_deadline_timespec((struct refit_deadline){.at_ns = opens_ns});
            pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
        }
        pthread_mutex_unlock(&lead->lock);
        if (drained) {
            sources_free_s = since_begin(lead);
            free_sources(lead);
            freed = true;
        }
        if (opened) {
            decide(lead);
            decided = true;
        }
    }
    return sources_free_s;
}

void *refit_conductor_run(void *context)
{
    struct refit_lead *lead = context;
    start_followers(lead);
    double sources_free_s = direct(lead);
    join_followers(lead);
    send_report(lead, sources_free_s);
    return NULL;
}
