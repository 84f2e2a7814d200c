/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning of a slot's life, and its early end: begin, discard; and what keeps a slot here. Docs: docs/receiver.md,
 * "Slots and pins".
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "receiver/bank_internal.h"

#define READERS_MS 1 /* for pins: they end in shared memory, without a signal, so that a release costs nothing */

/* --- begin: reclaim ---------------------------------------------------------------------------------------- */

typedef bool (*reader_rank)(uint32_t rank);

static bool is_leader(uint32_t rank)
{
    return rank == 0;
}

static bool is_follower(uint32_t rank)
{
    return rank != 0;
}

static const struct refit_reader *busy_reader(const struct refit_bank *bank, uint32_t slot, reader_rank of)
{
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (of(r->rank) && !refit_reader_idle(r, slot))
            return r;
    }
    return NULL;
}

static void hide(struct refit_bank *bank, uint32_t slot, reader_rank of)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (of(r->rank))
            refit_claim_hide(r->claim, slot);
    }
}

static void unhide(struct refit_bank *bank, uint32_t slot)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next)
        refit_claim_unhide(r->claim, slot, r->shown[slot]);
}

/* The order matters. A pin that the leader still holds may name the version to followers, so the leader is idle
 * and hidden before followers are hidden; only what is idle after it was hidden stays idle. */
static const struct refit_reader *reclaim(struct refit_bank *bank, uint32_t slot)
{
    const struct refit_reader *busy = busy_reader(bank, slot, is_leader);
    if (!busy)
        busy = busy_reader(bank, slot, is_follower); /* only saves a vain hiding */
    if (busy)
        return busy;
    hide(bank, slot, is_leader);
    busy = busy_reader(bank, slot, is_leader);
    if (!busy) {
        hide(bank, slot, is_follower);
        busy = busy_reader(bank, slot, is_follower);
    }
    if (busy) {
        unhide(bank, slot);
        return busy;
    }
    for (struct refit_reader *r = bank->readers; r; r = r->next)
        r->shown[slot] = 0;
    return NULL;
}

static bool is_idle(const struct refit_bank *bank, uint32_t slot)
{
    return !busy_reader(bank, slot, is_leader) && !busy_reader(bank, slot, is_follower);
}

uint32_t refit_bank_keepers(const struct refit_bank *bank, uint32_t slot)
{
    return atomic_load_explicit(&bank->slot[slot].keepers, memory_order_acquire);
}

static uint32_t keepers(const struct refit_slot *slot)
{
    return atomic_load_explicit(&slot->keepers, memory_order_acquire);
}

static bool goes_before(const struct refit_slot *a, const struct refit_slot *b)
{
    bool kept = keepers(a) > 0;
    if (kept != (keepers(b) > 0))
        return !kept;
    return a->retired_order < b->retired_order;
}

/* A free slot that nobody reads, else any free one, else the one retained longest; one that is kept only if there is no
 * other, and none that may still be written. */
static uint32_t choose(struct refit_bank *bank)
{
    uint32_t unused = REFIT_SLOT_NONE, oldest = REFIT_SLOT_NONE, only = refit_bank_only_choice(bank);
    if (only != REFIT_SLOT_NONE)
        return refit_bank_written(bank, only) ? REFIT_SLOT_NONE : only;
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_slot *s = &bank->slot[i];
        if (refit_bank_written(bank, i))
            continue;
        if (s->state == REFIT_SLOT_FREE && (unused == REFIT_SLOT_NONE || is_idle(bank, i)))
            unused = i;
        if (s->state == REFIT_SLOT_RETAINED && (oldest == REFIT_SLOT_NONE || goes_before(s, &bank->slot[oldest])))
            oldest = i;
    }
    return unused != REFIT_SLOT_NONE ? unused : oldest;
}

static void describe(const struct refit_bank *bank, uint32_t slot, const struct refit_reader *reader,
                     struct refit_bank_waiting *out)
{
    const struct refit_slot *s = &bank->slot[slot];
    *out = (struct refit_bank_waiting){.rank = refit_bank_rank_number(bank, reader ? reader->rank : 0),
                                        .version = s->version.version};
    snprintf(out->label, sizeof out->label, "%s", reader ? reader->label : "replicas that are served");
    out->pins = !reader ? keepers(s) : reader->gate == slot ? 0 : refit_claim_pins(reader->claim, slot);
    out->age_ms = s->retired_ns ? (refit_clock_ns() - s->retired_ns) / 1000000 : 0;
}

