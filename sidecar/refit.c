/* SPDX-License-Identifier: Apache-2.0
 *
 * Refits: begin, look, commit, abort.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "receiver/fleet.h"
#include "sidecar/routes.h"

static enum refit_status read_commit_mode(const struct refit_call *call, struct refit_request *request,
                                          struct refit_error *err)
{
    char mode[16] = "";
    enum refit_status status = refit_call_text(call, "commit", "refit", mode, sizeof mode, err);
    if (status)
        return status;
    if (!mode[0])
        request->commit = request->checkpoint[0] ? REFIT_COMMIT_AUTO : REFIT_COMMIT_BARRIER;
    else if (strcmp(mode, "barrier") == 0)
        request->commit = REFIT_COMMIT_BARRIER;
    else if (strcmp(mode, "auto") == 0)
        request->commit = REFIT_COMMIT_AUTO;
    else
        return refit_fail(err, REFIT_INVALID, "refit: \"commit\" must be barrier or auto, found \"%s\"", mode);
    return REFIT_OK;
}

static enum refit_status read_texts(const struct refit_call *call, struct refit_request *request,
                                    struct refit_error *err)
{
    const struct {
        const char *key;
        char *out;
        size_t size;
    } members[] = {
        {"label", request->label, sizeof request->label},
        {"publish_id", request->publish_id, sizeof request->publish_id},
        {"source", request->source, sizeof request->source},
        {"checkpoint", request->checkpoint, sizeof request->checkpoint},
        {"transport", request->transport, sizeof request->transport},
        {"digest", request->digest, sizeof request->digest},
        {"kv", request->kv, sizeof request->kv},
        {"resume", request->resume, sizeof request->resume},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        enum refit_status status = refit_call_text(call, members[i].key, "refit", members[i].out, members[i].size, err);
        if (status)
            return status;
    }
    return REFIT_OK;
}

/* A member that was started anew has other cards; it is the same fleet. */
static void forget_cards(json_t *body)
{
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(json_object_get(body, "fleet"), "members"), i, member)
    {
        json_object_del(member, "tcp");
        json_object_del(member, "local");
        json_object_del(member, "nccl");
    }
}

/* So that the same request sent again is known as the same, whatever order its members have. */
static enum refit_status digest_body(const struct refit_call *call, struct refit_request *request,
                                     struct refit_error *err)
{
    size_t len = 0;
    json_t *body = json_deep_copy(call->json);
    forget_cards(body);
    char *text = body ? refit_json_canonical(body, &len) : NULL;
    json_decref(body);
    if (!text)
        return refit_fail_alloc(err, "the canonical request", call->body_len);
    refit_sha256_hex(text, len, request->body_digest);
    free(text);
    return REFIT_OK;
}

