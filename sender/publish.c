/* SPDX-License-Identifier: Apache-2.0 */
#include <refit/sender.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "sender/sender_internal.h"

#define DEADLINE_MS 600000
#define PROGRESS_MS 100
/* Past the deadline: time for aborts, and for the lead's last words, all of which have bounds of their own. */
#define GRACE_MS 60000

/* ---- begin ---- */

static enum refit_status parse_strategy(const char *text, enum refit_strategy *out, struct refit_error *err)
{
    *out = REFIT_STRATEGY_AUTO;
    if (!text || !*text)
        return REFIT_OK;
    static const struct { const char *name; enum refit_strategy strategy; } known[] = {
        {"relay", REFIT_STRATEGY_RELAY}, {"direct", REFIT_STRATEGY_DIRECT}, {"broadcast", REFIT_STRATEGY_BROADCAST}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i].name) == 0) {
            *out = known[i].strategy;
            return REFIT_OK;
        }
    }
    return refit_fail(err, REFIT_INVALID, "strategy \"%s\": expected relay, direct or broadcast", text);
}

/* Whose memory nobody can read part by part has one way to go. */
static enum refit_status choose_strategy(const struct refit_sender *sender, const char *text, enum refit_strategy *out,
                                         struct refit_error *err)
{
    enum refit_status status = parse_strategy(text, out, err);
    if (status != REFIT_OK || !sender->gathers)
        return status;
    if (*out != REFIT_STRATEGY_AUTO && *out != REFIT_STRATEGY_BROADCAST)
        return refit_fail(err, REFIT_UNSUPPORTED, "strategy \"%s\": tensors that a callback gathers are broadcast", text);
    *out = REFIT_STRATEGY_BROADCAST;
    return REFIT_OK;
}

/* Refused here, before anyone is led, and not by each replica. */
static enum refit_status check_publish(const struct refit_sender *sender, const struct refit_publish *publish,
                                       struct refit_error *err)
{
    if (!sender->layout)
        return refit_fail(err, REFIT_INVALID, "nothing is registered");
    if (publish->version == 0)
        return refit_fail(err, REFIT_INVALID, "version 0: versions are 1 or more");
    if (publish->deadline_ms < 0)
        return refit_fail(err, REFIT_INVALID, "deadline_ms is negative");
    if (publish->label && strlen(publish->label) >= sizeof((struct refit_lead_publish *)0)->label)
        return refit_fail(err, REFIT_INVALID, "label \"%.20s...\" is longer than 63 bytes", publish->label);
    if (publish->label && publish->label[refit_text_first_control(publish->label)])
        return refit_fail(err, REFIT_INVALID, "the label holds a control character");
    if (publish->kv && strcmp(publish->kv, "flush") != 0 && strcmp(publish->kv, "keep") != 0 &&
        strcmp(publish->kv, "namespace") != 0)
        return refit_fail(err, REFIT_INVALID, "kv \"%s\": expected flush, keep or namespace", publish->kv);
    if (publish->unchanged_since && publish->unchanged_since >= publish->version)
        return refit_fail(err, REFIT_INVALID, "unchanged since version %llu, which is not older than %llu",
                          (unsigned long long)publish->unchanged_since, (unsigned long long)publish->version);
    struct refit_policy policy;
    enum refit_strategy strategy;
    enum refit_status status = refit_policy_parse(publish->policy, &policy, err);
    return status == REFIT_OK ? choose_strategy(sender, publish->strategy, &strategy, err) : status;
}

static int64_t deadline_of(const struct refit_publish *publish)
{
    return publish->deadline_ms ? publish->deadline_ms : DEADLINE_MS;
}

static enum refit_status list_unchanged(const struct refit_publish *publish, struct refit_lead_publish *lead,
                                        struct refit_error *err)
{
    if (publish->unchanged_since == 0 || publish->unchanged_count == 0)
        return REFIT_OK;
    json_t *names = json_array();
    for (size_t i = 0; names && i < publish->unchanged_count; i++)
        if (json_array_append_new(names, json_string(publish->unchanged[i])) != 0) {
            json_decref(names);
            return refit_fail(err, REFIT_INVALID, "name %zu of what is unchanged is not UTF-8", i);
        }
    lead->unchanged_since = publish->unchanged_since;
    lead->unchanged = names;
    return names ? REFIT_OK : refit_fail_alloc(err, "names", publish->unchanged_count);
}

