/* SPDX-License-Identifier: Apache-2.0
 *
 * A transfer under way, for the files that look at it. The refit's thread only.
 */
#ifndef REFIT_RECEIVER_PROGRESS_H
#define REFIT_RECEIVER_PROGRESS_H

#include "receiver/batches.h"
#include "receiver/session_transfer.h"
#include "receiver/supply.h"

struct refit_progress {
    const struct refit_transfer *transfer;
    struct refit_batches batches;
    struct refit_holders holders;
    struct refit_supply *supply;
    uint32_t groups, nobody;   /* targets: members, then source groups, then nobody */
    bool *alternatives;        /* by source rank */
    bool *origin;              /* by source group: can be asked */
    bool *lacks;               /* by serving replica and group: it has not these boxes */
    uint64_t bytes_done, bytes_told;
    struct refit_supplied supplied;
    int64_t told_ns, landed_ns;
};

static inline struct refit_group refit_progress_group(const struct refit_progress *progress, uint32_t group)
{
    return refit_plan_group(progress->transfer->plan, REFIT_SOURCE, group);
}

/* --- progress.c: whom to blame --- */
/* The deadline has passed: REFIT_TIMEOUT that names source ranks, and a member that owes. */
enum refit_status refit_progress_explain(const struct refit_progress *progress, struct refit_error *err);
/* REFIT_PEER: the origin is lost for good, and members have not what is missing, or do not send it. */
REFIT_MUST_CHECK enum refit_status refit_progress_check(const struct refit_progress *progress, struct refit_error *err);

#endif
