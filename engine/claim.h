/* SPDX-License-Identifier: Apache-2.0
 *
 * The claim page: where one engine process pins slots and `refitd` moves it from one to the next. One page of shared
 * memory per attached process, shared by that process and refitd only. refitd treats it as hostile: what it reads
 * here can only make it wait (bounded by the refit's deadline); it never takes an index, size or address from it.
 *
 *     gate = slot:8 | generation:24 | pins:32
 *     acquire(LATEST)  g = fetch_add(gate, 1): the slot is in the top byte (NONE, BUSY, TORN: nothing is served)
 *     release          fetch_add(done[slot], 1), release order
 *     acquire(v)       find v; entered[slot]++; read version[slot] again; changed: done[slot]++, STALE
 *     flip             g = exchange(gate, new); entered[old] += pins(g)
 *     idle(slot)       the gate is elsewhere and entered[slot] == done[slot]
 *
 * Why it is right: a LATEST pin is counted in the gate by the same instruction that reads the slot, so a flip harvests
 * exactly the pins that saw the old slot. An acquire by version announces itself (entered) before it reads the
 * version again, and a reclaim hides the version before it reads entered: both are sequentially consistent, so one of
 * the two sees the other. `done` is released by the reader and acquired by idle(), so a slot found idle is no longer
 * being read.
 *
 * 2^32 pins between two flips would run over the field; refit_claim_harvest(), called now and then, prevents it.
 *
 * A prepare hook reads a slot that acquire(v) must not find yet: `staged` is a second word beside `version`, with
 * the same protocol. A refitd that dies between a flip's two steps loses the pins it took from the gate; `flipping`
 * says so to the next one, which then takes that slot as pinned for as long as the process lives.
 */
#ifndef REFIT_ENGINE_CLAIM_H
#define REFIT_ENGINE_CLAIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <refit/engine.h>

#define REFIT_CLAIM_ABI 1
#define REFIT_CLAIM_MAGIC 0x31434c4354464552ull /* "REFTCLC1" */
#define REFIT_SLOTS_MAX 16
#define REFIT_SLOT_NONE 0xffu
#define REFIT_SLOT_BUSY 0xfeu /* in a gate only: the engine was told to pause, and the swap is not over */
#define REFIT_SLOT_TORN 0xfdu /* in a gate only: a swap that failed left no whole version */
#define REFIT_CLAIM_BYTES 8192

struct refit_claim_slot {
    _Alignas(64) _Atomic uint64_t version; /* 0: hidden */
    _Atomic uint64_t staged;               /* what a prepare hook may pin; 0: nothing */
    char label[64];                        /* label and digest change only while hidden and idle */
    char digest[65];
    _Alignas(64) _Atomic uint64_t entered;
    _Alignas(64) _Atomic uint64_t done;
};

struct refit_claim {
    uint64_t magic;
    uint32_t abi;
    uint32_t slots;
    _Atomic uint32_t flipping; /* 1 + the slot a flip is leaving; 0 between flips */
    _Atomic uint32_t closed;   /* the process has detached: nothing is read through this page any more */
    _Alignas(64) _Atomic uint64_t gate;
    struct refit_claim_slot slot[REFIT_SLOTS_MAX];
};
_Static_assert(sizeof(struct refit_claim) <= REFIT_CLAIM_BYTES, "the claim page has one size");

/* --- the engine's side ------------------------------------------------------------------------------------- */

/* The gate's instruction lets no load pass it, so what is needed after it is fetched beside it: versions of the first
 * slots, of which most replicas have no more. `claim` may be a guess. */
static inline void refit_claim_expect(const struct refit_claim *claim)
{
    __builtin_prefetch(&claim->gate, 1);
    __builtin_prefetch(&claim->slot[0].version);
    __builtin_prefetch(&claim->slot[1].version);
}

/* The two hot functions, inline for the library and its tests. */
static inline uint32_t refit_claim_acquire_latest(struct refit_claim *claim)
{
    return (uint32_t)(atomic_fetch_add_explicit(&claim->gate, 1, memory_order_acquire) >> 56);
}

static inline void refit_claim_release(struct refit_claim *claim, uint32_t slot)
{
    atomic_fetch_add_explicit(&claim->slot[slot].done, 1, memory_order_release);
}

/* REFIT_OK with *slot, or REFIT_STALE. */
enum refit_status refit_claim_acquire_version(struct refit_claim *claim, uint64_t version, uint32_t *slot);
/* The last thing a process does to its page. refitd may have to read it here, when there was no connection to say it
 * on. */
void refit_claim_close(struct refit_claim *claim);
/* For the prepare hook: pins `slot` if `version` is staged in it, else REFIT_STALE. */
enum refit_status refit_claim_acquire_staged(struct refit_claim *claim, uint64_t version, uint32_t slot);

/* --- refitd's side: one thread at a time -------------------------------------------------------------------- */

void refit_claim_init(struct refit_claim *claim, uint32_t slots);
/* The slot the gate points at, as the page says; for adoption after a restart. REFIT_SLOT_NONE: none or garbage. */
uint32_t refit_claim_gate_slot(const struct refit_claim *claim);
bool refit_claim_closed(const struct refit_claim *claim);
/* The slot that a flip was leaving when its refitd died; REFIT_SLOT_NONE: none. */
uint32_t refit_claim_interrupted(const struct refit_claim *claim);
/* Let the prepare hook pin `version` in `slot`, which is hidden and idle. */
void refit_claim_stage(struct refit_claim *claim, uint32_t slot, const struct refit_version *version);
/* Take that back; check idleness after. */
void refit_claim_unstage(struct refit_claim *claim, uint32_t slot);
/* Make a version visible to acquire(v) in `slot`, which is hidden and idle. */
void refit_claim_show(struct refit_claim *claim, uint32_t slot, const struct refit_version *version);
/* Hide it: from now on acquire(v) is STALE. Check idleness after, not before. */
void refit_claim_hide(struct refit_claim *claim, uint32_t slot);
/* Show again what was just hidden and not rewritten. */
void refit_claim_unhide(struct refit_claim *claim, uint32_t slot, uint64_t version);
/* What acquire(v) finds in `slot` by the page's own word; 0: hidden. */
uint64_t refit_claim_shown(const struct refit_claim *claim, uint32_t slot);
/* Point LATEST at `to`; `from` is the slot that this side knows the gate points at (REFIT_SLOT_NONE: nothing
 * served). */
void refit_claim_flip(struct refit_claim *claim, uint32_t from, uint32_t to);
/* Flip to the same slot: moves pins from the gate into entered. */
void refit_claim_harvest(struct refit_claim *claim, uint32_t current);
/* The gate has taken so many pins that it is time to. */
bool refit_claim_harvest_due(const struct refit_claim *claim);
/* Pins held on a slot the gate does not point at. */
uint64_t refit_claim_pins(const struct refit_claim *claim, uint32_t slot);

#endif
