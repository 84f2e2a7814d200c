/* SPDX-License-Identifier: Apache-2.0
 *
 * A receiver's ledger: what was posted, whom it waits for, what has ended. Shared by `tcp` and `local`.
 *
 *   post -> queue of the source rank -> granted on one of its connections -> completion -> poll
 *
 * Every function but init, release and poll needs refit_grants.lock held.
 */
#ifndef REFIT_TRANSPORT_GRANTS_H
#define REFIT_TRANSPORT_GRANTS_H

#include "memory/ops.h"
#include "transport/batch_set.h"
#include "transport/endpoint.h"

#define REFIT_QUEUE_MAX 16 /* posted batches of one source rank that are not granted yet */

struct refit_grant {
    const struct refit_edge *edge;
    uint32_t batch;
};

/* A source rank. */
struct refit_peer {
    uint32_t rank;
    unsigned connections;
    struct refit_grant queue[REFIT_QUEUE_MAX]; /* a ring */
    unsigned queue_first, queue_count;
    char lost[256]; /* why its last connection ended; empty: never had one */
    void *owner;    /* the transport's */
    struct refit_peer *next;
};

struct refit_grants {
    pthread_mutex_t lock;
    pthread_cond_t event;
    const struct refit_endpoint_config *config;
    struct refit_peer **by_rank; /* NULL: never connected */
    uint32_t ranks;
    struct refit_peer *peers;
    struct refit_transfer_completion *ended; /* a ring */
    size_t ended_first, ended_count, ended_capacity;
    size_t outstanding; /* posted and not ended */
    bool news;          /* a holder came or went since the last poll */
    bool stopped, finished;
    struct refit_batch_set *landed; /* tallied */
};

enum refit_status refit_grants_init(struct refit_grants *grants, const struct refit_endpoint_config *config,
                                    struct refit_error *err);
void refit_grants_release(struct refit_grants *grants);

/* The source rank's peer, made on first use; NULL when out of memory. rank < grants->ranks. */
struct refit_peer *refit_grants_peer(struct refit_grants *grants, uint32_t rank);
void refit_peer_joined(struct refit_grants *grants, struct refit_peer *peer);
/* One connection fewer; without any left, what is queued ends with REFIT_PEER. */
void refit_peer_left(struct refit_grants *grants, struct refit_peer *peer, const char *why);

/* Checks and queues; *peer is where it waits. */
enum refit_status refit_grants_post(struct refit_grants *grants, const struct refit_edge *edge, uint32_t batch,
                                    struct refit_peer **peer, struct refit_error *err);
bool refit_peer_next(struct refit_peer *peer, struct refit_grant *out);
void refit_grants_end(struct refit_grants *grants, struct refit_grant grant, enum refit_status status);
/* The batch has landed and is verified: adds its counted segments to the tally, once. Needs no lock. */
void refit_grants_tally(struct refit_grants *grants, struct refit_grant grant, const struct refit_segments *segments);

enum refit_status refit_grants_poll(struct refit_grants *grants, struct refit_transfer_completion *out, size_t max,
                                    size_t *count, struct refit_deadline deadline, struct refit_error *err);
/* Wakes poll for good. */
void refit_grants_stop(struct refit_grants *grants);
/* Waits until no connection is left, for finish. */
enum refit_status refit_grants_wait_empty(struct refit_grants *grants, struct refit_deadline deadline,
                                          struct refit_error *err);

#endif