static enum refit_status read_ranks(const struct refit_call *call, struct refit_request *request,
                                    struct refit_error *err)
{
    static const char *const known[] = {"first", "count", NULL};
    const json_t *ranks = json_object_get(call->json, "ranks");
    int64_t first = 0, count = 0;
    if (!ranks)
        return REFIT_OK;
    if (!json_is_object(ranks))
        return refit_fail(err, REFIT_INVALID, "refit: \"ranks\" must be an object");
    enum refit_status status = refit_json_known(ranks, "ranks", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(ranks, "first", "ranks", 0, REFIT_RANKS_MAX - 1, &first, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(ranks, "count", "ranks", 1, REFIT_RANKS_MAX, &count, err);
    request->first_rank = (uint32_t)first;
    request->rank_count = (uint32_t)count;
    return status;
}

static enum refit_status read_unchanged(const struct refit_call *call, struct refit_request *request,
                                        struct refit_error *err)
{
    static const char *const known[] = {"since", "tensors", NULL};
    const json_t *unchanged = json_object_get(call->json, "unchanged");
    if (!unchanged)
        return REFIT_OK;
    if (!json_is_object(unchanged))
        return refit_fail(err, REFIT_INVALID, "refit: \"unchanged\" must be an object");
    enum refit_status status = refit_json_known(unchanged, "unchanged", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(unchanged, "since", "unchanged", &request->unchanged_since, err);
    if (status == REFIT_OK && request->unchanged_since == 0)
        status = refit_fail(err, REFIT_INVALID, "unchanged: \"since\" must be a version, 1 or more");
    request->unchanged = json_object_get(unchanged, "tensors");
    return status;
}

static enum refit_status read_broadcast(const struct refit_call *call, struct refit_request *request,
                                        struct refit_error *err)
{
    static const char *const known[] = {"buckets", NULL};
    const json_t *broadcast = json_object_get(call->json, "broadcast");
    int64_t buckets = 0;
    if (!broadcast)
        return REFIT_OK;
    if (!json_is_object(broadcast))
        return refit_fail(err, REFIT_INVALID, "refit: \"broadcast\" must be an object");
    enum refit_status status = refit_json_known(broadcast, "broadcast", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(broadcast, "buckets", "broadcast", 1, UINT32_MAX, &buckets, err);
    request->buckets = (uint32_t)buckets;
    return status;
}

static enum refit_status read_fleet(const struct refit_call *call, struct refit_request *request,
                                    struct refit_error *err)
{
    const json_t *fleet = json_object_get(call->json, "fleet");
    return fleet ? refit_fleet_from_json(fleet, &request->fleet, err) : REFIT_OK;
}

static enum refit_status read_request(const struct refit_call *call, struct refit_request *request,
                                      struct refit_error *err)
{
    static const char *const known[] = {"version",   "label",  "epoch", "publish_id",  "source", "checkpoint",
                                        "transport", "commit", "kv",    "deadline_ms", "digest", "ranks",
                                        "fleet",     "unchanged", "resume", "broadcast", "catch_up", NULL};
    enum refit_status status = refit_json_known(call->json, "refit", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(call->json, "version", "refit", &request->version, err);
    if (status == REFIT_OK && json_object_get(call->json, "epoch"))
        status = refit_json_get_u64(call->json, "epoch", "refit", &request->epoch, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(call->json, "catch_up", "refit", &request->catch_up, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(call->json, "deadline_ms", "refit", 1, INT64_MAX, &request->deadline_ms, err);
    if (status == REFIT_OK)
        status = read_texts(call, request, err);
    if (status == REFIT_OK)
        status = read_commit_mode(call, request, err);
    if (status == REFIT_OK)
        status = read_ranks(call, request, err);
    if (status == REFIT_OK)
        status = read_unchanged(call, request, err);
    if (status == REFIT_OK)
        status = read_broadcast(call, request, err);
    if (status == REFIT_OK)
        status = read_fleet(call, request, err);
    if (status == REFIT_OK)
        status = digest_body(call, request, err);
    return status;
}

static void print_token(const uint8_t *token, char out[static 2 * REFIT_TOKEN_BYTES + 1])
{
    for (size_t i = 0; i < REFIT_TOKEN_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", token[i]);
}

static void answer_ticket(const struct refit_call *call, struct refit_ticket *ticket, struct refit_reply *reply)
{
    char token[2 * REFIT_TOKEN_BYTES + 1];
    print_token(ticket->token, token);
    json_t *body = json_pack("{s:s, s:b, s:s, s:s}", "id", ticket->id, "existing", (int)ticket->existing, "token",
                             token, "instance", refit_receiver_instance(call->receiver));
    if (body && json_object_get(call->json, "unchanged"))
        json_object_set_new(body, "unchanged", json_boolean(ticket->unchanged));
    if (body && ticket->card)
        json_object_set_new(body, "card", ticket->card);
    else
        json_decref(ticket->card);
    refit_reply_header(reply, "Location", "/refit/%s", ticket->id);
    refit_reply_header(reply, "Retry-After", "1");
    refit_reply_json(reply, 202, body);
}

static void answer_refusal(const struct refit_call *call, const struct refit_error *err, struct refit_reply *reply)
{
    struct refit_receiver_snapshot now;
    refit_receiver_read(call->receiver, &now);
    if (err->status == REFIT_MISMATCH)
        refit_reply_error(reply, err, "identity-reused", 0);
    else if (err->status == REFIT_STALE)
        refit_reply_error(reply, err, "stale-epoch", 0);
    else if (err->status == REFIT_CONFLICT && now.held)
        refit_reply_error(reply, err, "held", 0);
    else
        refit_reply_error(reply, err, NULL, 0);
}

static void begin(const struct refit_call *call, const struct refit_request *request, struct refit_reply *reply)
{
    struct refit_ticket ticket = {0};
    struct refit_error err;
    enum refit_status status = refit_receiver_begin(call->receiver, request, &ticket, &err);
    if (status) {
        answer_refusal(call, &err, reply);
        return;
    }
    if (!ticket.existing) {
        refit_traffic_note(call->traffic, ticket.id, request);
        refit_audit(call->client, "begin", refit_log_text("refit", ticket.id), refit_log_u64("version", request->version),
                    refit_log_text("label", request->label), refit_log_u64("epoch", request->epoch),
                    refit_log_text("from", request->checkpoint[0] ? request->checkpoint : request->source));
    }
    answer_ticket(call, &ticket, reply);
}

void refit_handle_begin(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_request request = {0};
    struct refit_error err;
    if (read_request(call, &request, &err))
        refit_reply_error(reply, &err, NULL, 0);
    else
        begin(call, &request, reply);
    refit_fleet_release(request.fleet);
}

static json_t *holder_json(const struct refit_holder_view *view)
{
    return json_pack("{s:s, s:s, s:I, s:o}", "name", view->name, "state", refit_holder_condition_name(view->condition),
                     "owed", (json_int_t)view->owed, "bytes", refit_json_u64(view->bytes));
}

void refit_handle_holders(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_holder_view views[REFIT_HOLDERS_SHOWN];
    struct refit_session_snapshot now;
    struct refit_error err;
    uint32_t count;
    enum refit_status status = refit_receiver_session(call->receiver, call->param, &now, &err);
    if (status == REFIT_OK)
        status = refit_receiver_holders(call->receiver, call->param, views, &count, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, holder_json(&views[i]));
    const struct refit_supplied *s = &now.supplied;
    refit_reply_json(reply, 200,
                     json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "id", now.id, "members",
                               (json_int_t)now.members, "serving", (json_int_t)now.serving, "origin_bytes",
                               refit_json_u64(s->origin_bytes), "domain_bytes", refit_json_u64(s->domain_bytes),
                               "fleet_bytes", refit_json_u64(s->fleet_bytes), "excess_bytes",
                               refit_json_u64(s->excess_bytes), "kept_bytes", refit_json_u64(s->kept_bytes), "holders",
                               list));
}

void refit_handle_latest(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_session_snapshot session;
    struct refit_error err;
    if (refit_receiver_session(call->receiver, NULL, &session, &err))
        refit_reply_error(reply, &err, NULL, 0);
    else
        refit_reply_json(reply, 200, refit_health_session_json(&session));
}

/* What is to be committed; `model` is empty where the lead doesn't say. */
struct commit {
    uint64_t version;
    char digest[REFIT_SHA256_HEX_MAX], model[REFIT_SHA256_HEX_MAX];
};

static enum refit_status read_commit(const struct refit_call *call, struct commit *commit, struct refit_error *err)
{
    static const char *const known[] = {"version", "digest", "model", NULL};
    enum refit_status status = refit_json_known(call->json, "commit", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(call->json, "version", "commit", &commit->version, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "digest", "commit", commit->digest, sizeof commit->digest, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "model", "commit", commit->model, sizeof commit->model, err);
    return status;
}

/* What the model is said to be stands with the version from the swap on. */
static enum refit_status run_commit(const struct refit_call *call, const struct commit *commit, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (commit->model[0])
        status = refit_receiver_attest(call->receiver, commit->version, commit->digest, commit->model, err);
    return status == REFIT_OK
               ? refit_receiver_commit(call->receiver, call->param, commit->version, commit->digest, err)
               : status;
}

void refit_handle_commit(const struct refit_call *call, struct refit_reply *reply)
{
    struct commit commit = {.version = 0};
    struct refit_error err;
    enum refit_status status = read_commit(call, &commit, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    status = run_commit(call, &commit, &err);
    if (status) {
        refit_reply_error(reply, &err,
                          status == REFIT_CORRUPT ? "digest-mismatch"
                          : status == REFIT_BUSY  ? "not-staged"
                                                  : NULL,
                          0);
        return;
    }
    refit_audit(call->client, "commit", refit_log_text("refit", call->param), refit_log_u64("version", commit.version),
                refit_log_text("digest", commit.digest), refit_log_text("model", commit.model));
    refit_reply_header(reply, "Location", "/refit/%s", call->param);
    refit_reply_header(reply, "Retry-After", "1");
    refit_reply_json(reply, 202, json_pack("{s:s, s:o}", "id", call->param, "version", refit_json_u64(commit.version)));
}

void refit_handle_abort(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {"reason", NULL};
    char why[256] = "";
    struct refit_error err;
    enum refit_status status = refit_json_known(call->json, "abort", known, &err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "reason", "abort", why, sizeof why, &err);
    if (status == REFIT_OK)
        status = refit_receiver_abort(call->receiver, call->param, why, &err);
    if (status) {
        refit_reply_error(reply, &err, status == REFIT_CONFLICT ? "committed" : NULL, 0);
        return;
    }
    struct refit_session_snapshot session = {.version = 0};
    (void)!refit_receiver_session(call->receiver, call->param, &session, NULL); /* it was there a moment ago */
    refit_audit(call->client, "abort", refit_log_text("refit", call->param), refit_log_u64("version", session.version),
                refit_log_text("reason", why));
    refit_reply_json(reply, 200, json_pack("{s:s, s:b}", "id", call->param, "aborted", 1));
}
