/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaving in order. POST /drain on the admin listener comes first, while the engine still works off its requests: from then
 * on no refit begins and readiness ends, but what runs goes on. Whoever asked (a preStop hook) asks again until the last
 * engine process has detached and no refit runs; SIGTERM then finds nothing left to break off.
 *
 * The admin listener has no authentication, so it takes this one change only from its own network namespace: from a
 * loopback address, which nobody outside can have.
 */
#include <string.h>

#include "base/log.h"
#include "sidecar/routes.h"

static bool is_loopback(const char *client)
{
    static const char *const prefixes[] = {"127.", "[::1]:", "[::ffff:127."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(client, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static void begin_drain(struct refit_sidecar *sidecar, const char *client)
{
    if (sidecar->drain_asked)
        return;
    sidecar->drain_asked = true;
    refit_audit(client, "drain", refit_log_bool("draining", true));
}

void refit_handle_drain(const struct refit_call *call, struct refit_reply *reply)
{
    struct refit_snapshots now;
    if (!is_loopback(call->client)) {
        refit_reply_problem(reply, 403, "not-local", "%s: draining is asked for from the same pod or host only", call->client);
        return;
    }
    begin_drain(call->sidecar, call->client);
    refit_sidecar_look(call->sidecar, &now);
    unsigned attached = now.view.receiver ? now.receiver.bank.attached : 0;
    bool running = now.view.session && !refit_health_is_terminal(now.session.phase);
    json_t *body = json_pack("{s:b, s:i, s:b}", "draining", 1, "ranks_attached", (int)attached, "drained",
                             attached == 0 && !running);
    if (body && running)
        json_object_set_new(body, "refit", json_string(now.session.id));
    refit_reply_json(reply, 200, body);
}

bool refit_drain_refuses(const struct refit_sidecar *sidecar, const struct refit_route *route)
{
    return sidecar->drain_asked && (route->handler == refit_handle_begin || route->handler == refit_handle_lead);
}
