/* SPDX-License-Identifier: Apache-2.0
 *
 * The first weights, from a checkpoint: a refit like any other, begun by refitd itself as soon as a layout is known and
 * nothing is served. It tries again, ever more slowly, until something is served, whoever brought it.
 */
#include <stdio.h>
#include <stdlib.h>
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
    refit_log_event(REFIT_LOG_ERROR, "initial checkpoint not served yet",
                    refit_log_u64("version", sidecar->config->initial_version),
                    refit_log_text("checkpoint", sidecar->config->initial_checkpoint), refit_log_text("reason", why),
                    refit_log_i64("retry_ms", initial->pause_ms));
}

/* On a worker: the checkpoint is looked for, and may lie on a file system that hangs. */
struct start {
    struct refit_job job;
    struct refit_sidecar *sidecar;
    struct refit_receiver *receiver;
    struct refit_request request;
    struct refit_ticket ticket;
    struct refit_error err;
};

static void run_begin(struct refit_job *job)
{
    struct start *start = (struct start *)job;
    start->err.status = refit_receiver_begin(start->receiver, &start->request, &start->ticket, &start->err);
}

static void finish_begin(struct refit_job *job)
{
    struct start *start = (struct start *)job;
    struct refit_sidecar *sidecar = start->sidecar;
    sidecar->initial.starting = false;
    if (start->err.status) {
        try_later(sidecar, start->err.text);
    } else {
        json_decref(start->ticket.card);
        memcpy(sidecar->initial.id, start->ticket.id, sizeof sidecar->initial.id);
        refit_traffic_note(&sidecar->traffic, start->ticket.id, &start->request);
        sidecar->initial.running = true;
        refit_audit("--initial-checkpoint", "begin", refit_log_text("refit", start->ticket.id),
                    refit_log_u64("version", start->request.version), refit_log_text("from", start->request.checkpoint));
    }
    free(start);
    refit_sidecar_landed(sidecar);
}

static void begin(struct refit_sidecar *sidecar)
{
    const struct refit_config *config = sidecar->config;
    struct start *start = calloc(1, sizeof *start);
    if (!start) {
        try_later(sidecar, "no memory to begin");
        return;
    }
    start->job = (struct refit_job){.run = run_begin, .done = finish_begin};
    start->sidecar = sidecar;
    start->receiver = sidecar->receiver;
    start->request =
        (struct refit_request){.version = config->initial_version, .commit = REFIT_COMMIT_AUTO, .kv = "flush"};
    snprintf(start->request.checkpoint, sizeof start->request.checkpoint, "%s", config->initial_checkpoint);
    snprintf(start->request.label, sizeof start->request.label, "%s", config->initial_label);
    refit_sha256_hex(config->initial_checkpoint, strlen(config->initial_checkpoint), start->request.body_digest);
    sidecar->initial.starting = true;
    sidecar->in_flight++;
    refit_workers_submit(sidecar->workers, &start->job);
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
    if (initial->done || sidecar->draining || sidecar->drain_asked)
        return;
    if (bank->active < bank->slots) {
        initial->done = true;
        return;
    }
    /* A restarted refitd finds an engine that has a version: nothing is missing. */
    if (now->view.engine && (now->view.engine->whole || !now->view.engine->looked))
        return;
    if (initial->running)
        check_running(sidecar);
    if (!initial->starting && !initial->running && now->receiver.layout[0] && !bank->adopting &&
        refit_clock_ns() >= initial->next_ns)
        begin(sidecar);
}
