/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http_tls.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>

struct bufferevent *refit_http_tls_accept(struct event_base *base, evutil_socket_t fd, struct refit_tls *tls,
                                          struct refit_tls_report *report)
{
    SSL *ssl;
    if (refit_tls_session(tls, NULL, report, &ssl, NULL))
        return NULL;
    struct bufferevent *io =
        bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    /* A request is whole by its Content-Length: one that was cut is never delivered, however its connection ended. */
    if (io)
        bufferevent_openssl_set_allow_dirty_shutdown(io, 1);
    return io;
}

bool refit_http_tls_heard(struct bufferevent *io)
{
    return SSL_get_state(bufferevent_openssl_get_ssl(io)) != TLS_ST_BEFORE;
}

struct refit_tls_peer *refit_http_tls_peer(struct bufferevent *io)
{
    struct refit_tls_peer *peer = malloc(sizeof *peer);
    if (!peer)
        return NULL;
    refit_tls_peer_read(bufferevent_openssl_get_ssl(io), peer);
    if (peer->verified)
        return peer;
    free(peer);
    return NULL;
}

void refit_http_tls_goodbye(struct bufferevent *io)
{
    SSL *ssl = bufferevent_openssl_get_ssl(io);
    if (!ssl)
        return;
    SSL_shutdown(ssl);
    ERR_clear_error();
}
