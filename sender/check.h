/* SPDX-License-Identifier: Apache-2.0
 *
 * Did the source keep still? Digests again what a rank holds of a plan's edges: summed over the ranks it must be what
 * landed, else the trainer wrote in between. Of the ranks that hold the same boxes, the first one speaks for them.
 */
#ifndef REFIT_SENDER_CHECK_H
#define REFIT_SENDER_CHECK_H

#include "layouts/plan.h"
#include "layouts/tally.h"
#include "memory/arena.h"

/* `plan` is that of `rank` alone; adds to `again`, by the destination's tensor ids. */
REFIT_MUST_CHECK enum refit_status refit_check_source(const struct refit_plan *plan, uint32_t rank,
                                                      const struct refit_arena *arena, struct refit_tally *again,
                                                      struct refit_error *err);

#endif
