/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of a sender and their lead.
 *
 * One end belongs to rank 0 as the lead: it listens, and has a seat for every rank. The other end belongs to every rank
 * as a member, rank 0 included: it has one seat, the lead's. Messages either wait in the sender's seat until they
 * are taken (collectives), or are handed to `message` at once (types from REFIT_MESSAGE_SERVE on).
 *
 * A rank whose process ends is noticed by the end of file on its connection, and every wait for it, or for
 * anybody else, then fails and names it.
 */
#ifndef REFIT_SENDER_RANKS_H
#define REFIT_SENDER_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/host.h"
#include "base/clock.h"
#include "base/error.h"

/* Layouts are the largest messages. */
#define REFIT_MESSAGE_MAX ((64u << 20) + 4096)

/* Who sends, and the body. An outcome is a status (u32) and, when it is REFIT_OK, what is named here, else a text. */
enum refit_message {
    REFIT_MESSAGE_HELLO = 1,  /* rank: JSON, who it is */
    REFIT_MESSAGE_WELCOME,    /* lead: outcome; all ranks are here */
    REFIT_MESSAGE_REGISTER,   /* rank: outcome, its layout */
    REFIT_MESSAGE_MERGED,     /* lead: outcome, the mesh's layout */
    REFIT_MESSAGE_BOUND,      /* rank: outcome of binding its memory */
    REFIT_MESSAGE_REGISTERED, /* lead: outcome for all */
    REFIT_MESSAGE_PUBLISH,    /* rank: outcome, JSON of what to publish */
    REFIT_MESSAGE_BEGUN,      /* lead: outcome */
    REFIT_MESSAGE_FREE,       /* lead: no replica reads any rank's memory any more */
    REFIT_MESSAGE_REPORT,     /* lead: JSON (report.h) */
    REFIT_MESSAGE_CHALLENGE,  /* lead: JSON, its nonce and its proof of the job's secret (trust.h) */
    REFIT_MESSAGE_PROOF,      /* rank: JSON, its own */
    REFIT_MESSAGE_SERVE = 32, /* lead: JSON (serve.h) */
    REFIT_MESSAGE_LAYOUT,     /* lead: text of a destination layout that SERVE will name */
    REFIT_MESSAGE_STOP,       /* lead: u32 replica; what is under way ends at once */
    REFIT_MESSAGE_SERVED,     /* rank: binary (served.h) */
    REFIT_MESSAGE_STAGED,     /* lead: u32 replica, which has all its bytes; who still dials it need not */
};

struct refit_ranks;
struct refit_trust;

struct refit_ranks_handlers {
    /* On a thread of their own; must not block for long. */
    void (*message)(void *context, uint32_t rank, enum refit_message type, const void *body, size_t len);
    void (*lost)(void *context, uint32_t rank, const struct refit_error *why);
    void *context;
};

/* The lead's end: listens at `address` ("host:port"; NULL: for one rank) for ranks 1.. ; `own` is a connected socket
 * of rank 0's member, owned from now on. `trust` (borrowed while it is open; NULL: none) is asked of the others. *out
 * is new. */
REFIT_MUST_CHECK enum refit_status refit_ranks_listen(const char *address, uint32_t ranks, int own,
                                                      const struct refit_trust *trust,
                                                      const struct refit_ranks_handlers *handlers,
                                                      struct refit_ranks **out, struct refit_error *err);
/* Until all are here. REFIT_TIMEOUT names the ranks that are not. */
REFIT_MUST_CHECK enum refit_status refit_ranks_wait_all(struct refit_ranks *ranks, struct refit_deadline deadline,
                                                        struct refit_error *err);
/* Every rank said that it runs on the host of this boot id. */
bool refit_ranks_on_host(const struct refit_ranks *ranks, const char *boot_id);

/* A member's end: dials the lead, again and again until the deadline, and greets. */
REFIT_MUST_CHECK enum refit_status refit_ranks_join(const char *address, uint32_t rank, uint32_t ranks,
                                                    const struct refit_trust *trust,
                                                    const struct refit_ranks_handlers *handlers,
                                                    struct refit_deadline deadline, struct refit_ranks **out,
                                                    struct refit_error *err);
/* The same over a connected socket, owned from now on. */
REFIT_MUST_CHECK enum refit_status refit_ranks_join_over(int fd, uint32_t rank, uint32_t ranks,
                                                         const struct refit_ranks_handlers *handlers,
                                                         struct refit_ranks **out, struct refit_error *err);

/* Where the lead was found: numeric, for other connections to its host; empty for a member over a socket that was given. */
const char *refit_ranks_lead_address(const struct refit_ranks *ranks);

/* Messages that wait to be taken carry the turn of the end that sent them, and only those of this end's turn are taken:
 * what a collective that timed out left behind is no answer to the next one. 0 at first; it only grows. */
void refit_ranks_set_turn(struct refit_ranks *ranks, uint64_t turn);

/* No handler is called after. NULL is fine. */
void refit_ranks_close(struct refit_ranks *ranks);

REFIT_MUST_CHECK enum refit_status refit_ranks_send(struct refit_ranks *ranks, uint32_t rank, enum refit_message type,
                                                    const void *body, size_t len, struct refit_deadline deadline,
                                                    struct refit_error *err);
/* To all; goes on past those that are gone, and returns the first error. */
enum refit_status refit_ranks_broadcast(struct refit_ranks *ranks, enum refit_message type, const void *body,
                                        size_t len, struct refit_deadline deadline, struct refit_error *err);

/* One message of `type` from each seat (lead: one per rank, member: one), in bodies[seat], new (refit_buf_release).
 * REFIT_PEER as soon as any seat is lost; REFIT_TIMEOUT names who is missing; the bodies are then empty. */
REFIT_MUST_CHECK enum refit_status refit_ranks_take(struct refit_ranks *ranks, enum refit_message type,
                                                    struct refit_deadline deadline, struct refit_buf *bodies,
                                                    struct refit_error *err);

/* Outcomes. */
REFIT_MUST_CHECK enum refit_status refit_outcome_send(struct refit_ranks *ranks, uint32_t rank,
                                                      enum refit_message type, const struct refit_error *outcome,
                                                      const void *body, size_t len, struct refit_deadline deadline,
                                                      struct refit_error *err);
/* The outcome's own status and text; on REFIT_OK *body and *len (may be NULL) are borrowed from `message`. */
REFIT_MUST_CHECK enum refit_status refit_outcome_read(const struct refit_buf *message, const void **body, size_t *len,
                                                      struct refit_error *err);

#endif
