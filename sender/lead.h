/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank 0 as the lead: one follower thread per `refitd` takes it through its refit (follower.c); a conductor thread
 * waits for all of them, forms the fleet, tells the ranks when their memory is free, lets them commit as the policy says
 * (unit.c), and makes the report (conductor.c). They meet in two places only: before the requests, where the fleet is formed, and
 * before the commit. In both, whoever is ready waits a little for those that are not; one that is dead or stopped costs the
 * others that little.
 *
 * The members of a publish are those at its begin.
 */
#ifndef REFIT_SENDER_LEAD_H
#define REFIT_SENDER_LEAD_H

#include <pthread.h>

#include "layouts/layout.h"
#include "layouts/tally.h"
#include "sender/broadcast.h"
#include "sender/control.h"
#include "sender/members.h"
#include "sender/policy.h"
#include "sender/ranks.h"
#include "sender/report.h"

struct refit_lead;

struct refit_lead_config {
    uint32_t ranks;
    struct refit_members_config members;
    const char *name;      /* NULL: host name and process id */
    bool takeover;
    const char *transport; /* NULL or "auto", "tcp", "local", "nccl" */
    struct refit_credentials *credentials; /* borrowed */
};
REFIT_MUST_CHECK enum refit_status refit_lead_create(const struct refit_lead_config *config, struct refit_lead **out,
                                                     struct refit_error *err);
/* Ends what runs, aborts what is staged, resigns; before the ranks are closed. */
void refit_lead_end(struct refit_lead *lead);
/* After the ranks are closed. NULL is fine. */
void refit_lead_destroy(struct refit_lead *lead);

void refit_lead_set_ranks(struct refit_lead *lead, struct refit_ranks *ranks);
/* Retains. While no publish runs. `gathering` NULL: the ranks have registered memory. */
void refit_lead_set_source(struct refit_lead *lead, struct refit_layout *source, const struct refit_gathering *gathering);

/* This rank's memory is on GPUs, and so nccl is a way. While no publish runs. */
void refit_lead_set_device(struct refit_lead *lead, bool on_device);

/* Handlers of the ranks' messages. */
void refit_lead_on_served(struct refit_lead *lead, uint32_t rank, const void *body, size_t len);
void refit_lead_on_lost(struct refit_lead *lead, uint32_t rank, const struct refit_error *why);

enum refit_strategy { REFIT_STRATEGY_AUTO, REFIT_STRATEGY_RELAY, REFIT_STRATEGY_DIRECT, REFIT_STRATEGY_BROADCAST };

struct refit_lead_publish {
    uint64_t version;
    char label[64];
    char kv[16];
    struct refit_deadline deadline;
    int64_t deadline_ms; /* as asked for: requests that are repeated must be equal */
    bool check_source, stage_only;
    enum refit_strategy strategy;
    struct refit_policy policy;
    uint64_t unchanged_since;
    json_t *unchanged; /* names; NULL: none. The lead keeps it */
    bool resume;
};
/* Takes publish->unchanged, also on an error. Reads the membership and starts the conductor; it ends with FREE and REPORT
 * sent to every rank. */
REFIT_MUST_CHECK enum refit_status refit_lead_begin(struct refit_lead *lead, const struct refit_lead_publish *publish,
                                                    struct refit_error *err);
/* Makes the conductor end soon, by aborting what is not committed. */
void refit_lead_cancel(struct refit_lead *lead);
/* Joins the conductor of the publish that was begun; at once when there is none. */
void refit_lead_join(struct refit_lead *lead);
/* Members of the publish that was begun last. */
size_t refit_lead_replicas(const struct refit_lead *lead);
/* How far every replica is; `out` has room for all. Texts are borrowed, static or the lead's. */
void refit_lead_progress(struct refit_lead *lead, struct refit_replica_progress *out);

#endif
