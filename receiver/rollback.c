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

/* What keeps newer versions off, when a rollback is asked for. */
struct standing {
    bool held;
    uint64_t rolled_to;
};

/* Whoever asks again, because an answer was lost, must not get back what was rolled back from: while the hold of a
 * rollback lasts, the same words find what was done. A hold that was asked for alone is no rollback: from there one
 * goes back. *left is the digest of the version that is, or was, rolled back from. */
static bool is_repeat(const struct refit_bank_snapshot *bank, const struct standing *standing,
                      const struct refit_rollback *rollback, char left[static REFIT_SHA256_HEX_MAX],
                      struct refit_version *now)
{
    left[0] = '\0';
    if (bank->active == REFIT_SLOT_NONE)
        return false;
    *now = bank->slot[bank->active].version;
    bool done = standing->held && standing->rolled_to == now->version;
    bool there = rollback->version == now->version && (standing->held || rollback->open);
    bool repeat = rollback->version == 0 ? done : there;
    bool went_back = bank->left_version > now->version; /* else that one was never left for this one */
    const struct refit_version *from = !repeat ? now : went_back ? find_version(bank, bank->left_version) : NULL;
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

/* Under the lock. Who is staged with it is not committed any more; who gets it later finds it here. */
static enum refit_status put_in_quarantine(struct refit_receiver *receiver, const char *digest, struct refit_error *err)
{
    enum refit_status status = refit_quarantine_set(&receiver->quarantine, digest, true, err);
    for (uint32_t i = 0; i < receiver->session_count && status == REFIT_OK; i++)
        if (strcmp(receiver->sessions[i]->digest, digest) == 0)
            refit_session_cancel(receiver->sessions[i], REFIT_CONFLICT, "model digest %s was put in quarantine here",
                                 digest);
    return status;
}

/* Under the lock, after the swap. */
static void leave_behind(struct refit_receiver *receiver, const struct refit_rollback *rollback, const char *left,
                         const struct refit_version *now)
{
    struct refit_error error;
    char why[64];
    if (rollback->quarantine && put_in_quarantine(receiver, left, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "the version rolled back from is not in quarantine", REFIT_LOG_CAUSE(&error));
    snprintf(why, sizeof why, "rolled back to version %" PRIu64, now->version);
    if (rollback->open)
        return;
    receiver->rolled_to = now->version;
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
    const struct standing standing = {receiver->held, receiver->rolled_to};
    refit_receiver_unlock(receiver);
    if (status != REFIT_OK)
        return status;
    refit_bank_read(receiver->bank, &bank);
    if (!is_repeat(&bank, &standing, rollback, left, &to))
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
    receiver->rolled_to = 0;
    refit_receiver_unlock(receiver);
    refit_receiver_changed(receiver);
    save_or_warn(receiver, "release");
}

enum refit_status refit_receiver_quarantine(struct refit_receiver *receiver, const char *digest, bool on,
                                            struct refit_error *err)
{
    refit_receiver_lock(receiver);
    enum refit_status status = on ? put_in_quarantine(receiver, digest, err)
                                  : refit_quarantine_set(&receiver->quarantine, digest, false, err);
    refit_receiver_unlock(receiver);
    if (status != REFIT_OK)
        return status;
    refit_receiver_changed(receiver);
    return refit_record_save(receiver, err);
}
