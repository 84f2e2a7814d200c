/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the HTTP server, between the file that accepts (http_listen.c) and the one that serves (http_server.c).
 */
#ifndef REFIT_SIDECAR_HTTP_CONNECTION_H
#define REFIT_SIDECAR_HTTP_CONNECTION_H

#include <event2/bufferevent.h>
#include <event2/listener.h>

#include "sidecar/http_server.h"

enum refit_http_state {
    STATE_HANDSHAKE, /* of TLS */
    STATE_IDLE, /* between requests: no byte yet */
    STATE_HEAD,
    STATE_BODY,
    STATE_WORK,   /* the handler has it */
    STATE_STREAM, /* an answer without end */
    STATE_ANSWER, /* the answer drains */
    STATE_LINGER, /* our half is closed; what still comes in is dropped, or a reset would destroy the answer */
};

struct refit_http_connection {
    struct refit_exchange exchange; /* first: an exchange is its connection */
    struct refit_httpd *server;
    struct bufferevent *io;
    struct event *timer;
    struct refit_http_connection *previous, *next;
    enum refit_http_state state;
    struct refit_http_limits limits;
    int64_t first_byte_ns;
    struct refit_buf body;
    struct refit_tls_report tls_report;
    struct refit_tls_peer *peer; /* owned */
    uint64_t reserved; /* of the server's budget for bodies */
    bool close_after;
    bool dead; /* the client is gone, but a worker still reads the body: freed by the answer */
};

struct refit_httpd {
    struct refit_httpd_config config;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *listen_again;
    struct refit_http_connection *connections;
    unsigned count;
    uint64_t refused, handshakes_failed;
    uint64_t bodies; /* reserved now */
    uint16_t port;
};

/* Joins the server's connections; NULL when out of memory: `fd` is then still the caller's. */
struct refit_http_connection *refit_http_connection_new(struct refit_httpd *server, evutil_socket_t fd);
/* Once it knows its client's name: a handshake, or the first request. */
void refit_http_connection_begin(struct refit_http_connection *c);
void refit_http_connection_free(struct refit_http_connection *c);

#endif