static enum refit_status pinned(enum refit_status status, const struct refit_bank_waiting *who,
                                struct refit_error *err)
{
    if (status == REFIT_ABORTED || !who->label[0])
        return refit_bank_wait_failed(status, "waiting for a free slot", err);
    return refit_fail(err, status,
                      "slot-pinned: rank %u (%s) holds %" PRIu64 " pins on version %" PRIu64
                      ", which was replaced %lld ms ago; release them or use more slots",
                      who->rank, who->label, who->pins, who->version, (long long)who->age_ms);
}

static bool can_begin(const struct refit_bank *bank)
{
    return !bank->adopting && !bank->allocating && !bank->swapping && refit_bank_sized(bank);
}

void refit_bank_tell_waiting(struct refit_bank *bank, uint32_t slot, const struct refit_reader *reader,
                             void (*on_wait)(void *context, const struct refit_bank_waiting *who), void *context,
                             struct refit_bank_waiting *who)
{
    describe(bank, slot, reader, who);
    if (!on_wait)
        return;
    refit_bank_unlock(bank);
    on_wait(context, who);
    refit_bank_lock(bank);
}

/* False: nobody writes into a slot that could be had else. */
static bool tell_of_writer(struct refit_bank *bank,
                           void (*on_wait)(void *context, const struct refit_bank_waiting *who), void *context)
{
    const struct refit_bank_writer *writer = refit_bank_written(bank, REFIT_SLOT_NONE);
    if (!writer || !on_wait)
        return writer != NULL;
    struct refit_bank_waiting who = {.rank = writer->engine.rank};
    snprintf(who.label, sizeof who.label, "its engine may still write into slot %u", writer->slot);
    refit_bank_unlock(bank);
    on_wait(context, &who);
    refit_bank_lock(bank);
    return true;
}

/* Under the lock: a slot that is hidden and idle everywhere, marked as filling. */
static enum refit_status take_slot(struct refit_bank *bank, struct refit_deadline deadline, const atomic_bool *cancel,
                                   void (*on_wait)(void *context, const struct refit_bank_waiting *who),
                                   void *context, uint32_t *slot, struct refit_error *err)
{
    struct refit_bank_waiting who = {0};
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK) {
        *slot = can_begin(bank) ? choose(bank) : REFIT_SLOT_NONE;
        if (*slot != REFIT_SLOT_NONE && bank->swap == REFIT_SWAP_IN_PLACE)
            return REFIT_OK; /* served until refit_bank_vacate() */
        if (*slot != REFIT_SLOT_NONE) {
            bool kept = keepers(&bank->slot[*slot]) > 0;
            const struct refit_reader *busy = kept ? NULL : reclaim(bank, *slot);
            if (!busy && !kept)
                return REFIT_OK;
            refit_bank_tell_waiting(bank, *slot, busy, on_wait, context, &who);
        } else if (can_begin(bank) && !tell_of_writer(bank, on_wait, context)) {
            return refit_fail(err, REFIT_CONFLICT, "no slot can be filled: all are active, filling or staged");
        }
        status = refit_bank_pause(bank, deadline, cancel, READERS_MS);
    }
    if (!refit_bank_sized(bank))
        return refit_fail(err, REFIT_BUSY, "no layout yet: no engine has attached");
    const struct refit_bank_writer *writer = refit_bank_written(bank, REFIT_SLOT_NONE);
    if (writer && *slot == REFIT_SLOT_NONE)
        return refit_fail(err, status, "no slot can be filled: slot %u may still be written by the engine of rank %u (process "
                          "%d), which does not answer; end it, or let it go on", writer->slot, writer->engine.rank,
                          (int)writer->engine.pid);
    return pinned(status, &who, err);
}

/* Engines map the new memory before they hear of anything in it: one socket, in order. */
static enum refit_status send_replaced(struct refit_bank *bank, uint32_t slot, struct refit_error *err)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        struct refit_attach_message m = {.type = REFIT_ATTACH_SLOT, .slot = slot};
        int fd = -1;
        if (!refit_reader_attached(r))
            continue;
        enum refit_status status = refit_bank_export(bank, slot, r->rank, &fd, err);
        if (status != REFIT_OK)
            return status;
        refit_bank_describe_device(bank, r->rank, &m.device);
        refit_reader_send(r, &m, &fd, 1);
        refit_io_close(&fd);
    }
    return REFIT_OK;
}

