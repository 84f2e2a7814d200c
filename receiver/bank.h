/* SPDX-License-Identifier: Apache-2.0
 *
 * The bank: the slots of one replica, the engine processes that read them, and the swap between them.
 *
 * A slot is free -> filling -> staged -> active -> retained -> free. The bank owns the slots' memory (one arena per
 * rank and slot), the Unix socket where engines attach, one claim page per attached process, and the state file that
 * lets a restarted refitd take its slots back (docs/receiver.md). It knows nothing of transfers.
 *
 * Rules it keeps, whoever calls:
 *   - a slot is written only while `filling`: hidden on every rank, idle on every rank, not the target of any gate;
 *   - the leader's flip is the commit: followers are shown and flipped before it, the leader last. The leader is the
 *     first rank served here. Where a replica spans several banks, rank 0 is in one of them, and who leads the refit keeps
 *     the order across them: that bank begins first and commits last;
 *   - an engine that attaches while a version is active gets that version, or the attach waits for the swap to end;
 *   - a dead process's page is dropped (its pidfd says so; end of file alone does not, a forked child keeps that open).
 *
 * Threads: the bank has one thread of its own for the socket; every function is thread-safe. Functions with a
 * deadline block; `cancel` (may be NULL) is polled and ends the wait with REFIT_ABORTED.
 */
#ifndef REFIT_RECEIVER_BANK_H
#define REFIT_RECEIVER_BANK_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/clock.h"
#include "engine/attach.h"
#include "layouts/layout.h"
#include "memory/slot.h"
#include "receiver/state.h"

#define REFIT_BANK_RANKS_MAX 1024 /* served by one refitd */

/* One version's memory, as an engine that installs weights itself is given it. Borrowed, for the call. */
struct refit_bank_copy {
    struct refit_version version;
    struct refit_layout *layout;
    struct refit_arena *const *arenas; /* one per rank */
};

/* Such an engine (drivers/driver.h), in place of those that attach. Called without the bank's lock. */
struct refit_bank_engine {
    void *context;
    /* The engine could take this version, which is verified. */
    enum refit_status (*prepare)(void *context, const struct refit_bank_copy *copy, struct refit_deadline deadline,
                                 const atomic_bool *cancel, struct refit_error *err);
    /* One at a time. `from` is what was active, NULL when nothing was or `to` is installed again. After an error the engine
     * has `from`, or does not generate. */
    enum refit_status (*install)(void *context, const struct refit_bank_copy *to, const struct refit_bank_copy *from,
                                 const char *kv, struct refit_deadline deadline, struct refit_error *err);
    /* What was prepared is given up. */
    void (*forget)(void *context, const struct refit_version *version);
};

enum refit_slot_state {
    REFIT_SLOT_FREE, REFIT_SLOT_FILLING, REFIT_SLOT_STAGED, REFIT_SLOT_ACTIVE, REFIT_SLOT_RETAINED
};
const char *refit_slot_state_name(enum refit_slot_state state);

struct refit_bank_config {
    uint32_t ranks;              /* engine processes of this replica served here, >= 1 */
    uint32_t first_rank;         /* of a replica that spans several refitd: the ranks served here begin with it */
    uint32_t ranks_total;        /* of the whole replica; 0: all are served here */
    uint32_t slots;              /* 2..REFIT_SLOTS_MAX; in-place: 1 */
    enum refit_swap_mode swap;   /* docs/receiver.md, "Swap modes" */
    uint64_t slot_bytes;         /* per rank; reserved and touched at open. 0: sized by `layout` */
    enum refit_arena_kind memory; /* of the slots: REFIT_ARENA_HOST, or REFIT_ARENA_CUDA (docs/gpu.md) */
    const int *devices;           /* of cuda: one per rank served here, borrowed for the call; NULL: rank i has device i */
    bool host_staging;            /* with cuda and swap mode copy: only the live slot is on the device */
    enum refit_protection protection; /* of slots in host memory */
    const char *socket_path;
    mode_t socket_mode;          /* 0: 0660 */
    const char *state_path;      /* NULL: socket_path + ".state" */
    struct refit_layout *layout; /* NULL: the first engine that attaches declares it; retained */
    bool in_engine;               /* with cuda: engines are asked whether they can receive by NCCL themselves */
    const struct refit_bank_engine *engine; /* borrowed, outlives the bank; NULL: engines attach */
    int64_t adopt_ms;            /* after a start with a state file that names an active version: how long slots are kept
                                  * unallocated for engines that may hand theirs back */
};

