/* SPDX-License-Identifier: Apache-2.0
 *
 * One replica's refit from the lead's side, from the order to the ranks to its outcome. How it begins: begin.c.
 */
#include "sender/follower.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sender/agree.h"
#include "sender/serve.h"

#define POLL_MS 500         /* a long poll during the transfer; also how late a lost rank is noticed at worst */
#define POLL_PAUSE_MS 5     /* progress comes with every batch */
#define REASON_MS 1000      /* for the replica to say why a rank's connection ended, before the rank's word is taken */
#define KEEP_ALIVE_MS 3000  /* at the barrier: a silent lead may be replaced */
#define LETTING_GO_MS (REFIT_ABORT_MS + 3000)
#define SETTLE_MS 10000     /* to find out what became of a commit */

struct refit_deadline refit_follower_deadline(const struct refit_replica *replica, int64_t ms)
{
    return refit_deadline_earlier(replica->lead->publish.deadline, refit_deadline_in_ms(ms));
}

void refit_follower_pause(struct refit_replica *replica, int64_t ms)
{
    struct refit_lead *lead = replica->lead;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    pthread_mutex_lock(&lead->lock);
    if (!lead->cancelled && lead->rank_lost.status == REFIT_OK)
        pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
    pthread_mutex_unlock(&lead->lock);
}

bool refit_follower_may_pass(enum refit_status status)
{
    return status == REFIT_BUSY || status == REFIT_PEER || status == REFIT_TIMEOUT;
}

/* ---- ranks ---- */

static bool is_told(const struct refit_lead *lead, const struct refit_layout *layout)
{
    for (size_t i = 0; i < lead->told_count; i++)
        if (strcmp(refit_layout_digest(lead->told[i]), refit_layout_digest(layout)) == 0)
            return true;
    return false;
}

static void forget_told(struct refit_lead *lead)
{
    while (lead->told_count > 0)
        refit_layout_release(lead->told[--lead->told_count]);
}

/* One replica at a time, so that the layout comes before every order that names it. */
static enum refit_status tell_layout(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    enum refit_status status = REFIT_OK;
    size_t len = 0;
    const char *text = refit_layout_text(replica->layout, &len);
    pthread_mutex_lock(&lead->telling);
    if (!is_told(lead, replica->layout)) {
        if (lead->told_count == REFIT_PLAN_CACHE_MAX)
            forget_told(lead);
        status = refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_LAYOUT, text, len,
                                       refit_follower_deadline(replica, REFIT_UPLOAD_MS), err);
        if (status == REFIT_OK)
            lead->told[lead->told_count++] = refit_layout_retain(replica->layout);
    }
    pthread_mutex_unlock(&lead->telling);
    return status;
}

static enum refit_status expect_served(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    uint32_t tensors = refit_layout_tensor_count(replica->layout);
    struct refit_tally *tally = refit_tally_create(tensors);
    if (!tally)
        return refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    pthread_mutex_lock(&lead->lock);
    refit_tally_destroy(replica->tally);
    replica->tally = tally;
    replica->attempt = ++lead->attempts;
    replica->served = 0;
    replica->posted = true;
    pthread_mutex_unlock(&lead->lock);
    return REFIT_OK;
}

static enum refit_status order_ranks(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    enum refit_status status = tell_layout(replica, err);
    if (status == REFIT_OK)
        status = expect_served(replica, err);
    if (status != REFIT_OK)
        return status;
    struct refit_serve_order order = {
        .replica = replica->number,
        .attempt = replica->attempt,
        .refit_id = replica->ticket.id,
        .token = replica->ticket.token,
        .card = replica->ticket.card,
        .transport = replica->transport,
        .destination = refit_layout_digest(replica->layout),
        .check_source = lead->publish.check_source,
        .deadline_ms = refit_deadline_left_ms(lead->publish.deadline),
    };
    size_t len = 0;
    char *text = refit_serve_order_text(&order, &len);
    if (!text)
        return refit_fail_alloc(err, "an order", sizeof order);
    status = refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_SERVE, text, len,
                                   refit_follower_deadline(replica, REFIT_CALL_MS), err);
    free(text);
    return status;
}

