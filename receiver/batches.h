/* SPDX-License-Identifier: Apache-2.0
 *
 * The batches of a plan while they are brought in: what state each is in, and lists of those that are due, one list for
 * each target (whoever they are to be asked of). Numbered in plan order; 8 bytes each.
 */
#ifndef REFIT_RECEIVER_BATCHES_H
#define REFIT_RECEIVER_BATCHES_H

#include "layouts/plan.h"

enum refit_batch_state { REFIT_BATCH_DUE, REFIT_BATCH_GRANTED, REFIT_BATCH_DONE };

struct refit_batch {
    uint32_t next;  /* in its target's list */
    uint8_t state;  /* enum refit_batch_state */
    uint8_t grants; /* by the origin */
    bool direct;    /* a member delivered it broken: only the origin is asked */
    bool excess;    /* asked of the origin although it was another's turn */
};

struct refit_batch_list {
    uint32_t head, tail; /* REFIT_BATCH_NONE: empty */
    uint32_t count;
};
#define REFIT_BATCH_NONE UINT32_MAX

struct refit_batches {
    const struct refit_plan *plan; /* borrowed */
    const struct refit_edge *edges;
    size_t edge_count;
    uint32_t *first;  /* by edge: the number of its batch 0; one more entry: all */
    uint32_t total, left;
    struct refit_batch *items;
    uint32_t *order;  /* all numbers, edges side by side: that all sources work at once */
    struct refit_batch_list *lists;
    uint32_t targets;
};

REFIT_MUST_CHECK enum refit_status refit_batches_init(struct refit_batches *batches, const struct refit_plan *plan,
                                                      uint32_t targets, struct refit_error *err);
void refit_batches_release(struct refit_batches *batches);

/* *within is its number in its edge. */
const struct refit_edge *refit_batches_edge(const struct refit_batches *batches, uint32_t number, uint32_t *within);
/* REFIT_BATCH_NONE: the plan has no such batch. */
uint32_t refit_batches_number(const struct refit_batches *batches, uint64_t edge, uint32_t within);
uint64_t refit_batches_bytes(const struct refit_batches *batches, uint32_t number);

void refit_batches_clear(struct refit_batches *batches); /* all lists */
void refit_batches_append(struct refit_batches *batches, uint32_t target, uint32_t number);
void refit_batches_prepend(struct refit_batches *batches, uint32_t target, uint32_t number);
/* The list must not be empty. */
uint32_t refit_batches_pop(struct refit_batches *batches, uint32_t target);

#endif
