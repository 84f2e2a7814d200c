/* SPDX-License-Identifier: Apache-2.0
 *
 * The greeting: what a holder sends first on every connection, and how it is judged. A head of fixed size, then the
 * digest (u64) of every edge that it offers. Nothing is kept for a connection beyond its head until the head's token
 * is proven. The answer is a WELCOME or a REFUSED frame.
 *
 *   head: u32 magic, u32 protocol, u32 planner version, u32 flags, 16 bytes token, u32 holder, u32 stream,
 *         u32 streams, u32 edges, u32 id length, 128 bytes id (zero padded)
 */
#ifndef REFIT_TRANSPORT_GREETING_H
#define REFIT_TRANSPORT_GREETING_H

#include "base/buf.h"
#include "transport/endpoint.h"
#include "transport/stream.h"

#define REFIT_PROTOCOL_VERSION 3
#define REFIT_GREETING_MAGIC 0x54494652u /* "RFIT" */
#define REFIT_GREETING_HEAD_BYTES (4 * 4 + REFIT_TOKEN_BYTES + 5 * 4 + REFIT_WIRE_ID_MAX)
#define REFIT_GREETING_EDGE_BYTES 8
#define REFIT_OFFER_MAX (1u << 20) /* edges of one holder */
#define REFIT_GREETING_VERIFY 1u
#define REFIT_GREETING_NCCL 2u /* the payload does not come over this connection */

struct refit_greeting {
    uint32_t planner_version;
    bool verify, nccl;
    uint8_t token[REFIT_TOKEN_BYTES];
    uint32_t holder, stream, streams, edges;
    char refit_id[REFIT_WIRE_ID_MAX + 1];
};

/* The whole greeting of a holder's stream, head and edges; `flags` besides REFIT_GREETING_VERIFY. */
REFIT_MUST_CHECK enum refit_status refit_greeting_encode(const struct refit_endpoint_config *holder, unsigned stream,
                                                         uint32_t flags, struct refit_buf *out,
                                                         struct refit_error *err);
/* A head of REFIT_GREETING_HEAD_BYTES; REFIT_INVALID or REFIT_UNSUPPORTED (another protocol version). */
REFIT_MUST_CHECK enum refit_status refit_greeting_decode(const uint8_t *head, struct refit_greeting *out,
                                                         struct refit_error *err);
bool refit_token_equal(const uint8_t *a, const uint8_t *b); /* in constant time */

/* Does it fit the receiver: planner, verification, holder's number? */
REFIT_MUST_CHECK enum refit_status refit_greeting_check(const struct refit_greeting *greeting,
                                                        const struct refit_endpoint_config *receiver,
                                                        struct refit_error *err);

/* Waits for the answer; REFUSED becomes the error it names. */
REFIT_MUST_CHECK enum refit_status refit_greeting_await(struct refit_stream *stream, int wake,
                                                        struct refit_deadline deadline, struct refit_error *err);
/* Best effort, never blocks. */
void refit_greeting_refuse(struct refit_stream *stream, const struct refit_error *why);

#endif
