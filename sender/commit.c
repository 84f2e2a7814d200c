/* SPDX-License-Identifier: Apache-2.0
 *
 * One replica at the barrier and after it: verdict, commit, what became of it, and, for one that was let go on trial or with
 * other pods, the way back.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sender/agree.h"
#include "sender/follower.h"

#define POLL_MS 500        /* a long poll until it is committed */
#define KEEP_ALIVE_MS 3000 /* at the barrier: a silent lead may be replaced */
#define SETTLE_MS 10000    /* to find out what became of a commit */
#define REVERT_MS 30000    /* readers may have to let go first */

/* ---- the barrier ---- */

/* *asks is what it is to confirm when it has looked. */
static enum refit_verdict wait_verdict_for(struct refit_replica *replica, int64_t ms, uint32_t *asks)
{
    struct refit_lead *lead = replica->lead;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    bool late = false;
    pthread_mutex_lock(&lead->lock);
    if (replica->stage != REFIT_REPLICA_STAGED) {
        replica->stage = REFIT_REPLICA_STAGED;
        pthread_cond_broadcast(&lead->changed);
    }
    while (replica->verdict == REFIT_VERDICT_NONE && replica->asks == replica->confirmed && !late)
        late = pthread_cond_timedwait(&lead->changed, &lead->lock, &until) != 0;
    enum refit_verdict verdict = replica->verdict;
    *asks = replica->asks;
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

static void confirm(struct refit_replica *replica, uint32_t asks)
{
    pthread_mutex_lock(&replica->lead->lock);
    replica->confirmed = asks;
    pthread_cond_broadcast(&replica->lead->changed);
    pthread_mutex_unlock(&replica->lead->lock);
}

enum refit_status refit_follower_wait_verdict(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_state state;
    int64_t silent_since_ns = 0;
    uint32_t asks = 0;
    for (;;) {
        enum refit_verdict verdict = wait_verdict_for(replica, KEEP_ALIVE_MS, &asks);
        if (verdict == REFIT_VERDICT_ABORT) {
            *err = replica->verdict_error;
            return err->status;
        }
        if (verdict != REFIT_VERDICT_NONE)
            return agree(replica, err);
        enum refit_status status = refit_follower_look(replica, -1, 0, &silent_since_ns, &state, err);
        if (status != REFIT_OK)
            return status;
        if (silent_since_ns == 0)
            confirm(replica, asks);
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
        if (status == REFIT_OK && refit_replica_is_replaced(replica)) {
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
        if (status != REFIT_OK || refit_replica_is_replaced(replica))
            return settle(replica, err);
        refit_follower_take_state(replica, &state);
        if (state.phase == REFIT_CONTROL_COMMITTED) {
            replica->report.outcome = REFIT_OUTCOME_COMMITTED;
            return REFIT_OK;
        }
        if (state.phase == REFIT_CONTROL_ABORTED)
            return refit_follower_fail_aborted(replica, &state, err);
    }
    return settle(replica, err);
}

/* A commit may be repeated: one whose answer was lost is sent again before its outcome is taken for unknown. What is
 * said to the repeat tells nothing of the first unless it speaks of the refit: that is aborted, or committed otherwise. */
enum refit_status refit_follower_commit(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    struct refit_deadline patience = refit_follower_deadline(replica, REFIT_PATIENCE_MS);
    bool in_doubt = false;
    for (;;) {
        enum refit_status status =
            refit_control_commit(&replica->control, replica->ticket.id, lead->publish.version, replica->digest,
                                 replica->unit->model,
                                 refit_follower_deadline(replica, REFIT_CALL_MS), err);
        if (status == REFIT_OK)
            return watch_until_committed(replica, err);
        bool lost = status == REFIT_PEER || status == REFIT_TIMEOUT;
        in_doubt = in_doubt || lost;
        if (refit_replica_is_replaced(replica) || (lost && refit_deadline_passed(patience)))
            return settle(replica, err);
        if (!lost && (status != REFIT_BUSY || refit_deadline_passed(lead->publish.deadline)))
            return in_doubt && status != REFIT_CONFLICT ? settle(replica, err) : status;
        poll(NULL, 0, REFIT_AGAIN_MS);
    }
}

/* ---- the way back ---- */

static enum refit_seal wait_for_seal(struct refit_replica *replica)
{
    struct refit_lead *lead = replica->lead;
    pthread_mutex_lock(&lead->lock);
    replica->stage = REFIT_REPLICA_COMMITTED;
    pthread_cond_broadcast(&lead->changed);
    while (replica->seal == REFIT_SEAL_NONE)
        pthread_cond_wait(&lead->changed, &lead->lock);
    enum refit_seal seal = replica->seal;
    pthread_mutex_unlock(&lead->lock);
    return seal;
}

static enum refit_status revert(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_deadline until = refit_deadline_in_ms(REVERT_MS);
    if (replica->active_before == 0)
        return refit_fail(err, REFIT_NOT_FOUND, "nothing was served before it");
    for (;;) {
        enum refit_status status = refit_control_take_back(&replica->control, replica->active_before, until, err);
        if (status == REFIT_OK || !refit_follower_may_pass(status) || refit_deadline_passed(until))
            return status;
        poll(NULL, 0, REFIT_AGAIN_MS); /* whatever happens to the lead, this must not stay halfway */
    }
}

enum refit_status refit_follower_wait_seal(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_error failed;
    if (wait_for_seal(replica) == REFIT_SEAL_FINAL)
        return REFIT_OK;
    enum refit_status why = replica->seal_error.status;
    if (revert(replica, &failed) == REFIT_OK) {
        replica->report.outcome = REFIT_OUTCOME_ABORTED;
        return refit_fail(err, why, "taken back: %s", replica->seal_error.text);
    }
    if (failed.status == REFIT_PEER || failed.status == REFIT_TIMEOUT)
        replica->report.outcome = REFIT_OUTCOME_UNKNOWN;
    return refit_fail(err, failed.status, "%s: was committed and could not be taken back (%s), as it should have been: %s",
                      replica->control.url.text, failed.text, replica->seal_error.text);
}
