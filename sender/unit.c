/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/unit.h"

#include <string.h>

#include "sender/agree.h"
#include "sender/replica.h"

#define GRACE_MS 250 /* staged replicas wait for those that still work: this, or a tenth of the time so far */

/* ---- pods ---- */

static bool every_pod(const struct refit_unit *unit, size_t from, enum refit_replica_stage stage)
{
    for (size_t i = from; i < unit->pod_count; i++)
        if (unit->pods[i]->stage != stage)
            return false;
    return true;
}

static const struct refit_replica *ended_pod(const struct refit_unit *unit, size_t from)
{
    for (size_t i = from; i < unit->pod_count; i++)
        if (unit->pods[i]->stage == REFIT_REPLICA_ENDED)
            return unit->pods[i];
    return NULL;
}

static void set_verdict(struct refit_unit *unit, size_t from, enum refit_verdict verdict, const struct refit_error *why)
{
    for (size_t i = from; i < unit->pod_count; i++) {
        struct refit_replica *pod = unit->pods[i];
        if (pod->verdict != REFIT_VERDICT_NONE)
            continue;
        pod->verdict_error = why ? *why : (struct refit_error){0};
        pod->verdict = verdict;
    }
}

/* Also for those that are still committing: it waits for them. */
static void set_seal(struct refit_unit *unit, size_t from, enum refit_seal seal, const struct refit_error *why)
{
    for (size_t i = from; i < unit->pod_count; i++) {
        unit->pods[i]->seal_error = why ? *why : (struct refit_error){0};
        unit->pods[i]->seal = seal;
    }
}

/* Where others rely on one that is staged, its word must be fresh: it may have died while it waited for them. */
static void ask_pods(struct refit_unit *unit)
{
    for (size_t i = 0; i < unit->pod_count; i++)
        unit->pods[i]->asks++;
}

static bool pods_confirm(const struct refit_unit *unit)
{
    bool all = true;
    for (size_t i = 0; i < unit->pod_count; i++)
        all = all && unit->pods[i]->asks > 0 && unit->pods[i]->confirmed == unit->pods[i]->asks;
    return all;
}

/* ---- one replica ---- */

static void fail_unit(struct refit_unit *unit, const struct refit_error *why)
{
    unit->state = REFIT_UNIT_FAILED;
    unit->error = *why;
    set_verdict(unit, 0, REFIT_VERDICT_ABORT, why);
    set_seal(unit, 0, REFIT_SEAL_REVERT, why);
}

static void fail_by_pod(struct refit_unit *unit, const struct refit_replica *pod)
{
    struct refit_error why = pod->report.error;
    if (unit->pod_count > 1 && !strstr(why.text, pod->control.url.text))
        refit_error_prefix(&why, why.status, "%s", pod->control.url.text);
    fail_unit(unit, &why);
}

/* Pods rely on each other. */
static bool pods_are_sure(struct refit_unit *unit)
{
    if (unit->pod_count == 1)
        return true;
    if (!unit->asked)
        ask_pods(unit);
    unit->asked = true;
    return pods_confirm(unit);
}

static void gather(struct refit_unit *unit)
{
    struct refit_error why = {0};
    const struct refit_replica *ended = ended_pod(unit, 0);
    if (ended) {
        fail_by_pod(unit, ended);
    } else if (every_pod(unit, 0, REFIT_REPLICA_STAGED) && pods_are_sure(unit)) {
        if (refit_agree_pods(unit, &why) == REFIT_OK)
            unit->state = REFIT_UNIT_STAGED;
        else
            fail_unit(unit, &why);
    }
}

static void commit_leader(struct refit_unit *unit)
{
    unit->state = REFIT_UNIT_LEADER;
    set_verdict(unit, 0, REFIT_VERDICT_COMMIT, NULL);
}

static void watch_followers(struct refit_unit *unit)
{
    const struct refit_replica *ended = ended_pod(unit, 0);
    if (ended)
        fail_by_pod(unit, ended);
    else if (every_pod(unit, 1, REFIT_REPLICA_COMMITTED))
        commit_leader(unit);
}

static void seal_unit(struct refit_unit *unit)
{
    unit->state = REFIT_UNIT_SEALED;
    set_seal(unit, 0, REFIT_SEAL_FINAL, NULL);
}

