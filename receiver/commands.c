/* SPDX-License-Identifier: Apache-2.0
 *
 * What leads and operators say to a refit: begin, commit, abort; and how it is looked at.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "receiver/receiver_internal.h"
#include "receiver/request.h"

/* --- under the lock --------------------------------------------------------------------------------------------- */

static struct refit_session *find(const struct refit_receiver *receiver, const char *id)
{
    if (!id || id[0] == '\0')
        return receiver->session_count > 0 ? receiver->sessions[0] : NULL;
    for (uint32_t i = 0; i < receiver->session_count; i++)
        if (strcmp(receiver->sessions[i]->id, id) == 0)
            return receiver->sessions[i];
    return NULL;
}

static enum refit_status fail_unknown(const struct refit_receiver *receiver, const char *id, struct refit_error *err)
{
    if (receiver->session_count == 0)
        return refit_fail(err, REFIT_NOT_FOUND, "no refit was started since instance %s began", receiver->instance);
    return refit_fail(err, REFIT_NOT_FOUND, "refit '%.63s' is not one of the last %d of instance %s; ask which version "
                      "is served", id ? id : "", REFIT_SESSIONS_MAX, receiver->instance);
}

/* A checkpoint's request without publish_id names its refit only while that runs: afterwards the same words ask
 * for another. */
static struct refit_session *find_same(const struct refit_receiver *receiver, const struct refit_request *request)
{
    for (uint32_t i = 0; i < receiver->session_count; i++) {
        struct refit_session *session = receiver->sessions[i];
        const struct refit_request *other = &session->request;
        if (other->epoch == request->epoch && other->version == request->version &&
            strcmp(other->publish_id, request->publish_id) == 0 &&
            (request->publish_id[0] != '\0' || !refit_session_is_finished(session)))
            return session;
    }
    return NULL;
}

static enum refit_status check_same(const struct refit_session *session, const struct refit_request *request,
                                    struct refit_error *err)
{
    if (strcmp(session->request.body_digest, request->body_digest) == 0)
        return REFIT_OK;
    return refit_fail(err, REFIT_MISMATCH, "refit %s has the same identity (epoch %" PRIu64 ", version %" PRIu64
                      ", publish_id '%s') with another body; use a new publish_id", session->id, request->epoch,
                      request->version, request->publish_id);
}

static enum refit_status check_version(const struct refit_bank_snapshot *bank, const struct refit_request *request,
                                       struct refit_error *err)
{
    if (bank->adopting)
        return refit_fail(err, REFIT_BUSY, "engines are handing their slots back after a restart; retry");
    return refit_request_check_newer(bank, request->version, err);
}

static enum refit_status check_allowed(const struct refit_receiver *receiver, const struct refit_request *request,
                                       struct refit_error *err)
{
    if (receiver->closing)
        return refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
    if (receiver->held)
        return refit_fail(err, REFIT_CONFLICT, "held: newer versions are held off, by a rollback or by request, until "
                          "'refit release'");
    if (refit_quarantine_has(&receiver->quarantine, request->digest))
        return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 ": model digest %s is in quarantine here",
                          request->version, request->digest);
    if (receiver->unfinished >= REFIT_UNFINISHED_MAX)
        return refit_fail(err, REFIT_BUSY, "%" PRIu32 " superseded refits are still being ended; retry",
                          receiver->unfinished);
    return REFIT_OK;
}

static bool replaces(const struct refit_request *request, const struct refit_request *running)
{
    if (request->catch_up || running->catch_up)
        return running->catch_up && request->epoch != 0;
    return request->version > running->version ||
           (request->version == running->version && request->epoch >= running->epoch);
}

/* A newer publish takes its place: before it is staged; and as long as nobody commits it when no trainer waits for
 * it. */
static bool gives_way(const struct refit_session *running)
{
    bool waits = running->phase == REFIT_PHASE_STAGED && running->request.commit == REFIT_COMMIT_BARRIER;
    return refit_session_is_early(running) || (running->request.catch_up && waits && !running->commit_asked);
}

/* One refit at a time: before it is staged the running one gives way to a newer publish; otherwise the new one must
 * come again. */
