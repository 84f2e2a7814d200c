/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the bank share. Unless a comment says otherwise, everything here is guarded by the bank's lock.
 * Lists of readers and clients change on the bank's thread only.
 */
#ifndef REFIT_RECEIVER_BANK_INTERNAL_H
#define REFIT_RECEIVER_BANK_INTERNAL_H

#include <pthread.h>

#include "memory/exchange.h"
#include "receiver/bank.h"
#include "receiver/state.h"
#include "transport/remote.h"

#define REFIT_CLIENT_FDS_MAX (REFIT_SLOTS_MAX + 2)

/* A process with a claim page: attached (sock >= 0), or one that lost its connection and lives on. */
struct refit_reader {
    struct refit_reader *next;
    uint32_t rank; /* among those served here: an index; refit_bank_rank_number() for people and layouts */
    int sock;
    int pidfd; /* -1: the kernel has none for it; then end of file is taken for its end */
    pid_t pid;
    char label[64];
    struct refit_claim *claim; /* shared with the process: hostile */
    int claim_fd;
    struct refit_slot_identity page;
    uint32_t gate;                      /* where its gate points, by our own account */
    uint32_t window;                    /* slot that its window shows, by its own word; REFIT_SLOT_NONE */
    uint64_t moving;                    /* serial of the move it has not answered; 0: none */
    uint32_t uncounted;                 /* slot whose pins an interrupted flip lost; REFIT_SLOT_NONE */
    uint64_t prepared[REFIT_SLOTS_MAX]; /* version its hook has prepared in each slot; 0: none */
    uint64_t asked[REFIT_SLOTS_MAX];    /* version it was told to prepare */
    uint64_t shown[REFIT_SLOTS_MAX];    /* version its page shows, by our own account */
    bool refused[REFIT_SLOTS_MAX];
    char reason[256];                   /* of its last refusal */
    bool greeted;                       /* `attached` was sent */
    bool answered, ready;               /* to `swapping` */
    bool broken;                        /* a send failed: the thread closes the connection */
    int nccl;                           /* version of NCCL that it can receive with; 0: it can't */
    char unable[256];                   /* why */
};

/* A connection that has not attached yet. The bank's thread only. */
struct refit_client {
    struct refit_client *next;
    int sock;
    int pidfd;
    pid_t pid;
    struct refit_deadline deadline; /* for its first message */
    bool waiting;                   /* declared; admitted once the bank can */
    bool gone;
    struct refit_attach_message attach;
    int fds[REFIT_CLIENT_FDS_MAX];
    size_t fd_count;
};

struct refit_slot {
    enum refit_slot_state state;
    bool preparing;           /* filling, and engines are asked to prepare */
    struct refit_version version;
    atomic_uint keepers;      /* refit_bank_pin: not given up while there is one; raised without the lock while filling */
    uint64_t serial;          /* of what was staged here: names it in messages */
    uint64_t retired_order;   /* grows with each retirement */
    int64_t retired_ns;
    int64_t since_ms;
    struct refit_arena **arena; /* per rank; NULL: no memory yet */
    bool *writable;             /* per rank */
};

/* Where the slots of a rank are. */
struct refit_bank_device {
    int ordinal; /* in this process */
    uint8_t uuid[16];
    uint64_t granularity;
};

/* An engine that may still write into a slot that a refit has given up. */
struct refit_bank_writer {
    uint32_t slot;
    struct refit_remote_engine engine;
};

/* What the state file says about a slot. */
struct refit_slot_record {
    enum refit_slot_state state;
    struct refit_version version;
    uint64_t retired_order;
    struct refit_slot_identity *memory; /* per rank */
};

struct refit_bank {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_mutex_t save_lock; /* taken before lock: the last state built is the last one written */
    struct refit_state *state;

    uint32_t ranks, first_rank, ranks_total, slots;
    uint64_t slot_bytes; /* configured; 0: by the layout */
    enum refit_protection protection;
    uint32_t device_slots;            /* slots [0, device_slots) are on devices, the others in host memory */
    struct refit_bank_device *device; /* per rank; NULL: none. As device_slots, it does not change */
    char *socket_path;
    struct refit_layout *layout;
    const struct refit_bank_engine *engine; /* borrowed; NULL: engines attach */

