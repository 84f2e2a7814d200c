/* SPDX-License-Identifier: Apache-2.0
 *
 * The holding end of any transport: its operations, a ledger of what it tallied and how its connections ended, and the
 * loop that serves one connection: grants in, batches out, signs of life between. A transport adds how it dials.
 */
#ifndef REFIT_TRANSPORT_HOLDING_H
#define REFIT_TRANSPORT_HOLDING_H

#include "transport/batch_set.h"
#include "transport/endpoint.h"
#include "transport/rate.h"
#include "transport/stream.h"
#include "transport/fair.h"
#include "transport/view.h"

struct refit_holding;

/* What a transport adds. `threads_lock` is held in dial and reap, `lock` in none. */
struct refit_holding_kind {
    /* Starts its threads (refit_holding_began). What an error leaves is hung up and reaped. */
    enum refit_status (*dial)(struct refit_holding *holding, const json_t *card, struct refit_deadline deadline,
                              struct refit_error *err);
    void (*hang_up)(struct refit_holding *holding); /* from any thread; NULL: the wake descriptor is enough */
    void (*reap)(struct refit_holding *holding);    /* joins threads that have ended or are about to */
    void (*release)(struct refit_holding *holding); /* all that is its own; NULL: nothing */
};

/* The first member of every holder. */
struct refit_holding {
    struct refit_endpoint base;
    const struct refit_holding_kind *kind;
    struct refit_view view;
    struct refit_rate rate;
    pthread_mutex_t threads_lock; /* starting and joining threads; taken before `lock` */
    pthread_mutex_t lock;
    pthread_cond_t event;
    unsigned running;             /* connections being served */
    bool connected, done, stopped;
    struct refit_error why;       /* of the first connection that ended badly */
    struct refit_batch_set *sent; /* tallied */
    struct refit_fair_member member;
};

/* `holding` is the first member of heap memory, all zeros but for what `kind` needs; closing frees it. After an error
 * there is nothing to close, and it is the caller's still. */
REFIT_MUST_CHECK enum refit_status refit_holding_open(struct refit_holding *holding,
                                                      const struct refit_holding_kind *kind,
                                                      const struct refit_endpoint_config *config,
                                                      struct refit_error *err);
/* With the lock held, before a connection's thread starts: REFIT_ABORTED once stopped. */
enum refit_status refit_holding_began(struct refit_holding *holding, struct refit_error *err);
/* By a connection's thread as its last act. */
void refit_holding_ended(struct refit_holding *holding, enum refit_status status, const struct refit_error *why);

/* ---- one connection ---- */

struct refit_owed {
    struct refit_frame grant;
    const struct refit_edge *edge; /* of the holder's plan */
};

struct refit_serving {
    struct refit_holding *holding;
    struct refit_stream *stream; /* borrowed; of bytes or of packets, a frame is a frame */
    /* Sends the batch, and leaves its segments there. */
    enum refit_status (*send)(struct refit_serving *serving, const struct refit_owed *owed, struct refit_error *err);
    const struct refit_segments *segments;
    int news; /* eventfd: batches have landed, or it is our turn; -1: neither is waited for */
    struct refit_fair_place place;
    struct refit_owed owed[REFIT_OWED_MAX]; /* in the order in which they came */
    unsigned owed_count;
    bool done; /* the receiver needs no more */
    struct refit_frame frame; /* being read */
    size_t have;
};

/* The life of a connection, on its thread. REFIT_OK: the receiver needs no more. */
enum refit_status refit_serving_run(struct refit_serving *serving, struct refit_error *err);
/* Waits for the rate limit, with signs of life. Between frames only. */
REFIT_MUST_CHECK enum refit_status refit_serving_pace(struct refit_serving *serving, uint64_t bytes,
                                                      struct refit_error *err);

#endif
