/* SPDX-License-Identifier: Apache-2.0
 *
 * Did all replicas get the same bytes, and those that the trainer has? A source that is written during the publish can give
 * each replica whole, verified, different bytes. Digests of what landed tell, whichever way the bytes came; tallies of what
 * was sent name the tensor, where they are known to be of exactly what landed.
 *
 * Digests are comparable between whole replicas, and between equal parts of replicas that span pods. Those of tensors
 * are sums over the parts, so the digests of a replica's pods add up to one that is comparable with a whole replica's.
 * Call with the lead's lock held.
 */
#ifndef REFIT_SENDER_AGREE_H
#define REFIT_SENDER_AGREE_H

#include "sender/replica.h"

/* All pods of the unit are staged: what they have together is unit->model, where each has told its share.
 * REFIT_CORRUPT: not what another replica has. */
REFIT_MUST_CHECK enum refit_status refit_agree_pods(struct refit_unit *unit, struct refit_error *err);
/* Among those that are staged. REFIT_CORRUPT names two replicas, and the tensor if it is known. */
REFIT_MUST_CHECK enum refit_status refit_agree_all(const struct refit_lead *lead, struct refit_error *err);
/* One that comes after the others were let go. */
REFIT_MUST_CHECK enum refit_status refit_agree_one(const struct refit_replica *replica, struct refit_error *err);

/* What one replica's ranks sent and have, against what landed there. With relays they sent a part only, and the whole class is
 * looked at in refit_agree_all. */
REFIT_MUST_CHECK enum refit_status refit_agree_with_ranks(struct refit_replica *replica, bool checked,
                                                          struct refit_error *err);

#endif
