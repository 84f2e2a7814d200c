/* SPDX-License-Identifier: Apache-2.0
 *
 * Did all replicas get the same bytes? A source that is written during the publish can give each replica whole,
 * verified, different bytes; their tallies tell. Call with the lead's lock held.
 */
#ifndef REFIT_SENDER_AGREE_H
#define REFIT_SENDER_AGREE_H

#include "sender/replica.h"

/* Among those whose tally is whole. REFIT_CORRUPT names two replicas and the tensor. */
REFIT_MUST_CHECK enum refit_status refit_agree_all(const struct refit_lead *lead, struct refit_error *err);
/* One that comes after the others were let go. */
REFIT_MUST_CHECK enum refit_status refit_agree_one(const struct refit_replica *replica, struct refit_error *err);

#endif
