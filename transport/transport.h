/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving planned bytes. One table of operations serves every path: `tcp`, `local` and `nccl`.
 *
 * Both sides hold a plan with the same edge, each over its own memory. A *holder* is a process that has an edge's
 * boxes: a rank of the trainer, a sibling that is being filled with the same plan (a *relay*: it serves what has
 * landed and was verified there), or a sibling that serves another layout (a replica as a source). The *receiver
 * grants* batches of an edge to a holder of its choice; the holder answers with exactly that batch, whose bytes land
 * straight in the receiver's arena, wherever the receiver's own plan says. No frame carries a destination address, so
 * nothing received can write elsewhere: an unknown edge or batch, a wrong length or a batch that was not granted ends
 * that connection. Not granting is back-pressure; granting again is a retry.
 *
 *   receiver endpoint                     holder endpoint
 *   open(RECEIVER), card  ---- control API carries the card ---->  open(HOLDER), connect(card)
 *   post(holder, edge, batch) = grant  ------------------------->  reads its memory, digests, sends
 *   inbox: completion   <----------------------------------------  (served by the endpoint's own threads)
 *
 * Each message carries the sender's segment digests (memory/ops.h); the receiver digests what it writes into its
 * arena and compares, so a completion with REFIT_OK means verified bytes in place. Counted segments go to the tally
 * of the side, once per batch, however often it is sent.
 *
 * abort() is bounded (REFIT_ABORT_MS), and after it returns no byte of any arena is read or written by the endpoint.
 * Each batch that was granted completes exactly once: when drop() or abort() returns, those it ended have completed.
 * Endpoints are independent: one endpoint per refit and side. Functions of one endpoint are called from one thread at
 * a time, except abort, look and stats, which any thread may call.
 */
#ifndef REFIT_TRANSPORT_TRANSPORT_H
#define REFIT_TRANSPORT_TRANSPORT_H

#include "base/clock.h"
#include "base/json.h"
#include "layouts/plan.h"
#include "layouts/tally.h"
#include "memory/arena.h"
#include "memory/ops.h"
#include "transport/inbox.h"
#include "transport/landed.h"

#define REFIT_ABORT_MS 2000
#define REFIT_TOKEN_BYTES 16
#define REFIT_CARD_MAX 4096 /* bytes of JSON text */

enum refit_role { REFIT_RECEIVER, REFIT_HOLDER };

enum refit_transport_trait {
    REFIT_TRAIT_SAME_HOST = 1u << 0,    /* both ends on one host */
    REFIT_TRAIT_DEVICE = 1u << 1,       /* takes device memory as it is */
    REFIT_TRAIT_STATIC_ORDER = 1u << 2, /* both sides must post in the same order */
};

struct refit_listener;
struct refit_tls; /* tls/tls.h */
struct refit_fair; /* fair.h */

/* A holder's number at the receiver: trainer ranks come first, then the fleet's members, then replicas that are
 * sources. Only the receiver gives meaning to it. */
#define REFIT_HOLDERS_MAX 65536u

/* What an endpoint is opened with. All pointers are borrowed and must outlive the endpoint. */
struct refit_endpoint_config {
    enum refit_role role;
    const char *refit_id;
    uint8_t token[REFIT_TOKEN_BYTES];  /* the receiver made it; it came to the holder through the control API */
    const struct refit_plan *plan;     /* this side's; scope covers every edge used */
    uint32_t holder;                   /* holder: its number at the receiver. receiver: how many numbers there are */
    /* Memory. Receiver and relay (a holder whose plan is of REFIT_DESTINATION scope): by destination rank, less the
     * plan's first_rank. Holder with a plan of one source rank: arenas[0]; of all source ranks: by source rank. */
    struct refit_arena *const *arenas;
    size_t arena_count;
    /* Receiver: each batch is marked here once it has landed, verified, in every rank's memory. Holder: a grant of a
     * batch that is not marked waits until it is (relays); NULL: everything may be served. Shared by all endpoints of
     * a refit. */
    struct refit_landed *landed;
    struct refit_inbox *inbox;         /* receiver: where completions go; several endpoints may share one */
    struct refit_listener *listener;   /* receiver */
    struct refit_tls *tls;             /* holder: shown to and checked against receivers whose card demands TLS; NULL: those
                                        * are refused */
    bool tls_any_name;                 /* holder: whoever the CA signed will do, whatever the card calls him */
    struct refit_tally *tally;         /* by destination tensor id; NULL: not kept */
    bool verify;                       /* digest both sides; false only for measurements */
    struct refit_fair *fair;           /* tcp, holder: equal shares of all that this process sends to; NULL: none */
    unsigned streams;                  /* tcp: connections per holder, >= 1 */
    uint64_t rate_bytes_per_s;         /* 0: unlimited; of the whole endpoint */
    int nice;                          /* of the bulk threads */
    uint32_t patience_ms;              /* nccl: how long a communicator or a group may take; 0: 20 s */
    /* Receiver over nccl: arenas that are NULL are filled by others. Only batches that land where there is one are
     * posted, and no copies are made for ranks without. */
    bool partial;
    /* Receiver: called for each batch that has landed, before its completion, by a thread of the endpoint; may be NULL. */
    void (*on_landed)(void *context, const struct refit_edge *edge, uint32_t batch, const struct refit_segments *segments);
    void *on_landed_context;
};

struct refit_endpoint_stats {
    uint64_t payload_bytes;  /* planned bytes moved (sent or landed), retries included */
    uint64_t wire_bytes;     /* with framing; 0 for local */
    uint64_t copied_bytes;   /* payload that took an extra copy (packed, through staging or a ring) */
    uint64_t pack_ns, verify_ns; /* summed over threads */
};

struct refit_transfer_completion {
    uint32_t holder;
    uint64_t edge; /* its digest */
    uint32_t batch;
    enum refit_status status;  /* REFIT_OK, or why this batch did not land: REFIT_CORRUPT, REFIT_PEER, ... */
};

/* Holders send a sign of life every REFIT_ALIVE_MS while they owe a batch, whatever they wait for; one that is
 * stopped, cut off or dead is seen by its silence. */
#define REFIT_ALIVE_MS 100
struct refit_holder_state {
    bool connected, lost;
    uint32_t owed;         /* granted, not completed */
    int64_t heard_ns;      /* of refit_clock_ns: the last byte from it; 0: never */
    uint64_t payload_bytes; /* landed from it */
};

struct refit_endpoint;

struct refit_transport {
    const char *name;
    unsigned traits;
    /* Usable here? REFIT_OK, or REFIT_UNSUPPORTED with the reason. */
    enum refit_status (*probe)(struct refit_error *err);
    enum refit_status (*open)(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                              struct refit_error *err);
    /* Receiver: how holders reach it; a small JSON object. */
    enum refit_status (*card)(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err);
    /* Holder: dial the receiver of `card`, prove the token, offer the plan's edges (those that the receiver's plan
     * lacks are not used). From then on the endpoint's threads serve grants until the receiver ends it, abort or close.
     * May be called again once all its connections are lost (what was tallied stays tallied); REFIT_CONFLICT before.
     * A refusal is the receiver's error. */
    enum refit_status (*connect)(struct refit_endpoint *endpoint, const json_t *card, struct refit_deadline deadline,
                                 struct refit_error *err);
    /* Receiver: grant one batch to `holder`. REFIT_BUSY: that holder's queue or the inbox is full, wait first.
     * REFIT_NOT_FOUND: it has not connected yet. REFIT_PEER: it is gone. REFIT_UNSUPPORTED: it does not offer this
     * edge. The same batch may be granted again only after it completed. */
    enum refit_status (*post)(struct refit_endpoint *endpoint, uint32_t holder, const struct refit_edge *edge,
                              uint32_t batch, struct refit_error *err);
    /* Receiver: what is known of a holder. */
    void (*look)(struct refit_endpoint *endpoint, uint32_t holder, struct refit_holder_state *out);
    /* Receiver: end this holder's connections; when it returns, nothing more of it lands, and what it owes completes
     * with REFIT_PEER. It may dial again. */
    void (*drop)(struct refit_endpoint *endpoint, uint32_t holder);
    /* Holder: wait until the receiver has said that it needs no more, or the connection is lost (REFIT_PEER). */
    enum refit_status (*wait_done)(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                   struct refit_error *err);
    /* Receiver: tell holders that all is landed; they stop reading their memory. */
    enum refit_status (*finish)(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                struct refit_error *err);
    void (*stats)(struct refit_endpoint *endpoint, struct refit_endpoint_stats *out);
    void (*abort)(struct refit_endpoint *endpoint);
    void (*close)(struct refit_endpoint *endpoint); /* implies abort; frees; NULL is fine */
};

/* How many batches a receiver keeps granted per stream, and so what an endpoint may hold in flight. */
#define REFIT_GRANTS_PER_STREAM 2

extern const struct refit_transport refit_transport_tcp;
extern const struct refit_transport refit_transport_local;
extern const struct refit_transport refit_transport_nccl;

/* By name; NULL: unknown. The array ends with NULL and is in order of preference. */
const struct refit_transport *refit_transport_find(const char *name);
const struct refit_transport *const *refit_transports(void);

/* What `nccl` makes for a pair of GPUs is kept from one refit to the next while somebody wants that: from keep to let_go,
 * as often as each is called. Otherwise it goes with the last endpoint. */
void refit_transports_keep(void);
void refit_transports_let_go(void);

/* The receiver's side of rendezvous: where holders' connections come in, shared by all receiver endpoints that were
 * opened with it. Greetings are read here, against deadlines and limits, and handed to the endpoint whose refit id
 * and token they prove (compared in constant time); anything else is closed and counted. */
struct refit_listener_config {
    const char *tcp_address;  /* numeric, to bind: "0.0.0.0"; NULL: no tcp */
    uint16_t tcp_port;        /* 0: the kernel's choice */
    const char *advertise;    /* address put in cards; NULL: tcp_address */
    struct refit_tls *tls;    /* server's end: connections over tcp without TLS are refused; borrowed; NULL: no TLS */
    const char *tls_name;     /* put in cards: the name that holders must find in our certificate; NULL: the address */
    const char *local_path;   /* Unix socket path for `local`; NULL: none */
    bool nccl;                /* over the same port, `nccl` may be offered: the memory to land in is the GPUs' */
    bool nccl_elsewhere;      /* and NCCL is in other processes (remote.h), which know its version: cards are without */
    unsigned connections_max; /* 0: 4096 */
};
REFIT_MUST_CHECK enum refit_status refit_listener_start(const struct refit_listener_config *config,
                                                        struct refit_listener **out, struct refit_error *err);
uint16_t refit_listener_tcp_port(const struct refit_listener *listener);
/* How holders reach this listener over `transport` ("tcp", "local"), without an endpoint: the same card as an
 * endpoint's, so that it can be handed out before there is memory to land in. A connection whose endpoint is not open
 * yet is parked until its greeting's deadline. REFIT_UNSUPPORTED when the listener has no such address. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_listener_card(const struct refit_listener *listener, const char *transport,
                                                       json_t **out, struct refit_error *err);
/* After the last endpoint that uses it is closed. NULL is fine. */
void refit_listener_stop(struct refit_listener *listener);

/* The receiver that needs no holder: the source's arena is in this process (a checkpoint's files). Same completions. */
REFIT_MUST_CHECK enum refit_status refit_local_open_source(const struct refit_endpoint_config *receiver,
                                                           const struct refit_plan *source_plan,
                                                           struct refit_arena *const *sources, size_t source_count,
                                                           struct refit_endpoint **out, struct refit_error *err);

#endif
