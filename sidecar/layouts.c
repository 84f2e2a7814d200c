/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts: the one served here, those of sources, and the plan between two.
 */
#include <stdio.h>
#include <string.h>

#include "layouts/plan_json.h"
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
    refit_reply_json(reply, 200, refit_plan_json(plan));
    refit_plan_release(plan);
}