static enum refit_status start_lead(struct refit_sender *sender, const struct refit_buf *bodies, void *context,
                                    const void **answer, size_t *len, struct refit_error *err)
{
    const struct refit_publish *publish = context;
    (void)answer;
    (void)len;
    for (uint32_t i = 1; i < sender->ranks; i++)
        if (bodies[i].len != bodies[0].len || memcmp(bodies[i].data, bodies[0].data, bodies[0].len) != 0) {
            const void *theirs = NULL, *ours = NULL;
            size_t their_len = 0, our_len = 0;
            enum refit_status status = refit_outcome_read(&bodies[i], &theirs, &their_len, err);
            if (status == REFIT_OK)
                status = refit_outcome_read(&bodies[0], &ours, &our_len, err);
            if (status != REFIT_OK)
                return status;
            return refit_fail(err, REFIT_MISMATCH, "rank %u publishes version %.*s, rank 0 version %.*s", i,
                              (int)their_len, (const char *)theirs, (int)our_len, (const char *)ours);
        }
    struct refit_lead_publish lead = {.version = publish->version,
                                      .deadline = sender->deadline,
                                      .deadline_ms = deadline_of(publish),
                                      .check_source = publish->check_source != 0,
                                      .stage_only = publish->stage_only != 0};
    snprintf(lead.label, sizeof lead.label, "%s", publish->label ? publish->label : "");
    snprintf(lead.kv, sizeof lead.kv, "%s", publish->kv ? publish->kv : "flush");
    lead.resume = publish->resume != 0;
    enum refit_status parsed = refit_policy_parse(publish->policy, &lead.policy, err);
    if (parsed == REFIT_OK)
        parsed = choose_strategy(sender, publish->strategy, &lead.strategy, err);
    if (parsed == REFIT_OK)
        parsed = list_unchanged(publish, &lead, err);
    if (parsed != REFIT_OK)
        return parsed;
    return refit_lead_begin(sender->lead, &lead, err);
}

/* Room for the members of this publish; progress that can't be shown for want of memory is no reason to fail. */
static void reserve_progress(struct refit_sender *sender)
{
    size_t count = refit_lead_replicas(sender->lead);
    struct refit_replica_progress *items = realloc(sender->progress_items, (count + 1) * sizeof *items);
    if (items)
        sender->progress_items = items;
    else
        sender->progress = NULL;
}

/* Nothing reads this rank's memory after the return, whatever the lead says or fails to say. */
static void stop_serving(struct refit_sender *sender)
{
    struct refit_error idle;
    refit_server_set_serving(sender->server, false);
    while (refit_server_wait_idle(sender->server, refit_deadline_in_ms(GRACE_MS), &idle) != REFIT_OK)
        refit_server_stop_all(sender->server);
}

/* The lead may have begun what another rank could not be told. */
static void give_up(struct refit_sender *sender)
{
    if (sender->lead) {
        refit_lead_cancel(sender->lead);
        refit_lead_join(sender->lead);
    }
    refit_server_stop_all(sender->server);
    stop_serving(sender);
}

enum refit_status refit_sender_publish_begin(struct refit_sender *sender, const struct refit_publish *publish,
                                             struct refit_error *err)
{
    struct refit_error mine = {0};
    struct refit_step step = {.said = REFIT_MESSAGE_PUBLISH, .answered = REFIT_MESSAGE_BEGUN, .decide = start_lead,
                              .context = (void *)(uintptr_t)publish};
    struct refit_buf answer;
    char version[24];
    if (sender->publishing)
        return refit_fail(err, REFIT_BUSY, "a publish is under way; wait for its report");
    mine.status = check_publish(sender, publish, &mine);
    sender->progress = sender->lead ? publish->progress : NULL;
    sender->progress_context = publish->progress_context;
    int len = snprintf(version, sizeof version, "%llu", (unsigned long long)publish->version);
    sender->deadline = refit_deadline_in_ms(deadline_of(publish));
    refit_sender_next_turn(sender);
    refit_server_set_serving(sender->server, true);
    enum refit_status status =
        refit_sender_step(sender, &step, &mine, version, (size_t)len, sender->deadline, &answer, err);
    refit_buf_release(&answer);
    sender->publishing = status == REFIT_OK;
    sender->freed = false;
    if (status != REFIT_OK)
        give_up(sender);
    else if (sender->progress)
        reserve_progress(sender);
    return status;
}

