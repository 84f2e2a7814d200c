/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a slot from its bytes on: stage, commit, rollback. Docs: docs/receiver.md, "Swap".
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "receiver/bank_internal.h"

#define WAIT_MS 20 /* for messages: the condition is signalled, this only bounds how late `cancel` is seen */

enum refit_status refit_bank_wait_failed(enum refit_status status, const char *what, struct refit_error *err)
{
    return status == REFIT_ABORTED ? refit_fail(err, status, "%s: cancelled", what)
                                   : refit_fail(err, status, "%s: deadline passed", what);
}

/* --- stage ------------------------------------------------------------------------------------------------- */

/* REFIT_BUSY: an attached rank has not answered; *who is it. Refusals are final. */
static enum refit_status prepared_by_all(const struct refit_bank *bank, uint32_t slot, uint32_t *who,
                                         struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (!refit_reader_attached(r) || r->prepared[slot] == bank->slot[slot].version.version)
            continue;
        if (r->refused[slot])
            return refit_fail(err, REFIT_CONFLICT, "rank %u (%s) refused version %" PRIu64 ": %s",
                              refit_bank_rank_number(bank, r->rank), r->label, bank->slot[slot].version.version,
                              r->reason);
        *who = refit_bank_rank_number(bank, r->rank);
        status = REFIT_BUSY;
    }
    return status;
}

static enum refit_status await_prepared(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                        const atomic_bool *cancel, struct refit_error *err)
{
    for (;;) {
        uint32_t who = 0;
        enum refit_status status = prepared_by_all(bank, slot, &who, err);
        if (status != REFIT_BUSY)
            return status;
        status = refit_bank_pause(bank, deadline, cancel, WAIT_MS);
        if (status != REFIT_OK)
            return refit_fail(err, status, "prepare: rank %u did not answer before %s", who,
                              status == REFIT_TIMEOUT ? "the deadline" : "it was called off");
    }
}

static enum refit_status check_state(const struct refit_bank *bank, uint32_t slot, enum refit_slot_state state,
                                     struct refit_error *err)
{
    if (slot >= bank->slots)
        return refit_fail(err, REFIT_INVALID, "slot %u of %u", slot, bank->slots);
    if (bank->slot[slot].state != state)
        return refit_fail(err, REFIT_CONFLICT, "slot %u is %s, expected %s", slot,
                          refit_slot_state_name(bank->slot[slot].state), refit_slot_state_name(state));
    return REFIT_OK;
}

/* acquire(v) finds one slot; a second one of the same number would be a coin toss. */
static enum refit_status check_version(const struct refit_bank *bank, const struct refit_version *version,
                                       struct refit_error *err)
{
    if (version->version == 0)
        return refit_fail(err, REFIT_INVALID, "version 0: versions are 1 or more");
    for (uint32_t i = 0; i < bank->slots; i++) {
        if (bank->slot[i].version.version == version->version)
            return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 " is in slot %u already (%s)", version->version,
                              i, refit_slot_state_name(bank->slot[i].state));
    }
    return REFIT_OK;
}

static enum refit_status stage_locked(struct refit_bank *bank, uint32_t slot, const struct refit_version *version,
                                      struct refit_deadline deadline, const atomic_bool *cancel,
                                      struct refit_error *err)
{
    enum refit_status status = check_state(bank, slot, REFIT_SLOT_FILLING, err);
    if (status == REFIT_OK)
        status = check_version(bank, version, err);
    if (status != REFIT_OK)
        return status;
    struct refit_slot *s = &bank->slot[slot];
    s->version = *version;
    s->serial = ++bank->serial;
    s->preparing = true;
    refit_bank_sync(bank);
    status = await_prepared(bank, slot, deadline, cancel, err);
    if (status == REFIT_OK && bank->engine)
        status = refit_bank_engine_prepare(bank, slot, deadline, cancel, err);
    if (status == REFIT_OK) {
        refit_bank_set_state(bank, slot, REFIT_SLOT_STAGED);
        return REFIT_OK;
    }
    refit_bank_forget(bank, slot);
    refit_bank_set_state(bank, slot, REFIT_SLOT_FILLING);
    return status;
}

enum refit_status refit_bank_stage(struct refit_bank *bank, uint32_t slot, const char *refit_id,
                                   const struct refit_version *version, struct refit_deadline deadline,
                                   const atomic_bool *cancel, struct refit_error *err)
{
    refit_bank_lock(bank);
    enum refit_status status = stage_locked(bank, slot, version, deadline, cancel, err);
    refit_bank_unlock(bank);
    refit_bank_wake(bank);
    if (status == REFIT_OK)
        refit_bank_save(bank);
    else
        refit_log_event(REFIT_LOG_INFO, "not staged", refit_log_text("refit", refit_id),
                        refit_log_u64("version", version->version), refit_log_text("status", refit_status_name(status)),
                        refit_log_text("reason", err ? err->text : ""));
    return status;
}

/* --- swap -------------------------------------------------------------------------------------------------- */

