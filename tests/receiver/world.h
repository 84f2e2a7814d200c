/* SPDX-License-Identifier: Apache-2.0
 *
 * A small world for refits: a receiver of two ranks without engines, a trainer mesh of two ranks with another
 * sharding, and contents that are a function of (seed, tensor, byte), so that any byte on either side can be checked.
 */
#ifndef REFIT_TESTS_RECEIVER_WORLD_H
#define REFIT_TESTS_RECEIVER_WORLD_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory/ops.h"
#include "receiver/receiver.h"

#define WORLD_RANKS 2
#define WORLD_WAIT_MS 30000 /* for anything that must happen; never slept through */

struct world {
    char dir[64];
    char socket_path[96], data_path[96], root[96];
    char lead[32];
    struct refit_layout *source, *destination;
    struct refit_receiver_config config;
    struct refit_receiver *receiver;
    uint64_t epoch;
    char fleet_id[64]; /* what holders greet with; empty: the refit's own id */
    const uint8_t *mask; /* what holders plan with; NULL: all tensors */
    uint64_t served_version; /* what must be active whatever fails */
    uint64_t served_seed;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t moves;
};

/* `rows` of the largest tensor, 1 KiB each. The receiver is opened by world_start, after the config was changed. */
void world_init(struct world *world, unsigned rows);
void world_start(struct world *world);
void world_restart(struct world *world);
void world_close(struct world *world);

struct refit_layout *world_layout(const char *text);
char *world_source_text(unsigned rows, const char *extra); /* new; `extra` goes into "entries" */

/* Waits until a snapshot satisfies `done`. */
typedef bool (*world_predicate)(const struct refit_session_snapshot *snapshot, void *context);
struct refit_session_snapshot world_wait(struct world *world, const char *id, world_predicate done, void *context);
/* Until the refit is in this phase; fails the test when it ends in another. */
struct refit_session_snapshot world_wait_phase(struct world *world, const char *id, enum refit_phase phase);
/* Until it has ended as aborted with this status; returns the snapshot. */
struct refit_session_snapshot world_wait_aborted(struct world *world, const char *id, enum refit_status status);

struct refit_request world_request(const struct world *world, uint64_t version, const char *publish_id);
void world_lead(struct world *world);
struct refit_ticket world_begin(struct world *world, const struct refit_request *request);
void world_put_source(struct world *world);
void ticket_release(struct refit_ticket *ticket);

/* One rank of the trainer, which holds its shard of a seed's contents. */
struct holder {
    struct world *world;
    const struct refit_transport *transport;
    struct refit_endpoint *endpoint;
    struct refit_plan *plan;
    struct refit_arena *arena;
    struct refit_tally *tally;
    struct refit_ticket ticket; /* card borrowed */
    char id[REFIT_REFIT_ID_MAX];
    uint32_t rank;
    uint8_t *memory;
    uint64_t bytes;
    pthread_t thread;
    atomic_uint turned_away; /* how often it was refused as not known yet */
};
/* Opens and starts to dial; the endpoint serves once it is connected. */
void holder_start(struct holder *holder, struct world *world, const struct refit_ticket *ticket, const char *transport,
                  uint32_t rank, uint64_t seed);
void holder_stop(struct holder *holder);
/* Writes a rank's shard of the seed's contents. */
void world_write(const struct refit_layout *layout, uint32_t rank, uint64_t seed, uint8_t *memory);
/* The model digest of a seed's contents. */
void world_digest(const struct world *world, uint64_t seed, char hex[static REFIT_SHA256_HEX_MAX]);

/* A whole publish by barrier, from lead to committed. */
void world_publish(struct world *world, uint64_t version, uint64_t seed, const char *transport);
/* The version served last is active, and every byte of it is what its seed says, fills included. */
void world_assert_served(struct world *world);
/* After a failure: the old version is whole, nothing is left staged, and the next publish succeeds. */
void world_assert_survives(struct world *world);

#endif
