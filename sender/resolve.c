/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/resolve.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "layouts/tally.h"
#include "sender/control.h"

#define CALL_MS 5000
#define POLL_MS 500
#define AGAIN_MS 100

struct pod {
    struct refit_control control;
    struct refit_control_weights weights;
    struct refit_control_state state; /* its latest refit; no id: none */
    uint32_t first_rank, rank_count; /* of the replica's; asked for only where there are several pods */
    struct refit_replica_report *report;
};

struct replica {
    struct resolution *of;
    struct pod *pods; /* rank 0's first */
    size_t pod_count;
    bool was_committed; /* before anything was done */
    char digest[REFIT_SHA256_HEX_MAX];
    char model[REFIT_SHA256_HEX_MAX]; /* of several pods together; empty: not known */
    pthread_t thread;
    bool started;
};

struct resolution {
    struct refit_deadline deadline;
    uint64_t version;
    char publish[REFIT_ID_MAX]; /* up to its first dot; empty: nothing is to be finished */
    bool commits;
    struct pod *pods;
    struct replica *replicas;
    size_t replica_count, pod_count;
};

/* ---- on all replicas at once ---- */

static void on_all(struct resolution *resolution, void *(*body)(void *))
{
    struct refit_error err;
    for (size_t i = 0; i < resolution->replica_count; i++) {
        struct replica *replica = &resolution->replicas[i];
        replica->started = refit_thread_start(&replica->thread, body, replica, "a thread to ask a replica", &err) == REFIT_OK;
        if (!replica->started)
            body(replica);
    }
    for (size_t i = 0; i < resolution->replica_count; i++)
        if (resolution->replicas[i].started)
            pthread_join(resolution->replicas[i].thread, NULL);
}

static struct refit_deadline call_by(const struct resolution *resolution)
{
    return refit_deadline_earlier(resolution->deadline, refit_deadline_in_ms(CALL_MS));
}

static enum refit_status ask(const struct resolution *resolution, struct pod *pod, struct refit_error *err)
{
    enum refit_status status = refit_control_weights(&pod->control, call_by(resolution), &pod->weights, err);
    if (status != REFIT_OK)
        return status;
    status = refit_control_state(&pod->control, NULL, -1, 0, call_by(resolution), &pod->state, err);
    return status == REFIT_NOT_FOUND ? REFIT_OK : status;
}

static void *ask_pods(void *context)
{
    struct replica *replica = context;
    for (size_t i = 0; i < replica->pod_count; i++) {
        struct pod *pod = &replica->pods[i];
        struct refit_error *err = &pod->report->error;
        err->status = ask(replica->of, pod, err);
        pod->report->outcome = err->status == REFIT_OK ? REFIT_OUTCOME_ABORTED : REFIT_OUTCOME_UNKNOWN;
    }
    return NULL;
}

/* ---- what is to be finished ---- */

static bool knows(const struct pod *pod)
{
    return pod->report->error.status == REFIT_OK;
}

static bool is_open(const struct pod *pod)
{
    return knows(pod) && (pod->state.phase == REFIT_CONTROL_STAGED || pod->state.phase == REFIT_CONTROL_COMMITTING) &&
           pod->state.id[0];
}

static bool is_of_publish(const struct resolution *resolution, const struct pod *pod)
{
    size_t len = strcspn(pod->state.publish_id, ".");
    return pod->state.version == resolution->version && len == strlen(resolution->publish) &&
           strncmp(pod->state.publish_id, resolution->publish, len) == 0;
}

static bool has_committed(const struct resolution *resolution, const struct pod *pod)
{
    return knows(pod) && pod->weights.active.version == resolution->version;
}

static void find_publish(struct resolution *resolution)
{
    const struct pod *newest = NULL;
    uint64_t active = 0;
    for (size_t i = 0; i < resolution->pod_count; i++) {
        const struct pod *pod = &resolution->pods[i];
        if (is_open(pod) && (!newest || pod->state.version > newest->state.version))
            newest = pod;
        if (knows(pod) && pod->weights.active.version > active)
            active = pod->weights.active.version;
    }
    resolution->version = newest ? newest->state.version : active;
    if (newest)
        snprintf(resolution->publish, sizeof resolution->publish, "%.*s", (int)strcspn(newest->state.publish_id, "."),
                 newest->state.publish_id);
}