static enum refit_status check_running(const struct refit_receiver *receiver, const struct refit_request *request,
                                       struct refit_error *err)
{
    const struct refit_session *running = receiver->session_count > 0 ? receiver->sessions[0] : NULL;
    if (!running || refit_session_is_finished(running) ||
        atomic_load_explicit(&running->cancel, memory_order_relaxed))
        return REFIT_OK;
    if (gives_way(running) && replaces(request, &running->request))
        return REFIT_OK;
    if (running->request.catch_up) /* commits by itself at once */
        return refit_fail(err, REFIT_BUSY, "version %" PRIu64 ", fetched from another replica, is being committed; retry",
                          running->request.version);
    return refit_fail(err, REFIT_CONFLICT, "refit %s of version %" PRIu64 " is in phase %s; commit or abort it, or "
                      "publish a newer version before it is staged", running->id, running->request.version,
                      refit_phase_name(running->phase));
}

static void supersede(struct refit_receiver *receiver, const struct refit_request *request)
{
    struct refit_session *running = receiver->session_count > 0 ? receiver->sessions[0] : NULL;
    if (!running || refit_session_is_finished(running) ||
        atomic_load_explicit(&running->cancel, memory_order_relaxed))
        return;
    running->superseded = true;
    refit_session_cancel(running, REFIT_ABORTED, "superseded by a publish of version %" PRIu64, request->version);
}

/* Where the source layout of a lead's publish comes from; borrowed. */
static enum refit_status find_source(struct refit_receiver *receiver, const struct refit_request *request,
                                     struct refit_layout **out, struct refit_error *err)
{
    *out = NULL;
    if (request->checkpoint[0] != '\0')
        return REFIT_OK;
    *out = refit_sources_find(&receiver->sources, request->source);
    return *out ? REFIT_OK
                : refit_fail(err, REFIT_NOT_FOUND, "source layout %s is not known here; put it, then retry",
                             request->source);
}

static void remember(struct refit_receiver *receiver, struct refit_session *session)
{
    if (receiver->session_count == REFIT_SESSIONS_MAX)
        refit_session_release(receiver->sessions[--receiver->session_count]);
    memmove(&receiver->sessions[1], &receiver->sessions[0], receiver->session_count * sizeof receiver->sessions[0]);
    receiver->sessions[0] = session;
    receiver->session_count++;
}

/* All that a publish names as unchanged, or nothing: then the lead plans as if it had not said so. */
static bool can_keep(const struct refit_receiver *receiver, const struct refit_request *request,
                     const struct refit_bank_snapshot *bank)
{
    return request->unchanged_since != 0 && receiver->config.verify && bank->active != REFIT_SLOT_NONE &&
           bank->swap != REFIT_SWAP_IN_PLACE && /* what would be copied is what is overwritten */
           refit_kept_tally(&receiver->kept, bank->active, request->unchanged_since) != NULL;
}

static enum refit_status launch(struct refit_receiver *receiver, const struct refit_request *request,
                                struct refit_layout *source, const struct refit_bank_snapshot *bank,
                                struct refit_session **out, struct refit_error *err)
{
    struct refit_session *session = refit_session_create(receiver, request, source);
    if (!session)
        return refit_fail_alloc(err, "a refit", sizeof *session);
    session->keeps = can_keep(receiver, request, bank);
    session->has_predecessor = receiver->thread_started;
    session->predecessor = receiver->thread;
    enum refit_status status = refit_session_start(session, &receiver->thread, err);
    if (status != REFIT_OK) {
        receiver->thread = session->predecessor;
        refit_session_release(session);
        return status;
    }
    receiver->thread_started = true;
    receiver->unfinished++;
    supersede(receiver, request);
    remember(receiver, session);
    *out = session;
    return REFIT_OK;
}

static enum refit_status start(struct refit_receiver *receiver, const struct refit_request *request,
                               const struct refit_bank_snapshot *bank, struct refit_session **out,
                               struct refit_error *err)
{
    struct refit_layout *source;
    enum refit_status status = check_allowed(receiver, request, err);
    if (status == REFIT_OK)
        status = check_version(bank, request, err);
    if (status == REFIT_OK)
        status = find_source(receiver, request, &source, err);
    if (status == REFIT_OK)
        status = check_running(receiver, request, err);
    if (status == REFIT_OK)
        status = launch(receiver, request, source, bank, out, err);
    return status;
}

