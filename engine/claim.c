/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/claim.h"

#include <string.h>

#define GATE_SLOT_SHIFT 56
#define GATE_GENERATION_SHIFT 32
#define GATE_GENERATION_MASK 0xffffffu
#define HARVEST_AT (1u << 30) /* a quarter of the field: seconds of pins at full speed stay below the rest */

static uint64_t gate_value(uint32_t slot, uint32_t generation)
{
    return ((uint64_t)slot << GATE_SLOT_SHIFT) |
           ((uint64_t)(generation & GATE_GENERATION_MASK) << GATE_GENERATION_SHIFT);
}

static uint32_t gate_generation(uint64_t gate)
{
    return (uint32_t)(gate >> GATE_GENERATION_SHIFT) & GATE_GENERATION_MASK;
}

/* Announce first, look second: a reclaim clears the word first and looks at `entered` second. */
static enum refit_status pin_if(struct refit_claim_slot *slot, const _Atomic uint64_t *word, uint64_t version)
{
    atomic_fetch_add_explicit(&slot->entered, 1, memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_seq_cst) == version)
        return REFIT_OK;
    atomic_fetch_add_explicit(&slot->done, 1, memory_order_release);
    return REFIT_STALE;
}

enum refit_status refit_claim_acquire_version(struct refit_claim *claim, uint64_t version, uint32_t *slot)
{
    if (version == 0)
        return REFIT_STALE;
    for (uint32_t i = 0; i < claim->slots && i < REFIT_SLOTS_MAX; i++) {
        if (atomic_load_explicit(&claim->slot[i].version, memory_order_acquire) != version)
            continue;
        *slot = i;
        return pin_if(&claim->slot[i], &claim->slot[i].version, version);
    }
    return REFIT_STALE;
}

enum refit_status refit_claim_acquire_staged(struct refit_claim *claim, uint64_t version, uint32_t slot)
{
    return pin_if(&claim->slot[slot], &claim->slot[slot].staged, version);
}

void refit_claim_close(struct refit_claim *claim)
{
    atomic_store_explicit(&claim->closed, 1, memory_order_release);
}

bool refit_claim_closed(const struct refit_claim *claim)
{
    return atomic_load_explicit(&claim->closed, memory_order_acquire) != 0;
}

void refit_claim_init(struct refit_claim *claim, uint32_t slots)
{
    memset(claim, 0, sizeof *claim);
    claim->magic = REFIT_CLAIM_MAGIC;
    claim->abi = REFIT_CLAIM_ABI;
    claim->slots = slots;
    atomic_store_explicit(&claim->gate, gate_value(REFIT_SLOT_NONE, 0), memory_order_release);
}

uint32_t refit_claim_gate_slot(const struct refit_claim *claim)
{
    uint32_t slot = (uint32_t)(atomic_load_explicit(&claim->gate, memory_order_acquire) >> GATE_SLOT_SHIFT);
    return slot < REFIT_SLOTS_MAX ? slot : REFIT_SLOT_NONE;
}

uint32_t refit_claim_interrupted(const struct refit_claim *claim)
{
    uint32_t flipping = atomic_load_explicit(&claim->flipping, memory_order_acquire);
    return flipping >= 1 && flipping <= REFIT_SLOTS_MAX ? flipping - 1 : REFIT_SLOT_NONE;
}

static void name_version(struct refit_claim_slot *slot, const struct refit_version *version)
{
    memcpy(slot->label, version->label, sizeof slot->label);
    memcpy(slot->digest, version->digest, sizeof slot->digest);
}

void refit_claim_stage(struct refit_claim *claim, uint32_t slot, const struct refit_version *version)
{
    name_version(&claim->slot[slot], version);
    atomic_store_explicit(&claim->slot[slot].staged, version->version, memory_order_seq_cst);
}

void refit_claim_unstage(struct refit_claim *claim, uint32_t slot)
{
    atomic_store_explicit(&claim->slot[slot].staged, 0, memory_order_seq_cst);
}

void refit_claim_show(struct refit_claim *claim, uint32_t slot, const struct refit_version *version)
{
    name_version(&claim->slot[slot], version);
    refit_claim_unstage(claim, slot);
    atomic_store_explicit(&claim->slot[slot].version, version->version, memory_order_seq_cst);
}

void refit_claim_hide(struct refit_claim *claim, uint32_t slot)
{
    atomic_store_explicit(&claim->slot[slot].version, 0, memory_order_seq_cst);
}

void refit_claim_unhide(struct refit_claim *claim, uint32_t slot, uint64_t version)
{
    atomic_store_explicit(&claim->slot[slot].version, version, memory_order_seq_cst);
}

uint64_t refit_claim_shown(const struct refit_claim *claim, uint32_t slot)
{
    return atomic_load_explicit(&claim->slot[slot].version, memory_order_acquire);
}

void refit_claim_flip(struct refit_claim *claim, uint32_t from, uint32_t to)
{
    uint32_t generation = gate_generation(atomic_load_explicit(&claim->gate, memory_order_relaxed)) + 1;
    atomic_store_explicit(&claim->flipping, from < REFIT_SLOTS_MAX ? from + 1 : 0, memory_order_seq_cst);
    uint64_t old = atomic_exchange_explicit(&claim->gate, gate_value(to, generation), memory_order_seq_cst);
    if (from < REFIT_SLOTS_MAX)
        atomic_fetch_add_explicit(&claim->slot[from].entered, (uint32_t)old, memory_order_seq_cst);
    atomic_store_explicit(&claim->flipping, 0, memory_order_seq_cst);
}

void refit_claim_harvest(struct refit_claim *claim, uint32_t current)
{
    refit_claim_flip(claim, current, current);
}

bool refit_claim_harvest_due(const struct refit_claim *claim)
{
    return (uint32_t)atomic_load_explicit(&claim->gate, memory_order_relaxed) >= HARVEST_AT;
}

/* `done` is read first. Read second, it could count a refused acquire's done that `entered` has not counted yet, in
 * place of a pin that is still held, and a busy slot would look idle. */
uint64_t refit_claim_pins(const struct refit_claim *claim, uint32_t slot)
{
    uint64_t done = atomic_load_explicit(&claim->slot[slot].done, memory_order_acquire);
    uint64_t entered = atomic_load_explicit(&claim->slot[slot].entered, memory_order_seq_cst);
    return entered - done;
}
