/* SPDX-License-Identifier: Apache-2.0
 *
 * The transfer of one refit: every batch of its plan, asked of whoever should send it, until each has landed.
 */
#ifndef REFIT_RECEIVER_SESSION_TRANSFER_H
#define REFIT_RECEIVER_SESSION_TRANSFER_H

#include "receiver/holders.h"
#include "receiver/session.h"

struct refit_transfer {
    struct refit_session *session;
    const struct refit_plan *plan;
    const struct refit_fleet *fleet; /* NULL: none */
    const struct refit_landed *landed; /* what had landed before is not asked for */
    struct refit_inbox *inbox;       /* of all paths */
    struct refit_path path[REFIT_PATHS_MAX];
    size_t paths;
};
REFIT_MUST_CHECK enum refit_status refit_transfer_run(const struct refit_transfer *transfer, struct refit_error *err);

/* How many holders an endpoint of this refit must know numbers for. */
uint32_t refit_transfer_holders(const struct refit_plan *plan, const struct refit_fleet *fleet);

#endif
