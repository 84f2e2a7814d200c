/* SPDX-License-Identifier: Apache-2.0
 *
 * A broadcast's parts: rounds (broadcast.c), gathering (broadcast_source.c), sending to one member (broadcast_feed.c).
 */
#ifndef REFIT_SENDER_BROADCAST_INTERNAL_H
#define REFIT_SENDER_BROADCAST_INTERNAL_H

#include "layouts/dense.h"
#include "sender/broadcast.h"
#include "sender/replica.h"
#include "sender/source.h"
#include "transport/transport.h"

#define REFIT_BROADCAST_BUFFERS 2
#define REFIT_BROADCAST_STREAMS 2

enum refit_feed_state { REFIT_FEED_AWAY, REFIT_FEED_JOINED, REFIT_FEED_RUNNING, REFIT_FEED_OVER };

/* What is sent to one member. */
struct refit_feed {
    struct refit_broadcast *broadcast;
    struct refit_replica *replica;
    /* of the round; copies, for the follower goes on meanwhile */
    char id[REFIT_ID_MAX];
    uint8_t token[REFIT_TOKEN_BYTES];
    char transport_name[16];
    json_t *card; /* owned */
    pthread_t thread;
    bool runs; /* the thread is to be joined; the round's */
    /* under the lead's lock */
    const struct refit_tally *gathered; /* in its round; borrowed */
    enum refit_feed_state state;
    bool ended;             /* the thread has nothing more to send */
    uint32_t released;      /* buckets that this member has got */
    struct refit_error error;
    int64_t moved_ns;       /* when it last took something, as the round saw it */
    uint64_t mark;          /* what it had taken by then */
    uint64_t payload_bytes, wire_bytes;
    /* under its own lock, taken inside the lead's or alone */
    pthread_mutex_t lock;
    bool stopped;
    const struct refit_transport *transport;
    struct refit_endpoint *endpoint;
};

/* A bucket that is in a buffer. */
struct refit_gathered {
    struct refit_plan *plan;   /* from the dense layout to itself, of these tensors; NULL: none is here */
    struct refit_arena *arena; /* their part of its arena space, bound to the buffer */
};

/* Kept to the end: its members may compare what landed while the next round gathers. */
struct refit_round {
    struct refit_tally *tally; /* of what was gathered, by the dense layout's tensors */
    struct refit_round *before;
};

struct refit_broadcast {
    struct refit_lead *lead;
    struct refit_gathering gathering;
    bool call_failed;              /* the callback said so: it is not called again */
    struct refit_layout *dense;
    struct refit_buckets buckets;
    struct refit_shared *shared;   /* the buffers, shareable so that members on this host read them without a copy */
    void *memory[REFIT_BROADCAST_BUFFERS];
    /* Bucket k's is k % 2; feeds read it from when it is gathered until they have released it. */
    struct refit_gathered slot[REFIT_BROADCAST_BUFFERS];
    struct refit_listener *listener; /* where ranks bring their parts; NULL: a callback does */
    struct refit_tls *tls;           /* of that listener; NULL: ranks speak in the clear */
    char directory[64], path[80];    /* of its socket */
    pthread_t thread;
    bool thread_runs;
    struct refit_feed *feeds;        /* by replica */
    size_t feed_count;
    struct refit_round *rounds;      /* the last one first */
    struct refit_tally *tally;       /* the last round's */
    /* under the lead's lock: */
    bool ending, running, called;    /* called: the callback has had its round */
    int64_t joined_ns;               /* when the first that waits for a round joined; 0: nobody does */
    uint64_t attempt;                /* of the round, in the ranks' accounts */
    char id[48], token[2 * REFIT_TOKEN_BYTES + 1]; /* of the gathering */
    uint32_t gathered;               /* buckets that are, or were, in a buffer */
    uint32_t served;                 /* ranks that have said how it went */
    struct refit_error error;        /* why the round failed */
    struct refit_tally *again;       /* check_source */
};

/* --- broadcast.c --- */
/* With the lead's lock held: the publish is over, the round failed, or nobody is left to send to. */
enum refit_status refit_broadcast_check(struct refit_broadcast *broadcast, struct refit_error *err);
/* With the lead's lock held: its replica is told how it went. */
void refit_feed_conclude(struct refit_feed *feed);

/* --- broadcast_source.c --- */
/* The listener; nothing for a callback. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_open_source(struct refit_broadcast *broadcast, struct refit_error *err);
void refit_broadcast_close_source(struct refit_broadcast *broadcast);
/* Tells the ranks to serve. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_order_ranks(struct refit_broadcast *broadcast, struct refit_error *err);
/* Brings a bucket into its buffer, which must be free, and describes it in its slot. */
REFIT_MUST_CHECK enum refit_status refit_broadcast_gather(struct refit_broadcast *broadcast, uint32_t number,
                                                          struct refit_error *err);
/* Calls the callback for the tensors of buckets from `number` on, for nobody: all ranks of a collective stay in step. */
void refit_broadcast_call_rest(struct refit_broadcast *broadcast, uint32_t number);

/* --- broadcast_feed.c --- */
/* A thread's body: every bucket as soon as it is gathered. */
void *refit_feed_run(void *feed);
/* Any thread, also with the lead's lock held; bounded by REFIT_ABORT_MS. */
void refit_feed_stop(struct refit_feed *feed);
/* With the lead's lock held: bytes that the member has taken so far. */
uint64_t refit_feed_taken(struct refit_feed *feed);

#endif