    struct refit_slot slot[REFIT_SLOTS_MAX];
    uint32_t active;
    uint64_t serial, retirements;
    uint32_t swap_to; /* slot a swap is about to make active; goes to the state file before it does */
    bool swapping;
    uint64_t swap_serial; /* names the running swap in messages */
    bool allocating; /* one thread at a time makes slots */

    enum refit_swap_mode swap;
    uint32_t live;        /* modes copy and in-place: the slot that engines read, whatever version it has */
    uint32_t closed;      /* what gates say while nothing is active: REFIT_SLOT_NONE, _BUSY or _TORN */
    bool paused;          /* from the before-swap hooks to the end of the swap: nothing is asked of engines or shown to them */
    bool exchanging;      /* goes to the state file before the first byte: live and swap_to are being exchanged */
    bool immovable[REFIT_SLOTS_MAX]; /* its bytes are about to be moved or overwritten: it can't be pinned here */
    struct refit_exchange **exchange; /* per rank, of mode copy */
    refit_bank_evict evict;
    void *evict_context;
    void (*on_wait)(void *context, const struct refit_bank_waiting *who); /* of the swap that runs; may be NULL */
    void *on_wait_context;
    struct refit_reader *readers;
    bool in_engine; /* engines are asked whether they can receive */
    struct refit_bank_writer writers[REFIT_SLOTS_MAX * REFIT_REMOTE_ENGINES_MAX];
    size_t writer_count;
    uint64_t swaps, rollbacks, readers_died;
    int64_t last_swap_ns;

    bool adopting;
    struct refit_deadline adopt_deadline;
    struct refit_slot_record record[REFIT_SLOTS_MAX];
    uint32_t record_swap_to, record_live;
    bool record_exchanging, record_torn;
    char record_layout[REFIT_SHA256_HEX_MAX];
    uint32_t leader_gate; /* as the leader's page said when it came back */
    bool *returned;       /* per rank: its process came back */

    refit_bank_notify notify;
    void *notify_context;
    bool dirty; /* a snapshot would differ since the last notify */

    pthread_t thread;
    bool thread_runs;
    atomic_bool stop;
    int listener, wake;
    struct refit_client *clients; /* the thread's own, as the next */
    struct refit_deadline accept_again; /* out of descriptors: not before then */
};

/* --- bank.c */
void refit_bank_lock(struct refit_bank *bank);
void refit_bank_unlock(struct refit_bank *bank); /* and notifies when something changed */
void refit_bank_changed(struct refit_bank *bank); /* wakes waiters, marks the snapshot as changed */
/* Waits for a change, or a short while. REFIT_TIMEOUT, REFIT_ABORTED by `cancel`: without text. */
enum refit_status refit_bank_pause(struct refit_bank *bank, struct refit_deadline deadline, const atomic_bool *cancel,
                                   int slice_ms);
void refit_bank_wake(struct refit_bank *bank); /* the thread looks again */
/* In the replica's layout. */
static inline uint32_t refit_bank_rank_number(const struct refit_bank *bank, uint32_t rank)
{
    return bank->first_rank + rank;
}
/* The replica's ranks, and the slots' size if it is configured. */
enum refit_status refit_bank_check_fits(const struct refit_bank *bank, const struct refit_layout *layout,
                                        struct refit_error *err);
void refit_bank_set_state(struct refit_bank *bank, uint32_t slot, enum refit_slot_state state);

/* --- bank_memory.c */
/* Finds the devices that the configuration names. */
enum refit_status refit_bank_find_devices(struct refit_bank *bank, const struct refit_bank_config *config,
                                          struct refit_error *err);
bool refit_bank_on_device(const struct refit_bank *bank, uint32_t slot);
enum refit_protection refit_bank_protection(const struct refit_bank *bank);
bool refit_bank_sized(const struct refit_bank *bank);
uint64_t refit_bank_rank_bytes(const struct refit_bank *bank, uint32_t rank);
bool refit_bank_has_memory(const struct refit_bank *bank);
/* Makes what is missing. `slot`: one slot, also what can't be written is replaced; REFIT_SLOT_NONE: all. Called
 * without the lock, with `allocating` set by the caller. */
enum refit_status refit_bank_make_memory(struct refit_bank *bank, uint32_t slot, struct refit_error *err);
/* A descriptor for an engine; the caller closes it. */
enum refit_status refit_bank_export(struct refit_bank *bank, uint32_t slot, uint32_t rank, int *fd,
                                    struct refit_error *err);
