/* SPDX-License-Identifier: Apache-2.0
 *
 * Did the source keep still? Digests again what a rank sent and counted, and compares with the tally made while
 * sending: a trainer that wrote in between is caught, with the tensor named.
 */
#ifndef REFIT_SENDER_CHECK_H
#define REFIT_SENDER_CHECK_H

#include "layouts/plan.h"
#include "layouts/tally.h"
#include "memory/arena.h"

/* REFIT_CORRUPT: changed. `plan` is the rank's own, `sent` by its destination's tensor ids. */
REFIT_MUST_CHECK enum refit_status refit_check_source(const struct refit_plan *plan, const struct refit_arena *arena,
                                                      const struct refit_tally *sent, struct refit_error *err);

#endif
