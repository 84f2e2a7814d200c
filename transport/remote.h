/* SPDX-License-Identifier: Apache-2.0
 *
 * A receiver endpoint of `nccl` whose other half is in engines: each engine runs a receiver of its own over its own rank's
 * memory, which it maps for writing for that time, and this endpoint grants, keeps the ledger and the tally, and copies to
 * other ranks what they want, too. It is an endpoint like any other (refit_transport_nccl works on it).
 *
 *   refitd: refit_remote_open            Unix socket, per engine and refit           engine: refit_remote_host_serve
 *     listener, token, greeting   -- the holder's connection, what it offers -->   its control stream, NCCL
 *     post, drop, finish, abort   -- POST, DROP, FINISH, CLOSE -------------->      the same of its endpoint
 *     ledger, tally, spreading   <-- DIGESTS, ENDED, STATE, ALIVE, CLOSED ---       inbox, look, stats
 *
 * A holder has one connection per engine: stream i of its greeting is for engine i.
 *
 * An engine that says nothing for REFIT_REMOTE_SILENCE_MS, or something that makes no sense, or ends, completes what it
 * was granted with REFIT_PEER. But while its process lives and has not said CLOSED it may still write into its memory:
 * abort waits for that REFIT_REMOTE_CLOSE_MS, and refit_remote_ended tells later on.
 */
#ifndef REFIT_TRANSPORT_REMOTE_H
#define REFIT_TRANSPORT_REMOTE_H

#include "transport/endpoint.h"

#define REFIT_REMOTE_ENGINES_MAX REFIT_STREAMS_MAX
#define REFIT_REMOTE_SILENCE_MS 5000
#define REFIT_REMOTE_CLOSE_MS 5000

/* ---- in refitd ---- */

/* An engine, for the time of a refit. All of it belongs to who made it, and outlives the endpoint. */
struct refit_remote_engine {
    uint32_t rank; /* of the plan's layout, whose memory it has */
    pid_t pid;     /* for messages */
    int pidfd;     /* -1: none to be had; then end of file is taken for the end of the process */
    int sock;      /* non-blocking, of type SOCK_SEQPACKET */
    bool ended;    /* it writes no more */
    char why[256]; /* it is not used any more, because; empty: it went well */
};

/* engines[i] has the memory of the plan's rank first_rank + i: one for each. Waits until all of them are ready, or until
 * `deadline` or `cancel` (may be NULL). After an error, as after close, see refit_remote_engine.ended. */
REFIT_MUST_CHECK enum refit_status refit_remote_open(const struct refit_endpoint_config *config,
                                                     struct refit_remote_engine *engines, size_t count,
                                                     struct refit_deadline deadline, const atomic_bool *cancel,
                                                     struct refit_endpoint **out, struct refit_error *err);
/* After the endpoint was closed: has it ended by now? */
bool refit_remote_ended(struct refit_remote_engine *engine);

/* ---- in an engine ---- */

struct refit_remote_host;

/* NCCL's communicators are kept from one refit to the next until destroy. */
REFIT_MUST_CHECK enum refit_status refit_remote_host_create(struct refit_remote_host **out, struct refit_error *err);
/* Receives for the refit at the other end of `sock`, which it takes whatever it returns, on threads of its own. */
REFIT_MUST_CHECK enum refit_status refit_remote_host_serve(struct refit_remote_host *host, int sock,
                                                           struct refit_error *err);
/* Ends all that it serves. When it returns nothing is written any more, and what was mapped for it is not. */
void refit_remote_host_stop(struct refit_remote_host *host);
void refit_remote_host_destroy(struct refit_remote_host *host); /* after stop; NULL is fine */

#endif