/* All ranks have answered: their memory is not read for this replica any more. */
static bool wait_served(struct refit_replica *replica, struct refit_deadline deadline)
{
    struct refit_lead *lead = replica->lead;
    struct timespec until = refit_deadline_timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&lead->lock);
    while (replica->posted && replica->served < lead->rank_count && !late && lead->rank_lost.status == REFIT_OK &&
           !lead->cancelled)
        late = pthread_cond_timedwait(&lead->changed, &lead->lock, &until) != 0;
    bool all = !replica->posted || replica->served == lead->rank_count;
    pthread_mutex_unlock(&lead->lock);
    return all;
}

static void set_drained(struct refit_replica *replica)
{
    pthread_mutex_lock(&replica->lead->lock);
    replica->drained = true;
    pthread_cond_broadcast(&replica->lead->changed);
    pthread_mutex_unlock(&replica->lead->lock);
}

static void stop_ranks(struct refit_replica *replica)
{
    struct refit_error err;
    uint32_t number = replica->number;
    if (!replica->posted)
        return;
    if (refit_ranks_broadcast(replica->lead->ranks, REFIT_MESSAGE_STOP, &number, sizeof number,
                              refit_deadline_in_ms(LETTING_GO_MS), &err) != REFIT_OK)
        refit_log(REFIT_LOG_WARN, "%s", err.text);
}

/* ---- watching ---- */

static void take_state(struct refit_replica *replica, const struct refit_control_state *state)
{
    struct refit_replica_report *report = &replica->report;
    const int64_t *us = state->phase_us;
    pthread_mutex_lock(&replica->lead->lock);
    replica->phase = state->phase;
    replica->bytes_done = state->bytes_done;
    replica->bytes_due = state->bytes_due;
    report->bytes_needed = state->bytes_due;
    report->plan_s = (double)us[REFIT_CONTROL_PREFLIGHT] / 1e6;
    report->wait_readers_s = (double)us[REFIT_CONTROL_WAITING_FOR_READERS] / 1e6;
    report->transfer_s = (double)us[REFIT_CONTROL_TRANSFER] / 1e6;
    report->verify_s = (double)us[REFIT_CONTROL_VERIFY] / 1e6;
    report->prepare_s = (double)us[REFIT_CONTROL_PREPARE] / 1e6;
    report->staged_s = (double)us[REFIT_CONTROL_STAGED] / 1e6;
    report->swap_s = (double)us[REFIT_CONTROL_COMMITTING] / 1e6;
    snprintf(report->digest, sizeof report->digest, "%s", state->digest);
    if (state->transport[0])
        snprintf(report->transport, sizeof report->transport, "%s", state->transport);
    pthread_mutex_unlock(&replica->lead->lock);
}

static enum refit_status fail_aborted(const struct refit_replica *replica, const struct refit_control_state *state,
                                      struct refit_error *err)
{
    if (state->error.status == REFIT_OK)
        return refit_fail(err, REFIT_ABORTED, "%s: refit %s was aborted", replica->control.url.text, state->id);
    return refit_fail(err, state->error.status, "%s: %s", replica->control.url.text, state->error.text);
}

static bool is_replaced(const struct refit_replica *replica)
{
    return strcmp(replica->control.instance, replica->led_instance) != 0;
}

