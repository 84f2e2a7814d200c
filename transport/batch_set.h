/* SPDX-License-Identifier: Apache-2.0
 *
 * Which batches of a plan's edges an endpoint has tallied: one bit per batch, so that a batch that is sent twice
 * counts once.
 */
#ifndef REFIT_TRANSPORT_BATCH_SET_H
#define REFIT_TRANSPORT_BATCH_SET_H

#include <stdbool.h>

#include "layouts/plan.h"

struct refit_batch_set;

/* Empty; new. NULL when out of memory. Borrows the plan. */
struct refit_batch_set *refit_batch_set_create(const struct refit_plan *plan);
void refit_batch_set_destroy(struct refit_batch_set *set);
/* True when the batch was not in the set. Thread-safe. `edge` is one of refit_plan_edges, batch < edge->batches. */
bool refit_batch_set_add(struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch);

#endif
