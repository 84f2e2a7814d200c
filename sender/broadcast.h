/* SPDX-License-Identifier: Apache-2.0
 *
 * The strategy "broadcast": rank 0 gathers the whole model, dense, bucket by bucket, and sends every byte of it to every
 * member, which takes from it what it wants (receiver/broadcast.h). Two buffers: while one bucket is sent, the next is
 * gathered. Nobody relays. It is what planned transfers are measured against, and the way for a trainer that can't
 * describe its shards: then a callback fills one tensor after the other.
 *
 * Members take part in a *round* once they have a slot; a round begins when all have, or the first has waited long enough.
 * Those that come later are the next round's. In a round the slowest member sets the pace, but one that takes nothing
 * while others wait for it is dropped. A callback is called in one round only, for every tensor, whoever fails.
 *
 * Everything here is the lead's: state is under its lock, changes are told by its condition.
 */
#ifndef REFIT_SENDER_BROADCAST_H
#define REFIT_SENDER_BROADCAST_H

#include <refit/sender.h>

#include "layouts/layout.h"
#include "sender/served.h"

struct refit_lead;
struct refit_replica;
struct refit_broadcast;

/* A source that fills tensors when asked to. */
struct refit_gathering {
    refit_gather_fn gather; /* NULL: the ranks' registered memory */
    void *context;
};

/* Of the lead's source, for the publish under way, whose members are known. *out is new. REFIT_NO_MEMORY: no room for two
 * buckets. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_create(struct refit_lead *lead, struct refit_broadcast **out,
                                                          struct refit_error *err);
/* Whoever is left is told that it is over; blocks until nothing is read or written any more. NULL is fine. */
void refit_broadcast_destroy(struct refit_broadcast *broadcast);

struct refit_layout *refit_broadcast_layout(const struct refit_broadcast *broadcast); /* what members get; borrowed */
uint32_t refit_broadcast_buckets(const struct refit_broadcast *broadcast);

/* By a follower: its refit has a slot. Repeatable. How it goes is told as by ranks that serve: replica->served, served_error. */
void refit_broadcast_join(struct refit_replica *replica);
/* Its refit has failed: when this returns, nothing is sent to it any more. */
void refit_broadcast_leave(struct refit_replica *replica);
/* Is what landed what was gathered? With the lead's lock held, once it is served. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_agree(struct refit_replica *replica, struct refit_error *err);

/* With the lead's lock held: a rank's account of its part in gathering; the tallies as in refit_served_read. */
void refit_broadcast_on_served(struct refit_broadcast *broadcast, uint32_t rank, const struct refit_served *served,
                               const void *tallies, size_t len);
/* With the lead's lock held: the trainer's memory is not read. */
bool refit_broadcast_is_idle(const struct refit_broadcast *broadcast);

#endif
