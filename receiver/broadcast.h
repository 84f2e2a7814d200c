/* SPDX-License-Identifier: Apache-2.0
 *
 * A refit whose source broadcasts: the whole model comes, dense, bucket by bucket (layouts/dense.h), whatever this replica
 * wants of it. Each bucket lands in one of two buffers of our own and is scattered from there into the slot, while the
 * next one comes in. Every byte is sent to every replica, and nobody passes anything on: what planning saves is what this
 * does not; it is for sources whose layout can't be described, and to compare with.
 */
#ifndef REFIT_RECEIVER_BROADCAST_H
#define REFIT_RECEIVER_BROADCAST_H

#include "layouts/dense.h"
#include "receiver/session.h"

struct refit_broadcast_config {
    struct refit_session *session;
    struct refit_plan *plan; /* of the whole refit; its source is dense */
    uint32_t slot;
    struct refit_tally *tally;
};

/* Memory beside the slot, bytes. Errors as refit_buckets_create, and REFIT_MISMATCH when the lead counts other buckets. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_needs(const struct refit_session *session, uint64_t *bytes,
                                                         struct refit_error *err);
/* Until every bucket is in the slot, verified twice: where it landed, and on its way into the slot. On the refit's thread
 * and one more. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_run(const struct refit_broadcast_config *config,
                                                       struct refit_error *err);

#endif
