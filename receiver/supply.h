/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom a member of a fleet asks for a batch: a pure function of the members, their domains, the batch, and which
 * holders this member can use. No I/O, no clocks. docs/fleet.md has the rules; in short:
 *
 *   own domain's seed, then its other members | home domain's, then the other domains' | the origin
 *
 * each list in an order that only depends on the batch, and only up to this member itself. So who asks whom never
 * goes round in a circle, whatever each member believes of the others; and what a lost member would have brought is
 * shared by all that are left. The origin is the trainer, or the replicas that serve in its place.
 */
#ifndef REFIT_RECEIVER_SUPPLY_H
#define REFIT_RECEIVER_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum refit_supply_from {
    REFIT_SUPPLY_MEMBER,
    REFIT_SUPPLY_ORIGIN,
    REFIT_SUPPLY_NOBODY, /* the origin is lost, and so are all members */
};

struct refit_supply_answer {
    enum refit_supply_from from;
    uint32_t member; /* of REFIT_SUPPLY_MEMBER */
    bool excess;     /* the origin is asked although it is another member's turn */
};

struct refit_supply_config {
    const char *const *domains; /* by member, in the order the lead gave; any texts */
    uint32_t members;           /* 0: no fleet, the origin is always asked */
    uint32_t self;
    const uint32_t *batch_bytes; /* by batch, in plan order: the same on all members */
    uint64_t batches;
};

struct refit_supply;

/* Nothing of the config is kept. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_supply_create(const struct refit_supply_config *config,
                                                       struct refit_supply **out, struct refit_error *err);
void refit_supply_destroy(struct refit_supply *supply); /* NULL is fine */

/* `usable` by member (that of self is not looked at). `origin`: the origin can be asked for this batch. */
struct refit_supply_answer refit_supply_choose(const struct refit_supply *supply, uint64_t batch, const bool *usable,
                                               bool origin);
bool refit_supply_same_domain(const struct refit_supply *supply, uint32_t member);
/* The member whose turn it is to ask the origin for this batch. */
uint32_t refit_supply_home_seed(const struct refit_supply *supply, uint64_t batch);

/* Among several holders of the same bytes: the one that owes least relative to what it delivered. */
struct refit_supply_load {
    uint32_t owed;
    uint64_t delivered; /* bytes */
};
/* True when `a` should be asked before `b`. `batch_bytes` keeps the first few batches from deciding everything. */
bool refit_supply_before(struct refit_supply_load a, struct refit_supply_load b, uint32_t batch_bytes);

#endif
