/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank at work for the lead: for every replica that is refitted, one thread that holds this rank's end of the
 * transfer, and tells the lead how it went.
 *
 * Orders come as messages (ranks.h): LAYOUT, then SERVE, maybe STOP. Each SERVE is answered by exactly one SERVED, at the order's
 * deadline at the latest, and by then nothing reads this rank's memory for that order any more.
 */
#ifndef REFIT_SENDER_SERVE_H
#define REFIT_SENDER_SERVE_H

#include "base/json.h"
#include "memory/arena.h"
#include "sender/credentials.h"
#include "sender/plan_cache.h"
#include "sender/ranks.h"
#include "transport/transport.h"

/* Instead of a replica's number: rank 0 gathers the whole model. */
#define REFIT_SERVE_GATHER (UINT32_MAX - 1)

struct refit_serve_order {
    uint32_t replica;        /* or REFIT_SERVE_GATHER: `card` has rank 0's cards by name and its "boot_id", `transport` may be
                              * "auto", `destination` is not used */
    uint64_t attempt;
    const char *refit_id;
    const char *token;       /* hex */
    const json_t *card;
    const char *transport;
    const char *destination; /* the layout's digest */
    uint32_t first_rank, rank_count; /* of the destination's ranks */
    const json_t *unchanged; /* names of tensors that are not sent; NULL: none */
    unsigned streams;        /* of tcp; 0: the rank's own choice */
    bool check_source;
    int64_t deadline_ms;     /* from now */
};
/* New text (free()); NULL when out of memory. */
char *refit_serve_order_text(const struct refit_serve_order *order, size_t *len);

/* 32 hex digits. */
bool refit_serve_read_token(const char *hex, uint8_t token[static REFIT_TOKEN_BYTES]);

struct refit_server;

struct refit_server_config {
    uint32_t rank;
    struct refit_credentials *credentials; /* borrowed; for replicas that take bytes over TLS; NULL: none */
    unsigned streams;
};
REFIT_MUST_CHECK enum refit_status refit_server_create(const struct refit_server_config *config,
                                                       struct refit_server **out, struct refit_error *err);
/* Stops everything, waits for it, and carries out no more orders; before the ranks are closed. */
void refit_server_end(struct refit_server *server);
/* After the ranks are closed. NULL is fine. */
void refit_server_destroy(struct refit_server *server);

/* Where SERVED goes. Before the first order. */
void refit_server_set_ranks(struct refit_server *server, struct refit_ranks *ranks);
/* What is served from now on; borrowed until the next call, which must find the server idle. */
void refit_server_set_source(struct refit_server *server, struct refit_plan_cache *plans, struct refit_arena *arena);

/* Are orders carried out? Not at first; while not, each is answered REFIT_ABORTED and touches no memory. */
void refit_server_set_serving(struct refit_server *server, bool serving);

/* A message of the lead. */
void refit_server_message(struct refit_server *server, enum refit_message type, const void *body, size_t len);
/* Stops all that runs; new orders are still accepted. */
void refit_server_stop_all(struct refit_server *server);
/* Waits until nothing is served; REFIT_TIMEOUT. */
REFIT_MUST_CHECK enum refit_status refit_server_wait_idle(struct refit_server *server, struct refit_deadline deadline,
                                                          struct refit_error *err);

#endif
