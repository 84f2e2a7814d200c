/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/fetch_target.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "receiver/fleet.h"
#include "sidecar/audit.h"

#define TAKE_BACK_MS 30000 /* readers may have to let go first */
#define OURS "catch-up-"   /* what begins the name of every try */

/* Phases are looked at as the API names them, wherever they are. */
_Static_assert((int)REFIT_PHASE_TRANSFER == (int)REFIT_CONTROL_TRANSFER &&
               (int)REFIT_PHASE_STAGED == (int)REFIT_CONTROL_STAGED &&
                   (int)REFIT_PHASE_COMMITTED == (int)REFIT_CONTROL_COMMITTED &&
                   (int)REFIT_PHASE_ABORTED == (int)REFIT_CONTROL_ABORTED, "one order of phases");

const char *refit_fetch_target_name(const struct refit_fetch_target *target)
{
    return target->pod ? target->pod->url : "this refitd";
}

void refit_fetch_target_release(struct refit_fetch_target *target)
{
    json_decref(target->card);
    target->card = NULL;
}

/* ---- begin ---- */

static json_t *fleet_json(const struct refit_fetch_target *target, const struct refit_fetch_order *order)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:[{s:s, s:s}]}", "id", target->publish_id, "token", target->token, "self",
                     0,
                     "sources", (json_int_t)order->holders, "members", "name",
                     target->pod ? target->pod->url : "this replica", "domain",
                     *order->domain ? order->domain : "unknown");
}

/* A pod's bytes are proved with those of the others. */
static bool is_alone(const struct refit_fetch_target *target)
{
    return target->rank_count == 0;
}

static enum refit_status begin_here(struct refit_fetch_target *target, const struct refit_fetch_order *order,
                                    const char *resume, struct refit_error *err)
{
    struct refit_ticket ticket = {.card = NULL};
    struct refit_request request = {.version = order->version.version, .kv = "flush", .transport = "tcp",
                                    .catch_up = true,
                                    .commit = is_alone(target) ? REFIT_COMMIT_AUTO : REFIT_COMMIT_BARRIER};
    size_t len;
    const char *digest = refit_layout_digest(order->source), *text = refit_layout_text(order->source, &len);
    snprintf(request.label, sizeof request.label, "%s", order->version.label);
    snprintf(request.digest, sizeof request.digest, "%s", is_alone(target) ? order->version.digest : "");
    snprintf(request.publish_id, sizeof request.publish_id, "%s", target->publish_id);
    snprintf(request.resume, sizeof request.resume, "%s", resume);
    snprintf(request.source, sizeof request.source, "%s", digest);
    refit_sha256_hex(target->publish_id, strlen(target->publish_id), request.body_digest);
    request.deadline_ms = refit_deadline_left_ms(order->deadline);
    json_t *fleet = fleet_json(target, order);
    enum refit_status status = fleet ? refit_fleet_from_json(fleet, &request.fleet, err)
                                     : refit_fail_alloc(err, "a request", sizeof request);
    if (status == REFIT_OK)
        status = refit_receiver_put_source(target->receiver, digest, text, len, err);
    if (status == REFIT_OK)
        status = refit_receiver_begin(target->receiver, &request, &ticket, err);
    if (status == REFIT_OK) {
        memcpy(target->id, ticket.id, sizeof target->id);
        target->card = ticket.card;
        refit_traffic_note(target->traffic, ticket.id, &request);
    }
    refit_fleet_release(request.fleet);
    json_decref(fleet);
    return status;
}

static json_t *request_json(const struct refit_fetch_target *target, const struct refit_fetch_order *order,
                            const char *resume)
{
    json_t *json = json_pack("{s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:b, s:{s:I, s:I}, s:o}", "version",
                             refit_json_u64(order->version.version), "label", order->version.label, "publish_id",
                             target->publish_id, "source", refit_layout_digest(order->source), "transport", "tcp",
                             "commit", "barrier", "kv", "flush", "deadline_ms",
                             (json_int_t)refit_deadline_left_ms(order->deadline),
                             "catch_up", 1, "ranks", "first", (json_int_t)target->first_rank, "count",
                             (json_int_t)target->rank_count, "fleet", fleet_json(target, order));
    if (json && *resume)
        json_object_set_new(json, "resume", json_string(resume));
    return json;
}

/* A refitd that led a try before it was started anew has left it there. */
static void end_leftover(struct refit_fetch_target *target)
{
    struct refit_control_state state;
    struct refit_error ignored;
    struct refit_deadline deadline = refit_deadline_in_ms(REFIT_FETCH_CALL_MS);
    if (refit_control_state(&target->control, NULL, -1, 0, deadline, &state, &ignored) != REFIT_OK || state.terminal ||
        strncmp(state.publish_id, OURS, sizeof OURS - 1) != 0)
        return;
    (void)!refit_control_abort(&target->control, state.id, "the pod with rank 0 began another try", deadline,
                               &ignored); /* the next try finds out */
}

