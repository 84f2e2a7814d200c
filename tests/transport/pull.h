/* SPDX-License-Identifier: Apache-2.0
 *
 * Driving a receiver endpoint through a whole plan, and holders as threads.
 */
#ifndef REFIT_TESTS_TRANSPORT_PULL_H
#define REFIT_TESTS_TRANSPORT_PULL_H

#include "tests/transport/world.h"

#define PULL_MS 30000

/* What came of a plan's batches. */
struct pull {
    unsigned ok, corrupt, peer, other;
};

/* Posts every batch of every edge and collects all completions. Batches that did not land are posted again until each
 * has landed or `again` tries are used up. Source ranks are the holders, those of a group by turns. */
struct pull pull_all(const struct refit_transport *transport, struct refit_endpoint *receiver, struct world *world,
                     unsigned again);
/* The same, all from one holder. */
struct pull pull_from(const struct refit_transport *transport, struct refit_endpoint *receiver, struct world *world,
                      uint32_t holder);
unsigned plan_batches(const struct refit_plan *plan);

/* A receiver on its own listener, with open holders of every source rank that are connected to it. */
struct pair {
    const struct refit_transport *transport;
    struct world *world;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver;
    json_t *card;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
};
void pair_open(struct pair *pair, struct world *world, const struct refit_transport *transport, unsigned streams,
               bool verify);
/* Tells holders that all is landed, and checks that they heard. */
void pair_finish(struct pair *pair);
void pair_close(struct pair *pair);

struct refit_listener *listener_open(char directory[static 32]);
void listener_close(struct refit_listener *listener, const char *directory);

#endif