/* One look at the refit. A call that fails is forgiven for REFIT_PATIENCE_MS, unless another process answers there. */
static enum refit_status look(struct refit_replica *replica, int64_t after, int64_t wait_ms, int64_t *silent_since_ns,
                              struct refit_control_state *state, struct refit_error *err)
{
    struct refit_deadline deadline = refit_follower_deadline(replica, wait_ms + REFIT_CALL_MS);
    enum refit_status status =
        refit_control_state(&replica->control, replica->ticket.id, after, wait_ms, deadline, state, err);
    if (is_replaced(replica))
        return refit_fail(err, REFIT_PEER, "%s: refitd was restarted during the refit", replica->control.url.text);
    int64_t now = refit_clock_ns();
    if (status == REFIT_OK) {
        *silent_since_ns = 0;
        take_state(replica, state);
        return state->phase == REFIT_CONTROL_ABORTED ? fail_aborted(replica, state, err) : REFIT_OK;
    }
    if (*silent_since_ns == 0)
        *silent_since_ns = now;
    if (!refit_follower_may_pass(status) || now - *silent_since_ns > (int64_t)REFIT_PATIENCE_MS * 1000000)
        return status;
    refit_follower_pause(replica, REFIT_AGAIN_MS);
    state->sequence = UINT64_MAX;
    return REFIT_OK;
}

static bool rank_failed(struct refit_replica *replica, struct refit_error *err)
{
    pthread_mutex_lock(&replica->lead->lock);
    *err = replica->served_error;
    pthread_mutex_unlock(&replica->lead->lock);
    return err->status != REFIT_OK;
}

static enum refit_status say_what_it_waited_for(const struct refit_replica *replica,
                                                const struct refit_control_state *state, struct refit_error *err)
{
    const char *why = state->waiting;
    struct refit_error given_up = *err;
    return refit_fail(err, given_up.status, "%s: %s; it was in phase %s%s%s", replica->control.url.text, given_up.text,
                      refit_control_phase_name(state->phase), *why ? ": " : "", why);
}

static enum refit_status watch_until_staged(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_state state = {.sequence = UINT64_MAX};
    struct refit_error of_rank;
    int64_t silent_since_ns = 0, failed_since_ns = 0;
    for (;;) {
        int64_t after = state.sequence > INT64_MAX ? -1 : (int64_t)state.sequence;
        enum refit_status status = look(replica, after, POLL_MS, &silent_since_ns, &state, err);
        if (status != REFIT_OK)
            return status;
        if (state.sequence != UINT64_MAX && state.phase >= REFIT_CONTROL_STAGED)
            return REFIT_OK;
        if (refit_lead_given_up(replica->lead, err))
            return say_what_it_waited_for(replica, &state, err);
        if (rank_failed(replica, &of_rank)) {
            int64_t now = refit_clock_ns();
            if (failed_since_ns == 0)
                failed_since_ns = now;
            if (now - failed_since_ns > (int64_t)REASON_MS * 1000000)
                return refit_fail(err, of_rank.status, "%s: %s", replica->control.url.text, of_rank.text);
        }
        refit_follower_pause(replica, POLL_PAUSE_MS);
    }
}

static enum refit_status sum_up(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_error of_rank;
    char hex[REFIT_SHA256_HEX_MAX] = "";
    if (!wait_served(replica, replica->lead->barrier))
        return refit_lead_given_up(replica->lead, err)
                   ? err->status
                   : refit_fail(err, REFIT_TIMEOUT, "not all ranks have said what they sent");
    set_drained(replica);
    if (rank_failed(replica, &of_rank))
        return refit_fail(err, of_rank.status, "%s: %s", replica->control.url.text, of_rank.text);
    enum refit_status status = refit_model_digest(replica->layout, replica->tally, "exact", hex, err);
    if (status != REFIT_OK)
        return status;
    if (strcmp(hex, replica->report.digest) != 0)
        return refit_fail(err, REFIT_CORRUPT, "%s: what landed has digest %.16s..., what was sent %.16s...",
                          replica->control.url.text, replica->report.digest, hex);
    pthread_mutex_lock(&replica->lead->lock);
    memcpy(replica->digest, hex, sizeof hex);
    pthread_mutex_unlock(&replica->lead->lock);
    return REFIT_OK;
}

/* ---- the barrier ---- */

