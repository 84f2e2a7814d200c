/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the bytes of a refit land, and from where they go on: the endpoints of its slot, and the relay to other
 * members. Owned by the refit's thread.
 */
#ifndef REFIT_RECEIVER_SESSION_LANDING_H
#define REFIT_RECEIVER_SESSION_LANDING_H

#include "checkpoint/checkpoint.h"
#include "receiver/session_transfer.h"
#include "transport/remote.h"

struct refit_landing_config {
    struct refit_session *session;
    struct refit_plan *plan; /* borrowed until leave, as the next */
    uint32_t slot;
    struct refit_tally *tally;
    struct refit_checkpoint *checkpoint; /* NULL: holders dial */
    struct refit_plan *source_plan;      /* of the checkpoint */
    const uint8_t *mask;                 /* tensors that are moved; others are copied from the slot served. NULL: all */
};

struct refit_landing {
    struct refit_landing_config config; /* session NULL: never opened */
    struct refit_landed *landed; /* set before open: what landed before */
    struct refit_inbox *inbox;
    struct refit_path path[REFIT_PATHS_MAX];
    size_t paths;
    struct refit_relay *relay; /* NULL: no other members */
    bool engaged; /* engines receive */
    struct refit_remote_engine engines[REFIT_REMOTE_ENGINES_MAX];
    bool tainted; /* after close: one may still write into the slot, */
    struct refit_error taint; /* as this says */
};

/* Opens the endpoints, fills what is constant, starts to serve others. Zeroed before but for `landed`; leave also
 * after a failure. */
REFIT_MUST_CHECK enum refit_status refit_landing_open(struct refit_landing *landing,
                                                      const struct refit_landing_config *config,
                                                      struct refit_error *err);
/* Until every batch has landed. */
REFIT_MUST_CHECK enum refit_status refit_landing_run(struct refit_landing *landing, struct refit_error *err);
/* Nothing lands any more; others are still served. */
void refit_landing_close(struct refit_landing *landing);
/* Members may still come. */
bool refit_landing_serves(const struct refit_landing *landing);
/* No new request to serve finds the slot by this refit. */
void refit_landing_withdraw(struct refit_landing *landing);
/* The relay ends: the slot may be given up. */
void refit_landing_leave(struct refit_landing *landing);

#endif
