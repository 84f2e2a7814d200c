/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the engine library share. The hot path reads `claim` and `table`; all else belongs to the library's
 * thread (session.c) once it runs.
 */
#ifndef REFIT_ENGINE_INTERNAL_H
#define REFIT_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/attach.h"
#include "engine/claim.h"
#include "layouts/layout.h"
#include "memory/slot.h"
#include "memory/window.h"

/* One buffer of this rank. `order` of the engine sorts ids by name. */
struct refit_engine_buffer_info {
    char *name; /* owned */
    uint64_t offset;
    uint64_t bytes;
};

/* A claim page and its mapping. */
struct refit_engine_page {
    struct refit_claim *claim;
    int fd;
    struct refit_slot_identity identity;
    struct refit_engine_page *next; /* pages of earlier attachments: a late reader may still look at one */
};

/* Pins whose end is an event on a device (stream.c). */
struct refit_engine_releases {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct refit_engine_ending *first; /* pending */
    struct refit_engine_ending *spare;
    pthread_t thread;
    bool runs, stop;
};

enum refit_engine_state { REFIT_ENGINE_STARTING, REFIT_ENGINE_ATTACHED, REFIT_ENGINE_FAILED };

struct refit_remote_host; /* transport/remote.h */

struct refit_engine {
    _Atomic(struct refit_claim *) claim;  /* stored again after every remapping: it orders table writes for readers */
    uint32_t rank;                        /* the hot path reads it: of the same cache line */
    uint32_t buffer_count;
    const void **table[REFIT_SLOTS_MAX];  /* buffer_count pointers each; they change only while the slot is idle */
    uint32_t ranks, slots;
    uint64_t slot_bytes;
    bool stable;                          /* the application can do with no other than constant addresses */
    enum refit_swap_mode swap;
    struct refit_window *window;          /* NULL: mode pointer */
    uint32_t windowed;                    /* the slot it shows; REFIT_SLOT_NONE: none */
    const void **window_table;            /* constant; the windowed slot's place in `table` has it */
    const void **own_table;               /* of the windowed slot's own mapping */
    enum refit_memory_kind wanted;
    struct refit_attach_device device; /* where slots are that are in a GPU's memory; ids are in `identity` */
    int ordinal;                       /* of that GPU in this process; -1 */

    struct refit_engine_buffer_info *buffers;
    uint32_t *order;

    struct refit_arena *arena[REFIT_SLOTS_MAX];
    struct refit_slot_identity identity[REFIT_SLOTS_MAX];
    struct refit_engine_page *page; /* the current one, then the earlier ones */
    uint32_t home_used;             /* places for pages that are or were taken */

    struct refit_layout *layout;
    int layout_fd;
    char *socket_path;
    char label[64];
    refit_prepare_fn prepare;
    refit_before_swap_fn before_swap;
    refit_after_swap_fn after_swap;
    void *context;

    pthread_t thread;
    int sock; /* -1: not connected */
    int wake; /* eventfd */
    atomic_bool stop;
    bool refused_logged;
    struct refit_remote_host *host; /* the thread's own; NULL: it has not received for a refit yet */

    struct refit_engine_releases releases;
    bool kept; /* a device still reads when the process detaches: page and slots stay until that ends */
    struct refit_engine *next_kept;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum refit_engine_state state; /* under lock, as is error */
    struct refit_error error;
};

/* --- home.c */
/* Where the claim page of the first attachment lies: just before the engine. Later ones are elsewhere. */
static inline const struct refit_claim *refit_engine_home_first(const struct refit_engine *engine)
{
    return (const struct refit_claim *)((const char *)engine - REFIT_CLAIM_BYTES);
}

/* All zeros; NULL: `err` says why. */
struct refit_engine *refit_engine_home_create(struct refit_error *err);
void refit_engine_home_destroy(struct refit_engine *engine);
/* The claim page `fd`, for reading and writing, beside the engine while there is room; MAP_FAILED and errno. */
void *refit_engine_home_map(struct refit_engine *engine, int fd);
void refit_engine_home_unmap(struct refit_engine *engine, void *at);

/* --- buffers.c */
enum refit_status refit_engine_buffers_load(struct refit_engine *engine, struct refit_error *err);
void refit_engine_buffers_release(struct refit_engine *engine);

/* --- mapping.c */
/* Takes the descriptors of `attached`: the claim page, then one per slot; all stay the caller's. Nothing changes when
 * this fails. */
enum refit_status refit_engine_map_all(struct refit_engine *engine, const struct refit_attach_message *attached,
                                       const int *fds, size_t fd_count, struct refit_error *err);
/* The same for the one of `slot`. */
enum refit_status refit_engine_map_slot(struct refit_engine *engine, const struct refit_attach_message *slot, int fd,
                                        struct refit_error *err);
/* What a `move` asks for. */
enum refit_status refit_engine_move(struct refit_engine *engine, uint32_t slot, struct refit_error *err);
void refit_engine_unmap(struct refit_engine *engine);

/* --- window.c */
/* Makes the window that `attached` speaks of, if it is not there yet, and lets it show its slot. */
enum refit_status refit_engine_window_open(struct refit_engine *engine, uint32_t slot, struct refit_error *err);
/* Shows another slot, or the same slot's new memory; neither is read. After an error it shows what it showed, or
 * nothing (engine->windowed). */
enum refit_status refit_engine_window_show(struct refit_engine *engine, uint32_t slot, struct refit_error *err);
void refit_engine_window_close(struct refit_engine *engine);

/* --- stream.c */
void refit_engine_releases_init(struct refit_engine_releases *releases);
/* Waits for all that are pending, and ends the thread. False: a device is not done by the deadline. */
bool refit_engine_releases_drain(struct refit_engine *engine, struct refit_deadline deadline);
void refit_engine_releases_destroy(struct refit_engine_releases *releases);

/* --- receive.c: the thread only */
/* What refitd is told of it when it asks in `attached`. */
void refit_engine_able(const struct refit_engine *engine, struct refit_attach_message *out);
/* Takes the socket. A refit that can't be received for is refitd's to see: it finds the socket closed. */
void refit_engine_receive(struct refit_engine *engine, int sock);
/* Nothing is received any more. */
void refit_engine_receive_stop(struct refit_engine *engine);
void refit_engine_receive_end(struct refit_engine *engine); /* and nothing of it is kept */

/* --- session.c */
void *refit_engine_session(void *engine);

#endif
