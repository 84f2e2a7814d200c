/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a refit: one function per step, run in order; the first that fails ends the refit and everything taken
 * is given back, the endpoint first, so that nothing writes into a slot that is given up.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "layouts/wanted.h"
#include "memory/ops.h"
#include "receiver/broadcast.h"
#include "receiver/receiver_internal.h"
#include "receiver/request.h"
#include "receiver/session_landing.h"

/* What the thread works with; no other thread sees it. */
struct work {
    struct refit_session *session;
    struct refit_receiver *receiver;
    struct refit_layout *source, *destination; /* owned */
    struct refit_checkpoint_place place;       /* fd -1: none */
    struct refit_checkpoint *checkpoint;       /* owned; NULL for a lead's publish */
    struct refit_plan *plan;                   /* owned */
    struct refit_plan *source_plan;            /* owned; of a checkpoint */
    struct refit_tally *tally;                 /* owned */
    uint8_t *mask;                             /* owned; of the tensors that are moved. NULL: all */
    uint32_t slot;                             /* REFIT_SLOT_NONE: none taken */
    struct refit_landing landing;
};

static enum refit_status open_checkpoint(struct work *work, struct refit_error *err)
{
    const char *path = work->session->request.checkpoint;
    enum refit_status status =
        refit_checkpoint_find(work->receiver->config.checkpoint_root, path, &work->place, err);
    if (status != REFIT_OK)
        return status;
    status = refit_checkpoint_open(work->place.path, &work->checkpoint, err);
    if (status == REFIT_OK)
        work->source = refit_layout_retain(refit_checkpoint_layout(work->checkpoint));
    else
        refit_checkpoint_rename_in(&work->place, path, err);
    return status;
}

static enum refit_status find_layouts(struct work *work, struct refit_error *err)
{
    work->destination = refit_bank_layout(work->receiver->bank);
    if (!work->destination)
        return refit_fail(err, REFIT_BUSY, "no engine has attached yet, so there is no layout to fill; retry");
    if (!work->session->source)
        return open_checkpoint(work, err);
    work->source = refit_layout_retain(work->session->source);
    return REFIT_OK;
}

/* Not cached: the next publish has other unchanged tensors, or a version in between. */
static enum refit_status plan_without_unchanged(struct work *work, struct refit_error *err)
{
    const struct refit_bank_config *bank = &work->receiver->config.bank;
    enum refit_status status =
        refit_wanted_without(work->destination, work->session->request.unchanged, &work->mask, err);
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS,
                                           .first_rank = bank->first_rank, .rank_count = bank->ranks,
                                           .wanted = work->mask};
    return status == REFIT_OK ? refit_plan_build(work->source, work->destination, scope, &work->plan, err) : status;
}

static enum refit_status make_plans(struct work *work, struct refit_error *err)
{
    enum refit_status status = refit_receiver_prove(work->receiver, work->destination, err);
    if (status == REFIT_OK && work->session->keeps)
        status = plan_without_unchanged(work, err);
    else if (status == REFIT_OK)
        status = refit_receiver_plan_for(work->receiver, work->source, work->destination, &work->plan, err);
    if (status == REFIT_OK && work->checkpoint)
        status = refit_plan_build(work->source, work->destination,
                                  (struct refit_plan_scope){.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS},
                                  &work->source_plan, err);
    return status;
}

/* The bank refuses such layouts when they are declared; a refit must not depend on it. */
static enum refit_status check_fit(struct work *work, const struct refit_bank_snapshot *bank, struct refit_error *err)
{
    uint32_t ranks = refit_layout_ranks(work->destination), first = bank->first_rank;
    if (ranks != bank->ranks_total)
        return refit_fail(err, REFIT_MISMATCH, "the layout served here has %" PRIu32 " ranks, the replica %" PRIu32,
                          ranks, bank->ranks_total);
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        uint64_t need = refit_layout_arena_bytes(work->destination, first + rank);
        if (need > bank->slot_bytes)
            return refit_fail(err, REFIT_NO_MEMORY, "rank %" PRIu32 " needs %" PRIu64 " bytes, a slot has %" PRIu64
                              "; raise the slot size", first + rank, need, bank->slot_bytes);
    }
    return REFIT_OK;
}

/* Once more, since the refit before this one may have been committed while this one was asked for. And two slots of one
 * version would make acquire(version) ambiguous; with two slots the retained one is filled anew. */
