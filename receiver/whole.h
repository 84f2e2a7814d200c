/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be served from a slot that is being filled, to a receiver with another layout: its batches are not those
 * that land here, so one may be served once every tensor that it touches is whole here. Follows the batches that land
 * under one plan and marks those of another. A thread of its own.
 */
#ifndef REFIT_RECEIVER_WHOLE_H
#define REFIT_RECEIVER_WHOLE_H

#include "transport/landed.h"

struct refit_whole;

/* `filling` is the plan by which the slot is filled (destination side), `landed` what has landed of it, `serving` the
 * plan from this layout to the receiver's (source side). All retained. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_whole_start(struct refit_plan *filling, struct refit_landed *landed,
                                                     struct refit_plan *serving, struct refit_whole **out,
                                                     struct refit_error *err);
/* Batches of `serving`; borrowed. */
struct refit_landed *refit_whole_landed(const struct refit_whole *whole);
void refit_whole_stop(struct refit_whole *whole); /* NULL is fine */

#endif
