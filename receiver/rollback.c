/* SPDX-License-Identifier: Apache-2.0
 *
 * Going back, and staying there: rollback, hold, quarantine.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "receiver/receiver_internal.h"
#include "receiver/request.h"

/* A disk that is full must not keep an operator from rolling back. */
static void save_or_warn(struct refit_receiver *receiver, const char *what)
{
    struct refit_error error;
    if (refit_record_save(receiver, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "state file not written, a change holds until a restart",
                        refit_log_text("change", what), REFIT_LOG_CAUSE(&error));
}

static bool is_committing(const struct refit_receiver *receiver)
{
    return receiver->session_count > 0 && receiver->sessions[0]->phase == REFIT_PHASE_COMMITTING;
}

/* Under the lock: no commit starts any more, and none is under way. */
static enum refit_status stop_commits(struct refit_receiver *receiver, struct refit_deadline deadline,
                                      struct refit_error *err)
{
    bool waiting = true;
    while (receiver->rolling && waiting)
        waiting = refit_receiver_wait(receiver, deadline);
    if (receiver->rolling)
        return refit_fail(err, REFIT_TIMEOUT, "rollback: another one is under way, the deadline passed");
    receiver->rolling = true;
    while (is_committing(receiver) && waiting)
        waiting = refit_receiver_wait(receiver, deadline);
    if (!is_committing(receiver))
        return REFIT_OK;
    receiver->rolling = false;
    return refit_fail(err, REFIT_TIMEOUT, "rollback: refit %s is being committed, the deadline passed",
                      receiver->sessions[0]->id);
}

static const char *rollback_kv(const struct refit_rollback *rollback)
{
    return rollback->kv && rollback->kv[0] != '\0' ? rollback->kv : "flush";
}

static const struct refit_version *find_version(const struct refit_bank_snapshot *bank, uint64_t version)
{
    for (uint32_t i = 0; i < bank->slots && version != 0; i++)
        if (bank->slot[i].version.version == version)
            return &bank->slot[i].version;
    return NULL;
}

/* Whoever asks again, because an answer was lost, must not get back what was rolled back from: while a hold lasts, the
 * same words find the rollback that was done. *left is the digest of the version that is, or was, rolled back from. */
static bool is_repeat(const struct refit_bank_snapshot *bank, bool settled, uint64_t version,
                      char left[static REFIT_SHA256_HEX_MAX], struct refit_version *now)
{
    left[0] = '\0';
    if (bank->active == REFIT_SLOT_NONE)
        return false;
    *now = bank->slot[bank->active].version;
    bool repeat = settled && (version == 0 || version == now->version);
    const struct refit_version *from = repeat ? find_version(bank, bank->rollback_version) : now;
    if (from)
        memcpy(left, from->digest, REFIT_SHA256_HEX_MAX);
    return repeat;
}

/* Under the lock. */
static void hold(struct refit_receiver *receiver, const char *why)
{
    receiver->held = true;
    for (uint32_t i = 0; i < receiver->session_count; i++)
        refit_session_cancel(receiver->sessions[i], REFIT_CONFLICT, "held: %s, newer versions are forbidden until release",
                             why);
}

/* Under the lock, after the swap. */
static void leave_behind(struct refit_receiver *receiver, const struct refit_rollback *rollback, const char *left,
                         const struct refit_version *now)
{
    struct refit_error error;
    char why[64];
    if (rollback->quarantine && refit_quarantine_set(&receiver->quarantine, left, true, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "the version rolled back from is not in quarantine", REFIT_LOG_CAUSE(&error));
    snprintf(why, sizeof why, "rolled back to version %" PRIu64, now->version);
    if (!rollback->open)
        hold(receiver, why);
}

static enum refit_status check_rollback(const struct refit_rollback *rollback, struct refit_error *err)
{
    if (rollback->open && rollback->version == 0)
        return refit_fail(err, REFIT_INVALID, "a rollback without hold must name its version, or a repeat would go back twice");
    return refit_request_check_kv(rollback_kv(rollback), err);
}

enum refit_status refit_receiver_rollback(struct refit_receiver *receiver, const struct refit_rollback *rollback,
                                          struct refit_deadline deadline, struct refit_version *now,
                                          struct refit_error *err)
{
    char left[REFIT_SHA256_HEX_MAX];
    struct refit_version to;
    enum refit_status status = check_rollback(rollback, err);
    if (status != REFIT_OK)
        return status;
    struct refit_bank_snapshot bank;
    refit_receiver_lock(receiver);
    status = stop_commits(receiver, deadline, err);
    bool settled = receiver->held || rollback->open;
    refit_receiver_unlock(receiver);
    if (status != REFIT_OK)
        return status;
    refit_bank_read(receiver->bank, &bank);
    if (!is_repeat(&bank, settled, rollback->version, left, &to))
        status = refit_bank_rollback(receiver->bank, rollback->version, rollback_kv(rollback), deadline, &to, err);
    refit_receiver_follow_slots(receiver);
    refit_receiver_lock(receiver);
    receiver->rolling = false;
    if (status == REFIT_OK)
        leave_behind(receiver, rollback, left, &to);
    refit_receiver_unlock(receiver);
    refit_receiver_changed(receiver);
    if (status == REFIT_OK)
        save_or_warn(receiver, "rollback");
    if (status == REFIT_OK && now)
        *now = to;
    if (status == REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "rolled back", refit_log_u64("version", to.version),
                        refit_log_text("digest", to.digest), refit_log_bool("held", !rollback->open));
    return status;
}

void refit_receiver_hold(struct refit_receiver *receiver)
{
    refit_receiver_lock(receiver);
    hold(receiver, "by request");
    refit_receiver_unlock(receiver);
    refit_receiver_changed(receiver);
    save_or_warn(receiver, "hold");
}

void refit_receiver_release_hold(struct refit_receiver *receiver)
{
    refit_receiver_lock(receiver);
    receiver->held = false;
    refit_receiver_unlock(receiver);
    refit_receiver_changed(receiver);
    save_or_warn(receiver, "release");
}

enum refit_status refit_receiver_quarantine(struct refit_receiver *receiver, const char *digest, bool on,
                                            struct refit_error *err)
{
    refit_receiver_lock(receiver);
    enum refit_status status = refit_quarantine_set(&receiver->quarantine, digest, on, err);
    refit_receiver_unlock(receiver);
    if (status != REFIT_OK)
        return status;
    refit_receiver_changed(receiver);
    return refit_record_save(receiver, err);
}
