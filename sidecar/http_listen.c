/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the HTTP server listens, and whom it lets in.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "sidecar/http_connection.h"
#include "sidecar/http_tls.h"
#include "sidecar/listen_address.h"

#define BACKLOG 1024 /* a probe must not lose its SYN to a burst of others: it would try again a second later */

/* It has begun to shake hands (and may now be about to send its request), or has sent something that is not read yet:
 * perhaps the whole request, only accepted in the same turn as many others. */
static bool has_spoken(const struct refit_http_connection *c)
{
    char byte;
    bool secure = c->server->config.tls && c->state != STATE_LINGER;
    if (secure && (c->state != STATE_HANDSHAKE || refit_http_tls_heard(c->io)))
        return true;
    return recv(bufferevent_getfd(c->io), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Drops the oldest connection that has not sent a whole head, if possible one that has nothing to say now: whoever holds
 * connections open must not keep a probe out. */
static bool make_room(struct refit_httpd *server)
{
    struct refit_http_connection *oldest = NULL, *oldest_silent = NULL;
    for (struct refit_http_connection *c = server->connections; c; c = c->next) {
        if (c->state != STATE_HANDSHAKE && c->state != STATE_IDLE && c->state != STATE_HEAD && c->state != STATE_LINGER)
            continue;
        oldest = c;
        if (!has_spoken(c))
            oldest_silent = c;
    }
    if (oldest_silent)
        oldest = oldest_silent;
    if (oldest)
        refit_http_connection_free(oldest);
    return oldest != NULL;
}

static void name_local_peer(evutil_socket_t fd, char *out, size_t size)
{
    struct ucred who = {0};
    socklen_t len = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0)
        snprintf(out, size, "unix:uid=%u,pid=%d", (unsigned)who.uid, (int)who.pid);
    else
        snprintf(out, size, "unix");
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *peer, int peer_len,
                      void *context)
{
    struct refit_httpd *server = context;
    int on = 1;
    (void)listener;
    (void)peer_len;
    if (server->count >= server->config.connections_max && !make_room(server)) {
        refit_log_limited(REFIT_LOG_WARN, "connection refused: too many are being answered",
                          refit_log_text("listener", server->config.name), refit_log_u64("connections", server->count),
                          refit_log_u64("max", server->config.connections_max));
        server->refused++;
        evutil_closesocket(fd);
        return;
    }
    struct refit_http_connection *c = refit_http_connection_new(server, fd);
    if (!c) {
        evutil_closesocket(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (peer->sa_family == AF_UNIX)
        name_local_peer(fd, c->exchange.client, sizeof c->exchange.client);
    else
        refit_listen_address_print(peer, c->exchange.client, sizeof c->exchange.client);
    refit_http_connection_begin(c);
}

/* Out of descriptors: pause a moment instead of spinning on the same error. */
static void on_accept_error(struct evconnlistener *listener, void *context)
{
    struct refit_httpd *server = context;
    struct timeval pause = {.tv_usec = 200000};
    refit_log_limited(REFIT_LOG_ERROR, "can't accept a connection", refit_log_text("listener", server->config.name),
                      refit_log_errno(errno));
    evconnlistener_disable(listener);
    evtimer_add(server->listen_again, &pause);
}

static void on_listen_again(evutil_socket_t fd, short what, void *context)
{
    struct refit_httpd *server = context;
    (void)fd;
    (void)what;
    evconnlistener_enable(server->listener);
}

#define LISTEN_FLAGS (LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE)

static enum refit_status listen_on_socket(struct refit_httpd *server, const char *path, struct refit_error *err)
{
    int fd;
    enum refit_status status = refit_socket_listen_stream(path, (mode_t)server->config.socket_mode, &fd, err);
    if (status)
        return refit_error_prefix(err, status, "--%s", server->config.name);
    server->listener = evconnlistener_new(server->base, on_accept, server, LISTEN_FLAGS, 0, fd);
    if (server->listener)
        return REFIT_OK;
    refit_io_close(&fd);
    unlink(path);
    return refit_fail(err, REFIT_NO_MEMORY, "--%s %s: no memory for a listener", server->config.name, path);
}

static enum refit_status listen_on_port(struct refit_httpd *server, struct refit_error *err)
{
    struct sockaddr_storage address;
    int len;
    enum refit_status status =
        refit_listen_address_parse(server->config.address, server->config.name, &address, &len, err);
    if (status)
        return status;
    server->listener = evconnlistener_new_bind(server->base, on_accept, server, LISTEN_FLAGS, BACKLOG,
                                               (struct sockaddr *)&address, len);
    if (!server->listener)
        return refit_fail_errno(err, errno, "--%s %s: can't listen there", server->config.name, server->config.address);
    server->port = refit_listen_address_port_of(evconnlistener_get_fd(server->listener));
    return REFIT_OK;
}

enum refit_status refit_httpd_start(struct event_base *base, const struct refit_httpd_config *config,
                                    struct refit_httpd **out, struct refit_error *err)
{
    const char *path = refit_listen_address_unix(config->address);
    struct refit_httpd *server = calloc(1, sizeof *server);
    if (!server)
        return refit_fail_alloc(err, "an HTTP server", sizeof *server);
    server->config = *config;
    server->base = base;
    server->listen_again = evtimer_new(base, on_listen_again, server);
    enum refit_status status = REFIT_OK;
    if (!server->listen_again)
        status = refit_fail(err, REFIT_NO_MEMORY, "%s: no memory for its timer", config->name);
    if (path)
        server->config.tls = NULL; /* the kernel says who is there */
    if (status == REFIT_OK)
        status = path ? listen_on_socket(server, path, err) : listen_on_port(server, err);
    if (status) {
        if (server->listen_again)
            event_free(server->listen_again);
        free(server);
        return status;
    }
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    *out = server;
    return REFIT_OK;
}

void refit_httpd_stop(struct refit_httpd *server)
{
    if (!server)
        return;
    const char *path = refit_listen_address_unix(server->config.address);
    evconnlistener_free(server->listener);
    if (path)
        unlink(path);
    event_free(server->listen_again);
    while (server->connections)
        refit_http_connection_free(server->connections);
    free(server);
}

uint16_t refit_httpd_port(const struct refit_httpd *server)
{
    return server->port;
}

unsigned refit_httpd_connections(const struct refit_httpd *server)
{
    return server->count;
}

uint64_t refit_httpd_handshakes_failed(const struct refit_httpd *server)
{
    return server->handshakes_failed;
}

uint64_t refit_httpd_refused(const struct refit_httpd *server)
{
    return server->refused;
}