/* Where nobody knows whether the leader switched, its followers keep both versions within reach. */
static void watch_leader(struct refit_unit *unit)
{
    const struct refit_replica *leader = unit->pods[0];
    if (leader->stage == REFIT_REPLICA_COMMITTED)
        unit->state = REFIT_UNIT_COMMITTED;
    else if (leader->stage == REFIT_REPLICA_ENDED && leader->report.outcome == REFIT_OUTCOME_UNKNOWN)
        seal_unit(unit);
    else if (leader->stage == REFIT_REPLICA_ENDED)
        fail_by_pod(unit, leader);
}

static void revert_unit(struct refit_unit *unit, const struct refit_error *why)
{
    unit->state = REFIT_UNIT_REVERTING;
    unit->error = *why;
    unit->pods[0]->seal_error = *why;
    unit->pods[0]->seal = REFIT_SEAL_REVERT;
}

/* A leader that could not go back still names the new version: its followers stay with it. */
static void watch_reverting(struct refit_unit *unit)
{
    const struct refit_replica *leader = unit->pods[0];
    if (leader->stage != REFIT_REPLICA_ENDED)
        return;
    if (leader->report.outcome == REFIT_OUTCOME_ABORTED)
        fail_unit(unit, &unit->error);
    else
        seal_unit(unit);
}

static void step_unit(struct refit_unit *unit)
{
    switch (unit->state) {
    case REFIT_UNIT_GATHERING: gather(unit); break;
    case REFIT_UNIT_STAGED:
        if (ended_pod(unit, 0))
            fail_by_pod(unit, ended_pod(unit, 0));
        break;
    case REFIT_UNIT_FOLLOWERS: watch_followers(unit); break;
    case REFIT_UNIT_LEADER: watch_leader(unit); break;
    case REFIT_UNIT_REVERTING: watch_reverting(unit); break;
    case REFIT_UNIT_COMMITTED:
    case REFIT_UNIT_SEALED:
    case REFIT_UNIT_FAILED: break;
    }
}

/* Its turn has come. */
static void release_unit(const struct refit_lead *lead, struct refit_unit *unit)
{
    if (unit->state != REFIT_UNIT_STAGED)
        return;
    if (lead->publish.stage_only) {
        set_verdict(unit, 0, REFIT_VERDICT_KEEP, NULL);
        unit->state = REFIT_UNIT_SEALED;
    } else if (unit->pod_count == 1) {
        commit_leader(unit);
    } else {
        set_verdict(unit, 1, REFIT_VERDICT_COMMIT, NULL);
        unit->state = REFIT_UNIT_FOLLOWERS;
    }
}

/* ---- all replicas ---- */

struct counts {
    size_t gathering, staged, on_the_way, committed, failed;
};

static struct counts count_units(const struct refit_lead *lead, size_t from, size_t until)
{
    struct counts counts = {0};
    for (size_t i = from; i < until; i++)
        switch (lead->units[i].state) {
        case REFIT_UNIT_GATHERING: counts.gathering++; break;
        case REFIT_UNIT_STAGED: counts.staged++; break;
        case REFIT_UNIT_FOLLOWERS:
        case REFIT_UNIT_LEADER: counts.on_the_way++; break;
        case REFIT_UNIT_COMMITTED:
        case REFIT_UNIT_SEALED: counts.committed++; break;
        case REFIT_UNIT_REVERTING:
        case REFIT_UNIT_FAILED: counts.failed++; break;
        }
    return counts;
}

static void call_off(struct refit_lead *lead, const struct refit_error *why)
{
    lead->course = (struct refit_course){
        .phase = REFIT_COURSE_OFF, .why = *why, .takes_back = lead->course.phase != REFIT_COURSE_OPEN};
}

static void turn_back(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->unit_count; i++) {
        struct refit_unit *unit = &lead->units[i];
        if (unit->state == REFIT_UNIT_GATHERING || unit->state == REFIT_UNIT_STAGED)
            fail_unit(unit, &lead->course.why);
        else if (unit->state == REFIT_UNIT_COMMITTED && lead->course.takes_back)
            revert_unit(unit, &lead->course.why);
        else if (unit->state == REFIT_UNIT_COMMITTED)
            seal_unit(unit);
    }
}

