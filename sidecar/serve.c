/* SPDX-License-Identifier: Apache-2.0
 *
 * This replica as a source of another: begin, list, end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "receiver/fleet.h"
#include "sidecar/routes.h"

static enum refit_status read_numbers(const struct refit_call *call, struct refit_serve_request *request,
                                      struct refit_error *err)
{
    int64_t holder = 0, first = 0, count = 0;
    enum refit_status status = refit_json_get_u64(call->json, "version", "serve", &request->version, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(call->json, "holder", "serve", 0, REFIT_HOLDERS_MAX - 1, &holder, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(call->json, "first_rank", "serve", 0, REFIT_RANKS_MAX - 1, &first, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(call->json, "rank_count", "serve", 0, REFIT_RANKS_MAX, &count, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(call->json, "deadline_ms", "serve", 1, INT64_MAX, &request->deadline_ms, err);
    request->holder = (uint32_t)holder;
    request->first_rank = (uint32_t)first;
    request->rank_count = (uint32_t)count;
    return status;
}

static enum refit_status read_texts(const struct refit_call *call, struct refit_serve_request *request,
                                    struct refit_error *err)
{
    char token[2 * REFIT_TOKEN_BYTES + 1] = "";
    enum refit_status status =
        refit_call_text(call, "refit", "serve", request->refit, sizeof request->refit, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "token", "serve", token, sizeof token, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "transport", "serve", request->transport, sizeof request->transport, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "layout", "serve", request->layout, sizeof request->layout, err);
    if (status == REFIT_OK && !request->refit[0])
        status = refit_fail(err, REFIT_INVALID, "serve: \"refit\" must be the id that the receiver is dialled with");
    if (status == REFIT_OK && !refit_token_parse(token, request->token))
        status = refit_fail(err, REFIT_INVALID, "serve: \"token\" must be %d lower-case hex digits",
                            2 * REFIT_TOKEN_BYTES);
    request->card = json_object_get(call->json, "card");
    if (status == REFIT_OK && !json_is_object(request->card))
        status = refit_fail(err, REFIT_INVALID, "serve: \"card\" must be the receiver's, an object");
    return status;
}

static enum refit_status read_request(const struct refit_call *call, struct refit_serve_request *request,
                                      struct refit_error *err)
{
    static const char *const known[] = {"version",   "refit",  "token",      "holder",     "transport",
                                        "card",      "layout", "first_rank", "rank_count", "deadline_ms", NULL};
    enum refit_status status = refit_json_known(call->json, "serve", known, err);
    if (status == REFIT_OK)
        status = read_numbers(call, request, err);
    if (status == REFIT_OK)
        status = read_texts(call, request, err);
    return status;
}

void refit_handle_serve(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_serve_request request = {0};
    char id[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    enum refit_status status = read_request(call, &request, &err);
    if (status == REFIT_OK)
        status = refit_receiver_serve(call->receiver, &request, id, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_audit(call->client, "serve", refit_log_text("serve", id), refit_log_u64("version", request.version),
                refit_log_text("refit", request.refit));
    refit_reply_json(reply, 202, json_pack("{s:s}", "id", id));
}

static json_t *serve_json(const struct refit_serve_snapshot *serve)
{
    json_t *json = json_pack("{s:s, s:o, s:I, s:s, s:s, s:o}", "id", serve->id, "version",
                             refit_json_u64(serve->version), "slot", (json_int_t)serve->slot, "refit", serve->refit,
                             "state", refit_serve_state_name(serve->state), "bytes", refit_json_u64(serve->bytes));
    if (json && serve->error.status != REFIT_OK)
        json_object_set_new(json, "error", json_pack("{s:s, s:o}", "status", refit_status_name(serve->error.status),
                                                     "text", refit_json_text(serve->error.text)));
    return json;
}

void refit_handle_serves(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_serve_snapshot *serves = calloc(REFIT_SERVES_SHOWN, sizeof *serves);
    struct refit_error err;
    if (!serves) {
        refit_fail_alloc(&err, "the list of who is served", REFIT_SERVES_SHOWN * sizeof *serves);
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    uint32_t count = refit_receiver_serves(call->receiver, serves);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, serve_json(&serves[i]));
    free(serves);
    refit_reply_json(reply, 200, json_pack("{s:o}", "serves", list));
}

void refit_handle_serve_end(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {NULL};
    struct refit_error err;
    enum refit_status status = refit_json_known(call->json, "end", known, &err);
    if (status == REFIT_OK)
        status = refit_receiver_serve_end(call->receiver, call->param, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_audit(call->client, "serve-end", refit_log_text("serve", call->param));
    refit_reply_json(reply, 200, json_pack("{s:s}", "id", call->param));
}
