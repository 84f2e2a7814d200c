/* SPDX-License-Identifier: Apache-2.0
 *
 * Small layout documents written out in tests of the planner, and plans of them.
 */
#ifndef REFIT_TESTS_LAYOUTS_PLAN_TEXTS_H
#define REFIT_TESTS_LAYOUTS_PLAN_TEXTS_H

#include "layouts/plan.h"

#define MESH2(ranks, a, n, b, m) \
    "{\"format\":\"refit-layout/1\",\"ranks\":" #ranks ",\"meshes\":{\"m\":{\"axes\":[\"" a "\",\"" b \
    "\"],\"shape\":[" #n "," #m "]}},\"entries\":["
#define WEIGHT(name, shape, placements) \
    "{\"tensor\":\"" name "\",\"dtype\":\"F32\",\"shape\":" shape ",\"mesh\":\"m\",\"placements\":[" placements "]}"
#define R "\"Replicate\""
#define S0 "\"Shard(0)\""
#define S1 "\"Shard(1)\""

/* New; fails the test, with the error printed, when it can't. */
struct refit_layout *parse(const char *text);
/* For these destination ranks (count 0: all), of REFIT_DESTINATION scope; new, as above. */
struct refit_plan *plan_of(struct refit_layout *source, struct refit_layout *destination, uint32_t first,
                           uint32_t count);
/* Edge number `at` of a plan that has `expected` edges. */
const struct refit_edge *edge_at(const struct refit_plan *plan, size_t at, size_t expected);
struct refit_group takers_of(const struct refit_plan *plan, const struct refit_edge *edge);
struct refit_group senders_of(const struct refit_plan *plan, const struct refit_edge *edge);

#endif
