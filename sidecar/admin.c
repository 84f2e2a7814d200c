/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin listener: probes, metrics and the page. It only reads.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/page.h"
#include "sidecar/routes.h"

#define METRICS_MAX (256u << 10)
#define PAGE_MAX (256u << 10)
#define TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* In one line, without the checks; with ?verbose for people: every check, one a line. */
static void answer_probe(const struct refit_call *call, struct refit_health_verdict verdict, struct refit_reply *reply)
{
    int status = verdict.ok ? 200 : 503;
    refit_reply_header(reply, "Refit-Version", "%" PRIu64, verdict.version);
    if (!verdict.body || !refit_http_query_has(call->head->query, "verbose")) {
        json_object_del(verdict.body, "checks");
        refit_reply_json(reply, status, verdict.body);
        return;
    }
    char *text = json_dumps(verdict.body, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(verdict.body);
    refit_reply_bytes(reply, text ? status : 500, "application/json", text ? text : "", text ? strlen(text) : 0);
    free(text);
}

void refit_handle_livez(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(call, refit_health_live(&now.view), reply);
}

void refit_handle_readyz(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(call, refit_health_ready(&now.view), reply);
}

void refit_handle_startupz(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(call, refit_health_started(&now.view), reply);
}

void refit_handle_metrics(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    struct refit_buf text;
    bool openmetrics = refit_http_accepts(call->head->accept, "application/openmetrics-text");
    refit_sidecar_look(call->sidecar, &now);
    refit_buf_init(&text, METRICS_MAX);
    refit_reply_header(reply, "Vary", "Accept");
    if (refit_health_metrics(&now.view, openmetrics, &text))
        refit_reply_bytes(reply, 200, openmetrics ? OPENMETRICS_TYPE : TEXT_TYPE, text.data, text.len);
    else
        refit_reply_problem(reply, 500, "system", "metrics do not fit %u bytes", METRICS_MAX);
    refit_buf_release(&text);
}

void refit_handle_page(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    struct refit_buf text;
    char policy[REFIT_PAGE_POLICY_MAX];
    refit_sidecar_look(call->sidecar, &now);
    refit_buf_init(&text, PAGE_MAX);
    refit_page_policy(policy);
    refit_reply_header(reply, "Content-Security-Policy", "%s", policy);
    refit_reply_header(reply, "X-Content-Type-Options", "nosniff");
    refit_reply_header(reply, "Referrer-Policy", "no-referrer");
    if (refit_page_render(&now.view, &text))
        refit_reply_bytes(reply, 200, "text/html; charset=utf-8", text.data, text.len);
    else
        refit_reply_problem(reply, 500, "system", "the page does not fit %u bytes", PAGE_MAX);
    refit_buf_release(&text);
}

void refit_handle_status(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    refit_reply_json(reply, 200, refit_health_status_json(&now.view, &call->sidecar->history));
}

void refit_handle_traffic(const struct refit_call *call, struct refit_reply *reply)
{
    json_t *body = NULL;
    struct refit_error err;
    if (refit_traffic_json(call->traffic, call->receiver, &body, &err))
        refit_reply_error(reply, &err, NULL, 0);
    else
        refit_reply_json(reply, 200, body);
}