static enum refit_status check_version(struct work *work, const struct refit_bank_snapshot *bank,
                                       struct refit_error *err)
{
    uint64_t version = work->session->request.version;
    for (uint32_t i = 0; i < bank->slots && bank->slots > 2; i++)
        if (bank->slot[i].state == REFIT_SLOT_RETAINED && bank->slot[i].version.version == version)
            return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 " is retained in slot %" PRIu32
                              ": roll back to it, or publish under a newer version", version, i);
    return refit_request_check_newer(bank, version, err);
}

static enum refit_status check_memory(struct work *work, struct refit_error *err)
{
    const char *limit = NULL;
    uint64_t left = refit_memory_available(&limit), buffers = 0;
    unsigned streams = work->receiver->config.streams;
    enum refit_status status =
        work->session->request.buckets ? refit_broadcast_needs(work->session, &buffers, err) : REFIT_OK;
    if (status != REFIT_OK)
        return status;
    uint64_t need = buffers + (uint64_t)streams * REFIT_GRANTS_PER_STREAM * refit_plan_batch_bytes(work->plan);
    if (left >= need)
        return REFIT_OK;
    return refit_fail(err, REFIT_NO_MEMORY, "a refit needs about %" PRIu64 " bytes beside its slot, %" PRIu64
                      " are left under %s; raise the limit", need, left, limit ? limit : "the memory limit");
}

static enum refit_status preflight(struct work *work, struct refit_error *err)
{
    struct refit_bank_snapshot bank;
    enum refit_status status = find_layouts(work, err);
    if (status == REFIT_OK)
        status = make_plans(work, err);
    refit_bank_read(work->receiver->bank, &bank);
    if (status == REFIT_OK)
        status = check_fit(work, &bank, err);
    if (status == REFIT_OK)
        status = check_version(work, &bank, err);
    if (status == REFIT_OK)
        status = check_memory(work, err);
    if (status != REFIT_OK)
        return status;
    work->tally = refit_tally_create(refit_layout_tensor_count(work->destination));
    if (!work->tally)
        return refit_fail_alloc(err, "the digests of a refit", refit_layout_tensor_count(work->destination));
    refit_receiver_lock(work->receiver);
    work->session->bytes_due = refit_plan_bytes(work->plan);
    refit_receiver_unlock(work->receiver);
    return REFIT_OK;
}

/* Called by the bank while it waits: only then is the refit one that waits for readers. */
static void on_wait(void *context, const struct refit_bank_waiting *who)
{
    struct refit_session *session = context;
    struct refit_receiver *receiver = session->receiver;
    refit_receiver_lock(receiver);
    const struct refit_bank_waiting *known = &session->waiting;
    bool news = session->phase != REFIT_PHASE_WAITING_FOR_READERS || known->rank != who->rank ||
                known->version != who->version || known->pins != who->pins;
    session->waiting = *who;
    if (session->phase != REFIT_PHASE_WAITING_FOR_READERS)
        refit_session_set_phase(session, REFIT_PHASE_WAITING_FOR_READERS);
    else if (news)
        session->sequence++;
    bool long_enough = refit_clock_ns() - session->phase_since_ns > receiver->config.relay_stall_ms * 1000000;
    refit_receiver_unlock(receiver);
    if (news)
        refit_receiver_changed(receiver);
    /* Replicas that fetch this version from here are not waited for longer than others are: they can have the next one. */
    if (long_enough)
        refit_serves_end_version(receiver, who->version);
}

static struct refit_version version_of(const struct refit_session *session)
{
    struct refit_version version = {.version = session->request.version};
    memcpy(version.label, session->request.label, sizeof version.label);
    memcpy(version.digest, session->digest, sizeof version.digest);
    return version;
}

static enum refit_status take_slot(struct work *work, struct refit_error *err)
{
    struct refit_session *session = work->session;
    uint32_t slot = REFIT_SLOT_NONE;
    enum refit_status status = refit_bank_begin(work->receiver->bank, session->deadline, &session->cancel, on_wait,
                                                session, &slot, err);
    if (status != REFIT_OK)
        return status;
    work->slot = slot;
    const struct refit_request *request = &session->request;
    const struct refit_version version = version_of(session);
    status = refit_bank_vacate(work->receiver->bank, slot, &version, request->kv, session->deadline, &session->cancel,
                               on_wait, session, err);
    if (status != REFIT_OK)
        return status;
    struct refit_remains remains = {.version = 0};
    refit_receiver_lock(work->receiver);
    if (!work->mask && refit_kept_resume(&work->receiver->kept, request->resume, request->version, slot, work->plan,
                                         &remains)) {
        refit_tally_destroy(work->tally);
        work->tally = remains.tally;
        work->landing.landed = remains.landed;
        refit_plan_release(remains.plan);
    }
    refit_kept_forget(&work->receiver->kept, slot);
    refit_receiver_unlock(work->receiver);
    return REFIT_OK;
}