static enum refit_verdict wait_verdict_for(struct refit_replica *replica, int64_t ms)
{
    struct refit_lead *lead = replica->lead;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    bool late = false;
    pthread_mutex_lock(&lead->lock);
    if (replica->stage != REFIT_REPLICA_STAGED) {
        replica->stage = REFIT_REPLICA_STAGED;
        replica->staged_ns = refit_clock_ns();
        pthread_cond_broadcast(&lead->changed);
    }
    while (replica->verdict == REFIT_VERDICT_NONE && !late)
        late = pthread_cond_timedwait(&lead->changed, &lead->lock, &until) != 0;
    enum refit_verdict verdict = replica->verdict;
    pthread_mutex_unlock(&lead->lock);
    return verdict;
}

/* The barrier may have opened before this one was compared with the others. */
static enum refit_status agree(const struct refit_replica *replica, struct refit_error *err)
{
    pthread_mutex_lock(&replica->lead->lock);
    enum refit_status status = refit_agree_one(replica, err);
    pthread_mutex_unlock(&replica->lead->lock);
    return status;
}

static enum refit_status wait_verdict(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_state state;
    int64_t silent_since_ns = 0;
    for (;;) {
        enum refit_verdict verdict = wait_verdict_for(replica, KEEP_ALIVE_MS);
        if (verdict == REFIT_VERDICT_ABORT) {
            *err = replica->verdict_error;
            return err->status;
        }
        if (verdict != REFIT_VERDICT_NONE)
            return agree(replica, err);
        enum refit_status status = look(replica, -1, 0, &silent_since_ns, &state, err);
        if (status != REFIT_OK)
            return status;
    }
}

/* ---- the commit ---- */

/* After a commit was sent and its answer or its effect was not seen. */
static enum refit_status settle(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_weights weights;
    struct refit_deadline until = refit_deadline_in_ms(SETTLE_MS);
    uint64_t version = replica->lead->publish.version;
    for (;;) {
        enum refit_status status = refit_control_weights(&replica->control, until, &weights, err);
        if (status == REFIT_OK && weights.active.version == version &&
            strcmp(weights.active.digest, replica->digest) == 0) {
            replica->report.outcome = REFIT_OUTCOME_COMMITTED;
            return REFIT_OK;
        }
        if (status == REFIT_OK && is_replaced(replica)) {
            replica->report.outcome = REFIT_OUTCOME_ABORTED;
            return refit_fail(err, REFIT_PEER, "%s: refitd was restarted before the commit; it serves version %" PRIu64,
                              replica->control.url.text, weights.active.version);
        }
        if (refit_deadline_passed(until)) {
            replica->report.outcome = REFIT_OUTCOME_UNKNOWN;
            return refit_fail(err, REFIT_TIMEOUT, "%s: no word of what became of the commit; ask it which version it "
                              "serves", replica->control.url.text);
        }
        poll(NULL, 0, REFIT_AGAIN_MS); /* whatever happens to the lead, this is to be known */
    }
}

static enum refit_status watch_until_committed(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_state state = {.sequence = UINT64_MAX};
    struct refit_deadline deadline = refit_deadline_earlier(
        refit_deadline_in_ms(REFIT_CALL_MS + refit_deadline_left_ms(replica->lead->publish.deadline)),
        (struct refit_deadline){.at_ns = INT64_MAX});
    while (!refit_deadline_passed(deadline)) {
        int64_t after = state.sequence > INT64_MAX ? -1 : (int64_t)state.sequence;
        enum refit_status status = refit_control_state(&replica->control, replica->ticket.id, after, POLL_MS,
                                                       refit_deadline_in_ms(REFIT_CALL_MS), &state, err);
        if (status != REFIT_OK || is_replaced(replica))
            return settle(replica, err);
        take_state(replica, &state);
        if (state.phase == REFIT_CONTROL_COMMITTED) {
            replica->report.outcome = REFIT_OUTCOME_COMMITTED;
            return REFIT_OK;
        }
        if (state.phase == REFIT_CONTROL_ABORTED)
            return fail_aborted(replica, &state, err);
    }
    return settle(replica, err);
}

