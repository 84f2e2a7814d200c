/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `local`, shared by the endpoint that listens (local_receiver.c) and the one whose sources are in
 * this process (local_source.c).
 *
 *   post -> ticket -> GRANT: the holder digests what it holds (or packs it into a ring slot), and meanwhile
 *                     a worker copies from the holder's memory into the arena, digesting
 *   both done -> the digests are compared -> completion
 */
#ifndef REFIT_TRANSPORT_LOCAL_RECEIVER_H
#define REFIT_TRANSPORT_LOCAL_RECEIVER_H

#include "transport/grants.h"
#include "transport/listener.h"
#include "transport/local.h"
#include "transport/local_supply.h"
#include "transport/rate.h"

#define REFIT_LOCAL_TICKETS_MAX (REFIT_STREAMS_MAX * REFIT_GRANTS_PER_STREAM)

/* A holder's connection; without a socket when its memory is in this process. */
struct refit_local_flow {
    int fd; /* -1: in this process */
    struct refit_local_receiver *receiver;
    struct refit_peer *peer; /* peer->owner is the flow in use; NULL until ready */
    uint32_t rank;
    struct refit_local_supply *supply;
    uint32_t slots_used; /* of the ring, a bit each */
    bool ready;          /* its pieces are bound; grants may go out */
    bool said_goodbye;
    struct refit_local_flow *next; /* all of the receiver's */
};

enum refit_ticket_state {
    REFIT_TICKET_FREE,
    REFIT_TICKET_QUEUED,  /* for a worker */
    REFIT_TICKET_RUNNING, /* on a worker */
    REFIT_TICKET_WAITING, /* for the holder's digests */
};

struct refit_ticket {
    enum refit_ticket_state state;
    struct refit_grant grant;
    struct refit_local_flow *flow; /* NULL: lost meanwhile */
    struct refit_local_supply *supply;
    int slot;     /* of the ring; -1: pulled from the holder's memory */
    bool copied;
    enum refit_status status; /* of the copy */
    struct refit_segments segments;
    size_t expected, answered; /* digests of the holder */
    bool answer_due;           /* a verified or ring batch whose digests are not complete yet */
    uint8_t *digests;          /* owned */
    size_t digest_capacity;
    struct refit_ticket *next; /* in the run queue */
};

struct refit_local_receiver {
    struct refit_endpoint base;
    struct refit_gate gate;
    struct refit_grants grants;
    struct refit_rate rate;
    struct refit_ticket tickets[REFIT_LOCAL_TICKETS_MAX];
    unsigned ticket_count, tickets_free;
    struct refit_ticket *run_first, *run_last;
    struct refit_peer *turn; /* whose queue is looked at next */
    pthread_cond_t work;
    pthread_t workers[REFIT_STREAMS_MAX];
    unsigned worker_count;
    struct refit_local_flow *flows;
    int epoll; /* -1: no holder connects */
    pthread_t events;
    bool has_events;
    pthread_mutex_t abort_lock;
    bool aborted;
};

/* local_work.c; with the ledger's lock held, except refit_local_worker. */
void refit_local_dispatch(struct refit_local_receiver *receiver);
/* Digests of the holder for the ticket; REFIT_PEER when they are not what was asked for. */
enum refit_status refit_local_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err);
void refit_local_flow_lost(struct refit_local_flow *flow);
void *refit_local_worker(void *receiver);

/* local_receiver.c */
enum refit_status refit_local_receiver_create(const struct refit_endpoint_config *config,
                                              struct refit_local_receiver **out, struct refit_error *err);
/* A connection, or a source in this process (fd -1). Takes `supply`, not the fd. NULL when out of memory. */
struct refit_local_flow *refit_local_flow_create(struct refit_local_receiver *receiver, int fd, uint32_t rank,
                                                 struct refit_local_supply *supply);

#endif