static enum refit_status bring_in(struct work *work, struct refit_error *err)
{
    enum refit_status status = refit_landing_run(&work->landing, err);
    if (status != REFIT_OK && work->checkpoint)
        refit_checkpoint_rename_in(&work->place, work->session->request.checkpoint, err);
    return status;
}

static enum refit_status take_broadcast(struct work *work, struct refit_error *err)
{
    const struct refit_broadcast_config config = {.session = work->session, .plan = work->plan, .slot = work->slot,
                                                  .tally = work->tally};
    return refit_broadcast_run(&config, err);
}

static enum refit_status transfer(struct work *work, struct refit_error *err)
{
    if (work->session->request.buckets)
        return take_broadcast(work, err);
    struct refit_landing_config config = {
        .session = work->session,
        .plan = work->plan,
        .slot = work->slot,
        .tally = work->tally,
        .checkpoint = work->checkpoint,
        .source_plan = work->source_plan,
        .mask = work->mask,
    };
    enum refit_status status = refit_landing_open(&work->landing, &config, err);
    if (status == REFIT_OK)
        status = bring_in(work, err);
    /* At once: nothing may write into the slot after it was verified. */
    refit_landing_close(&work->landing);
    if (!work->landing.tainted)
        return status;
    work->session->tainted = true;
    return refit_fail(err, work->landing.taint.status, "%s", work->landing.taint.text);
}

static enum refit_status check_digest(struct work *work, const char *digest, struct refit_error *err)
{
    const struct refit_request *request = &work->session->request;
    if (request->digest[0] != '\0' && strcmp(request->digest, digest) != 0)
        return refit_fail(err, REFIT_CORRUPT, "version %" PRIu64 ": expected model digest %s, what landed has %s; the "
                          "source changed while it was read, or is not the one that was meant", request->version,
                          request->digest, digest);
    refit_receiver_lock(work->receiver);
    bool bad = refit_quarantine_has(&work->receiver->quarantine, digest);
    if (!bad) {
        memcpy(work->session->digest, digest, sizeof work->session->digest);
        work->session->tally = work->tally;
    }
    refit_receiver_unlock(work->receiver);
    if (bad)
        return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 ": model digest %s is in quarantine here",
                          request->version, digest);
    return REFIT_OK;
}

/* Every batch was verified on landing; what is left is the sum of all, which names the model. */
static enum refit_status verify(struct work *work, struct refit_error *err)
{
    char digest[REFIT_SHA256_HEX_MAX];
    if (!work->receiver->config.verify)
        return REFIT_OK;
    enum refit_status status = refit_model_digest(work->destination, work->tally, "exact", digest, err);
    return status == REFIT_OK ? check_digest(work, digest, err) : status;
}

static enum refit_status prepare(struct work *work, struct refit_error *err)
{
    struct refit_session *session = work->session;
    const struct refit_version version = version_of(session);
    return refit_bank_stage(work->receiver->bank, work->slot, session->id, &version, session->deadline,
                            &session->cancel, err);
}

static bool may_commit(const struct refit_session *session)
{
    return session->commit_asked || session->request.commit == REFIT_COMMIT_AUTO;
}

/* Under the lock: until a commit is asked for (and no rollback is under way), or the refit is over. */
static enum refit_status await_commit(struct work *work, struct refit_deadline ttl, struct refit_error *err)
{
    struct refit_receiver *receiver = work->receiver;
    struct refit_session *session = work->session;
    bool waiting = true;
    while (!atomic_load_explicit(&session->cancel, memory_order_relaxed) && waiting &&
           (!may_commit(session) || receiver->rolling))
        waiting = refit_receiver_wait(receiver, ttl);
    if (atomic_load_explicit(&session->cancel, memory_order_relaxed))
        return refit_fail(err, session->why.status, "%s", session->why.text);
    /* A commit that was taken at the last moment counts. */
    if (!may_commit(session) || receiver->rolling)
        return refit_fail(err, REFIT_TIMEOUT, "version %" PRIu64 " was staged, and nobody committed it in time; "
                          "publish again", session->request.version);
    if (receiver->held)
        return refit_fail(err, REFIT_CONFLICT, "held: newer versions are held off, by a rollback or by request, until "
                          "'refit release'");
    refit_session_set_phase(session, REFIT_PHASE_COMMITTING);
    return REFIT_OK;
}

