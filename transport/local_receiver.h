/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `local`, shared by the endpoint that listens (local_receiver.c) and the one whose sources are in
 * this process (local_source.c).
 *
 *   post -> ticket -> GRANT: the holder digests what it holds (or packs it into a ring slot), and meanwhile
 *                     a worker copies from the holder's memory into the arena, digesting
 *   both done -> the digests are compared -> completion
 *
 * A relay's batch and one that comes through the ring are copied after the holder's answer instead.
 */
#ifndef REFIT_TRANSPORT_LOCAL_RECEIVER_H
#define REFIT_TRANSPORT_LOCAL_RECEIVER_H

#include "transport/local.h"
#include "transport/local_supply.h"
#include "transport/receiving.h"

/* A holder's connection; without a socket when its memory is in this process. */
struct refit_local_flow {
    int fd; /* -1: in this process */
    struct refit_local_receiver *receiver;
    struct refit_peer *peer; /* peer->flows is the flow in use; NULL until ready */
    struct refit_local_supply *supply;
    uint32_t slots_used; /* of the ring, a bit each */
    unsigned tickets;    /* of this flow */
    bool ready;          /* its pieces are bound; grants may go out */
    bool said_goodbye;
    bool cut;    /* nothing new begins */
    bool reaped; /* its peer has forgotten it */
    int64_t heard_ns;
    struct refit_local_flow *next; /* all of the receiver's */
};

enum refit_ticket_state {
    REFIT_TICKET_QUEUED,  /* for a worker */
    REFIT_TICKET_RUNNING, /* on a worker */
    REFIT_TICKET_WAITING, /* for the holder's digests */
};

/* A batch that is being pulled. */
struct refit_ticket {
    enum refit_ticket_state state;
    struct refit_grant grant;
    struct refit_peer *peer;
    struct refit_local_flow *flow; /* NULL: lost meanwhile */
    struct refit_local_supply *supply;
    int slot;          /* of the ring; -1: pulled from the holder's memory */
    bool after_answer; /* copied only then */
    bool copied;
    enum refit_status status; /* of the copy */
    struct refit_segments segments;
    size_t expected, answered; /* digests of the holder */
    bool answer_due;           /* the holder owes digests, or the word that the ring slot is filled */
    uint8_t *digests;          /* owned */
    struct refit_ticket *next;     /* all of the receiver's */
    struct refit_ticket *next_run; /* in the run queue */
};

struct refit_local_receiver {
    struct refit_receiving base;
    struct refit_ticket *tickets;
    struct refit_ticket *run_first, *run_last;
    pthread_cond_t work;
    pthread_cond_t paced; /* a worker that waits for the rate limit looks again */
    pthread_t workers[REFIT_STREAMS_MAX];
    unsigned worker_count;
    struct refit_local_flow *flows;
    int epoll; /* -1: no holder connects */
    pthread_t events;
    bool has_events;
};

/* local_work.c; with the ledger's lock held, except refit_local_worker. */
void refit_local_dispatch(struct refit_receiving *receiving, struct refit_peer *peer);
/* Digests of the holder for the ticket; REFIT_PEER when they are not what was asked for. */
enum refit_status refit_local_answer(struct refit_local_flow *flow, const uint8_t *packet, size_t len,
                                     struct refit_error *err);
/* The flow's tickets end, now or when their worker is through with them. */
void refit_local_flow_lost(struct refit_local_flow *flow);
/* Of the peer: a lost ticket is being copied; the holder owes an answer; queued tickets that are lost end. */
bool refit_local_landing(const struct refit_receiving *receiving, const struct refit_peer *peer);
bool refit_local_answer_due(const struct refit_local_flow *flow);
void refit_local_end_lost(struct refit_local_receiver *receiver, struct refit_peer *peer, enum refit_status status);
void *refit_local_worker(void *receiver);

/* local_receiver.c */
enum refit_status refit_local_receiver_create(const struct refit_endpoint_config *config,
                                              struct refit_local_receiver **out, struct refit_error *err);
/* A connection, or a source in this process (fd -1). Takes `supply`, not the fd. NULL when out of memory. */
struct refit_local_flow *refit_local_flow_create(struct refit_local_receiver *receiver, int fd, struct refit_peer *peer,
                                                 struct refit_local_supply *supply);
/* The lock is held. Grants may go to it from here on, and to no other of its peer. */
void refit_local_flow_ready(struct refit_local_flow *flow);

#endif
