/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of a plan's batches: one bit each. Thread-safe; what was written before a batch was added is seen by who finds
 * it in the set.
 */
#ifndef REFIT_TRANSPORT_BATCH_SET_H
#define REFIT_TRANSPORT_BATCH_SET_H

#include <stdbool.h>

#include "layouts/plan.h"

struct refit_batch_set;

/* Empty; new. NULL when out of memory. Borrows the plan. */
struct refit_batch_set *refit_batch_set_create(const struct refit_plan *plan);
void refit_batch_set_destroy(struct refit_batch_set *set); /* NULL is fine */
/* True when the batch was not in the set. `edge` is of the plan or of one that has the same edge; batch <
 * edge->batches. An edge that the plan lacks is never in the set. */
bool refit_batch_set_add(struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch);
bool refit_batch_set_has(const struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch);
void refit_batch_set_fill(struct refit_batch_set *set);

#endif
