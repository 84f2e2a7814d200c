/* SPDX-License-Identifier: Apache-2.0
 *
 * A sender: every rank's server and member's end; on rank 0 the lead as well. (Internal to sender.c and publish.c.)
 */
#ifndef REFIT_SENDER_SENDER_INTERNAL_H
#define REFIT_SENDER_SENDER_INTERNAL_H

#include <refit/sender.h>

#include "checkpoint/checkpoint.h"
#include "sender/credentials.h"
#include "sender/lead.h"
#include "sender/plan_cache.h"
#include "sender/ranks.h"
#include "sender/report.h"
#include "sender/serve.h"
#include "sender/source.h"
#include "sender/trust.h"

struct refit_sender {
    uint32_t rank, ranks;
    int64_t connect_timeout_ms;
    struct refit_server *server;
    struct refit_ranks *member;     /* this rank's end */
    struct refit_lead *lead;        /* rank 0 */
    struct refit_trust trust; /* between ranks; its TLS is owned */
    struct refit_credentials *credentials; /* shown to replicas; by ranks other than 0 for bulk bytes only */
    struct refit_ranks *lead_ranks; /* rank 0: the lead's end */
    uint64_t turn;                  /* calls that all ranks make together, so far */
    struct refit_shared *shared;
    struct refit_layout *layout;    /* the mesh's; NULL: nothing is registered */
    struct refit_plan_cache *plans;
    struct refit_arena *arena;
    struct refit_checkpoint *checkpoint;
    bool gathers; /* a callback fills the tensors */
    /* The publish under way: */
    bool publishing;
    bool freed;
    struct refit_deadline deadline;
    refit_progress_fn progress;
    void *progress_context;
    struct refit_replica_progress *progress_items;
    struct refit_report_store report;
};

/* A collective step: every rank hands in an outcome and gets the lead's, which is the first error or what `decide` makes of
 * all. See sender.c. */
typedef enum refit_status (*refit_decide_fn)(struct refit_sender *sender, const struct refit_buf *bodies, void *context,
                                             const void **answer, size_t *len, struct refit_error *err);
struct refit_step {
    enum refit_message said, answered;
    refit_decide_fn decide; /* on rank 0; may be NULL */
    void *context;
};
/* Before the first step of a call. */
void refit_sender_next_turn(struct refit_sender *sender);
/* `mine` is this rank's part. *answer is new (refit_buf_release), also on an error. */
REFIT_MUST_CHECK enum refit_status refit_sender_step(struct refit_sender *sender, const struct refit_step *step,
                                                     const struct refit_error *mine, const void *body, size_t len,
                                                     struct refit_deadline deadline, struct refit_buf *answer,
                                                     struct refit_error *err);

#endif