/* Which memory it is, across restarts; zeros for NULL. */
void refit_bank_identify(const struct refit_arena *arena, struct refit_slot_identity *out);
/* What `attached` and `slot` say of memory on devices. */
void refit_bank_describe_device(const struct refit_bank *bank, uint32_t rank, struct refit_attach_device *out);
/* After a restart, from an engine's descriptor, if it is what was recorded. */
enum refit_status refit_bank_take_back(struct refit_bank *bank, uint32_t slot, uint32_t rank, int fd,
                                       struct refit_arena **out, bool *writable, struct refit_error *err);

/* --- bank_reader.c */
enum refit_status refit_reader_create(uint32_t rank, uint32_t slots, struct refit_reader **out,
                                      struct refit_error *err);
/* Over a page that a process hands back. Checks the descriptor, then the page; takes a copy of the descriptor. */
enum refit_status refit_reader_take_back(uint32_t rank, uint32_t slots, int claim_fd, struct refit_reader **out,
                                         struct refit_error *err);
void refit_reader_destroy(struct refit_reader *reader);
bool refit_reader_idle(const struct refit_reader *reader, uint32_t slot);
bool refit_reader_attached(const struct refit_reader *reader);
void refit_reader_flip(struct refit_reader *reader, uint32_t to);
void refit_reader_show(struct refit_reader *reader, uint32_t slot, const struct refit_version *version);
void refit_reader_send(struct refit_reader *reader, const struct refit_attach_message *message, const int *fds,
                       size_t fd_count);
/* `attached`, with the descriptors that hold from now on. */
enum refit_status refit_reader_greet(struct refit_bank *bank, struct refit_reader *reader, struct refit_error *err);
/* Moves every reader as far as it may go: asks for hooks, shows, flips; the leader last. */
void refit_bank_sync(struct refit_bank *bank);
/* Forget what a slot held, on every page. */
void refit_bank_forget(struct refit_bank *bank, uint32_t slot);
void refit_bank_serial_text(uint64_t serial, char out[static REFIT_REFIT_ID_MAX]);
void refit_bank_send_swapped(struct refit_bank *bank, struct refit_reader *reader, const char *kv);

/* --- bank_attach.c: the thread only */
void refit_bank_client_message(struct refit_bank *bank, struct refit_client *client);
void refit_bank_admit(struct refit_bank *bank); /* whoever waits and can be admitted */
struct refit_reader *refit_bank_attached(struct refit_bank *bank, uint32_t rank);
/* The reader without a connection whose page this client hands back. */
struct refit_reader *refit_bank_reader_of_page(struct refit_bank *bank, const struct refit_client *client);

/* --- bank_receive.c */
void refit_bank_on_able(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m);
/* Who may still write into the slot (REFIT_SLOT_NONE: any), so that it can't be filled. NULL: nobody. */
const struct refit_bank_writer *refit_bank_written(struct refit_bank *bank, uint32_t slot);
void refit_bank_release_writers(struct refit_bank *bank);

/* --- bank_begin.c */
/* Calls `on_wait` (may be NULL) without the lock; `reader` NULL: replicas that are served. */
void refit_bank_tell_waiting(struct refit_bank *bank, uint32_t slot, const struct refit_reader *reader,
                             void (*on_wait)(void *context, const struct refit_bank_waiting *who), void *context,
                             struct refit_bank_waiting *who);
uint32_t refit_bank_keepers(const struct refit_bank *bank, uint32_t slot);

/* --- bank_swap.c: one swap at a time; leave_swap wakes whoever waits */
/* A wait that ended without a text of its own. */
enum refit_status refit_bank_wait_failed(enum refit_status status, const char *what, struct refit_error *err);
/* Every rank's before-swap hook. */
enum refit_status refit_bank_ask_swap(struct refit_bank *bank, const struct refit_version *version, const char *kv,
                                      struct refit_deadline deadline, const atomic_bool *cancel, struct refit_error *err);
void refit_bank_tell_swapped(struct refit_bank *bank, const char *kv);
/* Visible on every rank, then followers, then the leader: its flip is the commit. */
void refit_bank_publish(struct refit_bank *bank, uint32_t to);
enum refit_status refit_bank_enter_swap(struct refit_bank *bank, struct refit_deadline deadline, struct refit_error *err);
void refit_bank_leave_swap(struct refit_bank *bank);

