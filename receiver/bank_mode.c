/* SPDX-License-Identifier: Apache-2.0
 *
 * The swap modes that keep an engine's addresses constant: copy, remap, in-place. What they have in common. Docs:
 * docs/receiver.md, "Swap modes".
 */
#include <inttypes.h>

#include "base/log.h"
#include "receiver/bank_internal.h"

static bool one_slot(enum refit_swap_mode mode)
{
    return mode == REFIT_SWAP_IN_PLACE;
}

enum refit_status refit_bank_check_mode(const struct refit_bank_config *config, struct refit_error *err)
{
    const char *name = refit_swap_mode_name(config->swap);
    uint32_t least = one_slot(config->swap) ? 1 : 2, most = one_slot(config->swap) ? 1 : REFIT_SLOTS_MAX;
    bool writes_live = config->swap == REFIT_SWAP_COPY || config->swap == REFIT_SWAP_IN_PLACE;
    if (config->slots < least || config->slots > most)
        return refit_fail(err, REFIT_INVALID, "slots: %u, swap mode %s takes %u to %u", config->slots, name, least, most);
    if (config->engine && config->swap != REFIT_SWAP_POINTER)
        return refit_fail(err, REFIT_INVALID, "swap mode %s: an engine that installs weights itself swaps by itself; use "
                          "pointer", name);
    if (writes_live && config->memory == REFIT_ARENA_HOST && config->protection == REFIT_PROTECT_SEAL)
        return refit_fail(err, REFIT_INVALID, "swap mode %s with protection seal: after a restart nobody could write to "
                          "the addresses that engines read; use protection uid, or swap mode remap", name);
    return REFIT_OK;
}

uint32_t refit_bank_only_choice(const struct refit_bank *bank)
{
    bool fills_live = bank->swap == REFIT_SWAP_COPY || bank->swap == REFIT_SWAP_IN_PLACE;
    bool empty = bank->active == REFIT_SLOT_NONE && bank->slot[bank->live].state == REFIT_SLOT_FREE;
    return fills_live && (empty || one_slot(bank->swap)) ? bank->live : REFIT_SLOT_NONE;
}

enum refit_status refit_bank_all_connected(const struct refit_bank *bank, struct refit_error *err)
{
    for (const struct refit_reader *r = bank->readers; r && bank->swap != REFIT_SWAP_POINTER; r = r->next) {
        if (!refit_reader_attached(r))
            return refit_fail(err, REFIT_BUSY, "rank %u (%s, process %d) lives and has no connection, so it can't be told "
                              "to pause; end it, or let it come back", refit_bank_rank_number(bank, r->rank), r->label,
                              (int)r->pid);
    }
    return REFIT_OK;
}

void refit_bank_tear(struct refit_bank *bank)
{
    if (bank->active != REFIT_SLOT_NONE)
        refit_bank_set_state(bank, bank->active, REFIT_SLOT_FREE);
    bank->active = REFIT_SLOT_NONE;
    bank->closed = REFIT_SLOT_TORN;
    refit_bank_set_gates(bank, REFIT_SLOT_TORN);
    refit_log_event(REFIT_LOG_ERROR, "no whole version is left, a refit is needed",
                    refit_log_text("swap", refit_swap_mode_name(bank->swap)));
    refit_bank_changed(bank);
}

static enum refit_status change_places(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    switch (bank->swap) {
    case REFIT_SWAP_COPY: return to == bank->live ? REFIT_OK : refit_bank_exchange(bank, to, err);
    case REFIT_SWAP_REMAP: return refit_bank_move_windows(bank, to, deadline, err);
    case REFIT_SWAP_POINTER:
    case REFIT_SWAP_IN_PLACE: return REFIT_OK; /* the bytes are where they are read */
    }
    return REFIT_OK;
}

/* A restart after the leader's flip finds it. An exchange has an announcement of its own. */
static void announce_flip(struct refit_bank *bank, uint32_t to)
{
    bank->swap_to = to;
    refit_bank_unlock(bank);
    refit_bank_save(bank);
    refit_bank_lock(bank);
}