static void ask_swapping(struct refit_bank *bank, const struct refit_version *version, const char *kv)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_SWAPPING, .version = *version};
    bank->swap_serial = ++bank->serial;
    refit_bank_serial_text(bank->swap_serial, m.refit);
    snprintf(m.kv, sizeof m.kv, "%s", kv);
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        r->answered = r->ready = false;
        if (refit_reader_attached(r))
            refit_reader_send(r, &m, NULL, 0);
    }
}

static enum refit_status ready_of_all(const struct refit_bank *bank, uint32_t *who, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (!refit_reader_attached(r) || (r->answered && r->ready))
            continue;
        if (r->answered)
            return refit_fail(err, REFIT_CONFLICT, "rank %u (%s) refused the swap: %s",
                              refit_bank_rank_number(bank, r->rank), r->label, r->reason);
        *who = refit_bank_rank_number(bank, r->rank);
        status = REFIT_BUSY;
    }
    return status;
}

static enum refit_status await_ready(struct refit_bank *bank, struct refit_deadline deadline,
                                     const atomic_bool *cancel, struct refit_error *err)
{
    for (;;) {
        uint32_t who = 0;
        enum refit_status status = ready_of_all(bank, &who, err);
        if (status != REFIT_BUSY)
            return status;
        status = refit_bank_pause(bank, deadline, cancel, WAIT_MS);
        if (status != REFIT_OK)
            return refit_fail(err, status, "swap: rank %u did not answer before %s", who,
                              status == REFIT_TIMEOUT ? "the deadline" : "it was called off");
    }
}

enum refit_status refit_bank_ask_swap(struct refit_bank *bank, const struct refit_version *version, const char *kv,
                                      struct refit_deadline deadline, const atomic_bool *cancel, struct refit_error *err)
{
    /* Whatever was asked before is answered before this is, on the same socket; no hook runs after it. */
    bank->paused = bank->swap != REFIT_SWAP_POINTER;
    ask_swapping(bank, version, kv);
    return await_ready(bank, deadline, cancel, err);
}

void refit_bank_tell_swapped(struct refit_bank *bank, const char *kv)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (refit_reader_attached(r))
            refit_bank_send_swapped(bank, r, kv);
    }
}

static bool can_flip(const struct refit_bank *bank, const struct refit_reader *reader, uint32_t slot)
{
    return reader->prepared[slot] == bank->slot[slot].version.version;
}

void refit_bank_publish(struct refit_bank *bank, uint32_t to)
{
    int64_t begin = refit_clock_ns();
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (can_flip(bank, r, to))
            refit_reader_show(r, to, &bank->slot[to].version);
    }
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank != 0 && can_flip(bank, r, to))
            refit_reader_flip(r, to);
    }
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank == 0 && can_flip(bank, r, to))
            refit_reader_flip(r, to);
    }
    bank->last_swap_ns = refit_clock_ns() - begin;
    if (bank->active != REFIT_SLOT_NONE)
        refit_bank_set_state(bank, bank->active, REFIT_SLOT_RETAINED);
    refit_bank_set_state(bank, to, REFIT_SLOT_ACTIVE);
    bank->active = to;
}

static enum refit_status swap_pointers(struct refit_bank *bank, uint32_t to, const char *kv,
                                       struct refit_deadline deadline, struct refit_error *err)
{
    const enum refit_slot_state from = bank->slot[to].state;
    bank->swap_to = to;
    refit_bank_unlock(bank);
    refit_bank_save(bank);
    refit_bank_lock(bank);
    enum refit_status status = check_state(bank, to, from, err); /* discarded meanwhile? */
    if (status == REFIT_OK && bank->engine)
        status = refit_bank_engine_install(bank, to, kv, deadline, err);
    if (status == REFIT_OK)
        refit_bank_publish(bank, to);
    return status;
}

/* Memory is about to move: what that takes is taken, and whoever reads it here, for others, ends, while the engine goes
 * on. */
static enum refit_status prepare_move(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                   struct refit_error *err)
{
    if (bank->swap != REFIT_SWAP_COPY)
        return REFIT_OK;
    enum refit_status status = refit_bank_reserve_exchange(bank, to, deadline, err);
    if (status == REFIT_OK)
        status = refit_bank_evict_keepers(bank, to, deadline, NULL, err);
    return status == REFIT_OK ? refit_bank_evict_keepers(bank, bank->live, deadline, NULL, err) : status;
}

/* With `swapping` held: hooks, the announcement in the state file, the flips. A refit in place asked the hooks before its
 * first byte. */
static enum refit_status swap(struct refit_bank *bank, uint32_t to, const char *kv, struct refit_deadline deadline,
                              struct refit_error *err)
{
    enum refit_status status = await_prepared(bank, to, deadline, NULL, err);
    if (status == REFIT_OK)
        status = prepare_move(bank, to, deadline, err);
    if (status == REFIT_OK) {
        if (bank->swap != REFIT_SWAP_IN_PLACE)
            status = refit_bank_ask_swap(bank, &bank->slot[to].version, kv, deadline, NULL, err);
        if (status == REFIT_OK && bank->swap == REFIT_SWAP_POINTER)
            status = swap_pointers(bank, to, kv, deadline, err);
        else if (status == REFIT_OK)
            status = refit_bank_swap_paused(bank, to, deadline, err);
        refit_bank_tell_swapped(bank, kv); /* after a refusal too: whoever paused in its hook goes on with what is served */
    }
    bank->swap_to = REFIT_SLOT_NONE;
    memset(bank->immovable, 0, sizeof bank->immovable);
    return status;
}

