/* SPDX-License-Identifier: Apache-2.0
 *
 * The first weights, from a checkpoint: a refit like any other, begun by refitd itself as soon as a layout is known and
 * nothing is served. It tries again, ever more slowly, until something is served, whoever brought it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sidecar/sidecar.h"

#define PAUSE_MAX_MS 30000

static void try_later(struct refit_sidecar *sidecar, const char *why)
{
    struct refit_initial *initial = &sidecar->initial;
    initial->pause_ms = initial->pause_ms ? initial->pause_ms * 2 : 500;
    if (initial->pause_ms > PAUSE_MAX_MS)
        initial->pause_ms = PAUSE_MAX_MS;
    initial->next_ns = refit_clock_ns() + initial->pause_ms * 1000000;
    refit_log(REFIT_LOG_ERROR, "initial checkpoint %s: %s retry_ms=%" PRId64, sidecar->config->initial_checkpoint, why,
              initial->pause_ms);
}

static void begin(struct refit_sidecar *sidecar)
{
    const struct refit_config *config = sidecar->config;
    struct refit_request request = {.version = config->initial_version, .commit = REFIT_COMMIT_AUTO, .kv = "flush"};
    struct refit_ticket ticket = {0};
    struct refit_error err;
    snprintf(request.checkpoint, sizeof request.checkpoint, "%s", config->initial_checkpoint);
    snprintf(request.label, sizeof request.label, "%s", config->initial_label);
    refit_sha256_hex(config->initial_checkpoint, strlen(config->initial_checkpoint), request.body_digest);
    if (refit_receiver_begin(sidecar->receiver, &request, &ticket, &err)) {
        try_later(sidecar, err.text);
        return;
    }
    json_decref(ticket.card);
    memcpy(sidecar->initial.id, ticket.id, sizeof sidecar->initial.id);
    sidecar->initial.running = true;
    refit_audit("--initial-checkpoint", "change=begin refit=%s version=%" PRIu64 " from=%s", ticket.id, request.version,
                refit_audit_value(request.checkpoint).text);
}

static void check_running(struct refit_sidecar *sidecar)
{
    struct refit_session_snapshot session;
    struct refit_error err;
    if (refit_receiver_session(sidecar->receiver, sidecar->initial.id, &session, &err)) {
        sidecar->initial.running = false;
    } else if (session.phase == REFIT_PHASE_ABORTED) {
        sidecar->initial.running = false;
        try_later(sidecar, session.error.text);
    }
}

void refit_initial_step(struct refit_sidecar *sidecar, const struct refit_snapshots *now)
{
    struct refit_initial *initial = &sidecar->initial;
    const struct refit_bank_snapshot *bank = &now->receiver.bank;
    if (initial->done || sidecar->draining)
        return;
    if (bank->active < bank->slots) {
        initial->done = true;
        return;
    }
    if (initial->running)
        check_running(sidecar);
    if (!initial->running && now->receiver.layout[0] && !bank->adopting && refit_clock_ns() >= initial->next_ns)
        begin(sidecar);
}
