/* SPDX-License-Identifier: Apache-2.0
 *
 * After a restart: engines that live on hand back their claim pages and slots. What the state file recorded and
 * every check confirms is taken over in place. Which version is served is the leader's gate's word, when a swap was
 * under way.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "receiver/bank_internal.h"

void refit_bank_adopt_begin(struct refit_bank *bank, int64_t adopt_ms)
{
    bank->adopting = adopt_ms > 0 && !bank->engine && refit_bank_load(bank);
    bank->adopt_deadline = refit_deadline_in_ms(adopt_ms);
    if (bank->adopting)
        refit_log_event(REFIT_LOG_INFO, "waiting for engines to hand slots back", refit_log_i64("ms", adopt_ms));
}

void refit_bank_record_release(struct refit_bank *bank)
{
    for (uint32_t i = 0; i < bank->slots; i++)
        free(bank->record[i].memory);
}

/* --- one engine comes back --------------------------------------------------------------------------------- */

/* Memory of slots that held nothing worth keeping is taken back, too: it is there and touched. */
static void adopt_slots(struct refit_bank *bank, const struct refit_client *client)
{
    uint32_t rank = client->attach.rank;
    if (!bank->layout || strcmp(bank->record_layout, refit_layout_digest(bank->layout)) != 0)
        return;
    for (uint32_t i = 0; i < bank->slots; i++) {
        struct refit_error error;
        struct refit_arena *arena = NULL;
        bool writable = false;
        if (bank->slot[i].arena[rank])
            continue;
        enum refit_status status =
            refit_bank_take_back(bank, i, rank, client->fds[i + 2], &arena, &writable, &error);
        if (status != REFIT_OK) {
            refit_log_event(REFIT_LOG_WARN, "slot not taken back", refit_log_u64("slot", i),
                            refit_log_u64("rank", refit_bank_rank_number(bank, rank)), REFIT_LOG_CAUSE(&error));
            continue;
        }
        refit_bank_lock(bank);
        bank->slot[i].arena[rank] = arena;
        bank->slot[i].writable[rank] = writable;
        refit_bank_unlock(bank);
    }
}

static enum refit_status take_reader(struct refit_bank *bank, struct refit_client *client, struct refit_error *err)
{
    uint32_t rank = client->attach.rank;
    struct refit_reader *reader = refit_bank_reader_of_page(bank, client);
    if (refit_bank_attached(bank, rank))
        return refit_fail(err, REFIT_CONFLICT, "rank %u came back already, as process %d",
                          refit_bank_rank_number(bank, rank), (int)refit_bank_attached(bank, rank)->pid);
    if (!reader) {
        enum refit_status status = refit_reader_take_back(rank, bank->slots, client->fds[1], &reader, err);
        if (status != REFIT_OK)
            return status;
        reader->next = bank->readers;
        bank->readers = reader;
    }
    refit_client_becomes(bank, client, reader);
    bank->returned[rank] = true;
    if (rank == 0)
        bank->leader_gate = reader->gate;
    return REFIT_OK;
}

void refit_bank_adopt_client(struct refit_bank *bank, struct refit_client *client)
{
    struct refit_error error;
    refit_bank_lock(bank);
    enum refit_status status = take_reader(bank, client, &error);
    refit_bank_unlock(bank);
    if (status == REFIT_OK)
        adopt_slots(bank, client);
    else
        refit_client_refuse(client, &error);
}

/* --- the end ----------------------------------------------------------------------------------------------- */

static bool waits_fresh(const struct refit_bank *bank, uint32_t rank)
{
    for (const struct refit_client *client = bank->clients; client; client = client->next) {
        if (client->waiting && !client->gone && !client->attach.returning && client->attach.rank == rank)
            return true;
    }
    return false;
}

/* A new process of a rank means that the old one, and with it the memory, is gone. */
static bool all_accounted(const struct refit_bank *bank)
{
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        if (!bank->returned[rank] && !waits_fresh(bank, rank))
            return false;
    }
    return true;
}

static const struct refit_reader *leader_of(const struct refit_bank *bank)
{
    const struct refit_reader *r = bank->readers;
    while (r && r->rank != 0)
        r = r->next;
    return r;
}

/* The memory of the live slot and that of the other had begun to change places. Where the leader's gate is open, that came to
 * an end, and which one its page tells. Else both are lost. */
static uint32_t exchanged_active(struct refit_bank *bank)
{
    struct refit_slot_record *live = &bank->record[bank->live], *other = &bank->record[bank->record_swap_to];
    const struct refit_reader *leader = leader_of(bank);
    uint64_t shown = leader && bank->leader_gate == bank->live ? leader->shown[bank->live] : 0;
    if (shown != 0 && shown == live->version.version)
        return bank->live;
    const struct refit_slot_record was = *live;
    live->version = other->version;
    other->version = was.version;
    other->state = shown != 0 && shown == live->version.version ? was.state : REFIT_SLOT_FREE;
    live->state = other->state == REFIT_SLOT_FREE ? REFIT_SLOT_FREE : REFIT_SLOT_ACTIVE;
    if (live->state == REFIT_SLOT_ACTIVE)
        return bank->live;
    bank->record_torn = true;
    return REFIT_SLOT_NONE;
}

/* A refit in place that was staged: the flip was its commit. */
static uint32_t placed_active(struct refit_bank *bank)
{
    const struct refit_slot_record *live = &bank->record[bank->live];
    const struct refit_reader *leader = leader_of(bank);
    bool flipped = leader && bank->leader_gate == bank->live && leader->shown[bank->live] == live->version.version;
    if (live->state == REFIT_SLOT_ACTIVE || (live->state == REFIT_SLOT_STAGED && flipped)) {
        bank->record_torn = false;
        return bank->live;
    }
    return REFIT_SLOT_NONE;
}

