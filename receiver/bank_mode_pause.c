/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping readers out while memory changes under constant addresses. The gates of leaders are closed first, so nobody
 * begins a step; what a step has pinned is waited for, and its followers still find the version meanwhile.
 */
#include <inttypes.h>
#include <stdio.h>

#include "receiver/bank_internal.h"

#define READERS_MS 1 /* pins end in shared memory, without a signal */

static enum refit_status give_up(enum refit_status status, const struct refit_bank *bank, uint32_t slot,
                                 const struct refit_reader *busy, struct refit_error *err)
{
    const char *why = status == REFIT_ABORTED ? "cancelled" : "the deadline passed";
    if (!busy)
        return refit_fail(err, status, "slot-pinned: replicas that are served read version %" PRIu64 "; %s",
                          bank->slot[slot].version.version, why);
    return refit_fail(err, status,
                      "slot-pinned: rank %u (%s) holds %" PRIu64 " pins on version %" PRIu64 " in its pause; %s; release "
                      "pins when before_swap is called, or soon after",
                      refit_bank_rank_number(bank, busy->rank), busy->label, refit_claim_pins(busy->claim, slot),
                      bank->slot[slot].version.version, why);
}

enum refit_status refit_bank_evict_keepers(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                           const atomic_bool *cancel, struct refit_error *err)
{
    refit_bank_evict evict = bank->evict;
    void *context = bank->evict_context;
    bank->immovable[slot] = true;
    while (refit_bank_keepers(bank, slot) > 0) {
        refit_bank_unlock(bank);
        if (evict)
            evict(context, slot);
        refit_bank_lock(bank);
        enum refit_status status = refit_bank_pause(bank, deadline, cancel, READERS_MS);
        if (status != REFIT_OK) {
            bank->immovable[slot] = false;
            return give_up(status, bank, slot, NULL, err);
        }
    }
    return REFIT_OK;
}

static void close_leaders(struct refit_bank *bank)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank == 0)
            refit_reader_flip(r, REFIT_SLOT_BUSY);
    }
}

static void hide(struct refit_bank *bank, bool leader, uint32_t slot)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if ((r->rank == 0) == leader)
            refit_claim_hide(r->claim, slot);
    }
}

static void close_followers(struct refit_bank *bank)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank != 0)
            refit_reader_flip(r, REFIT_SLOT_BUSY);
    }
}

static const struct refit_reader *busy_of(const struct refit_bank *bank, bool leader, uint32_t slot)
{
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if ((r->rank == 0) == leader && !refit_reader_idle(r, slot))
            return r;
    }
    return NULL;
}

static enum refit_status await_idle(struct refit_bank *bank, bool leader, uint32_t slot, struct refit_deadline deadline,
                                    const atomic_bool *cancel, struct refit_error *err)
{
    const struct refit_reader *busy;
    while ((busy = busy_of(bank, leader, slot)) != NULL) {
        struct refit_bank_waiting who;
        refit_bank_tell_waiting(bank, slot, busy, bank->on_wait, bank->on_wait_context, &who);
        enum refit_status status = refit_bank_pause(bank, deadline, cancel, READERS_MS);
        if (status == REFIT_OK)
            continue;
        busy = busy_of(bank, leader, slot); /* the list may have changed */
        return busy ? give_up(status, bank, slot, busy, err) : REFIT_OK;
    }
    return REFIT_OK;
}

/* A step that the leader still pins names its version to followers, so they find it until the leader is idle; only what
 * is idle after it was hidden stays idle. */
static enum refit_status drain(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                               const atomic_bool *cancel, struct refit_error *err)
{
    close_leaders(bank);
    enum refit_status status = await_idle(bank, true, slot, deadline, cancel, err);
    if (status != REFIT_OK)
        return status;
    hide(bank, true, slot);
    status = await_idle(bank, true, slot, deadline, cancel, err);
    if (status != REFIT_OK)
        return status;
    hide(bank, false, slot);
    close_followers(bank);
    return await_idle(bank, false, slot, deadline, cancel, err);
}

/* No hook begins to read it. */
static void unstage(struct refit_bank *bank, uint32_t slot)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next)
        refit_claim_unstage(r->claim, slot);
}

enum refit_status refit_bank_close_gates(struct refit_bank *bank, uint32_t other, struct refit_deadline deadline,
                                         const atomic_bool *cancel, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    unstage(bank, other);
    if (bank->active != REFIT_SLOT_NONE) {
        unstage(bank, bank->active);
        status = drain(bank, bank->active, deadline, cancel, err);
    }
    if (status != REFIT_OK || other == bank->active)
        return status;
    status = await_idle(bank, true, other, deadline, cancel, err);
    return status == REFIT_OK ? await_idle(bank, false, other, deadline, cancel, err) : status;
}

void refit_bank_set_gates(struct refit_bank *bank, uint32_t to)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        refit_reader_flip(r, to);
        for (uint32_t i = 0; i < bank->slots && to >= REFIT_SLOTS_MAX; i++) {
            refit_claim_hide(r->claim, i);
            r->shown[i] = 0;
        }
    }
}

static bool can_return(struct refit_bank *bank, struct refit_reader *reader)
{
    return bank->active != REFIT_SLOT_NONE &&
           reader->prepared[bank->active] == bank->slot[bank->active].version.version &&
           refit_bank_window_follows(bank, reader, bank->active);
}

/* Followers first, as in any swap. Who can't go back yet does so once the sync finds that it can. */
void refit_bank_reopen(struct refit_bank *bank)
{
    bool all = true;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (bank->active != REFIT_SLOT_NONE)
            refit_claim_unhide(r->claim, bank->active, r->shown[bank->active]);
        if (r->rank != 0 && can_return(bank, r))
            refit_reader_flip(r, bank->active);
        all = all && (r->rank == 0 || r->gate == bank->active);
    }
    for (struct refit_reader *r = bank->readers; r && all; r = r->next) {
        if (r->rank == 0 && can_return(bank, r))
            refit_reader_flip(r, bank->active);
    }
}
