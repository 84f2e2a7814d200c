/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts: the one served here, those of sources, and the plan between two.
 */
#include <stdio.h>
#include <string.h>

#include "sidecar/routes.h"

static bool is_digest(const char *text)
{
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

void refit_handle_put_source(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_error err;
    enum refit_status status;
    if (!is_digest(call->param))
        status = refit_fail(&err, REFIT_INVALID, "/v1/sources/%.80s: expected a digest of 64 lower-case hex digits",
                            call->param);
    else
        status = refit_receiver_put_source(call->receiver, call->param, call->body, call->body_len, &err);
    if (status)
        refit_reply_error(reply, &err, NULL, 0);
    else
        refit_reply_json(reply, 201, json_pack("{s:s}", "source", call->param));
}

void refit_handle_layout(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_layout *layout = refit_bank_layout(refit_receiver_bank(call->receiver));
    size_t len;
    if (!layout) {
        refit_reply_problem(reply, 503, "no-layout", "no engine has attached yet, so no layout is known; retry");
        return;
    }
    const char *text = refit_layout_text(layout, &len), *digest = refit_layout_digest(layout);
    refit_reply_header(reply, "ETag", "\"%s\"", digest);
    if (strcmp(call->head->if_none_match, digest) == 0)
        reply->status = 304;
    else
        refit_reply_bytes(reply, 200, "application/json", text, len);
    refit_layout_release(layout);
}

static json_t *plan_json(const struct refit_plan *plan)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    json_t *list = json_array();
    uint64_t ops = 0;
    for (size_t i = 0; i < count; i++) {
        ops += edges[i].ops;
        json_array_append_new(list,
                              json_pack("{s:I, s:I, s:o, s:o, s:I}", "source_rank", (json_int_t)edges[i].source_rank,
                                        "destination_rank", (json_int_t)edges[i].destination_rank, "bytes",
                                        refit_json_u64(edges[i].bytes), "ops", refit_json_u64(edges[i].ops), "batches",
                                        (json_int_t)edges[i].batches));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "source", refit_layout_digest(refit_plan_source(plan)), "destination",
                     refit_layout_digest(refit_plan_destination(plan)), "bytes", refit_json_u64(refit_plan_bytes(plan)),
                     "ops", refit_json_u64(ops), "edges", list);
}

void refit_handle_plan(const struct refit_call *call, struct refit_reply *reply)
{
    static const char *const known[] = {"source", NULL};
    const char *source = "";
    struct refit_plan *plan = NULL;
    struct refit_error err;
    enum refit_status status = refit_json_known(call->json, "plan", known, &err);
    if (status == REFIT_OK)
        status = refit_json_get_string(call->json, "source", "plan", &source, &err);
    if (status == REFIT_OK && !is_digest(source))
        status = refit_fail(&err, REFIT_INVALID, "plan: \"source\" must be 64 lower-case hex digits, found \"%.80s\"",
                            source);
    if (status == REFIT_OK)
        status = refit_receiver_plan(call->receiver, source, &plan, &err);
    if (status) {
        refit_reply_error(reply, &err, NULL, 0);
        return;
    }
    refit_reply_json(reply, 200, plan_json(plan));
    refit_plan_release(plan);
}
