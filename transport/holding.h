/* SPDX-License-Identifier: Apache-2.0
 *
 * A holder's ledger: which batches it may serve and has tallied, and how its connections ended. Shared by `tcp` and
 * `local`.
 */
#ifndef REFIT_TRANSPORT_HOLDING_H
#define REFIT_TRANSPORT_HOLDING_H

#include "transport/batch_set.h"
#include "transport/endpoint.h"
#include "transport/frame.h"

struct refit_holding {
    struct refit_endpoint *endpoint;
    pthread_mutex_t threads_lock; /* starting and joining threads; taken before `lock` */
    pthread_mutex_t lock;
    pthread_cond_t event;
    unsigned running;             /* connections being served */
    bool connected, done, stopped;
    struct refit_error why;       /* of the first connection that ended badly */
    struct refit_batch_set *sent; /* tallied */
};

enum refit_status refit_holding_init(struct refit_holding *holding, struct refit_endpoint *endpoint,
                                     struct refit_error *err);
void refit_holding_release(struct refit_holding *holding);

/* The edge of a grant; REFIT_PEER when there is no such batch. */
enum refit_status refit_holding_find(const struct refit_holding *holding, const struct refit_frame *frame,
                                     const struct refit_edge **edge, struct refit_error *err);
void refit_holding_tally(struct refit_holding *holding, const struct refit_edge *edge, uint32_t batch,
                         const struct refit_segments *segments);

/* Before dialling: nothing may be running. */
enum refit_status refit_holding_reconnect(struct refit_holding *holding, struct refit_error *err);
/* With the lock held, before a connection's thread starts: REFIT_ABORTED once stopped. */
enum refit_status refit_holding_began(struct refit_holding *holding, struct refit_error *err);
/* By a connection's thread as its last act. */
void refit_holding_ended(struct refit_holding *holding, enum refit_status status, const struct refit_error *why);
enum refit_status refit_holding_wait(struct refit_holding *holding, struct refit_deadline deadline,
                                     struct refit_error *err);
void refit_holding_stop(struct refit_holding *holding);

#endif