/* Under the lock. *out is the refit of this identity, found or started. */
static enum refit_status find_or_start(struct refit_receiver *receiver, const struct refit_request *request,
                                       const struct refit_bank_snapshot *bank, struct refit_session **out,
                                       bool *existing, struct refit_error *err)
{
    if (request->epoch != 0) {
        enum refit_status status = refit_leads_check(&receiver->leads, request->epoch, err);
        if (status != REFIT_OK)
            return status;
    }
    *out = find_same(receiver, request);
    *existing = *out != NULL;
    enum refit_status status = *existing ? check_same(*out, request, err) : start(receiver, request, bank, out, err);
    /* Refused for what is the case here: its lead has nothing under way, so that another may follow it. */
    if (status == REFIT_CONFLICT && request->epoch != 0)
        receiver->leads.heard_ns = 0;
    return status;
}

/* --- public ----------------------------------------------------------------------------------------------------- */

static enum refit_status check_layout(struct refit_receiver *receiver, struct refit_error *err)
{
    struct refit_layout *layout = refit_bank_layout(receiver->bank);
    if (!layout)
        return refit_fail(err, REFIT_BUSY, "no engine has attached yet, so there is no layout to fill; retry");
    refit_layout_release(layout);
    return REFIT_OK;
}

enum refit_status refit_receiver_begin(struct refit_receiver *receiver, const struct refit_request *in,
                                       struct refit_ticket *out, struct refit_error *err)
{
    struct refit_request request;
    json_t *card = NULL;
    enum refit_status status = refit_request_check(&receiver->config, in, &request, err);
    if (status == REFIT_OK)
        status = check_layout(receiver, err);
    if (status == REFIT_OK && request.source[0] != '\0')
        status = refit_receiver_card(receiver, request.transport, &card, err);
    if (status != REFIT_OK)
        return status;
    struct refit_bank_snapshot bank;
    refit_bank_read(receiver->bank, &bank);
    struct refit_session *session;
    memset(out, 0, sizeof *out);
    refit_receiver_lock(receiver);
    status = find_or_start(receiver, &request, &bank, &session, &out->existing, err);
    if (status == REFIT_OK) {
        memcpy(out->id, session->id, sizeof out->id);
        memcpy(out->token, session->token, sizeof out->token);
        out->unchanged = session->keeps;
        out->card = card;
    } else
        json_decref(card);
    refit_receiver_unlock(receiver);
    if (status == REFIT_OK && !out->existing)
        refit_receiver_changed(receiver);
    return status;
}

/* Whoever commits or aborts a refit that runs is its lead. */
static void hear(struct refit_receiver *receiver, const struct refit_session *session)
{
    if (session->request.epoch != 0 && session->request.epoch == receiver->leads.epoch &&
        !refit_session_is_finished(session))
        receiver->leads.heard_ns = refit_clock_ns();
}

static enum refit_status compare_digest(struct refit_session *session, const char *digest, struct refit_error *err)
{
    bool verified = session->digest[0] != '\0';
    if (verified && digest[0] == '\0' && session->request.digest[0] == '\0')
        return refit_fail(err, REFIT_INVALID, "commit of refit %s: 'digest' is missing, and its request named none",
                          session->id);
    if (!verified || digest[0] == '\0' || strcmp(digest, session->digest) == 0)
        return REFIT_OK;
    refit_session_cancel(session, REFIT_CORRUPT, "the sources' model digest is %s, what landed here has %s; a source "
                         "was written while it was read, or bytes were lost", digest, session->digest);
    return refit_fail(err, REFIT_CORRUPT, "refit %s aborts: the sources' model digest is %s, what landed here has %s",
                      session->id, digest, session->digest);
}