/* --- bank_mode.c: what the swap modes ask for */
enum refit_status refit_bank_check_mode(const struct refit_bank_config *config, struct refit_error *err);
/* Versions have one place in all modes but pointer: a retained one is not to be acquired. */
static inline bool refit_bank_shows_retained(const struct refit_bank *bank)
{
    return bank->swap == REFIT_SWAP_POINTER;
}
/* What a rollback that names no version goes to: of the retained versions older than the active one that was active
 * last; REFIT_SLOT_NONE: there is none. */
uint32_t refit_bank_earlier(const struct refit_bank *bank);
/* The slot that a new refit has to land in, whatever else is free; REFIT_SLOT_NONE: any. */
uint32_t refit_bank_only_choice(const struct refit_bank *bank);
/* With `swapping` held and every hook asked: readers are kept out, memory changes places, readers come back to what is
 * active then. */
enum refit_status refit_bank_swap_paused(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                         struct refit_error *err);
/* Every living process of a rank is connected, or it could not be told to pause. Waits for those that are not. */
enum refit_status refit_bank_all_connected(const struct refit_bank *bank, struct refit_error *err);
/* Nothing is served any more, until the next refit. */
void refit_bank_tear(struct refit_bank *bank);

/* --- bank_mode_pause.c: keeping readers out */
/* Nobody here reads the slot, and nobody can begin to. Engines go on. */
enum refit_status refit_bank_evict_keepers(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                           const atomic_bool *cancel, struct refit_error *err);
/* No engine reads what is active, nor `other` (a hook might have); acquire is REFIT_BUSY. On an error refit_bank_reopen()
 * undoes it. */
enum refit_status refit_bank_close_gates(struct refit_bank *bank, uint32_t other, struct refit_deadline deadline,
                                         const atomic_bool *cancel, struct refit_error *err);
void refit_bank_reopen(struct refit_bank *bank);
/* What no gate points at any more, on all pages. */
void refit_bank_set_gates(struct refit_bank *bank, uint32_t to);

/* --- bank_mode_copy.c */
/* Takes what the exchange with `slot` will need; its memory is there. Without the lock, with `allocating` held. */
enum refit_status refit_bank_make_exchange(struct refit_bank *bank, uint32_t slot, struct refit_error *err);
/* The same with the lock, which is let go meanwhile: pinning memory takes its time. */
enum refit_status refit_bank_reserve_exchange(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                              struct refit_error *err);
void refit_bank_release_exchange(struct refit_bank *bank);
/* The bytes of `to` and of the live slot change places on all ranks, and so do versions; all or nothing, or torn. */
enum refit_status refit_bank_exchange(struct refit_bank *bank, uint32_t to, struct refit_error *err);

/* --- bank_mode_remap.c */
/* Every rank's window shows `to`; on an error each shows what it showed before, or its connection is closed. */
enum refit_status refit_bank_move_windows(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                          struct refit_error *err);
void refit_bank_on_moved(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m);
/* True once this reader's gate may point at `slot`: its window shows it. Moves it there, when it is not read. */
bool refit_bank_window_follows(struct refit_bank *bank, struct refit_reader *reader, uint32_t slot);

/* --- bank_engine.c: with the lock, which is let go meanwhile */
enum refit_status refit_bank_engine_prepare(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                            const atomic_bool *cancel, struct refit_error *err);
enum refit_status refit_bank_engine_install(struct refit_bank *bank, uint32_t to, const char *kv,
                                            struct refit_deadline deadline, struct refit_error *err);

/* --- bank_adopt.c */
void refit_bank_adopt_begin(struct refit_bank *bank, int64_t adopt_ms);
void refit_bank_adopt_client(struct refit_bank *bank, struct refit_client *client);
void refit_bank_adopt_step(struct refit_bank *bank); /* ends the adoption when it is time to */
void refit_bank_record_release(struct refit_bank *bank);

/* --- bank_state.c */
void refit_bank_save(struct refit_bank *bank); /* without the lock; a failure is logged, refit goes on */
enum refit_status refit_bank_try_save(struct refit_bank *bank, struct refit_error *err); /* without the lock */
bool refit_bank_load(struct refit_bank *bank); /* false: nothing there that fits this configuration */

/* --- bank_thread.c */
void *refit_bank_thread(void *bank);
/* The connection becomes a reader's: sock and pidfd move over, the rest of the client is done with. */
void refit_client_becomes(struct refit_bank *bank, struct refit_client *client, struct refit_reader *reader);
void refit_client_refuse(struct refit_client *client, const struct refit_error *error);

#endif