enum refit_status refit_bank_swap_paused(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    int64_t begin = refit_clock_ns();
    uint32_t before = bank->active;
    bank->paused = true;
    if (bank->swap == REFIT_SWAP_REMAP)
        announce_flip(bank, to);
    enum refit_status status = refit_bank_close_gates(bank, to, deadline, NULL, err);
    if (status == REFIT_OK)
        status = refit_bank_all_connected(bank, err);
    if (status == REFIT_OK)
        status = change_places(bank, to, deadline, err);
    if (status != REFIT_OK) {
        refit_bank_reopen(bank);
        return status;
    }
    for (struct refit_reader *r = bank->readers; r && before != REFIT_SLOT_NONE; r = r->next)
        r->shown[before] = 0; /* it was hidden, to stay so or to be shown anew */
    refit_bank_publish(bank, bank->swap == REFIT_SWAP_COPY ? bank->live : to);
    bank->closed = REFIT_SLOT_NONE;
    bank->last_swap_ns = refit_clock_ns() - begin;
    return REFIT_OK;
}

/* --- in place ---------------------------------------------------------------------------------------------- */

static enum refit_status vacate(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                const atomic_bool *cancel, struct refit_error *err)
{
    enum refit_status status = refit_bank_close_gates(bank, slot, deadline, cancel, err);
    if (status == REFIT_OK)
        status = refit_bank_all_connected(bank, err);
    if (status != REFIT_OK) {
        refit_bank_reopen(bank);
        return status;
    }
    refit_bank_forget(bank, slot);
    refit_bank_set_state(bank, slot, REFIT_SLOT_FILLING);
    bank->active = REFIT_SLOT_NONE;
    bank->closed = REFIT_SLOT_BUSY;
    refit_bank_set_gates(bank, REFIT_SLOT_BUSY);
    return REFIT_OK;
}

/* What a restart finds must not say that the slot is whole. */
static enum refit_status announce(struct refit_bank *bank, uint32_t slot, struct refit_error *err)
{
    refit_bank_unlock(bank);
    enum refit_status status = refit_bank_try_save(bank, err);
    refit_bank_lock(bank);
    return status == REFIT_OK ? status
                              : refit_error_prefix(err, status, "slot %u: not overwritten without a record of it", slot);
}

static enum refit_status vacate_announced(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                          const atomic_bool *cancel, struct refit_error *err)
{
    const struct refit_version version = bank->slot[slot].version;
    const enum refit_slot_state state = bank->slot[slot].state;
    uint32_t active = bank->active, closed = bank->closed;
    enum refit_status status = vacate(bank, slot, deadline, cancel, err);
    if (status != REFIT_OK)
        return status;
    status = announce(bank, slot, err);
    if (status == REFIT_OK)
        return status;
    /* Not a byte was written: all is as it was. */
    bank->slot[slot].version = version;
    bank->slot[slot].state = state;
    bank->active = active;
    bank->closed = closed;
    if (active == REFIT_SLOT_NONE)
        refit_bank_set_gates(bank, closed);
    return status; /* what vacate() forgot, the sync at the end of the swap asks for again, and then shows */
}

enum refit_status refit_bank_vacate(struct refit_bank *bank, uint32_t slot, const struct refit_version *version,
                                    const char *kv, struct refit_deadline deadline, const atomic_bool *cancel,
                                    void (*on_wait)(void *context, const struct refit_bank_waiting *who), void *context,
                                    struct refit_error *err)
{
    if (!one_slot(bank->swap))
        return REFIT_OK;
    refit_bank_lock(bank);
    enum refit_status status = refit_bank_enter_swap(bank, deadline, err);
    if (status == REFIT_OK) {
        bank->on_wait = on_wait;
        bank->on_wait_context = context;
        status = refit_bank_evict_keepers(bank, slot, deadline, cancel, err);
        if (status == REFIT_OK)
            status = refit_bank_ask_swap(bank, version, kv, deadline, cancel, err);
        if (status == REFIT_OK)
            status = vacate_announced(bank, slot, deadline, cancel, err);
        if (status != REFIT_OK)
            refit_bank_tell_swapped(bank, kv);
        bank->immovable[slot] = false;
        bank->on_wait = NULL;
        refit_bank_leave_swap(bank);
    }
    refit_bank_unlock(bank);
    refit_bank_wake(bank);
    return status;
}