/* ---- wait ---- */

static void show_progress(struct refit_sender *sender)
{
    refit_lead_progress(sender->lead, sender->progress_items);
    sender->progress(sender->progress_context, sender->progress_items, refit_lead_replicas(sender->lead));
}

/* One message of the lead, with progress shown meanwhile. */
static enum refit_status take_with_progress(struct refit_sender *sender, enum refit_message type,
                                            struct refit_buf *body, struct refit_error *err)
{
    struct refit_deadline end = refit_deadline_after(sender->deadline, GRACE_MS);
    for (;;) {
        struct refit_deadline step =
            sender->progress ? refit_deadline_earlier(end, refit_deadline_in_ms(PROGRESS_MS)) : end;
        enum refit_status status = refit_ranks_take(sender->member, type, step, body, err);
        if (sender->progress)
            show_progress(sender);
        if (status != REFIT_TIMEOUT || refit_deadline_passed(end))
            return status;
    }
}

enum refit_status refit_sender_publish_wait_sources_free(struct refit_sender *sender, struct refit_error *err)
{
    struct refit_buf body;
    if (!sender->publishing)
        return refit_fail(err, REFIT_INVALID, "no publish is under way");
    if (sender->freed)
        return REFIT_OK;
    enum refit_status status = take_with_progress(sender, REFIT_MESSAGE_FREE, &body, err);
    if (status == REFIT_OK)
        refit_buf_release(&body);
    else
        refit_server_stop_all(sender->server);
    stop_serving(sender);
    sender->freed = true;
    return status;
}

static enum refit_status read_report(struct refit_sender *sender, const struct refit_buf *body, struct refit_error *err)
{
    json_t *json = NULL;
    refit_report_release(&sender->report);
    enum refit_status status = refit_json_parse(body->data, body->len, "the lead's report", &json, err);
    if (status == REFIT_OK)
        status = refit_report_from_json(json, &sender->report, err);
    json_decref(json);
    return status;
}

enum refit_status refit_sender_publish_wait_report(struct refit_sender *sender, struct refit_report *report,
                                                   struct refit_error *err)
{
    struct refit_buf body;
    if (report)
        *report = (struct refit_report){.outcome = REFIT_FLEET_UNKNOWN};
    enum refit_status status = refit_sender_publish_wait_sources_free(sender, err);
    if (!sender->publishing)
        return status;
    if (status == REFIT_OK)
        status = take_with_progress(sender, REFIT_MESSAGE_REPORT, &body, err);
    sender->publishing = false;
    if (sender->lead) {
        refit_lead_cancel(sender->lead);
        refit_lead_join(sender->lead);
    }
    if (status != REFIT_OK)
        return status;
    status = read_report(sender, &body, err);
    refit_buf_release(&body);
    if (status != REFIT_OK)
        return status;
    if (report)
        *report = sender->report.report;
    if (sender->report.outcome.status != REFIT_OK && err)
        *err = sender->report.outcome;
    return sender->report.outcome.status;
}

enum refit_status refit_sender_publish(struct refit_sender *sender, const struct refit_publish *publish,
                                       struct refit_report *report, struct refit_error *err)
{
    enum refit_status status = refit_sender_publish_begin(sender, publish, err);
    if (report) /* all zero would read as committed */
        *report = (struct refit_report){.version = publish->version, .outcome = REFIT_FLEET_ABORTED};
    return status == REFIT_OK ? refit_sender_publish_wait_report(sender, report, err) : status;
}
