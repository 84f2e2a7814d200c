/* SPDX-License-Identifier: Apache-2.0
 *
 * One refit: what was asked, how far it is, and the thread that drives it (session_run.c, session_transfer.c).
 *
 * A session is reference-counted: the receiver's history holds one reference, its thread another. What changes is
 * guarded by the receiver's lock, except `cancel`, which the thread and the bank poll. Other threads never touch what
 * the thread works with (endpoint, slot, plan): they set `cancel`, and the thread unwinds.
 */
#ifndef REFIT_RECEIVER_SESSION_H
#define REFIT_RECEIVER_SESSION_H

#include <pthread.h>

#include "receiver/fleet.h"
#include "receiver/receiver.h"
#include "receiver/relay.h"

struct refit_session {
    /* fixed once started */
    struct refit_receiver *receiver; /* borrowed: it outlives the thread */
    struct refit_request request;
    char id[REFIT_REFIT_ID_MAX];
    uint8_t token[REFIT_TOKEN_BYTES];
    bool keeps;                      /* takes request.unchanged from the version that is served */
    struct refit_layout *source;     /* owned; NULL: the checkpoint's, opened by the thread */
    struct refit_deadline deadline;
    bool has_predecessor;
    pthread_t predecessor;           /* joined first: one refit at a time touches the bank */

    atomic_uint references;
    atomic_bool cancel;

    /* under the receiver's lock */
    struct refit_error why;          /* of cancel */
    bool superseded;
    bool tainted; /* an engine may still write into its slot: the error of its steps says which */
    bool commit_asked;
    enum refit_phase phase, failed_in;
    struct refit_error error;
    char digest[REFIT_SHA256_HEX_MAX];
    const struct refit_tally *tally; /* of what landed, while it is staged; the thread's own */
    uint64_t bytes_due, bytes_done;
    struct refit_supplied supplied;
    uint32_t holder_count;
    struct refit_holder_view holders[REFIT_HOLDERS_SHOWN];
    struct refit_relay *relay;       /* while it runs, to be looked at; the thread's own */
    struct refit_endpoint_stats stats;
    int64_t phase_ns[REFIT_PHASE_COUNT];
    int64_t phase_since_ns;
    struct refit_bank_waiting waiting;
    uint64_t sequence;
};

/* One reference; phase requested. `source` is retained (NULL for a checkpoint). NULL when out of memory. */
struct refit_session *refit_session_create(struct refit_receiver *receiver, const struct refit_request *request,
                                           struct refit_layout *source);
struct refit_session *refit_session_retain(struct refit_session *session);
void refit_session_release(struct refit_session *session);

/* Starts the thread (with a reference of its own), which joins the predecessor first. */
REFIT_MUST_CHECK enum refit_status refit_session_start(struct refit_session *session, pthread_t *thread,
                                                       struct refit_error *err);

/* --- under the receiver's lock --- */
bool refit_session_is_finished(const struct refit_session *session);
/* Before staged: a newer publish may take its place. */
bool refit_session_is_early(const struct refit_session *session);
void refit_session_set_phase(struct refit_session *session, enum refit_phase phase);
/* The first reason stays. Nothing happens to a session that is finished or committing. */
__attribute__((format(printf, 3, 4)))
void refit_session_cancel(struct refit_session *session, enum refit_status status, const char *format, ...);
void refit_session_snapshot(const struct refit_session *session, struct refit_session_snapshot *out);

/* --- by its thread, taking the lock --- */
/* The next phase, unless the refit was cancelled or its deadline has passed. */
REFIT_MUST_CHECK enum refit_status refit_session_enter(struct refit_session *session, enum refit_phase phase,
                                                       struct refit_error *err);
/* REFIT_ABORTED with the reason, or REFIT_TIMEOUT. */
REFIT_MUST_CHECK enum refit_status refit_session_check(struct refit_session *session, struct refit_error *err);

#endif
