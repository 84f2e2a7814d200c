/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions: what is served, going back, hold and quarantine.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "sidecar/config_value.h"
#include "sidecar/routes.h"

#define ROLLBACK_MS 25000 /* below the time a client waits for an answer */

void refit_handle_weights(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    json_t *body = refit_health_weights_json(&now.receiver);
    if (body && now.view.siblings)
        json_object_set_new(body, "stale", refit_health_stale_json(&now.view));
    refit_reply_json(reply, 200, body);
}

static json_t *digests_json(const struct refit_receiver_snapshot *now, uint64_t version,
                            const struct refit_layout *layout,
                            const struct refit_tally *tally)
{
    char *text = refit_tally_hex(tally);
    json_t *json = json_pack("{s:o, s:s, s:{s:I, s:I}, s:s*}", "version", refit_json_u64(version), "layout",
                             refit_layout_digest(layout), "ranks", "first", (json_int_t)now->bank.first_rank, "count",
                             (json_int_t)now->bank.ranks, "digests", text);
    free(text);
    return json;
}

void refit_handle_digests(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_receiver_snapshot now;
    struct refit_layout *layout = NULL;
    struct refit_tally *tally = NULL;
    struct refit_error err;
    uint64_t version = 0;
    enum refit_status status = REFIT_OK;
    if (!refit_config_parse_number(call->param, &version) || version == 0)
        status = refit_fail(&err, REFIT_INVALID, "/v1/digests/%.80s: expected a version, 1 or more", call->param);
    if (status == REFIT_OK)
        status = refit_receiver_digests(call->receiver, version, &layout, &tally, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_receiver_read(call->receiver, &now);
    refit_reply_json(reply, 200, digests_json(&now, version, layout, tally));
    refit_tally_destroy(tally);
    refit_layout_release(layout);
}

static enum refit_status read_rollback(const struct refit_call *call, struct refit_rollback *rollback, char *kv,
                                       size_t size, struct refit_error *err)
{
    static const char *const known[] = {"version", "kv", "quarantine", "hold", NULL};
    bool held = true;
    enum refit_status status = refit_json_known(call->json, "rollback", known, err);
    if (status == REFIT_OK && json_object_get(call->json, "version"))
        status = refit_json_get_u64(call->json, "version", "rollback", &rollback->version, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "kv", "rollback", kv, size, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(call->json, "quarantine", "rollback", &rollback->quarantine, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(call->json, "hold", "rollback", &held, err);
    rollback->open = !held;
    return status;
}

static uint64_t active_version(const struct refit_receiver_snapshot *now)
{
    return now->bank.active < now->bank.slots ? now->bank.slot[now->bank.active].version.version : 0;
}

/* Whoever may bring a version may take it back: a lead does so with canaries. What lasts is for admins. */
static bool may_roll_back(const struct refit_call *call, const struct refit_rollback *rollback, struct refit_reply *reply)
{
    bool lasts = !rollback->open || rollback->quarantine;
    if (!lasts || call->role >= REFIT_MAY_ADMIN)
        return true;
    refit_reply_problem(reply, 403, "forbidden", "%s has the role %s; a rollback that holds newer versions off, or quarantines, "
                        "needs the role admin", call->client, refit_access_role_name(call->role));
    return false;
}

void refit_handle_rollback(const struct refit_call *call, struct refit_reply *reply)
{
    char kv[16] = "";
    struct refit_rollback rollback = {.kv = kv};
    struct refit_receiver_snapshot before, after;
    struct refit_version now;
    struct refit_error err;
    enum refit_status status = read_rollback(call, &rollback, kv, sizeof kv, &err);
    if (status == REFIT_OK && !may_roll_back(call, &rollback, reply))
        return;
    refit_receiver_read(call->receiver, &before);
    if (status == REFIT_OK)
        status = refit_receiver_rollback(call->receiver, &rollback, refit_deadline_in_ms(ROLLBACK_MS), &now, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_audit(call->client, "rollback", refit_log_u64("from", active_version(&before)),
                refit_log_u64("to", now.version), refit_log_text("digest", now.digest),
                refit_log_bool("quarantine", rollback.quarantine));
    refit_receiver_read(call->receiver, &after); /* without a hold of its own, another may stand */
    refit_reply_json(reply, 200, json_pack("{s:o, s:b}", "active", refit_health_version_json(&now), "held", (int)after.held));
}

void refit_handle_hold(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {NULL};
    struct refit_error err;
    if (refit_json_known(call->json, "hold", known, &err)) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_receiver_hold(call->receiver);
    refit_audit(call->client, "hold");
    refit_reply_json(reply, 200, json_pack("{s:b}", "held", 1));
}

void refit_handle_release(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {NULL};
    struct refit_error err;
    if (refit_json_known(call->json, "release", known, &err)) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_receiver_release_hold(call->receiver);
    refit_audit(call->client, "release", refit_log_bool("held", false));
    refit_reply_json(reply, 200, json_pack("{s:b}", "held", 0));
}

void refit_handle_quarantine(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {"digest", "on", NULL};
    const char *digest = "";
    bool on = true;
    struct refit_error err;
    enum refit_status status = refit_json_known(call->json, "quarantine", known, &err);
    if (status == REFIT_OK)
        status = refit_json_get_string(call->json, "digest", "quarantine", &digest, &err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(call->json, "on", "quarantine", &on, &err);
    if (status == REFIT_OK)
        status = refit_receiver_quarantine(call->receiver, digest, on, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_audit(call->client, "quarantine", refit_log_text("digest", digest), refit_log_bool("on", on));
    refit_reply_json(reply, 200, json_pack("{s:s, s:b}", "digest", digest, "on", (int)on));
}