enum refit_status refit_bank_enter_swap(struct refit_bank *bank, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_error missing = {.status = REFIT_OK};
    while (bank->swapping || bank->adopting || refit_bank_all_connected(bank, &missing) != REFIT_OK) {
        enum refit_status status = refit_bank_pause(bank, deadline, NULL, WAIT_MS);
        if (status != REFIT_OK && !bank->swapping && !bank->adopting)
            return refit_fail(err, status, "%s", missing.text);
        if (status != REFIT_OK)
            return refit_bank_wait_failed(status, bank->adopting ? "waiting for engines to come back" : "waiting for another swap",
                               err);
    }
    bank->swapping = true;
    return REFIT_OK;
}

void refit_bank_leave_swap(struct refit_bank *bank)
{
    bank->swapping = bank->paused = false;
    refit_bank_sync(bank);
    refit_bank_changed(bank);
}

static void finish(struct refit_bank *bank, enum refit_status status, bool entered)
{
    if (entered)
        refit_bank_leave_swap(bank);
    refit_bank_unlock(bank);
    refit_bank_wake(bank);
    /* A swap that failed may have left another announcement there than what it came to. */
    if (status == REFIT_OK || (entered && bank->swap != REFIT_SWAP_POINTER))
        refit_bank_save(bank);
}

enum refit_status refit_bank_commit(struct refit_bank *bank, uint32_t slot, const char *refit_id, const char *kv,
                                    struct refit_deadline deadline, struct refit_error *err)
{
    refit_bank_lock(bank);
    enum refit_status status = refit_bank_enter_swap(bank, deadline, err);
    bool entered = status == REFIT_OK;
    if (status == REFIT_OK)
        status = check_state(bank, slot, REFIT_SLOT_STAGED, err);
    if (status == REFIT_OK)
        status = swap(bank, slot, kv, deadline, err);
    if (status == REFIT_OK) {
        bank->swaps++;
        refit_log_event(REFIT_LOG_INFO, "slot swapped in", refit_log_text("refit", refit_id),
                        refit_log_u64("version", bank->slot[bank->active].version.version),
                        refit_log_u64("slot", bank->active),
                        refit_log_i64("swap_ns", bank->last_swap_ns));
    }
    finish(bank, status, entered);
    return status;
}

/* --- rollback ---------------------------------------------------------------------------------------------- */

static enum refit_status not_retained(const struct refit_bank *bank, uint64_t version, struct refit_error *err)
{
    char list[256] = "none";
    size_t len = 0;
    for (uint32_t i = 0; i < bank->slots && len < sizeof list - 24; i++) {
        if (bank->slot[i].state == REFIT_SLOT_RETAINED)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%" PRIu64, len ? ", " : "",
                                    bank->slot[i].version.version);
    }
    if (version == 0)
        return refit_fail(err, REFIT_NOT_FOUND, "rollback: no earlier version is retained%s%s%s", len ? " (only " : "",
                          len ? list : "", len ? ", which was gone back from: name it to serve it)" : "");
    return refit_fail(err, REFIT_NOT_FOUND, "rollback: version %" PRIu64 " is not retained (retained: %s)", version,
                      list);
}

static enum refit_status find_retained(const struct refit_bank *bank, uint64_t version, uint32_t *slot,
                                       struct refit_error *err)
{
    *slot = version == 0 ? refit_bank_earlier(bank) : REFIT_SLOT_NONE;
    for (uint32_t i = 0; i < bank->slots && version != 0; i++)
        if (bank->slot[i].state == REFIT_SLOT_RETAINED && bank->slot[i].version.version == version)
            *slot = i;
    return *slot == REFIT_SLOT_NONE ? not_retained(bank, version, err) : REFIT_OK;
}

enum refit_status refit_bank_rollback(struct refit_bank *bank, uint64_t version, const char *kv,
                                      struct refit_deadline deadline, struct refit_version *now,
                                      struct refit_error *err)
{
    uint32_t slot = REFIT_SLOT_NONE;
    refit_bank_lock(bank);
    enum refit_status status = refit_bank_enter_swap(bank, deadline, err);
    bool entered = status == REFIT_OK;
    if (status == REFIT_OK)
        status = find_retained(bank, version, &slot, err);
    if (status == REFIT_OK)
        status = swap(bank, slot, kv, deadline, err);
    if (status == REFIT_OK) {
        bank->rollbacks++;
        *now = bank->slot[bank->active].version;
        refit_log_event(REFIT_LOG_INFO, "slot swapped back", refit_log_u64("version", now->version),
                        refit_log_u64("slot", bank->active), refit_log_i64("swap_ns", bank->last_swap_ns));
    }
    finish(bank, status, entered);
    return status;
}
