/* SPDX-License-Identifier: Apache-2.0
 *
 * Two layouts of one model bound to memory, for tests of transports: source ranks filled with a pattern,
 * destination ranks filled with guard bytes, and a check that every byte of every destination rank is what it must be.
 */
#ifndef REFIT_TESTS_TRANSPORT_WORLD_H
#define REFIT_TESTS_TRANSPORT_WORLD_H

#include "layouts/tally.h"
#include "transport/transport.h"

#define WORLD_RANKS_MAX 16
#define WORLD_HOLDERS 64 /* numbers a receiver knows */
#define WORLD_GUARD 0xee

enum world_memory {
    WORLD_HEAP,     /* ordinary memory */
    WORLD_SEALED,   /* a memfd sealed against shrinking */
    WORLD_UNSEALED, /* a memfd that its owner could cut short */
    WORLD_FILE,     /* a regular file, read with pread */
    WORLD_MIXED,    /* buffers by turns in a sealed memfd and in ordinary memory */
    WORLD_DEVICE,   /* a device's, as a trainer has it; sources that are said to be others are slots, with REFIT_TEST_DEVICES */
};

struct world_rank {
    struct refit_arena *arena;
    uint8_t *bytes; /* a plain mapping of the whole space; a source of kind file has it too; of a device, perhaps a copy */
    uint64_t size;
    uint64_t address;    /* on a device; 0 */
    uint64_t allocation; /* the same, unless it is a slot */
    int fd;
    bool on_device;
    struct refit_plan *plan;   /* sources: its side */
    struct refit_tally *tally; /* sources */
};

struct world {
    struct refit_layout *source, *destination;
    struct refit_plan *plan; /* the receiver's */
    uint32_t sources, destinations;
    struct world_rank source_ranks[WORLD_RANKS_MAX], destination_ranks[WORLD_RANKS_MAX];
    struct refit_arena *arenas[WORLD_RANKS_MAX]; /* of the destination */
    struct refit_tally *tally;                   /* the receiver's */
    struct refit_inbox *inbox;
    struct refit_landed *landed;
    uint8_t token[REFIT_TOKEN_BYTES];
};

/* REFIT_TEST_DEVICES in the environment: all memory is WORLD_DEVICE, whatever a test asks for, each rank's on another
 * device (of 8, by turns), and the transport is nccl. */
bool world_on_devices(void);
/* The device of the next rank that is opened. */
void world_next_device(int device);

/* From two documents; fails the test on any error. */
void world_open(struct world *world, const char *source, const char *destination, enum world_memory memory);
/* From two layouts, which it releases at the end. */
void world_open_layouts(struct world *world, struct refit_layout *source, struct refit_layout *destination,
                        enum world_memory memory);
void world_close(struct world *world);

/* Every region holds its tensor's bytes and everything else is still guard bytes. */
void world_check_landed(const struct world *world);
/* The same of what the sides added up: every tensor's digest, receiver against the sum of the sources. */
void world_check_tallies(const struct world *world);
/* A copy of all destination memory, and whether it is still the same. New; free(). */
uint8_t *world_snapshot(const struct world *world);
bool world_unchanged(const struct world *world, const uint8_t *snapshot);

struct refit_endpoint_config world_receiver(struct world *world, struct refit_listener *listener, unsigned streams);
struct refit_endpoint_config world_holder(struct world *world, uint32_t rank, unsigned streams);
/* What has landed in `world`, served to the receiver of `to`, another world of the same documents. */
struct refit_endpoint_config world_relay(struct world *world, const struct world *to, uint32_t holder,
                                         unsigned streams);
/* The edge from this source rank alone to this destination rank alone. */
const struct refit_edge *world_edge(const struct world *world, uint32_t source, uint32_t destination);
/* Waits for a completion on the inbox. */
struct refit_transfer_completion world_completion(struct world *world);

/* Documents: 3 ranks cut by rows to 2 ranks cut by columns. Long rows, several batches; and rows of 32 bytes. */
extern const char world_rows_source[], world_rows_destination[];
extern const char world_tiny_source[], world_tiny_destination[];

/* Fails the test with what went wrong. */
void must(enum refit_status status, const struct refit_error *err);

#endif