/* A commit may be repeated: one whose answer was lost is sent again before its outcome is taken for unknown. */
static enum refit_status commit(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    struct refit_deadline patience = refit_follower_deadline(replica, REFIT_PATIENCE_MS);
    for (;;) {
        enum refit_status status =
            refit_control_commit(&replica->control, replica->ticket.id, lead->publish.version, replica->digest,
                                 refit_follower_deadline(replica, REFIT_CALL_MS), err);
        if (status == REFIT_OK)
            return watch_until_committed(replica, err);
        bool lost = status == REFIT_PEER || status == REFIT_TIMEOUT;
        if (is_replaced(replica) || (lost && refit_deadline_passed(patience)))
            return settle(replica, err);
        if (!lost && (status != REFIT_BUSY || refit_deadline_passed(lead->publish.deadline)))
            return status;
        poll(NULL, 0, REFIT_AGAIN_MS);
    }
}

/* ---- all of it ---- */

static enum refit_status until_staged(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = refit_follower_begin(replica, err);
    if (status != REFIT_OK)
        return status;
    snprintf(replica->report.refit_id, sizeof replica->report.refit_id, "%s", replica->ticket.id);
    snprintf(replica->report.transport, sizeof replica->report.transport, "%s", replica->transport);
    status = order_ranks(replica, err);
    if (status == REFIT_OK)
        status = watch_until_staged(replica, err);
    return status == REFIT_OK ? sum_up(replica, err) : status;
}

static void abort_refit(struct refit_replica *replica, const char *reason)
{
    struct refit_error err;
    if (!replica->report.refit_id[0] || is_replaced(replica))
        return;
    if (refit_control_abort(&replica->control, replica->ticket.id, reason, refit_deadline_in_ms(LETTING_GO_MS),
                            &err) != REFIT_OK)
        refit_log(REFIT_LOG_INFO, "refit %s was not aborted by the lead: %s", replica->ticket.id, err.text);
}

/* What an earlier publish left staged either is what is wanted now, or has to go. */
static bool resume_staged(struct refit_replica *replica)
{
    uint64_t kept = replica->staged_kept;
    if (kept == 0)
        return false;
    replica->staged_kept = 0;
    snprintf(replica->report.refit_id, sizeof replica->report.refit_id, "%s", replica->ticket.id);
    if (kept == replica->lead->publish.version) {
        set_drained(replica);
        return true;
    }
    abort_refit(replica, "its lead publishes another version");
    replica->report.refit_id[0] = '\0';
    pthread_mutex_lock(&replica->lead->lock);
    replica->digest[0] = '\0';
    pthread_mutex_unlock(&replica->lead->lock);
    return false;
}

static enum refit_status follow(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = resume_staged(replica) ? REFIT_OK : until_staged(replica, err);
    if (status == REFIT_OK)
        status = wait_verdict(replica, err);
    if (status != REFIT_OK)
        return status;
    if (replica->verdict == REFIT_VERDICT_COMMIT)
        return commit(replica, err);
    replica->staged_kept = replica->lead->publish.version;
    replica->report.outcome = REFIT_OUTCOME_STAGED;
    return REFIT_OK;
}

void *refit_follower_run(void *context)
{
    struct refit_replica *replica = context;
    struct refit_lead *lead = replica->lead;
    struct refit_error err = {0};
    replica->begun_ns = refit_clock_ns();
    if (follow(replica, &err) != REFIT_OK) {
        stop_ranks(replica);
        if (replica->report.outcome == REFIT_OUTCOME_ABORTED)
            abort_refit(replica, err.text);
        wait_served(replica, refit_deadline_in_ms(LETTING_GO_MS));
    }
    pthread_mutex_lock(&lead->lock);
    if (replica->report.outcome == REFIT_OUTCOME_ABORTED)
        replica->phase = REFIT_CONTROL_ABORTED;
    replica->report.error = err;
    replica->report.seconds = (double)(refit_clock_ns() - replica->begun_ns) / 1e9;
    replica->drained = true;
    replica->stage = REFIT_REPLICA_ENDED;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
    return NULL;
}