static void decide(struct resolution *resolution, enum refit_resolve_choice choice)
{
    resolution->commits = choice == REFIT_RESOLVE_COMMIT;
    for (size_t i = 0; i < resolution->replica_count && choice == REFIT_RESOLVE_AUTO; i++)
        resolution->commits |= has_committed(resolution, &resolution->replicas[i].pods[0]);
}

/* ---- finishing ---- */

static void take_outcome(const struct resolution *resolution, struct pod *pod)
{
    struct refit_replica_report *report = pod->report;
    if (!knows(pod))
        return;
    if (has_committed(resolution, pod)) {
        report->outcome = REFIT_OUTCOME_COMMITTED;
        snprintf(report->digest, sizeof report->digest, "%s", pod->weights.active.digest);
        return;
    }
    report->outcome = REFIT_OUTCOME_ABORTED;
    if (pod->weights.active.version)
        refit_fail(&report->error, REFIT_ABORTED, "%s: serves version %" PRIu64, pod->control.url.text,
                   pod->weights.active.version);
    else
        refit_fail(&report->error, REFIT_ABORTED, "%s: serves no version", pod->control.url.text);
}

static enum refit_status wait_end(const struct resolution *resolution, struct pod *pod, struct refit_error *err)
{
    int64_t after = -1;
    for (;;) {
        enum refit_status status = refit_control_state(&pod->control, pod->state.id, after, POLL_MS,
                                                       resolution->deadline, &pod->state, err);
        if (status != REFIT_OK || pod->state.terminal)
            return status;
        if (refit_deadline_passed(resolution->deadline))
            return refit_fail(err, REFIT_TIMEOUT, "%s: refit %s is still %s", pod->control.url.text, pod->state.id,
                              refit_control_phase_name(pod->state.phase));
        after = (int64_t)pod->state.sequence;
    }
}

static enum refit_status commit_pod(const struct resolution *resolution, struct pod *pod, const char *model,
                                    struct refit_error *err)
{
    enum refit_status status;
    while ((status = refit_control_commit(&pod->control, pod->state.id, pod->state.version, pod->state.digest, model,
                                          call_by(resolution), err)) == REFIT_BUSY &&
           !refit_deadline_passed(resolution->deadline))
        poll(NULL, 0, AGAIN_MS);
    return status == REFIT_OK ? wait_end(resolution, pod, err) : status;
}

static enum refit_status abort_pod(const struct resolution *resolution, struct pod *pod, struct refit_error *err)
{
    enum refit_status status = refit_control_abort(&pod->control, pod->state.id, "its lead is gone, and no replica has "
                                                   "committed it", call_by(resolution), err);
    return status == REFIT_OK ? wait_end(resolution, pod, err) : status;
}

/* What became of it is asked of the replica itself. */
static void finish_pod(const struct resolution *resolution, struct pod *pod, const char *model, bool forward)
{
    struct refit_error err = {0};
    enum refit_status status = REFIT_OK;
    bool back = !forward && resolution->publish[0] && has_committed(resolution, pod);
    if (back && pod->weights.rollback_version)
        status = refit_control_take_back(&pod->control, pod->weights.rollback_version, resolution->deadline, &err);
    else if (is_open(pod) && is_of_publish(resolution, pod))
        status = forward ? commit_pod(resolution, pod, model, &err) : abort_pod(resolution, pod, &err);
    if (knows(pod)) {
        struct refit_error lost;
        lost.status = ask(resolution, pod, &lost);
        if (lost.status != REFIT_OK) {
            pod->report->outcome = REFIT_OUTCOME_UNKNOWN;
            pod->report->error = lost;
        }
    }
    take_outcome(resolution, pod);
    if (status != REFIT_OK && pod->report->outcome != REFIT_OUTCOME_COMMITTED)
        pod->report->error = err;
}

