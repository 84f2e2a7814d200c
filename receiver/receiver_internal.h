/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the receiver share. One lock guards everything that changes, sessions included; `changed` wakes
 * whoever waits for a session or a rollback to move. Under it no document is parsed, no plan built, no file written and
 * nothing of the bank's waited for: probes take it.
 */
#ifndef REFIT_RECEIVER_RECEIVER_INTERNAL_H
#define REFIT_RECEIVER_RECEIVER_INTERNAL_H

#include <pthread.h>

#include "receiver/kept.h"
#include "receiver/leads.h"
#include "receiver/plans.h"
#include "receiver/proofs.h"
#include "receiver/quarantine.h"
#include "receiver/serve.h"
#include "receiver/session.h"
#include "receiver/sources.h"

#define REFIT_SESSIONS_MAX 32
/* Superseded refits whose threads are still unwinding; a storm of publishes is answered REFIT_BUSY past this. */
#define REFIT_UNFINISHED_MAX 8

/* The slot that a refit fills, for those who want to be served from it. */
struct refit_filling {
    uint64_t version;
    uint32_t slot;
    struct refit_plan *plan;     /* borrowed, as the next; NULL: none */
    struct refit_landed *landed;
};

struct refit_receiver {
    struct refit_receiver_config config; /* of its strings only checkpoint_root is used after opening */
    char *checkpoint_root;               /* owned */
    char instance[REFIT_INSTANCE_MAX];
    struct refit_bank *bank;
    struct refit_listener *listener;

    pthread_mutex_t saving; /* taken before the lock: the last state copied is the last one written */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    void (*notify)(void *context);
    void *notify_context;

    struct refit_leads leads;
    bool held;
    uint64_t rolled_to; /* what a rollback with hold went back to, until the release; 0: none did */
    bool rolling; /* a rollback is under way: no commit starts */
    struct refit_quarantine quarantine;
    struct refit_proofs proofs;
    struct refit_sources sources;
    struct refit_plans plans;
    char covered[REFIT_SHA256_HEX_MAX]; /* digest of the layout whose coverage is proved */

    struct refit_filling filling;
    struct refit_kept kept;
    struct refit_serves serves;

    bool closing;
    struct refit_session *sessions[REFIT_SESSIONS_MAX]; /* owned references, the latest first */
    uint32_t session_count;
    uint32_t unfinished;
    bool thread_started; /* of the latest session: joined by its successor, or by close */
    pthread_t thread;

    uint64_t committed, aborted, superseded, bytes_landed;
    uint64_t aborted_by[16];
    struct refit_supplied supplied;
};

void refit_receiver_lock(struct refit_receiver *receiver);
void refit_receiver_unlock(struct refit_receiver *receiver);
/* Something changed: wakes waiters and tells the owner. Not under the lock. */
void refit_receiver_changed(struct refit_receiver *receiver);
/* False: the deadline passed. Under the lock. */
bool refit_receiver_wait(struct refit_receiver *receiver, struct refit_deadline deadline);

/* What the state file keeps of the receiver. */
struct refit_record {
    uint64_t epoch;
    char lead[REFIT_LEAD_NAME_MAX];
    bool held;
    uint64_t rolled_to;
    struct refit_quarantine quarantine;
    struct refit_proofs proofs;
};
void refit_record_copy(const struct refit_receiver *receiver, struct refit_record *out); /* under the lock */
/* Blocks for an fsync. With `saving` held and without the lock. */
REFIT_MUST_CHECK enum refit_status refit_record_write(struct refit_receiver *receiver,
                                                      const struct refit_record *record, struct refit_error *err);
/* Writes what is the case now. Takes both locks itself. */
REFIT_MUST_CHECK enum refit_status refit_record_save(struct refit_receiver *receiver, struct refit_error *err);
void refit_record_load(struct refit_receiver *receiver);

/* The plan of the whole replica, from the cache or new; retained for the caller. Takes the lock itself. */
REFIT_MUST_CHECK enum refit_status refit_receiver_plan_for(struct refit_receiver *receiver, struct refit_layout *source,
                                                           struct refit_layout *destination, struct refit_plan **out,
                                                           struct refit_error *err);
/* The proof of refit_coverage_check, made once per layout. Takes the lock itself. */
REFIT_MUST_CHECK enum refit_status refit_receiver_prove(struct refit_receiver *receiver,
                                                        const struct refit_layout *destination,
                                                        struct refit_error *err);

/* After a swap that moved bytes: what is known of slots is known of others now. Without the lock. */
void refit_receiver_follow_slots(struct refit_receiver *receiver);

#endif