static uint32_t recorded_active(struct refit_bank *bank)
{
    if (bank->swap == REFIT_SWAP_IN_PLACE)
        return placed_active(bank);
    uint32_t to = bank->record_swap_to;
    if (bank->swap == REFIT_SWAP_COPY && bank->record_exchanging && to < bank->slots)
        return exchanged_active(bank);
    /* The swap was announced, and the leader's gate tells whether it took place. */
    if (to < bank->slots && bank->leader_gate == to)
        return to;
    for (uint32_t i = 0; i < bank->slots; i++) {
        if (bank->record[i].state == REFIT_SLOT_ACTIVE)
            return i;
    }
    return REFIT_SLOT_NONE;
}

/* REFIT_ALL_RANKS: every rank's memory was handed back. */
static uint32_t lost_rank(const struct refit_bank *bank, uint32_t slot)
{
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        if (!bank->slot[slot].arena[rank])
            return rank;
    }
    return REFIT_ALL_RANKS;
}

static void restore_slot(struct refit_bank *bank, uint32_t slot, enum refit_slot_state state)
{
    struct refit_slot *s = &bank->slot[slot];
    refit_bank_set_state(bank, slot, state);
    s->version = bank->record[slot].version;
    s->serial = ++bank->serial;
    if (state == REFIT_SLOT_RETAINED)
        s->retired_order = bank->record[slot].retired_order;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->shown[slot] == s->version.version)
            r->prepared[slot] = s->version.version;
    }
}

/* The one that was active when a swap was cut off after its flip is now the newest retained. */
static void restore_retained(struct refit_bank *bank, uint32_t active)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_slot_record *record = &bank->record[i];
        bool held = record->state == REFIT_SLOT_RETAINED || record->state == REFIT_SLOT_ACTIVE;
        if (i == active || !held || lost_rank(bank, i) != REFIT_ALL_RANKS)
            continue;
        restore_slot(bank, i, REFIT_SLOT_RETAINED);
        if (record->state == REFIT_SLOT_ACTIVE)
            bank->slot[i].retired_order = ++bank->retirements;
        else if (record->retired_order > bank->retirements)
            bank->retirements = record->retired_order;
    }
}

/* Nothing is whole where engines read; what is retained elsewhere is. */
static void restore_torn(struct refit_bank *bank)
{
    bank->closed = REFIT_SLOT_TORN;
    restore_retained(bank, REFIT_SLOT_NONE);
    refit_bank_set_gates(bank, REFIT_SLOT_TORN);
    refit_log_event(REFIT_LOG_ERROR, "no whole version is left, a refit is needed",
                    refit_log_text("swap", refit_swap_mode_name(bank->swap)));
}

static void restore(struct refit_bank *bank)
{
    bank->live = bank->record_live;
    uint32_t active = recorded_active(bank);
    if (bank->record_torn && bank->swap != REFIT_SWAP_POINTER) {
        restore_torn(bank);
        return;
    }
    uint32_t lost = active == REFIT_SLOT_NONE ? REFIT_ALL_RANKS : lost_rank(bank, active);
    if (active == REFIT_SLOT_NONE || lost != REFIT_ALL_RANKS) {
        for (struct refit_reader *r = bank->readers; r; r = r->next)
            refit_reader_flip(r, REFIT_SLOT_NONE);
        if (active != REFIT_SLOT_NONE)
            refit_log_event(REFIT_LOG_WARN, "version lost with the engine of a rank, a full refit is needed",
                            refit_log_u64("version", bank->record[active].version.version),
                            refit_log_u64("rank", refit_bank_rank_number(bank, lost)));
        return;
    }
    restore_slot(bank, active, REFIT_SLOT_ACTIVE);
    bank->active = active;
    bank->live = active;
    restore_retained(bank, active);
    refit_log_event(REFIT_LOG_INFO, "slots taken back", refit_log_u64("version", bank->slot[active].version.version),
                    refit_log_u64("slot", active));
}

/* The page of an engine that came back may show a version whose memory is not there any more; by that number it would find
 * memory that nothing was written to yet. */
static void hide_lost(struct refit_bank *bank)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        if (bank->slot[i].state == REFIT_SLOT_ACTIVE || bank->slot[i].state == REFIT_SLOT_RETAINED)
            continue;
        for (struct refit_reader *r = bank->readers; r; r = r->next) {
            refit_claim_hide(r->claim, i);
            r->shown[i] = 0;
        }
    }
}

static void greet_all(struct refit_bank *bank)
{
    struct refit_error error;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->sock < 0)
            continue;
        /* Closed, it comes again and is told what is wrong. */
        if (!refit_bank_has_memory(bank) || refit_reader_greet(bank, r, &error) != REFIT_OK)
            r->broken = true;
    }
}

void refit_bank_adopt_step(struct refit_bank *bank)
{
    struct refit_error error;
    if (!all_accounted(bank) && !refit_deadline_passed(bank->adopt_deadline))
        return;
    refit_bank_lock(bank);
    restore(bank);
    hide_lost(bank);
    bank->allocating = true;
    refit_bank_unlock(bank);
    if (refit_bank_sized(bank) && refit_bank_make_memory(bank, REFIT_SLOT_NONE, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_ERROR, "slots not made", REFIT_LOG_CAUSE(&error));
    refit_bank_lock(bank);
    bank->allocating = bank->adopting = false;
    greet_all(bank);
    refit_bank_sync(bank);
    refit_bank_changed(bank);
    refit_bank_unlock(bank);
    refit_bank_save(bank);
    refit_bank_wake(bank); /* whoever waits is admitted now */
}
