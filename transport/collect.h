/* SPDX-License-Identifier: Apache-2.0
 *
 * Brings in every batch of a plan from the ranks of its source, and from nobody else: for who has no choice of holders.
 * (Refits choose: receiver/session_transfer.h.)
 */
#ifndef REFIT_TRANSPORT_COLLECT_H
#define REFIT_TRANSPORT_COLLECT_H

#include "transport/transport.h"

#define REFIT_COLLECT_PATHS_MAX 2

struct refit_collect_path {
    const struct refit_transport *transport;
    struct refit_endpoint *endpoint; /* of a receiver, holders numbered by source rank */
};

struct refit_collect {
    const struct refit_plan *plan; /* the receiver's */
    struct refit_inbox *inbox;     /* of all paths; room for all batches */
    struct refit_collect_path path[REFIT_COLLECT_PATHS_MAX];
    size_t paths;
    bool in_process;               /* holder 0 has all, and nobody dials (refit_local_open_source) */
    struct refit_deadline deadline;
    /* About every REFIT_COLLECT_SLICE_MS: go on? */
    enum refit_status (*check)(void *context, struct refit_error *err);
    /* May be NULL: a batch of so many bytes has landed. */
    void (*landed)(void *context, uint64_t bytes);
    void *context;
};
#define REFIT_COLLECT_SLICE_MS 50

/* Until every batch has landed, every rank that has part of them has dialled, and all have been told. A batch that did not
 * land is asked for again, at most four times; a rank that was lost has 10 s to dial again. REFIT_PEER and REFIT_TIMEOUT name
 * ranks. */
REFIT_MUST_CHECK enum refit_status refit_collect_run(const struct refit_collect *collect, struct refit_error *err);

/* How many batches the plan has. */
size_t refit_collect_batches(const struct refit_plan *plan);

#endif
