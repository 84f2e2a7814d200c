/* SPDX-License-Identifier: Apache-2.0
 *
 * Two layouts with real memory behind them, filled and checked unit by unit through the regions alone: an oracle that
 * knows nothing of plans, strips or rows.
 */
#ifndef REFIT_TESTS_MEMORY_WORLD_H
#define REFIT_TESTS_MEMORY_WORLD_H

#include "layouts/plan.h"
#include "memory/ops.h"

enum world_memory {
    WORLD_WHOLE,   /* one piece per rank */
    WORLD_BUFFERS, /* one allocation per buffer */
    WORLD_PIECES,  /* three per buffer: strips and runs lie across them */
    WORLD_FILE,    /* one range of a file per buffer */
    WORLD_DEVICE,  /* of GPU 0: three pieces per buffer, of memory that somebody else has */
};

struct world_side {
    struct refit_layout *layout;
    enum world_memory memory;
    uint32_t ranks;
    struct refit_arena **arenas; /* per rank */
    uint8_t **shadow;            /* per rank: the arena space as it should be, or is */
    void **owned;                /* allocations to free */
    size_t owned_count;
};

struct world {
    struct world_side source;
    struct world_side destination;
};

/* Builds both sides from JSON; the source holds every tensor's content, the destination 0xEE everywhere. */
void world_open(struct world *world, const char *source, enum world_memory source_memory, const char *destination,
                enum world_memory destination_memory);
void world_close(struct world *world);
/* The bytes of a tensor, dense; free() it. */
uint8_t *world_content(const struct refit_tensor *tensor);
/* Every region of the destination holds its tensor's content, and every other byte is still 0xEE (or fill). */
void world_check(const struct world *world);

/* All edges of the pair, both ends of each: calls `body` for every batch. */
struct world_batch {
    struct refit_walk from;
    struct refit_walk to;
    struct refit_arena *source;
    struct refit_arena *destination;
    uint64_t bytes;
};
typedef void (*world_body)(void *ctx, const struct world_batch *batch);
void world_batches(const struct world *world, world_body body, void *ctx);

#endif