static enum refit_status stay_staged(struct work *work, struct refit_error *err)
{
    struct refit_deadline ttl = refit_deadline_earlier(
        work->session->deadline, refit_deadline_in_ms(work->receiver->config.staged_ttl_ms));
    refit_receiver_lock(work->receiver);
    enum refit_status status = await_commit(work, ttl, err);
    refit_receiver_unlock(work->receiver);
    if (status == REFIT_OK)
        refit_receiver_changed(work->receiver);
    return status;
}

static enum refit_status commit(struct work *work, struct refit_error *err)
{
    struct refit_session *session = work->session;
    struct refit_receiver *receiver = work->receiver;
    /* Its bytes go elsewhere now: who still fetches them from this slot asks another member, or for the version. */
    if (receiver->config.bank.swap == REFIT_SWAP_COPY)
        refit_landing_leave(&work->landing);
    enum refit_status status = refit_bank_commit(receiver->bank, work->slot, session->id, session->request.kv,
                                                 session->deadline, err);
    if (status != REFIT_OK)
        return status;
    refit_receiver_lock(receiver);
    session->tally = NULL;
    if (receiver->config.verify) {
        refit_kept_know(&receiver->kept, work->slot, session->request.version, work->tally);
        work->tally = NULL;
    }
    refit_receiver_unlock(receiver);
    refit_receiver_follow_slots(receiver);
    work->slot = REFIT_SLOT_NONE; /* it is the active one now */
    return REFIT_OK;
}

/* REFIT_PHASE_REQUESTED: the step itself decides what phase it is in. */
static const struct {
    enum refit_phase phase;
    enum refit_status (*run)(struct work *work, struct refit_error *err);
} steps[] = {
    {REFIT_PHASE_PREFLIGHT, preflight},
    {REFIT_PHASE_REQUESTED, take_slot},
    {REFIT_PHASE_TRANSFER, transfer},
    {REFIT_PHASE_VERIFY, verify},
    {REFIT_PHASE_PREPARE, prepare},
    {REFIT_PHASE_STAGED, stay_staged},
    {REFIT_PHASE_REQUESTED, commit},
};

static enum refit_status run_steps(struct work *work, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == REFIT_OK; i++) {
        if (steps[i].phase != REFIT_PHASE_REQUESTED)
            status = refit_session_enter(work->session, steps[i].phase, err);
        if (status == REFIT_OK)
            status = steps[i].run(work, err);
    }
    return status;
}

/* What has landed of a refit that broke off stays in the slot for the next attempt, until the slot is taken. Bytes
 * that turned out wrong don't, nor those of a plan with a mask. */
static void leave_remains(struct work *work, enum refit_status why)
{
    struct refit_landing *landing = &work->landing;
    if (!landing->landed || work->checkpoint || work->mask || landing->tainted || why == REFIT_OK || why == REFIT_CORRUPT)
        return;
    struct refit_remains remains = {.version = work->session->request.version, .slot = work->slot,
                                    .plan = refit_plan_retain(work->plan),
                                    .landed = refit_landed_retain(landing->landed), .tally = work->tally};
    memcpy(remains.id, work->session->id, sizeof remains.id);
    work->tally = NULL;
    refit_receiver_lock(work->receiver);
    refit_kept_leave(&work->receiver->kept, &remains);
    refit_receiver_unlock(work->receiver);
}

/* Who reads the slot stops first, then it is given up. */
static void give_back_slot(struct work *work, enum refit_status why)
{
    refit_receiver_lock(work->receiver);
    work->session->tally = NULL;
    refit_receiver_unlock(work->receiver);
    refit_landing_close(&work->landing);
    if (work->slot != REFIT_SLOT_NONE)
        leave_remains(work, why);
    refit_landing_leave(&work->landing);
    if (work->slot == REFIT_SLOT_NONE)
        return;
    refit_serves_end_slot(work->receiver, work->slot);
    refit_bank_discard(work->receiver->bank, work->slot);
    work->slot = REFIT_SLOT_NONE;
}

static void give_back(struct work *work)
{
    give_back_slot(work, REFIT_OK);
    refit_tally_destroy(work->tally);
    free(work->mask);
    refit_plan_release(work->source_plan);
    refit_plan_release(work->plan);
    refit_layout_release(work->source);
    refit_layout_release(work->destination);
    refit_checkpoint_close(work->checkpoint);
    refit_checkpoint_forget(&work->place);
}

