/* SPDX-License-Identifier: Apache-2.0
 *
 * A receiver's view of one holder's memory: arenas made of the descriptors that the holder passed, with a plan over
 * them, and the ring for what has no descriptor or no plan here.
 *
 * A memfd that is sealed against shrinking is mapped read-only. Anything else is read with pread, never mapped: its
 * owner could cut it short, and touching the mapping would then be a SIGBUS. One such descriptor makes all arenas of
 * kind file.
 */
#ifndef REFIT_TRANSPORT_LOCAL_SUPPLY_H
#define REFIT_TRANSPORT_LOCAL_SUPPLY_H

#include "transport/local_pieces.h"

struct refit_local_source_fd {
    int fd;
    void *mapping; /* NULL: pread */
    uint64_t bytes;
    bool of_device; /* a GPU's: for its driver alone */
};

struct refit_local_supply {
    unsigned references; /* under the receiver's lock */
    struct refit_view view;      /* view.plan is owned; NULL: nothing but the ring */
    struct refit_arena **arenas; /* owned, view.arena_count of them; NULL where nothing is bound */
    struct refit_local_memory memory;
    bool listed; /* the arenas lack nothing */
    bool relay;
    const uint8_t *ring;
    unsigned ring_slots;
    struct refit_local_source_fd fds[REFIT_LOCAL_FDS_MAX];
    size_t fd_count;
    struct refit_local_piece *pieces; /* owned; as listed, until built */
    size_t piece_count, piece_capacity;
};

/* Empty, with one reference. NULL when out of memory. */
struct refit_local_supply *refit_local_supply_create(void);
/* Of memory in this process: retains the view's plan and arenas. NULL when out of memory. */
struct refit_local_supply *refit_local_supply_of(const struct refit_view *view);
void refit_local_supply_release(struct refit_local_supply *supply); /* one reference; NULL is fine */

/* Takes in one PIECES packet and owns its descriptors, whatever it returns. *more: another one follows. */
REFIT_MUST_CHECK enum refit_status refit_local_supply_add(struct refit_local_supply *supply, const void *packet,
                                                          size_t len, const int *fds, size_t fd_count, bool *more,
                                                          struct refit_error *err);
/* After the last packet: maps, binds, plans. Slots on GPUs are opened for the receiver's devices; one that is out of their
 * reach is left to the ring. */
REFIT_MUST_CHECK enum refit_status refit_local_supply_build(struct refit_local_supply *supply,
                                                            const struct refit_endpoint_config *receiver,
                                                            struct refit_error *err);
/* Where the batch can be read; false: it has to come through the ring. */
bool refit_local_supply_window(const struct refit_local_supply *supply, const struct refit_edge *edge, uint32_t batch,
                               const struct refit_arena **arena, struct refit_walk *walk);
/* Before a window of a mapped source is read: its pages are entered in this process's page table, many in one call. */
void refit_local_supply_populate(const struct refit_local_supply *supply, const struct refit_arena *arena,
                                 struct refit_walk walk);

#endif
