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
#include "sender/served.h"

#define CROWD 3 /* members fed together: one connection each shares the trainer's link more evenly than two, and lands each batch sooner */
#define POLL_MS 500         /* a long poll during the transfer; also how late a lost rank is noticed at worst */
#define POLL_PAUSE_MS 5     /* progress comes with every batch */
#define REASON_MS 1000      /* for the replica to say why a rank's connection ended, before the rank's word is taken */
#define LETTING_GO_MS (REFIT_ABORT_MS + 3000)

struct refit_deadline refit_follower_deadline(const struct refit_replica *replica, int64_t ms)
{
    return refit_deadline_earlier(replica->lead->publish.deadline, refit_deadline_in_ms(ms));
}

void refit_follower_pause(struct refit_replica *replica, int64_t ms)
{
    struct refit_lead *lead = replica->lead;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    bool late = false;
    pthread_mutex_lock(&lead->lock);
    /* What others tell the lead meanwhile is no reason to call this one again at once. */
    while (!late && !lead->cancelled && lead->rank_lost.status == REFIT_OK && replica->verdict != REFIT_VERDICT_ABORT)
        late = pthread_cond_timedwait(&lead->changed, &lead->lock, &until) != 0;
    pthread_mutex_unlock(&lead->lock);
}

bool refit_follower_given_up(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    pthread_mutex_lock(&lead->lock);
    bool called_off = replica->verdict == REFIT_VERDICT_ABORT;
    if (called_off && err)
        *err = replica->verdict_error;
    pthread_mutex_unlock(&lead->lock);
    return called_off || refit_lead_given_up(lead, err);
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
    struct refit_tally *tally = refit_tally_create(tensors), *again = refit_tally_create(tensors);
    if (!tally || !again) {
        refit_tally_destroy(tally);
        refit_tally_destroy(again);
        return refit_fail_alloc(err, "tallies", 2 * tensors * sizeof(struct refit_digest));
    }
    pthread_mutex_lock(&lead->lock);
    refit_tally_destroy(replica->tally);
    refit_tally_destroy(replica->again);
    replica->tally = tally;
    replica->again = again;
    replica->attempt = ++lead->attempts;
    replica->served = 0;
    replica->sent_bytes = 0;
    replica->served_error = (struct refit_error){0};
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
    bool of_fleet = replica->class && !replica->fell_back;
    struct refit_serve_order order = {
        .replica = replica->number,
        .attempt = replica->attempt,
        .refit_id = of_fleet ? replica->class->id : replica->ticket.id,
        .token = of_fleet ? replica->class->token : replica->ticket.token,
        .card = replica->ticket.card,
        .transport = replica->transport,
        .destination = refit_layout_digest(replica->layout),
        .first_rank = replica->first_rank,
        .rank_count = replica->rank_count,
        .unchanged = replica->keeps ? lead->publish.unchanged : NULL,
        .streams = of_fleet && replica->class->count >= CROWD ? 1 : 0,
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

static void tell_ranks(struct refit_replica *replica, enum refit_message message)
{
    struct refit_error err;
    uint32_t number = replica->number;
    if (!replica->posted || replica->lead->broadcast)
        return;
    if (refit_ranks_broadcast(replica->lead->ranks, message, &number, sizeof number, refit_deadline_in_ms(LETTING_GO_MS),
                              &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a rank was not told to stop serving",
                        refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
}

static void stop_ranks(struct refit_replica *replica)
{
    if (replica->lead->broadcast)
        refit_broadcast_leave(replica);
    tell_ranks(replica, REFIT_MESSAGE_STOP);
}

/* ---- watching ---- */

void refit_follower_take_state(struct refit_replica *replica, const struct refit_control_state *state)
{
    struct refit_replica_report *report = &replica->report;
    const int64_t *us = state->phase_us;
    pthread_mutex_lock(&replica->lead->lock);
    if (replica->phase != state->phase)
        pthread_cond_broadcast(&replica->lead->changed);
    replica->phase = state->phase;
    replica->bytes_done = state->bytes_done;
    replica->bytes_due = state->bytes_due;
    report->bytes_needed = state->bytes_due;
    report->bytes_moved = replica->resumed ? 0 : state->payload_bytes;
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

enum refit_status refit_follower_fail_aborted(const struct refit_replica *replica, const struct refit_control_state *state,
                                      struct refit_error *err)
{
    if (state->error.status == REFIT_OK)
        return refit_fail(err, REFIT_ABORTED, "%s: refit %s was aborted", replica->control.url.text, state->id);
    return refit_fail(err, state->error.status, "%s: %s", replica->control.url.text, state->error.text);
}

bool refit_replica_is_replaced(const struct refit_replica *replica)
{
    return strcmp(replica->control.instance, replica->led_instance) != 0;
}

enum refit_status refit_follower_look(struct refit_replica *replica, int64_t after, int64_t wait_ms, int64_t *silent_since_ns,
                              struct refit_control_state *state, struct refit_error *err)
{
    struct refit_deadline deadline = refit_follower_deadline(replica, wait_ms + REFIT_CALL_MS);
    enum refit_status status =
        refit_control_state(&replica->control, replica->ticket.id, after, wait_ms, deadline, state, err);
    if (refit_replica_is_replaced(replica))
        return refit_fail(err, REFIT_PEER, "%s: refitd was restarted during the refit", replica->control.url.text);
    int64_t now = refit_clock_ns();
    if (status == REFIT_OK) {
        *silent_since_ns = 0;
        refit_follower_take_state(replica, state);
        return state->phase == REFIT_CONTROL_ABORTED ? refit_follower_fail_aborted(replica, state, err) : REFIT_OK;
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

/* A rank that has no connection any more is missed only where nobody else has what it holds: the replica knows. */
static bool others_may_do(const struct refit_replica *replica, const struct refit_error *of_rank)
{
    return replica->class && !replica->fell_back && refit_served_is_let_go(of_rank->status);
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
        enum refit_status status = refit_follower_look(replica, after, POLL_MS, &silent_since_ns, &state, err);
        if (status != REFIT_OK)
            return status;
        if (state.sequence != UINT64_MAX && state.phase >= REFIT_CONTROL_STAGED)
            return REFIT_OK;
        if (refit_follower_given_up(replica, err))
            return say_what_it_waited_for(replica, &state, err);
        /* Before it has a slot it would keep the others waiting. */
        if (replica->lead->broadcast && state.sequence != UINT64_MAX && state.phase == REFIT_CONTROL_TRANSFER)
            refit_broadcast_join(replica);
        if (refit_replica_is_served(replica)) {
            if (refit_follower_is_deserted(replica))
                return refit_fail(err, REFIT_PEER, "%s: the replicas that served it failed", replica->control.url.text);
            refit_follower_ask_servers(replica);
        }
        if (rank_failed(replica, &of_rank) && !others_may_do(replica, &of_rank)) {
            int64_t now = refit_clock_ns();
            if (failed_since_ns == 0)
                failed_since_ns = now;
            if (now - failed_since_ns > (int64_t)REASON_MS * 1000000)
                return refit_fail(err, of_rank.status, "%s: %s", replica->control.url.text, of_rank.text);
        }
        refit_follower_pause(replica, POLL_PAUSE_MS);
    }
}

/* What landed is what was sent, as far as that can be told of one replica; from here on it can be compared with others. */
static enum refit_status take_digest(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&replica->lead->lock);
    if (replica->posted && replica->lead->broadcast)
        status = refit_broadcast_agree(replica, err);
    else if (replica->posted)
        status = refit_agree_with_ranks(replica, replica->lead->publish.check_source, err);
    if (status == REFIT_OK)
        memcpy(replica->digest, replica->report.digest, sizeof replica->digest);
    pthread_mutex_unlock(&replica->lead->lock);
    return status;
}

/* By tensor what is there, so that the digests of a replica's pods can be added up. One that can't tell is not
 * compared. */
static void take_share(struct refit_replica *replica)
{
    struct refit_lead *lead = replica->lead;
    struct refit_error err;
    if (replica->unit->pod_count == 1 || replica->share)
        return;
    struct refit_tally *share = refit_tally_create(refit_layout_tensor_count(replica->layout));
    enum refit_status status =
        share ? refit_control_digests(&replica->control, lead->publish.version, replica->layout, share,
                                      refit_follower_deadline(replica, REFIT_UPLOAD_MS), &err)
              : refit_fail_alloc(&err, "a tally", refit_layout_tensor_count(replica->layout));
    if (status != REFIT_OK) {
        refit_log_event(REFIT_LOG_INFO, "the digest of the whole replica is not known",
                        refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
        refit_tally_destroy(share);
        return;
    }
    pthread_mutex_lock(&lead->lock);
    replica->share = share;
    pthread_mutex_unlock(&lead->lock);
}

/* For the report only. */
static void take_supply(struct refit_replica *replica)
{
    struct refit_control_supply supply;
    struct refit_error err;
    if (refit_control_supply(&replica->control, replica->ticket.id, refit_follower_deadline(replica, REFIT_CALL_MS),
                             &supply, &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "where a replica's bytes came from is not known",
                        refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
    pthread_mutex_lock(&replica->lead->lock);
    replica->report.bytes_saved = supply.kept_bytes;
    replica->report.bytes_excess = supply.excess_bytes;
    pthread_mutex_unlock(&replica->lead->lock);
}

static enum refit_status sum_up(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_error of_rank;
    tell_ranks(replica, REFIT_MESSAGE_STAGED);
    if (!wait_served(replica, replica->lead->barrier))
        return refit_lead_given_up(replica->lead, err)
                   ? err->status
                   : refit_fail(err, REFIT_TIMEOUT, "not all ranks have said what they sent");
    set_drained(replica);
    if (replica->posted && rank_failed(replica, &of_rank) && !refit_served_is_let_go(of_rank.status))
        return refit_fail(err, of_rank.status, "%s: %s", replica->control.url.text, of_rank.text);
    take_supply(replica);
    return take_digest(replica, err);
}

/* ---- all of it ---- */

/* The refit is requested: from the order to the ranks until it is staged and they have let go of it. */
static enum refit_status through_transfer(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    snprintf(replica->report.refit_id, sizeof replica->report.refit_id, "%s", replica->ticket.id);
    refit_log_context(replica->ticket.id, replica->lead->publish.version);
    snprintf(replica->report.transport, sizeof replica->report.transport, "%s", replica->transport);
    if (!refit_replica_is_served(replica) && !replica->lead->broadcast)
        status = order_ranks(replica, err);
    if (status == REFIT_OK)
        status = watch_until_staged(replica, err);
    return status == REFIT_OK ? sum_up(replica, err) : status;
}

/* The abort's own reason comes back in the state's; what stands behind it is news. */
static void say_more(const struct refit_control_state *state, struct refit_error *why)
{
    struct refit_error known = *why;
    const char *ours = strstr(state->error.text, known.text);
    if (ours)
        refit_fail(why, known.status, "%s%s", known.text, ours + strlen(known.text));
    else
        refit_fail(why, known.status, "%s (%s)", known.text, state->error.text);
}

/* Aborts, and waits for the refit's last word, which may say more than we know: which engine did not answer. */
static void abort_refit(struct refit_replica *replica, struct refit_error *why)
{
    struct refit_error err;
    struct refit_control_state state = {0};
    struct refit_deadline deadline = refit_deadline_in_ms(LETTING_GO_MS);
    if (!replica->report.refit_id[0] || refit_replica_is_replaced(replica))
        return;
    enum refit_status status = refit_control_abort(&replica->control, replica->ticket.id, why->text, deadline, &err);
    for (int64_t after = -1; status == REFIT_OK && !state.terminal && !refit_deadline_passed(deadline);
         after = (int64_t)state.sequence)
        status = refit_control_state(&replica->control, replica->ticket.id, after, POLL_MS, deadline, &state, &err);
    if (status != REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "the lead could not abort a refit", refit_log_text("replica", replica->control.url.text),
                        REFIT_LOG_CAUSE(&err));
    else if (state.error.status != REFIT_OK && !strstr(why->text, state.error.text))
        say_more(&state, why);
}

/* Members that serve it may fail without any fault of its own; then the trainer does. What is verified is kept there. */
static enum refit_status fall_back(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_error why = *err;
    if (!refit_replica_is_served(replica) || refit_follower_given_up(replica, NULL))
        return why.status;
    refit_log_event(REFIT_LOG_INFO, "the trainer feeds a replica from now on", refit_log_text("replica", replica->control.url.text),
                    REFIT_LOG_CAUSE(&why));
    abort_refit(replica, &why);
    replica->report.refit_id[0] = '\0';
    replica->fell_back = true;
    enum refit_status status = refit_follower_begin_again(replica, err);
    return status == REFIT_OK ? through_transfer(replica, err) : status;
}

static enum refit_status until_staged(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = refit_follower_begin(replica, err);
    if (status == REFIT_OK)
        status = through_transfer(replica, err);
    return status == REFIT_OK ? status : fall_back(replica, err);
}

/* What an earlier publish left staged either is what is wanted now, or has to go. */
static bool resume_staged(struct refit_replica *replica)
{
    uint64_t kept = replica->staged_kept;
    struct refit_error why;
    if (kept == 0)
        return false;
    replica->staged_kept = 0;
    snprintf(replica->report.refit_id, sizeof replica->report.refit_id, "%s", replica->ticket.id);
    refit_log_context(replica->ticket.id, replica->lead->publish.version);
    if (kept == replica->lead->publish.version) {
        replica->resumed = true;
        set_drained(replica);
        return true;
    }
    refit_fail(&why, REFIT_ABORTED, "its lead publishes another version");
    abort_refit(replica, &why);
    replica->report.refit_id[0] = '\0';
    pthread_mutex_lock(&replica->lead->lock);
    replica->digest[0] = '\0';
    replica->tally_whole = false;
    pthread_mutex_unlock(&replica->lead->lock);
    return false;
}

static enum refit_status follow(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = resume_staged(replica) ? REFIT_OK : until_staged(replica, err);
    if (status == REFIT_OK)
        take_share(replica);
    if (status == REFIT_OK)
        status = refit_follower_wait_verdict(replica, err);
    if (status != REFIT_OK)
        return status;
    if (replica->verdict == REFIT_VERDICT_COMMIT) {
        status = refit_follower_commit(replica, err);
        return status == REFIT_OK ? refit_follower_wait_seal(replica, err) : status;
    }
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
        bool was_committed = replica->seal == REFIT_SEAL_REVERT && replica->stage == REFIT_REPLICA_COMMITTED;
        stop_ranks(replica);
        if (replica->report.outcome == REFIT_OUTCOME_ABORTED && !was_committed)
            abort_refit(replica, &err);
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