static void call_off_for(struct refit_lead *lead, const char *policy)
{
    struct refit_error why;
    const struct refit_unit *failed = NULL;
    for (size_t i = 0; i < lead->unit_count && !failed; i++)
        if (lead->units[i].state == REFIT_UNIT_FAILED)
            failed = &lead->units[i];
    if (!failed)
        refit_fail(&why, REFIT_ABORTED, "%s", policy);
    else
        refit_fail(&why, failed->error.status == REFIT_OK ? REFIT_ABORTED : failed->error.status, "%s: %s", policy,
                   failed->error.text);
    call_off(lead, &why);
}

/* How long those that are staged wait for those that still work: from when `wanted` of them were (as seen here). */
static int64_t opens_ns(struct refit_lead *lead, size_t wanted, const struct counts *counts)
{
    int64_t grace_ns = (int64_t)GRACE_MS * 1000000;
    if (counts->staged < wanted || counts->staged == 0)
        return counts->gathering ? INT64_MAX : 0;
    if (!counts->gathering)
        return 0;
    if (lead->course.enough_ns == 0)
        lead->course.enough_ns = refit_clock_ns();
    int64_t nth_ns = lead->course.enough_ns;
    int64_t tenth_ns = (nth_ns - lead->begun_ns) / 10;
    return nth_ns + (tenth_ns > grace_ns ? tenth_ns : grace_ns);
}

/* Before anyone commits: did all that are staged get the same? */
static bool agree(struct refit_lead *lead)
{
    struct refit_error why = {0};
    if (refit_agree_all(lead, &why) == REFIT_OK)
        return true;
    call_off(lead, &why);
    return false;
}

/* Of the first `until` that are staged. The first time, and whoever was not asked yet, is asked. */
static size_t count_confirmed(struct refit_lead *lead, size_t until)
{
    size_t confirmed = 0;
    for (size_t i = 0; i < until; i++) {
        struct refit_unit *unit = &lead->units[i];
        if (unit->state != REFIT_UNIT_STAGED)
            continue;
        if (!lead->course.asked || unit->pods[0]->asks == 0)
            ask_pods(unit);
        confirmed += pods_confirm(unit);
    }
    lead->course.asked = true;
    return confirmed;
}

static void open_gate(struct refit_lead *lead)
{
    if (agree(lead))
        lead->course.phase = REFIT_COURSE_OPEN;
}

static int64_t wait_each(struct refit_lead *lead, const struct counts *counts)
{
    int64_t at_ns = opens_ns(lead, 1, counts);
    if (at_ns > refit_clock_ns())
        return at_ns;
    open_gate(lead);
    return 0;
}

static int64_t wait_all(struct refit_lead *lead, const struct counts *counts)
{
    if (counts->failed)
        call_off_for(lead, "policy all: none commits unless all do");
    else if (!counts->gathering && count_confirmed(lead, lead->unit_count) == lead->unit_count)
        open_gate(lead);
    return INT64_MAX;
}

static int64_t wait_quorum(struct refit_lead *lead, const struct counts *counts)
{
    size_t wanted = lead->publish.policy.count;
    if (counts->staged + counts->gathering < wanted) {
        call_off_for(lead, "the policy's quorum can't be reached");
        return INT64_MAX;
    }
    int64_t at_ns = opens_ns(lead, wanted, counts);
    if (at_ns > refit_clock_ns())
        return at_ns;
    if (count_confirmed(lead, lead->unit_count) >= wanted)
        open_gate(lead);
    return INT64_MAX;
}

static int64_t wait_canaries(struct refit_lead *lead)
{
    size_t canaries = lead->publish.policy.count;
    struct counts counts = count_units(lead, 0, canaries);
    if (counts.failed)
        call_off_for(lead, "a canary failed");
    else if (counts.staged == canaries && count_confirmed(lead, canaries) == canaries && agree(lead)) {
        lead->course.phase = REFIT_COURSE_CANARIES;
        for (size_t i = 0; i < canaries; i++)
            release_unit(lead, &lead->units[i]);
    }
    return INT64_MAX;
}

static void seal_committed(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->unit_count; i++)
        if (lead->units[i].state == REFIT_UNIT_COMMITTED)
            seal_unit(&lead->units[i]);
}

