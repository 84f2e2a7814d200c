/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/session.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "receiver/receiver_internal.h"

static const char *const phase_names[REFIT_PHASE_COUNT] = {
    [REFIT_PHASE_REQUESTED] = "requested",
    [REFIT_PHASE_PREFLIGHT] = "preflight",
    [REFIT_PHASE_WAITING_FOR_READERS] = "waiting-for-readers",
    [REFIT_PHASE_TRANSFER] = "transfer",
    [REFIT_PHASE_VERIFY] = "verify",
    [REFIT_PHASE_PREPARE] = "prepare",
    [REFIT_PHASE_STAGED] = "staged",
    [REFIT_PHASE_COMMITTING] = "committing",
    [REFIT_PHASE_COMMITTED] = "committed",
    [REFIT_PHASE_ABORTED] = "aborted",
};

const char *refit_phase_name(enum refit_phase phase)
{
    return (unsigned)phase < REFIT_PHASE_COUNT ? phase_names[phase] : "unknown";
}

const char *refit_holder_condition_name(enum refit_holder_condition condition)
{
    switch (condition) {
    case REFIT_HOLDER_ABSENT: return "absent";
    case REFIT_HOLDER_CONNECTED: return "connected";
    case REFIT_HOLDER_LOST: return "lost";
    case REFIT_HOLDER_PASSED_BY: return "passed-by";
    }
    return "unknown";
}

static void make_id(struct refit_session *session)
{
    uint64_t random;
    refit_io_random(&random, sizeof random);
    snprintf(session->id, sizeof session->id, "r%" PRIu64 "-%016" PRIx64, session->request.version, random);
    if (session->request.fleet)
        memcpy(session->token, refit_fleet_token(session->request.fleet), sizeof session->token);
    else
        refit_io_random(session->token, sizeof session->token);
}

struct refit_session *refit_session_create(struct refit_receiver *receiver, const struct refit_request *request,
                                           struct refit_layout *source)
{
    struct refit_session *session = calloc(1, sizeof *session);
    if (!session)
        return NULL;
    session->receiver = receiver;
    session->request = *request;
    refit_fleet_retain(request->fleet);
    json_incref(request->unchanged);
    session->source = source ? refit_layout_retain(source) : NULL;
    session->deadline = refit_deadline_in_ms(request->deadline_ms);
    session->phase = REFIT_PHASE_REQUESTED;
    session->phase_since_ns = refit_clock_ns();
    session->sequence = 1;
    atomic_init(&session->references, 1);
    atomic_init(&session->cancel, false);
    make_id(session);
    return session;
}

struct refit_session *refit_session_retain(struct refit_session *session)
{
    atomic_fetch_add_explicit(&session->references, 1, memory_order_relaxed);
    return session;
}

void refit_session_release(struct refit_session *session)
{
    if (!session || atomic_fetch_sub_explicit(&session->references, 1, memory_order_acq_rel) != 1)
        return;
    refit_layout_release(session->source);
    refit_fleet_release(session->request.fleet);
    json_decref(session->request.unchanged);
    free(session);
}

bool refit_session_is_finished(const struct refit_session *session)
{
    return session->phase == REFIT_PHASE_COMMITTED || session->phase == REFIT_PHASE_ABORTED;
}

bool refit_session_is_early(const struct refit_session *session)
{
    return session->phase < REFIT_PHASE_STAGED;
}

void refit_session_set_phase(struct refit_session *session, enum refit_phase phase)
{
    int64_t now = refit_clock_ns();
    session->phase_ns[session->phase] += now - session->phase_since_ns;
    session->phase_since_ns = now;
    session->phase = phase;
    session->sequence++;
}

void refit_session_cancel(struct refit_session *session, enum refit_status status, const char *format, ...)
{
    if (refit_session_is_finished(session) || session->phase == REFIT_PHASE_COMMITTING ||
        atomic_load_explicit(&session->cancel, memory_order_relaxed))
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(session->why.text, sizeof session->why.text, format, args);
    va_end(args);
    session->why.status = status;
    atomic_store_explicit(&session->cancel, true, memory_order_release);
}

static void copy_times(const struct refit_session *session, struct refit_session_snapshot *out)
{
    memcpy(out->phase_ns, session->phase_ns, sizeof out->phase_ns);
    if (refit_session_is_finished(session))
        return;
    int64_t now = refit_clock_ns();
    out->phase_ns[session->phase] += now - session->phase_since_ns;
    out->deadline_left_ms = refit_deadline_left_ms(session->deadline);
}

void refit_session_snapshot(const struct refit_session *session, struct refit_session_snapshot *out)
{
    const struct refit_request *request = &session->request;
    *out = (struct refit_session_snapshot){
        .version = request->version,
        .epoch = request->epoch,
        .phase = session->phase,
        .failed_in = session->failed_in,
        .error = session->error,
        .bytes_due = session->bytes_due,
        .bytes_done = session->bytes_done,
        .supplied = session->supplied,
        .members = refit_fleet_members(request->fleet),
        .serving = session->relay ? refit_relay_left(session->relay) : 0,
        .stats = session->stats,
        .sequence = session->sequence,
    };
    if (session->phase == REFIT_PHASE_WAITING_FOR_READERS)
        out->waiting = session->waiting;
    memcpy(out->id, session->id, sizeof out->id);
    memcpy(out->label, request->label, sizeof out->label);
    memcpy(out->publish_id, request->publish_id, sizeof out->publish_id);
    memcpy(out->digest, session->digest, sizeof out->digest);
    memcpy(out->transport, request->transport, sizeof out->transport);
    copy_times(session, out);
}

static enum refit_status check_locked(const struct refit_session *session, struct refit_error *err)
{
    if (atomic_load_explicit(&session->cancel, memory_order_relaxed))
        return refit_fail(err, session->why.status, "%s", session->why.text);
    if (refit_deadline_passed(session->deadline))
        return refit_fail(err, REFIT_TIMEOUT, "refit %s of version %" PRIu64 ": its deadline of %" PRId64
                          " ms passed in phase %s", session->id, session->request.version,
                          session->request.deadline_ms, refit_phase_name(session->phase));
    return REFIT_OK;
}

enum refit_status refit_session_check(struct refit_session *session, struct refit_error *err)
{
    refit_receiver_lock(session->receiver);
    enum refit_status status = check_locked(session, err);
    refit_receiver_unlock(session->receiver);
    return status;
}

enum refit_status refit_session_enter(struct refit_session *session, enum refit_phase phase, struct refit_error *err)
{
    refit_receiver_lock(session->receiver);
    enum refit_status status = check_locked(session, err);
    if (status == REFIT_OK)
        refit_session_set_phase(session, phase);
    refit_receiver_unlock(session->receiver);
    if (status == REFIT_OK)
        refit_receiver_changed(session->receiver);
    return status;
}