struct refit_bank;
struct refit_remote_engine;

/* Reserves capacity, binds the socket, starts the thread. REFIT_NO_MEMORY names limit and need; a device that is not there,
 * or a build without CUDA, is an error at once. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_bank_open(const struct refit_bank_config *config, struct refit_bank **out,
                                                   struct refit_error *err);
void refit_bank_close(struct refit_bank *bank); /* engines keep what they have mapped; NULL is fine */

/* The layout served here, retained for the caller; NULL: no engine has declared one yet. */
struct refit_layout *refit_bank_layout(struct refit_bank *bank);

/* The state file, which the receiver shares; borrowed, lives as long as the bank. */
struct refit_state *refit_bank_state(struct refit_bank *bank);

/* Called with the bank's lock not held, from any thread, whenever a snapshot would differ. */
typedef void (*refit_bank_notify)(void *context);
void refit_bank_set_notify(struct refit_bank *bank, refit_bank_notify notify, void *context);

/* Called without the bank's lock while a slot's bytes can't be moved or overwritten before its pins (refit_bank_pin) end:
 * whoever holds them gives them up. */
typedef void (*refit_bank_evict)(void *context, uint32_t slot);
void refit_bank_set_evict(struct refit_bank *bank, refit_bank_evict evict, void *context);

/* Who keeps a slot from being reclaimed. */
struct refit_bank_waiting {
    uint32_t rank;
    char label[64];
    uint64_t version; /* 0: no pin; its engine may still write into a slot (refit_bank_disengage) */
    uint64_t pins;
    int64_t age_ms; /* since the version stopped being the active one */
};

/* Gets a slot for filling: a free one, else the oldest retained one, hidden and waited for until every rank is idle
 * in it. With two slots this gives up the rollback. REFIT_TIMEOUT names the oldest pin ("slot-pinned");
 * `on_wait` (may be NULL) is called while waiting. */
REFIT_MUST_CHECK enum refit_status refit_bank_begin(struct refit_bank *bank, struct refit_deadline deadline,
                                                    const atomic_bool *cancel,
                                                    void (*on_wait)(void *context, const struct refit_bank_waiting *who),
                                                    void *context, uint32_t *slot, struct refit_error *err);
/* For mode in-place, before the first byte: every rank's before-swap hook is asked, then nothing is served until the commit;
 * whatever fails from here on leaves no version. After an error of this call all is as it was. Other modes: nothing to do. */
REFIT_MUST_CHECK enum refit_status refit_bank_vacate(struct refit_bank *bank, uint32_t slot,
                                                     const struct refit_version *version, const char *kv,
                                                     struct refit_deadline deadline, const atomic_bool *cancel,
                                                     void (*on_wait)(void *context, const struct refit_bank_waiting *who),
                                                     void *context, struct refit_error *err);
/* The filling slot's arenas, one per rank, borrowed until stage, discard or commit. */
struct refit_arena *const *refit_bank_arenas(struct refit_bank *bank, uint32_t slot);
/* Filling -> staged: every attached rank maps it, runs its prepare hook and agrees. No attached rank: staged at
 * once. */
REFIT_MUST_CHECK enum refit_status refit_bank_stage(struct refit_bank *bank, uint32_t slot, const char *refit_id,
                                                    const struct refit_version *version, struct refit_deadline deadline,
                                                    const atomic_bool *cancel, struct refit_error *err);
/* Staged -> active, the old active one -> retained. Asks every rank's before-swap hook first; after the leader's
 * flip it can't fail. On an error the slot is still staged, unless a swap that moves bytes tore both (then nothing is
 * active). In mode copy the version is in another slot afterwards: the snapshot's `active`. */
REFIT_MUST_CHECK enum refit_status refit_bank_commit(struct refit_bank *bank, uint32_t slot, const char *refit_id,
                                                     const char *kv, struct refit_deadline deadline,
                                                     struct refit_error *err);