static bool may_commit(const struct resolution *resolution, const struct pod *pod)
{
    return has_committed(resolution, pod) || (is_open(pod) && is_of_publish(resolution, pod));
}

static bool have_committed(const struct resolution *resolution, const struct replica *replica, size_t from)
{
    for (size_t i = from; i < replica->pod_count; i++)
        if (!has_committed(resolution, &replica->pods[i]))
            return false;
    return true;
}

/* What is staged there is not what others serve under that version. */
static bool differs(const struct resolution *resolution, const struct replica *replica)
{
    for (size_t i = 0; i < resolution->replica_count && replica->pod_count == 1; i++) {
        const struct replica *other = &resolution->replicas[i];
        if (other->pod_count == 1 && other->was_committed && !replica->was_committed &&
            strcmp(other->digest, replica->digest) != 0)
            return true;
    }
    return false;
}

static bool goes_forward(const struct resolution *resolution, const struct replica *replica)
{
    bool all = resolution->commits && !differs(resolution, replica);
    for (size_t i = 0; i < replica->pod_count; i++)
        all = all && may_commit(resolution, &replica->pods[i]);
    return all || replica->was_committed;
}

/* ---- what the pods of a replica have together ---- */

static enum refit_status read_ranks(const struct resolution *resolution, struct pod *pod, struct refit_error *err)
{
    json_t *host = NULL;
    int64_t first = 0, count = 0;
    enum refit_status status = refit_control_host(&pod->control, call_by(resolution), &host, err);
    const json_t *ranks = json_object_get(host, "ranks");
    if (status == REFIT_OK)
        status = refit_json_get_int(ranks, "first", "ranks", 0, INT32_MAX, &first, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(ranks, "count", "ranks", 1, INT32_MAX, &count, err);
    pod->first_rank = (uint32_t)first;
    pod->rank_count = (uint32_t)count;
    json_decref(host);
    return status;
}

static struct pod *pod_from(const struct replica *replica, uint32_t rank)
{
    for (size_t i = 0; i < replica->pod_count; i++)
        if (replica->pods[i].first_rank == rank)
            return &replica->pods[i];
    return NULL;
}

/* Each begins where the one before it ends; else they are not the whole, and their sum names nothing. */
static enum refit_status add_up(const struct resolution *resolution, const struct replica *replica,
                                const struct refit_layout *layout, struct refit_tally *sum, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (uint32_t covered = 0; covered < refit_layout_ranks(layout) && status == REFIT_OK;) {
        struct pod *pod = pod_from(replica, covered);
        if (!pod)
            return refit_fail(err, REFIT_NOT_FOUND, "no pod of it holds rank %" PRIu32, covered);
        status = refit_control_digests(&pod->control, resolution->version, layout, sum, call_by(resolution), err);
        covered += pod->rank_count;
    }
    return status;
}

static enum refit_status digest_model(const struct resolution *resolution, struct replica *replica,
                                      struct refit_error *err)
{
    struct refit_layout *layout = NULL;
    struct refit_tally *sum = NULL;
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < replica->pod_count && status == REFIT_OK; i++)
        status = read_ranks(resolution, &replica->pods[i], err);
    if (status == REFIT_OK)
        status = refit_control_layout(&replica->pods[0].control, call_by(resolution), &layout, err);
    if (status == REFIT_OK && !(sum = refit_tally_create(refit_layout_tensor_count(layout))))
        status = refit_fail_alloc(err, "a tally", refit_layout_tensor_count(layout) * sizeof(struct refit_digest));
    if (status == REFIT_OK)
        status = add_up(resolution, replica, layout, sum, err);
    if (status == REFIT_OK)
        status = refit_model_digest(layout, sum, "exact", replica->model, err);
    refit_tally_destroy(sum);
    refit_layout_release(layout);
    return status;
}