static void watch_canaries(struct refit_lead *lead)
{
    size_t canaries = lead->publish.policy.count;
    struct counts counts = count_units(lead, 0, canaries);
    if (counts.failed)
        call_off_for(lead, "a canary failed");
    for (size_t i = 0; i < canaries && lead->course.phase == REFIT_COURSE_CANARIES; i++)
        if (lead->units[i].pods[0]->stage == REFIT_REPLICA_ENDED &&
            lead->units[i].pods[0]->report.outcome == REFIT_OUTCOME_UNKNOWN) {
            struct refit_error why;
            refit_fail(&why, REFIT_ABORTED, "what became of a canary is not known: %s",
                       lead->units[i].pods[0]->report.error.text);
            call_off(lead, &why);
        }
    if (lead->course.phase != REFIT_COURSE_CANARIES || counts.committed < canaries)
        return;
    lead->course.phase = REFIT_COURSE_TRIAL;
    lead->course.trial_ends_ns = refit_clock_ns() + lead->publish.policy.wait_ms * 1000000;
}

static int64_t watch_trial(struct refit_lead *lead)
{
    if (refit_clock_ns() < lead->course.trial_ends_ns)
        return lead->course.trial_ends_ns;
    if (lead->publish.policy.checks)
        lead->course.phase = REFIT_COURSE_CHECK;
    else
        refit_course_checked(lead, NULL);
    return 0;
}

void refit_course_checked(struct refit_lead *lead, const struct refit_error *result)
{
    if (lead->course.phase != REFIT_COURSE_TRIAL && lead->course.phase != REFIT_COURSE_CHECK)
        return;
    if (result && result->status != REFIT_OK) {
        call_off(lead, result);
        return;
    }
    seal_committed(lead);
    open_gate(lead);
}

static int64_t wait_by_policy(struct refit_lead *lead)
{
    struct counts counts = count_units(lead, 0, lead->unit_count);
    if (lead->publish.policy.kind == REFIT_POLICY_CANARY && !lead->publish.stage_only)
        return wait_canaries(lead);
    switch (lead->publish.policy.kind) {
    case REFIT_POLICY_ALL: return wait_all(lead, &counts);
    case REFIT_POLICY_QUORUM: return wait_quorum(lead, &counts);
    case REFIT_POLICY_CANARY:
    case REFIT_POLICY_EACH: break;
    }
    return wait_each(lead, &counts);
}

/* A sender that is closed leaves nobody halfway: what may still go back does. */
static void heed_cancel(struct refit_lead *lead)
{
    struct refit_error why;
    if (!lead->cancelled || lead->course.phase == REFIT_COURSE_OFF)
        return;
    refit_fail(&why, REFIT_ABORTED, "the sender was closed");
    call_off(lead, &why);
}

static int64_t step_course(struct refit_lead *lead)
{
    switch (lead->course.phase) {
    case REFIT_COURSE_WAITING: return wait_by_policy(lead);
    case REFIT_COURSE_CANARIES: watch_canaries(lead); return INT64_MAX;
    case REFIT_COURSE_TRIAL: return watch_trial(lead);
    case REFIT_COURSE_CHECK: return INT64_MAX;
    case REFIT_COURSE_OPEN:
        for (size_t i = 0; i < lead->unit_count; i++)
            release_unit(lead, &lead->units[i]);
        seal_committed(lead);
        return INT64_MAX;
    case REFIT_COURSE_OFF: turn_back(lead); return INT64_MAX;
    }
    return INT64_MAX;
}

/* A number that changes with everything that a step may change. */
static uint64_t fingerprint(const struct refit_lead *lead)
{
    uint64_t print = (uint64_t)lead->course.phase;
    for (size_t i = 0; i < lead->unit_count; i++)
        print = print * 31 + (uint64_t)lead->units[i].state;
    return print;
}

int64_t refit_course_step(struct refit_lead *lead)
{
    for (;;) {
        uint64_t before = fingerprint(lead);
        heed_cancel(lead);
        for (size_t i = 0; i < lead->unit_count; i++)
            step_unit(&lead->units[i]);
        int64_t again_ns = step_course(lead);
        if (fingerprint(lead) == before)
            return again_ns;
    }
}

bool refit_course_over(const struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i]->stage != REFIT_REPLICA_ENDED)
            return false;
    return true;
}