/* For reading it here, in refitd: the active or a retained slot with this version stays what it is until unpin.
 * REFIT_NOT_FOUND; REFIT_BUSY: it is being moved or overwritten. */
REFIT_MUST_CHECK enum refit_status refit_bank_pin(struct refit_bank *bank, uint64_t version, uint32_t *slot,
                                                  struct refit_error *err);
/* The same for a slot that is being filled, and whose refit gives it up only when it is not read any more. Takes no
 * lock. */
void refit_bank_pin_slot(struct refit_bank *bank, uint32_t slot);
void refit_bank_unpin(struct refit_bank *bank, uint32_t slot);
/* Filling or staged -> free. */
void refit_bank_discard(struct refit_bank *bank, uint32_t slot);
/* The retained version `version` (0: of those older than the current one that was active last) becomes active; no
 * transfer. The current one becomes retained. REFIT_NOT_FOUND when it is not retained, naming those that are. */
REFIT_MUST_CHECK enum refit_status refit_bank_rollback(struct refit_bank *bank, uint64_t version, const char *kv,
                                                       struct refit_deadline deadline, struct refit_version *now,
                                                       struct refit_error *err);

/* The engine lost its weights: the active version is installed once more, its caches flushed. REFIT_NOT_FOUND: none is
 * active. Only with an engine that installs weights itself. */
REFIT_MUST_CHECK enum refit_status refit_bank_reinstall(struct refit_bank *bank, struct refit_deadline deadline,
                                                        struct refit_error *err);

/* Engines that receive by themselves (transport/remote.h). REFIT_UNSUPPORTED: not every rank has one that can, with the
 * rank and the reason. *version: of NCCL, the same in all. */
REFIT_MUST_CHECK enum refit_status refit_bank_can_receive(struct refit_bank *bank, int *version, struct refit_error *err);
/* Each rank's engine gets its end of a new socket; `engines` has room for one per rank, and is for refit_remote_open. */
REFIT_MUST_CHECK enum refit_status refit_bank_engage(struct refit_bank *bank, const char *refit_id,
                                                     struct refit_remote_engine *engines, struct refit_error *err);
/* Takes them back once the endpoint is closed. REFIT_PEER: one has not said that it has stopped, so what is in `slot` is not
 * to be trusted; it is not begun again until that engine has said so, or its process has ended. */
REFIT_MUST_CHECK enum refit_status refit_bank_disengage(struct refit_bank *bank, uint32_t slot,
                                                        struct refit_remote_engine *engines, struct refit_error *err);

struct refit_bank_slot {
    enum refit_slot_state state;
    struct refit_version version; /* zero while free or filling */
    uint64_t pins;                /* held over all ranks; not counted for the active slot's latest pins */
    enum refit_arena_kind memory;
    bool writable;                /* false: adopted under `seal`, can only be served until it retires */
    int64_t since_ms;             /* wall clock, ms since the epoch, of its last change of state */
};
struct refit_bank_rank {
    bool attached;
    pid_t pid;                    /* 0 when it lives in another PID namespace */
    char label[64];
    int device;                   /* where its slots are; -1: host memory */
    uint8_t uuid[16];             /* of that device */
};
struct refit_bank_snapshot {
    uint32_t ranks, slots, attached, first_rank, ranks_total;
    uint64_t slot_bytes;
    enum refit_arena_kind memory;
    enum refit_protection protection;
    enum refit_swap_mode swap;
    bool torn;                    /* a swap or a refit in place failed half way: nothing is whole until the next refit */
    uint32_t active;              /* slot, or REFIT_SLOT_NONE */
    bool rollback_available;
    uint64_t rollback_version;    /* what refit_bank_rollback(0) would give */
    uint64_t left_version;        /* retained, and served last before the active one, newer or older; 0: none */
    bool adopting;                /* waiting for engines to hand slots back */
    uint64_t swaps, rollbacks, readers_died;
    int64_t last_swap_ns;         /* duration of the last swap: first follower shown to leader flipped */
    struct refit_bank_slot slot[REFIT_SLOTS_MAX];
    struct refit_bank_rank rank[256]; /* of those served here the first 256, by number less first_rank */
};
void refit_bank_read(struct refit_bank *bank, struct refit_bank_snapshot *out);

#endif
