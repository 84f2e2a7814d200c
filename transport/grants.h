/* SPDX-License-Identifier: Apache-2.0
 *
 * A receiver's ledger: what was posted, whom it waits for, what has ended. Shared by all transports.
 *
 *   post -> (queue of the holder ->) granted on one of its connections -> completion in the inbox
 *
 * Every function but init, release and landed needs refit_grants.lock held.
 */
#ifndef REFIT_TRANSPORT_GRANTS_H
#define REFIT_TRANSPORT_GRANTS_H

#include "memory/ops.h"
#include "transport/batch_set.h"
#include "transport/endpoint.h"

struct refit_grant {
    const struct refit_edge *edge; /* of the receiver's plan */
    uint32_t batch;
};

/* A holder, by its number. */
struct refit_peer {
    uint32_t number;
    unsigned connections;
    uint32_t owed;     /* posted and not completed */
    uint64_t *offered; /* owned: a bit per edge of the receiver's plan */
    struct refit_grant queue[REFIT_QUEUE_MAX]; /* a ring: what no connection has room for */
    unsigned queue_first, queue_count;
    uint64_t payload_bytes; /* landed */
    int64_t heard_ns;       /* on connections that are gone */
    char lost[256]; /* why its last connection ended; empty: never had one */
    void *flows;    /* the transport's connections */
    struct refit_peer *next;
};

struct refit_grants {
    pthread_mutex_t lock;
    pthread_cond_t event; /* a connection ended, or what it was doing */
    const struct refit_endpoint_config *config;
    struct refit_peer **by_number; /* NULL: never connected */
    struct refit_peer *peers;
    size_t edge_count;
    bool stopped, finished;
    struct refit_batch_set *landed; /* where the config has no refit_landed */
};

enum refit_status refit_grants_init(struct refit_grants *grants, const struct refit_endpoint_config *config,
                                    struct refit_error *err);
void refit_grants_release(struct refit_grants *grants);

/* The holder's peer, made on first use; NULL when out of memory. number < config->holder. */
struct refit_peer *refit_grants_peer(struct refit_grants *grants, uint32_t number);
/* What it offers on a connection: those of `count` digests (u64 each) that the plan has. */
void refit_peer_offers(struct refit_grants *grants, struct refit_peer *peer, const uint8_t *digests, uint32_t count);
void refit_peer_joined(struct refit_grants *grants, struct refit_peer *peer);
/* One connection fewer; without any left, what is queued ends with REFIT_PEER. */
void refit_peer_left(struct refit_grants *grants, struct refit_peer *peer, const char *why);

/* Checks and queues; *peer is where it waits. */
enum refit_status refit_grants_post(struct refit_grants *grants, uint32_t holder, const struct refit_edge *edge,
                                    uint32_t batch, struct refit_peer **peer, struct refit_error *err);
bool refit_peer_next(struct refit_peer *peer, struct refit_grant *out);
void refit_peer_clear_queue(struct refit_grants *grants, struct refit_peer *peer, enum refit_status status);
void refit_grants_end(struct refit_grants *grants, struct refit_peer *peer, struct refit_grant grant,
                      enum refit_status status);
/* The batch is verified in every place: marks it, and adds its counted segments to the tally, once. Needs no lock. */
void refit_grants_landed(struct refit_grants *grants, struct refit_grant grant, const struct refit_segments *segments);

/* Waits until no connection is left, for finish. */
enum refit_status refit_grants_wait_empty(struct refit_grants *grants, struct refit_deadline deadline,
                                          struct refit_error *err);

#endif
