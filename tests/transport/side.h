/* SPDX-License-Identifier: Apache-2.0
 *
 * A receiver for a world, with holders of source rank 0 that come and go, and sizes and rates that follow its batches.
 */
#ifndef REFIT_TESTS_TRANSPORT_SIDE_H
#define REFIT_TESTS_TRANSPORT_SIDE_H

#include "tests/transport/world.h"

struct side {
    struct world world; /* opened before the side, closed with it */
    const struct refit_transport *transport;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver;
    json_t *card;
    const struct refit_edge *edge; /* from rank 0 to rank 0 */
};

/* `rate`: the receiver's, bytes per second; 0: none. */
void side_open(struct side *side, const struct refit_transport *transport, uint64_t rate);
void side_close(struct side *side);

/* Rank 0, connected as this holder. New. */
struct refit_endpoint *side_hold(struct side *side, uint32_t holder, uint64_t rate);
/* As soon as the holder is there. */
void side_post(struct side *side, uint32_t holder, uint32_t batch);
/* Until so many bytes have crossed, both ways; nothing completes meanwhile. */
void side_until_crossed(struct side *side, uint64_t bytes);

/* The payload of the first batch from rank 0 to rank 0. */
uint64_t world_batch_bytes(const struct world *world);
/* Bytes per second at which that takes more than a second. */
uint64_t world_slow_rate(const struct world *world);

#endif
