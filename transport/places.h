/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a batch goes at the receiver: first the rank at which it lands, then the other ranks of its destination
 * group, which get a copy of what landed.
 */
#ifndef REFIT_TRANSPORT_PLACES_H
#define REFIT_TRANSPORT_PLACES_H

#include "memory/ops.h"
#include "transport/transport.h"

struct refit_place {
    struct refit_arena *arena;
    struct refit_walk walk;
};

/* Reused from batch to batch. */
struct refit_places {
    struct refit_place *items; /* owned; the landing rank's first */
    size_t count, capacity;
    struct refit_segments spare; /* of copies, not digested */
};

void refit_places_init(struct refit_places *places);
void refit_places_release(struct refit_places *places);
/* Every rank of the edge's group has an arena; of a partial receiver one of them. */
bool refit_places_bound(const struct refit_endpoint_config *receiver, const struct refit_edge *edge);
/* `edge` is one of the receiver's plan, and bound. */
REFIT_MUST_CHECK enum refit_status refit_places_of(struct refit_places *places,
                                                   const struct refit_endpoint_config *receiver,
                                                   const struct refit_edge *edge, uint32_t batch,
                                                   struct refit_error *err);
/* The next `bytes` of the stream, from `staging` into every place; digested once, into *segments. */
REFIT_MUST_CHECK enum refit_status refit_places_scatter(struct refit_places *places, const void *staging,
                                                        uint64_t bytes, struct refit_segments *segments,
                                                        struct refit_error *err);
/* The whole window from the landing rank's memory, where it was verified, into the others'. */
REFIT_MUST_CHECK enum refit_status refit_places_spread(struct refit_places *places, struct refit_error *err);

#endif
