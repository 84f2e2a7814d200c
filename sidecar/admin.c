/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin listener: probes and metrics. It only reads.
 */
#include <inttypes.h>

#include "sidecar/routes.h"

#define METRICS_MAX (256u << 10)

static void answer_probe(struct refit_health_verdict verdict, struct refit_reply *reply)
{
    refit_reply_header(reply, "Refit-Version", "%" PRIu64, verdict.version);
    refit_reply_json(reply, verdict.ok ? 200 : 503, verdict.body);
}

void refit_handle_livez(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(refit_health_live(&now.view), reply);
}

void refit_handle_readyz(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(refit_health_ready(&now.view), reply);
}

void refit_handle_startupz(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    refit_sidecar_look(call->sidecar, &now);
    answer_probe(refit_health_started(&now.view), reply);
}

void refit_handle_metrics(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    struct refit_buf text;
    refit_sidecar_look(call->sidecar, &now);
    refit_buf_init(&text, METRICS_MAX);
    if (refit_health_metrics(&now.view, &text))
        refit_reply_bytes(reply, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    else
        refit_reply_problem(reply, 500, "system", "metrics do not fit %u bytes", METRICS_MAX);
    refit_buf_release(&text);
}