static enum refit_status commit_found(struct refit_receiver *receiver, struct refit_session *session, uint64_t version,
                                      const char *digest, struct refit_error *err)
{
    hear(receiver, session);
    if (session->request.version != version)
        return refit_fail(err, REFIT_MISMATCH, "refit %s is of version %" PRIu64 ", not %" PRIu64, session->id,
                          session->request.version, version);
    if (session->phase == REFIT_PHASE_COMMITTED && digest[0] != '\0' && session->digest[0] != '\0' &&
        strcmp(digest, session->digest) != 0)
        return refit_fail(err, REFIT_CONFLICT, "refit %s is committed with model digest %s, not %s", session->id,
                          session->digest, digest);
    if (session->phase == REFIT_PHASE_COMMITTED || session->phase == REFIT_PHASE_COMMITTING)
        return REFIT_OK;
    if (session->phase == REFIT_PHASE_ABORTED)
        return refit_fail(err, REFIT_CONFLICT, "refit %s is aborted: %s", session->id, session->error.text);
    if (atomic_load_explicit(&session->cancel, memory_order_relaxed))
        return refit_fail(err, REFIT_CONFLICT, "refit %s is being aborted: %s", session->id, session->why.text);
    if (session->phase != REFIT_PHASE_STAGED)
        return refit_fail(err, REFIT_BUSY, "refit %s is not staged yet: it is in phase %s; retry", session->id,
                          refit_phase_name(session->phase));
    enum refit_status status = compare_digest(session, digest, err);
    if (status == REFIT_OK)
        session->commit_asked = true;
    return status;
}

enum refit_status refit_receiver_commit(struct refit_receiver *receiver, const char *id, uint64_t version,
                                        const char *digest, struct refit_error *err)
{
    refit_receiver_lock(receiver);
    struct refit_session *session = id && id[0] != '\0' ? find(receiver, id) : NULL;
    enum refit_status status = session ? commit_found(receiver, session, version, digest ? digest : "", err)
                                       : fail_unknown(receiver, id, err);
    refit_receiver_unlock(receiver);
    if (session)
        refit_receiver_changed(receiver);
    return status;
}

static enum refit_status abort_found(struct refit_receiver *receiver, struct refit_session *session,
                                     const char *reason, struct refit_error *err)
{
    hear(receiver, session);
    if (session->phase == REFIT_PHASE_COMMITTED)
        return refit_fail(err, REFIT_CONFLICT, "committed: refit %s can't be aborted any more; roll back instead",
                          session->id);
    if (session->phase == REFIT_PHASE_COMMITTING)
        return refit_fail(err, REFIT_BUSY, "refit %s is being committed; ask again what became of it", session->id);
    refit_session_cancel(session, REFIT_ABORTED, "aborted on request: %.512s",
                         reason && reason[0] ? reason : "no reason was given");
    return REFIT_OK;
}

enum refit_status refit_receiver_abort(struct refit_receiver *receiver, const char *id, const char *reason,
                                       struct refit_error *err)
{
    refit_receiver_lock(receiver);
    struct refit_session *session = id && id[0] != '\0' ? find(receiver, id) : NULL;
    enum refit_status status =
        session ? abort_found(receiver, session, reason, err) : fail_unknown(receiver, id, err);
    refit_receiver_unlock(receiver);
    if (session)
        refit_receiver_changed(receiver);
    return status;
}

enum refit_status refit_receiver_session(struct refit_receiver *receiver, const char *id,
                                         struct refit_session_snapshot *out, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    refit_receiver_lock(receiver);
    const struct refit_session *session = find(receiver, id);
    if (session)
        refit_session_snapshot(session, out);
    else
        status = fail_unknown(receiver, id, err);
    refit_receiver_unlock(receiver);
    return status;
}

enum refit_status refit_receiver_holders(struct refit_receiver *receiver, const char *id, struct refit_holder_view *out,
                                         uint32_t *count, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    refit_receiver_lock(receiver);
    const struct refit_session *session = find(receiver, id);
    *count = session ? session->holder_count : 0;
    if (session)
        memcpy(out, session->holders, *count * sizeof *out);
    else
        status = fail_unknown(receiver, id, err);
    refit_receiver_unlock(receiver);
    return status;
}