/* Whoever lost patience wants to know with whom. */
static void name_the_pin(struct refit_session *session)
{
    size_t used = strlen(session->error.text);
    if (session->waiting.version == 0) { /* no pin: an engine that receives */
        snprintf(session->error.text + used, sizeof session->error.text - used, "; it waited for rank %" PRIu32 ": %s",
                 session->waiting.rank, session->waiting.label);
        return;
    }
    snprintf(session->error.text + used, sizeof session->error.text - used,
             "; it waited for rank %" PRIu32 " (%s), which pins version %" PRIu64, session->waiting.rank,
             session->waiting.label, session->waiting.version);
}

/* Likewise for the engine whose hook had not answered. */
static void name_the_engine(struct refit_session *session, const struct refit_error *of_bank)
{
    size_t used = strlen(session->error.text);
    snprintf(session->error.text + used, sizeof session->error.text - used, "; %s", of_bank->text);
}

static void record_abort(struct refit_session *session, const struct refit_error *error)
{
    struct refit_receiver *receiver = session->receiver;
    /* What a cancelled wait says is less than why it was cancelled. */
    bool cancelled = atomic_load_explicit(&session->cancel, memory_order_relaxed);
    session->error = cancelled ? session->why : *error;
    session->failed_in = session->phase;
    if (cancelled && session->phase == REFIT_PHASE_WAITING_FOR_READERS)
        name_the_pin(session);
    if (cancelled && (session->phase == REFIT_PHASE_PREPARE || session->tainted))
        name_the_engine(session, error);
    refit_session_set_phase(session, REFIT_PHASE_ABORTED);
    receiver->aborted++;
    receiver->superseded += session->superseded;
    receiver->aborted_by[session->error.status]++;
}

static void add_supplied(struct refit_supplied *sum, const struct refit_supplied *more)
{
    sum->origin_bytes += more->origin_bytes;
    sum->domain_bytes += more->domain_bytes;
    sum->fleet_bytes += more->fleet_bytes;
    sum->excess_bytes += more->excess_bytes;
    sum->kept_bytes += more->kept_bytes;
}

static void finish(struct refit_session *session, enum refit_status status, const struct refit_error *error)
{
    struct refit_receiver *receiver = session->receiver;
    refit_receiver_lock(receiver);
    receiver->bytes_landed += session->bytes_done - session->supplied.kept_bytes;
    add_supplied(&receiver->supplied, &session->supplied);
    receiver->unfinished--;
    if (session->request.epoch == receiver->leads.epoch)
        receiver->leads.heard_ns = 0;
    if (status == REFIT_OK) {
        receiver->committed++;
        refit_session_set_phase(session, REFIT_PHASE_COMMITTED);
    } else
        record_abort(session, error);
    struct refit_session_snapshot end;
    refit_session_snapshot(session, &end);
    refit_receiver_unlock(receiver);
    if (status == REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "refit committed", refit_log_text("digest", end.digest),
                        refit_log_u64("bytes", end.bytes_done), refit_log_text("transport", end.transport));
    else
        refit_log_event(REFIT_LOG_WARN, "refit aborted", refit_log_text("phase", refit_phase_name(end.failed_in)),
                        REFIT_LOG_CAUSE(&end.error));
    refit_receiver_changed(receiver);
}

/* Slower members may still come for bytes of the slot, which is not written while it is the active one or the next.
 * The next refit ends this: it may want the slot. */
static void linger(struct work *work)
{
    struct refit_receiver *receiver = work->receiver;
    refit_landing_withdraw(&work->landing); /* found by its version from now on */
    refit_receiver_lock(receiver);
    while (refit_landing_serves(&work->landing) && !receiver->closing &&
           receiver->sessions[0] == work->session && !refit_deadline_passed(work->session->deadline))
        refit_receiver_wait(receiver, work->session->deadline);
    refit_receiver_unlock(receiver);
}

static void *session_thread(void *arg)
{
    struct refit_session *session = arg;
    struct refit_error error = {.status = REFIT_OK};
    struct work work = {.session = session, .receiver = session->receiver, .place.fd = -1, .slot = REFIT_SLOT_NONE};
    refit_log_context(session->id, session->request.version);
    if (session->has_predecessor)
        pthread_join(session->predecessor, NULL);
    enum refit_status status = run_steps(&work, &error);
    if (status != REFIT_OK)
        give_back_slot(&work, status);
    finish(session, status, &error);
    if (status == REFIT_OK)
        linger(&work);
    give_back(&work);
    refit_session_release(session);
    return NULL;
}

enum refit_status refit_session_start(struct refit_session *session, pthread_t *thread, struct refit_error *err)
{
    refit_session_retain(session);
    enum refit_status status = refit_thread_start(thread, session_thread, session, "the thread of a refit", err);
    if (status != REFIT_OK)
        refit_session_release(session);
    return status;
}
