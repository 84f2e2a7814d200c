/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of the last refits, by the digests of their two layouts: a trainer that publishes every step is planned once.
 * Bounded by count and by heap. Not thread-safe: the receiver's lock guards it.
 */
#ifndef REFIT_RECEIVER_PLANS_H
#define REFIT_RECEIVER_PLANS_H

#include "layouts/plan.h"

#define REFIT_PLANS_MAX 2
#define REFIT_PLANS_MEMORY_MAX (24u << 20) /* bytes; the newest one is kept whatever its size */

struct refit_plans {
    struct refit_plan *items[REFIT_PLANS_MAX]; /* owned; the latest used first */
    size_t count;
    uint64_t hits, misses;
};

/* Retained for the caller; NULL: not here. Counts a hit or a miss. */
struct refit_plan *refit_plans_find(struct refit_plans *plans, const char *source, const char *destination);
/* Retains `plan`. */
void refit_plans_put(struct refit_plans *plans, struct refit_plan *plan);
void refit_plans_clear(struct refit_plans *plans);

#endif
