/* SPDX-License-Identifier: Apache-2.0
 *
 * What TLS adds to a connection of the HTTP server.
 */
#ifndef REFIT_SIDECAR_HTTP_TLS_H
#define REFIT_SIDECAR_HTTP_TLS_H

#include <event2/bufferevent.h>
#include <event2/event.h>

#include "tls/tls.h"

/* A bufferevent that shakes hands as a server on `fd`, which it owns from then on; BEV_EVENT_CONNECTED tells when it
 * has. `report` is borrowed for its life. NULL: out of memory. */
struct bufferevent *refit_http_tls_accept(struct event_base *base, evutil_socket_t fd, struct refit_tls *tls,
                                          struct refit_tls_report *report);
/* The client has begun its handshake: a stranger that only connects has not. */
bool refit_http_tls_heard(struct bufferevent *io);
/* The names of the client, new (free); NULL without a certificate. */
struct refit_tls_peer *refit_http_tls_peer(struct bufferevent *io);
/* Tells the client that no more comes, before our half of the connection is closed. Nothing for plain HTTP. */
void refit_http_tls_goodbye(struct bufferevent *io);

#endif