static bool needs_memory(const struct refit_bank *bank, uint32_t slot)
{
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        if (!bank->slot[slot].arena[rank] || !bank->slot[slot].writable[rank])
            return true;
    }
    return false;
}

/* With `allocating` held: memory that can be written, and what the commit will need, before a byte moves. */
static enum refit_status make_ready(struct refit_bank *bank, uint32_t slot, bool replace, struct refit_error *err)
{
    enum refit_status status = replace ? refit_bank_make_memory(bank, slot, err) : REFIT_OK;
    if (status == REFIT_OK && refit_bank_has_memory(bank))
        status = refit_bank_make_exchange(bank, slot, err);
    refit_bank_lock(bank);
    bank->allocating = false;
    if (status == REFIT_OK && replace)
        status = send_replaced(bank, slot, err);
    if (status != REFIT_OK)
        refit_bank_set_state(bank, slot, REFIT_SLOT_FREE);
    refit_bank_changed(bank);
    refit_bank_unlock(bank);
    refit_bank_wake(bank);
    return status;
}

enum refit_status refit_bank_begin(struct refit_bank *bank, struct refit_deadline deadline, const atomic_bool *cancel,
                                   void (*on_wait)(void *context, const struct refit_bank_waiting *who),
                                   void *context, uint32_t *slot, struct refit_error *err)
{
    bool replace = false, in_place = bank->swap == REFIT_SWAP_IN_PLACE;
    refit_bank_lock(bank);
    enum refit_status status = take_slot(bank, deadline, cancel, on_wait, context, slot, err);
    if (status == REFIT_OK) {
        if (!in_place) {
            refit_bank_forget(bank, *slot);
            refit_bank_set_state(bank, *slot, REFIT_SLOT_FILLING);
        }
        replace = needs_memory(bank, *slot);
        bank->allocating = replace || bank->swap == REFIT_SWAP_COPY;
    }
    bool allocating = status == REFIT_OK && bank->allocating;
    refit_bank_unlock(bank);
    if (allocating)
        status = make_ready(bank, *slot, replace, err);
    if (status == REFIT_OK && !in_place)
        refit_bank_save(bank); /* before the first byte lands: a restart must not take it for what it was */
    return status;
}

enum refit_status refit_bank_pin(struct refit_bank *bank, uint64_t version, uint32_t *slot, struct refit_error *err)
{
    enum refit_status status = REFIT_NOT_FOUND;
    refit_bank_lock(bank);
    for (uint32_t i = 0; i < bank->slots && status == REFIT_NOT_FOUND; i++) {
        struct refit_slot *s = &bank->slot[i];
        if ((s->state != REFIT_SLOT_ACTIVE && s->state != REFIT_SLOT_RETAINED) || s->version.version != version)
            continue;
        status = bank->immovable[i] ? REFIT_BUSY : REFIT_OK;
        if (status == REFIT_OK)
            refit_bank_pin_slot(bank, i);
        *slot = i;
    }
    refit_bank_unlock(bank);
    if (status == REFIT_BUSY)
        return refit_fail(err, status, "version %" PRIu64 " is being swapped; retry", version);
    return status == REFIT_OK ? status
                              : refit_fail(err, status, "version %" PRIu64 " is neither active nor retained here",
                                           version);
}

void refit_bank_pin_slot(struct refit_bank *bank, uint32_t slot)
{
    atomic_fetch_add_explicit(&bank->slot[slot].keepers, 1, memory_order_relaxed);
}

void refit_bank_unpin(struct refit_bank *bank, uint32_t slot)
{
    atomic_fetch_sub_explicit(&bank->slot[slot].keepers, 1, memory_order_release);
}

void refit_bank_discard(struct refit_bank *bank, uint32_t slot)
{
    refit_bank_lock(bank);
    enum refit_slot_state state = bank->slot[slot].state;
    bool mine = state == REFIT_SLOT_FILLING || state == REFIT_SLOT_STAGED;
    const struct refit_version version = bank->slot[slot].version;
    if (mine) {
        refit_bank_forget(bank, slot);
        refit_bank_set_state(bank, slot, REFIT_SLOT_FREE);
        if (bank->swap == REFIT_SWAP_IN_PLACE)
            refit_bank_tear(bank);
    }
    refit_bank_unlock(bank);
    if (mine && bank->engine)
        bank->engine->forget(bank->engine->context, &version);
    if (mine)
        refit_bank_save(bank);
}
