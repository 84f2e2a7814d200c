/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sender/agree.h"
#include "sender/follower.h"

#define TELL_MS 10000
#define CHECK_MS 10000 /* a canary's check */
/* Those that are known wait for those not heard of yet before the fleet is formed: this, or as long as so far. */
#define FORM_GRACE_MS 1000

static void start_followers(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++) {
        struct refit_replica *replica = lead->replicas[i];
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
        if (!pthread_equal(lead->replicas[i]->thread, pthread_self()))
            pthread_join(lead->replicas[i]->thread, NULL);
}

static bool all_drained(const struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (!lead->replicas[i]->drained)
            return false;
    return !lead->broadcast || refit_broadcast_is_idle(lead->broadcast);
}

/* ---- the fleet is formed ---- */

/* When: once everybody is known or in trouble, else a while after the first was known; INT64_MAX when neither is in sight. */
static int64_t forms_ns(struct refit_lead *lead)
{
    size_t asking = 0, asked = 0, in_trouble = 0;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = lead->replicas[i];
        asking += replica->stage == REFIT_REPLICA_ASKING;
        asked += replica->stage == REFIT_REPLICA_ASKED;
        in_trouble += replica->stage == REFIT_REPLICA_ASKING && replica->in_trouble;
    }
    if (asking == 0 || (asked > 0 && asking == in_trouble) || !lead->relay)
        return 0;
    if (asked == 0) {
        lead->first_asked_ns = 0;
        return INT64_MAX;
    }
    if (lead->first_asked_ns == 0)
        lead->first_asked_ns = refit_clock_ns();
    int64_t so_far_ns = lead->first_asked_ns - lead->begun_ns, grace_ns = (int64_t)FORM_GRACE_MS * 1000000;
    return lead->first_asked_ns + (so_far_ns > grace_ns ? so_far_ns : grace_ns);
}

/* Without memory for classes the trainer feeds each by itself. */
static void form(struct refit_lead *lead)
{
    struct refit_error err;
    if (lead->relay && refit_classes_form(lead, &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "replicas will not relay", REFIT_LOG_CAUSE(&err));
    lead->formed = true;
    pthread_cond_broadcast(&lead->changed);
}

/* With the lock held; when to come back. */
static int64_t step(struct refit_lead *lead)
{
    int64_t forms = lead->formed ? INT64_MAX : forms_ns(lead);
    if (!lead->formed && forms <= refit_clock_ns()) {
        form(lead);
        forms = INT64_MAX;
    }
    int64_t course = refit_course_step(lead);
    return forms < course ? forms : course;
}

/* ---- canaries ---- */

static void check_canaries(struct refit_lead *lead)
{
    struct refit_error result = {0};
    struct refit_http_url *url = &lead->publish.policy.check;
    struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = url->prefix[0] ? "" : "/",
                                         .deadline = refit_deadline_earlier(lead->publish.deadline,
                                                                            refit_deadline_in_ms(CHECK_MS)),
                                         .credentials = lead->credentials, .without_token = true};
    struct refit_http_answer answer;
    result.status = refit_http_call(url, &request, &answer, &result);
    if (result.status == REFIT_OK) {
        if (answer.status < 200 || answer.status > 299)
            refit_fail(&result, REFIT_ABORTED, "%s: HTTP status %d", url->text, answer.status);
        refit_http_answer_release(&answer);
    }
    if (result.status != REFIT_OK)
        refit_error_prefix(&result, result.status, "the canaries' check failed");
    pthread_mutex_lock(&lead->lock);
    refit_course_checked(lead, &result);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- the report ---- */

static double since_begin(const struct refit_lead *lead)
{
    return (double)(refit_clock_ns() - lead->begun_ns) / 1e9;
}

static void count_bytes(const struct refit_replica_report *replica, struct refit_report *report)
{
    report->bytes_sent += replica->bytes_sent;
    report->bytes_saved += replica->bytes_saved;
    report->bytes_excess += replica->bytes_excess;
}

static void fill_report(const struct refit_lead *lead, struct refit_report_store *store)
{
    struct refit_report *report = &store->report;
    report->version = lead->publish.version;
    report->seconds = since_begin(lead);
    report->membership_epoch = lead->membership_epoch;
    report->relayed = lead->class_count > 0;
    report->replica_count = lead->replica_count;
    report->replicas = store->replicas;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = lead->replicas[i];
        store->replicas[i] = replica->report;
        count_bytes(&replica->report, report);
        const char *digest = replica->unit->model[0] ? replica->unit->model : replica->digest;
        if (!report->digest[0])
            snprintf(report->digest, sizeof report->digest, "%s", digest);
    }
    refit_report_conclude(store, lead->publish.stage_only,
                          lead->publish.policy.kind == REFIT_POLICY_QUORUM ? lead->publish.policy.count : 0);
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
        refit_log_event(REFIT_LOG_ERROR, "out of memory for a report", refit_log_u64("version", lead->publish.version));
    else if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_REPORT, text, len, refit_deadline_in_ms(TELL_MS), &err) !=
             REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a rank did not get the report", REFIT_LOG_CAUSE(&err));
    free(text);
    json_decref(json);
    refit_report_release(&store);
}

static void free_sources(struct refit_lead *lead)
{
    struct refit_error err;
    if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_FREE, NULL, 0, refit_deadline_in_ms(TELL_MS), &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a rank was not told that its memory is free", REFIT_LOG_CAUSE(&err));
}

/* Followers keep their deadlines themselves, so this ends. Sources are free and the commit is decided in either order:
 * a replica that hangs may still read the sources when the others commit. Returns when the sources were free. */
static double direct(struct refit_lead *lead)
{
    bool freed = false, over = false;
    double sources_free_s = 0;
    while (!freed || !over) {
        pthread_mutex_lock(&lead->lock);
        int64_t again_ns = step(lead);
        /* What a step has decided is for the followers to see. */
        pthread_cond_broadcast(&lead->changed);
        bool drained = !freed && all_drained(lead), check = lead->course.phase == REFIT_COURSE_CHECK;
        over = refit_course_over(lead);
        /* All may have ended while the broadcast still calls for the rest of the model. */
        if (!drained && !check && (!over || !freed)) {
            struct timespec until = refit_deadline_timespec((struct refit_deadline){.at_ns = again_ns});
            pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
        }
        pthread_mutex_unlock(&lead->lock);
        if (drained) {
            sources_free_s = since_begin(lead);
            free_sources(lead);
            freed = true;
        }
        if (check)
            check_canaries(lead);
    }
    return sources_free_s;
}

static void part(struct refit_lead *lead)
{
    refit_replicas_leave(lead->leavers, lead->leaver_count);
    while (lead->leaver_count > 0)
        refit_replica_destroy(lead->leavers[--lead->leaver_count]);
}

static void end_broadcast(struct refit_lead *lead)
{
    pthread_mutex_lock(&lead->lock);
    struct refit_broadcast *broadcast = lead->broadcast;
    lead->broadcast = NULL;
    pthread_mutex_unlock(&lead->lock);
    refit_broadcast_destroy(broadcast);
}

void *refit_conductor_run(void *context)
{
    struct refit_lead *lead = context;
    start_followers(lead);
    double sources_free_s = direct(lead);
    join_followers(lead);
    end_broadcast(lead);
    send_report(lead, sources_free_s);
    part(lead);
    return NULL;
}
