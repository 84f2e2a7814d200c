/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP/1.1 server on libevent's bufferevents, all on one event loop and one thread.
 *
 * Why not evhttp: in libevent 2.1.12 it sends a body after HEAD (which spoils the next answer on that connection),
 * hands on a header value cut at a NUL as if it were whole, and its timeout starts again with each read, so that a
 * request which trickles in never ends. Here each request has one deadline, from its first byte to its last, and one
 * more for the client to take the answer.
 *
 * Bounded: connections, header bytes, body bytes per request, body bytes of all connections together, and what is kept
 * unsent for a client that does not read. Requests on one connection are answered in order; a pipelined one waits.
 */
#ifndef REFIT_SIDECAR_HTTP_SERVER_H
#define REFIT_SIDECAR_HTTP_SERVER_H

#include <event2/event.h>

#include "base/error.h"
#include "sidecar/http_head.h"
#include "sidecar/reply.h"
#include "tls/tls.h"

struct refit_httpd;

/* One request, from its head to the end of its answer. */
struct refit_exchange {
    struct refit_http_head head;
    const uint8_t *body; /* whole; NUL-terminated behind its last byte */
    size_t body_len;
    char client[64]; /* address and port; of a Unix socket "unix:uid=0,pid=7" */
    char by[384];    /* of the handler of heads: who asks, for the audit */
    int role;        /* likewise: what they may do */
    const struct refit_tls_peer *peer; /* the names in the client's certificate; NULL: it showed none */
    void *user;      /* of the handler */
    /* The client is gone or the server closes: drop `user` and forget the exchange. Not called after an answer has
     * ended. */
    void (*on_gone)(struct refit_exchange *exchange);
};

struct refit_http_limits {
    uint64_t body_bytes;
    int64_t deadline_ms; /* of the whole request, from its first byte */
};

struct refit_httpd_config {
    const char *name;    /* in messages: "control" */
    const char *address; /* "127.0.0.1:7070", "[::1]:0", "unix:/run/refit/control.sock" */
    unsigned socket_mode;  /* of a Unix socket's file */
    struct refit_tls *tls; /* borrowed; NULL: plain. Not for Unix sockets */
    unsigned connections_max;
    size_t header_bytes_max;
    int64_t handshake_ms; /* for TLS, from the accept on */
    int64_t deadline_ms; /* until the head is there */
    int64_t idle_ms;     /* a connection without a request */
    int64_t answer_ms;   /* for the client to take an answer */
    uint64_t bodies_max; /* body bytes of all connections together */
    /* The head is there: set the limits for the rest, or answer at once (reply->status != 0; the connection is then
     * closed if a body would follow). */
    void (*on_head)(void *context, struct refit_exchange *exchange, struct refit_http_limits *limits,
                    struct refit_reply *reply);
    /* The request is whole. Answer now or later with refit_exchange_reply or refit_exchange_stream. */
    void (*on_request)(void *context, struct refit_exchange *exchange);
    /* A header for every answer ("Refit-Instance: ..."); may be NULL. */
    void (*on_reply)(void *context, struct refit_reply *reply);
    void *context;
};

REFIT_MUST_CHECK enum refit_status refit_httpd_start(struct event_base *base, const struct refit_httpd_config *config,
                                                     struct refit_httpd **out, struct refit_error *err);
/* Drops listener and connections. NULL is fine. */
void refit_httpd_stop(struct refit_httpd *server);
uint16_t refit_httpd_port(const struct refit_httpd *server);
unsigned refit_httpd_connections(const struct refit_httpd *server);
uint64_t refit_httpd_refused(const struct refit_httpd *server); /* closed at once: all others were being answered */
uint64_t refit_httpd_handshakes_failed(const struct refit_httpd *server);

/* Sends the answer and ends the exchange. Steals the reply's memory. */
void refit_exchange_reply(struct refit_exchange *exchange, struct refit_reply *reply);

/* An answer without end: head now, then bytes, then end. Write returns false when the client is too slow: nothing was
 * added, try again later. */
void refit_exchange_stream(struct refit_exchange *exchange, const char *type);
bool refit_exchange_write(struct refit_exchange *exchange, const void *data, size_t len);
void refit_exchange_end(struct refit_exchange *exchange);

#endif