static enum refit_status begin_there(struct refit_fetch_target *target, const struct refit_fetch_order *order,
                                     const char *resume, struct refit_error *err)
{
    struct refit_control_ticket ticket = {.card = NULL};
    size_t len;
    const char *digest = refit_layout_digest(order->source), *text = refit_layout_text(order->source, &len);
    json_t *body = request_json(target, order, resume);
    if (!body)
        return refit_fail_alloc(err, "a request", 0);
    struct refit_deadline deadline = refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS);
    enum refit_status status = refit_control_begin(&target->control, body, deadline, &ticket, err);
    if (status == REFIT_NOT_FOUND && strstr(err->text, digest)) {
        status = refit_control_put_source(&target->control, digest, text, len, deadline, err);
        if (status == REFIT_OK)
            status = refit_control_begin(&target->control, body, deadline, &ticket, err);
    }
    json_decref(body);
    if (status == REFIT_BUSY || status == REFIT_CONFLICT)
        end_leftover(target);
    if (status != REFIT_OK)
        return status;
    memcpy(target->id, ticket.id, sizeof target->id);
    target->card = ticket.card;
    return REFIT_OK;
}

enum refit_status refit_fetch_target_begin(struct refit_fetch_target *target, const struct refit_fetch_order *order,
                                           const char *resume, struct refit_error *err)
{
    target->phase = REFIT_CONTROL_REQUESTED;
    enum refit_status status = target->pod ? begin_there(target, order, resume, err)
                                           : begin_here(target, order, resume, err);
    if (status == REFIT_OK)
        refit_audit("--siblings", "begin", refit_log_text("refit", target->id), refit_log_u64("version",
                                                                                              order->version.version),
                    refit_log_text("label", order->version.label), refit_log_text("digest", order->version.digest),
                    refit_log_text("at", refit_fetch_target_name(target)));
    return status;
}

/* ---- looking ---- */

static enum refit_status look_here(struct refit_fetch_target *target, struct refit_error *err)
{
    struct refit_session_snapshot now;
    enum refit_status status = refit_receiver_session(target->receiver, target->id, &now, err);
    if (status != REFIT_OK)
        return status;
    target->phase = (enum refit_control_phase)now.phase;
    target->bytes_done = now.bytes_done;
    memcpy(target->digest, now.digest, sizeof target->digest);
    target->error = now.error;
    return REFIT_OK;
}

/* A refitd that was started anew does not know the refit. */
static enum refit_status look_there(struct refit_fetch_target *target, struct refit_error *err)
{
    struct refit_control_state now;
    enum refit_status status = refit_control_state(&target->control, target->id, -1, 0,
                                                   refit_deadline_in_ms(REFIT_FETCH_CALL_MS), &now, err);
    if (status == REFIT_PEER || status == REFIT_TIMEOUT || status == REFIT_BUSY)
        return REFIT_OK;
    if (status != REFIT_OK)
        return status;
    target->phase = now.phase;
    target->bytes_done = now.bytes_done;
    memcpy(target->digest, now.digest, sizeof target->digest);
    target->error = now.error;
    return REFIT_OK;
}

enum refit_status refit_fetch_target_look(struct refit_fetch_target *target, struct refit_error *err)
{
    return target->pod ? look_there(target, err) : look_here(target, err);
}

bool refit_fetch_target_is_replaced(struct refit_fetch_target *target)
{
    struct refit_session_snapshot latest;
    struct refit_control_state there;
    struct refit_error ignored;
    if (!target->pod)
        return refit_receiver_session(target->receiver, NULL, &latest, NULL) == REFIT_OK &&
               strcmp(latest.id, target->id) != 0;
    return refit_control_state(&target->control, NULL, -1, 0, refit_deadline_in_ms(REFIT_FETCH_CALL_MS), &there,
                               &ignored) ==
               REFIT_OK && strcmp(there.id, target->id) != 0;
}

/* ---- its end ---- */

enum refit_status refit_fetch_target_commit(struct refit_fetch_target *target, uint64_t version, const char *model,
                                            struct refit_error *err)
{
    if (target->pod)
        return refit_control_commit(&target->control, target->id, version, target->digest, model,
                                    refit_deadline_in_ms(REFIT_FETCH_CALL_MS), err);
    enum refit_status status = refit_receiver_attest(target->receiver, version, target->digest, model, err);
    return status == REFIT_OK ? refit_receiver_commit(target->receiver, target->id, version, target->digest,
                                                      err) : status;
}

void refit_fetch_target_abort(struct refit_fetch_target *target, const char *why)
{
    struct refit_error ignored;
    if (!target->id[0] || target->phase >= REFIT_CONTROL_COMMITTED)
        return;
    /* It may have ended by itself; else its deadline ends it. */
    if (target->pod)
        (void)!refit_control_abort(&target->control, target->id, why, refit_deadline_in_ms(REFIT_FETCH_CALL_MS),
                                   &ignored);
    else
        (void)!refit_receiver_abort(target->receiver, target->id, why, &ignored);
}

void refit_fetch_target_take_back(struct refit_fetch_target *target)
{
    struct refit_error err;
    if (!target->pod || target->phase != REFIT_CONTROL_COMMITTED || target->before == 0)
        return;
    if (refit_control_take_back(&target->control, target->before, refit_deadline_in_ms(TAKE_BACK_MS), &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a pod of this replica was not taken back", refit_log_text("pod",
                                                                                                   target->pod->url),
                        refit_log_u64("version", target->before), REFIT_LOG_CAUSE(&err));
}