/* So that its pods show it with the version. One that can't tell leaves it unknown; that is no reason not to finish. */
static void find_model(const struct resolution *resolution, struct replica *replica)
{
    struct refit_error err;
    if (replica->pod_count > 1 && digest_model(resolution, replica, &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "the digest of the whole replica is not known",
                        refit_log_text("replica", replica->pods[0].control.url.text), REFIT_LOG_CAUSE(&err));
}

/* Forward the pod with rank 0 goes last, and only when all others did; back it goes first. */
static void *finish_pods(void *context)
{
    struct replica *replica = context;
    const struct resolution *resolution = replica->of;
    bool forward = goes_forward(resolution, replica) && (resolution->commits || !resolution->publish[0]);
    if (forward && resolution->publish[0])
        find_model(resolution, replica);
    for (size_t i = 1; forward && i < replica->pod_count; i++)
        finish_pod(resolution, &replica->pods[i], replica->model, true);
    forward = forward && (replica->was_committed || have_committed(resolution, replica, 1));
    finish_pod(resolution, &replica->pods[0], replica->model, forward);
    for (size_t i = 1; !forward && i < replica->pod_count; i++)
        finish_pod(resolution, &replica->pods[i], replica->model, false);
    return NULL;
}

/* As it is before anything is done; threads look at each other's. */
static void note_state(struct resolution *resolution)
{
    for (size_t i = 0; i < resolution->replica_count; i++) {
        struct replica *replica = &resolution->replicas[i];
        const struct pod *first = &replica->pods[0];
        replica->was_committed = has_committed(resolution, first);
        snprintf(replica->digest, sizeof replica->digest, "%s",
                 replica->was_committed ? first->weights.active.digest : first->state.digest);
    }
}

/* ---- all of it ---- */

static enum refit_status lay_out(const struct refit_membership *members, struct resolution *resolution,
                                 struct refit_report_store *out, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    size_t at = 0;
    for (size_t i = 0; i < members->count && status == REFIT_OK; i++) {
        struct replica *replica = &resolution->replicas[i];
        *replica = (struct replica){.of = resolution, .pods = resolution->pods + at, .pod_count = members->members[i].count};
        for (size_t k = 0; k < replica->pod_count && status == REFIT_OK; k++, at++) {
            struct pod *pod = &resolution->pods[at];
            status = refit_control_init(&pod->control, members->members[i].urls[k], err);
            pod->report = &out->replicas[at];
            pod->report->replica = (uint32_t)i;
            snprintf(pod->report->url, sizeof pod->report->url, "%s", pod->control.url.text);
        }
    }
    return status;
}

static void conclude(const struct resolution *resolution, struct refit_report_store *out)
{
    out->report.version = resolution->version;
    out->report.replicas = out->replicas;
    out->report.replica_count = resolution->pod_count;
    for (size_t i = 0; i < resolution->pod_count && !out->report.digest[0]; i++)
        memcpy(out->report.digest, out->replicas[i].digest, sizeof out->report.digest);
    refit_report_conclude(out, false, 0);
}

enum refit_status refit_resolve(const struct refit_membership *members, enum refit_resolve_choice choice,
                                struct refit_deadline deadline, struct refit_report_store *out, struct refit_error *err)
{
    struct resolution resolution = {.deadline = deadline, .replica_count = members->count};
    *out = (struct refit_report_store){0};
    for (size_t i = 0; i < members->count; i++)
        resolution.pod_count += members->members[i].count;
    resolution.pods = calloc(resolution.pod_count + 1, sizeof *resolution.pods);
    resolution.replicas = calloc(members->count + 1, sizeof *resolution.replicas);
    out->replicas = calloc(resolution.pod_count + 1, sizeof *out->replicas);
    enum refit_status status = resolution.pods && resolution.replicas && out->replicas
                                   ? lay_out(members, &resolution, out, err)
                                   : refit_fail_alloc(err, "members", resolution.pod_count * sizeof *resolution.pods);
    if (status == REFIT_OK) {
        on_all(&resolution, ask_pods);
        find_publish(&resolution);
        decide(&resolution, choice);
        note_state(&resolution);
        on_all(&resolution, finish_pods);
        conclude(&resolution, out);
    } else {
        refit_report_release(out);
    }
    free(resolution.pods);
    free(resolution.replicas);
    return status;
}
