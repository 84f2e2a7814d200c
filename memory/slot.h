/* SPDX-License-Identifier: Apache-2.0
 *
 * A slot's memory on one rank: a memfd that `refitd` writes and an engine process maps read-only.
 *
 * Two protections (docs/memory.md):
 *   REFIT_PROTECT_UID   mode 0600, sealed against grow and shrink. The engine runs as another uid and gets a
 *                       descriptor that was reopened read-only; a restarted owner reopens it for writing through
 *                       /proc/self/fd, which another uid can't (EACCES).
 *   REFIT_PROTECT_SEAL  F_SEAL_FUTURE_WRITE as well: only the mapping that exists now can write; a restarted owner
 *                       can serve the slot but never fill it again.
 *
 * All pages are touched at creation (a first touch during a transfer costs most of the bandwidth), after a check
 * against the cgroup's limit, for past it there is a kill and no error. MADV_DONTFORK and MADV_DONTDUMP.
 */
#ifndef REFIT_MEMORY_SLOT_H
#define REFIT_MEMORY_SLOT_H

#include "memory/arena.h"

/* Of slots on a GPU: REFIT_PROTECT_MAPPING, the engine maps them read-only and nothing keeps it from another mapping. */
enum refit_protection { REFIT_PROTECT_UID, REFIT_PROTECT_SEAL, REFIT_PROTECT_MAPPING };

const char *refit_protection_name(enum refit_protection protection); /* "uid", "seal", "mapping" */

/* Which memfd a slot is, across restarts: descriptor numbers change, this does not. */
struct refit_slot_identity {
    uint64_t device;
    uint64_t inode;
};

/* A new slot of `bytes` (rounded up to the page, at least one), touched and zero. `name` shows in /proc/PID/maps.
 * *out is a host arena with one piece; its descriptor is the writable one. */
REFIT_MUST_CHECK enum refit_status refit_slot_create(const char *name, uint64_t bytes, enum refit_protection protection,
                                                     struct refit_arena **out, struct refit_error *err);
/* A read-only descriptor for an engine; the caller closes it. */
REFIT_MUST_CHECK enum refit_status refit_slot_export(const struct refit_arena *slot, int *fd, struct refit_error *err);
/* Engine side: map an exported descriptor read-only, whole; borrows it, and the arena's piece has a copy of its own.
 * Checks memfd, seals against shrinking, and size. Writing operations refuse such an arena. */
REFIT_MUST_CHECK enum refit_status refit_slot_map(int fd, uint64_t bytes, struct refit_arena **out,
                                                  struct refit_error *err);
/* Owner side, after a restart: take back a slot from the descriptor an engine kept; borrows it. Checks that it is ours
 * (owner uid, mode), its seals, its size. *writable tells whether it can be filled again (uid) or only be served
 * (seal). REFIT_MISMATCH: another size, or less protection than asked for. */
REFIT_MUST_CHECK enum refit_status refit_slot_adopt(int fd, uint64_t bytes, enum refit_protection protection,
                                                    struct refit_arena **out, bool *writable, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_slot_identify(int fd, struct refit_slot_identity *identity,
                                                       struct refit_error *err);

/* Memory that this process may still take, in bytes: the least of the cgroup limits above it (v1 and v2) less what is
 * used, and MemAvailable. UINT64_MAX when unknown. *limit_path (may be NULL) names the tightest one, a static text. */
uint64_t refit_memory_available(const char **limit_path);

#endif
