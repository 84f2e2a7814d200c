/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http_server.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "sidecar/http_tls.h"
#include "sidecar/listen_address.h"

#define BACKLOG 1024 /* a probe must not lose its SYN to a burst of others: it would try again a second later */
#define INPUT_MAX (128u << 10) /* read ahead while a request is worked on */
#define STREAM_BACKLOG (64u << 10)
#define LINGER_MS 1000
#define TLS_HANDSHAKE_RECORD 0x16

enum state {
    STATE_HANDSHAKE, /* of TLS */
    STATE_IDLE, /* between requests: no byte yet */
    STATE_HEAD,
    STATE_BODY,
    STATE_WORK,   /* the handler has it */
    STATE_STREAM, /* an answer without end */
    STATE_ANSWER, /* the answer drains */
    STATE_LINGER, /* our half is closed; what still comes in is dropped, or a reset would destroy the answer */
};

struct connection {
    struct refit_exchange exchange; /* first: an exchange is its connection */
    struct refit_httpd *server;
    struct bufferevent *io;
    struct event *timer;
    struct connection *previous, *next;
    enum state state;
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
    struct connection *connections;
    unsigned count;
    uint64_t refused, handshakes_failed;
    uint64_t bodies; /* reserved now */
    uint16_t port;
};

static void set_timer(struct connection *c, int64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    evtimer_add(c->timer, &tv);
}

static void release_body(struct connection *c)
{
    refit_buf_release(&c->body);
    c->server->bodies -= c->reserved;
    c->reserved = 0;
    c->exchange.body = NULL;
    c->exchange.body_len = 0;
}

static void connection_free(struct connection *c)
{
    struct refit_httpd *server = c->server;
    if ((c->state == STATE_WORK || c->state == STATE_STREAM) && c->exchange.on_gone)
        c->exchange.on_gone(&c->exchange);
    if (c->previous)
        c->previous->next = c->next;
    else
        server->connections = c->next;
    if (c->next)
        c->next->previous = c->previous;
    server->count--;
    release_body(c);
    event_free(c->timer);
    bufferevent_free(c->io);
    explicit_bzero(c->exchange.head.bearer, sizeof c->exchange.head.bearer);
    free(c->peer);
    free(c);
}

/* --- answers ------------------------------------------------------------------------------------------------- */

static void begin_answer(struct connection *c)
{
    c->state = STATE_ANSWER;
    c->exchange.on_gone = NULL;
    release_body(c);
    set_timer(c, c->server->config.answer_ms);
}

static void write_head(struct connection *c, struct refit_reply *reply)
{
    struct evbuffer *out = bufferevent_get_output(c->io);
    if (c->server->config.on_reply)
        c->server->config.on_reply(c->server->config.context, reply);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n%sCache-Control: no-store\r\n", reply->status,
                        refit_http_reason(reply->status), reply->headers);
    if (reply->type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", reply->type);
    evbuffer_add_printf(out, "Connection: %s\r\n", c->close_after ? "close" : "keep-alive");
}

static void free_sent(const void *data, size_t len, void *context)
{
    (void)data;
    (void)len;
    free(context);
}

/* The body goes out from where it lies, without another copy. */
static void write_body(struct connection *c, struct refit_reply *reply)
{
    struct evbuffer *out = bufferevent_get_output(c->io);
    uint8_t *data = reply->body.data;
    if (reply->body.len == 0 || strcmp(c->exchange.head.method, "HEAD") == 0)
        return;
    if (evbuffer_add_reference(out, data, reply->body.len, free_sent, data) == 0)
        reply->body.data = NULL;
    else
        c->close_after = true;
}

void refit_exchange_reply(struct refit_exchange *exchange, struct refit_reply *reply)
{
    struct connection *c = (struct connection *)exchange;
    if (c->dead) {
        refit_reply_release(reply);
        connection_free(c);
        return;
    }
    if (!exchange->head.keep_alive)
        c->close_after = true;
    begin_answer(c);
    write_head(c, reply);
    if (reply->status != 304 && reply->status != 204)
        evbuffer_add_printf(bufferevent_get_output(c->io), "Content-Length: %zu\r\n", reply->body.len);
    evbuffer_add(bufferevent_get_output(c->io), "\r\n", 2);
    write_body(c, reply);
    refit_reply_release(reply);
}

void refit_exchange_stream(struct refit_exchange *exchange, const char *type)
{
    struct connection *c = (struct connection *)exchange;
    struct refit_reply reply;
    c->close_after = true; /* the end of the stream is the end of the connection */
    refit_reply_init(&reply);
    reply.status = 200;
    reply.type = type;
    write_head(c, &reply);
    evbuffer_add(bufferevent_get_output(c->io), "\r\n", 2);
    refit_reply_release(&reply);
    release_body(c);
    c->state = STATE_STREAM;
}

bool refit_exchange_write(struct refit_exchange *exchange, const void *data, size_t len)
{
    struct connection *c = (struct connection *)exchange;
    struct evbuffer *out = bufferevent_get_output(c->io);
    size_t waiting = evbuffer_get_length(out);
    if (waiting + len > STREAM_BACKLOG)
        return false;
    if (!evtimer_pending(c->timer, NULL)) /* from here on the client has answer_ms to take it all */
        set_timer(c, c->server->config.answer_ms);
    return evbuffer_add(out, data, len) == 0;
}

void refit_exchange_end(struct refit_exchange *exchange)
{
    struct connection *c = (struct connection *)exchange;
    begin_answer(c);
    /* With nothing left to write there would be no write event to go on from. */
    bufferevent_trigger(c->io, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

static void refuse(struct connection *c, int status, const char *type, const char *why)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    refit_reply_problem(&reply, status, type, "%s", why);
    c->close_after = true;
    refit_exchange_reply(&c->exchange, &reply);
}

/* --- reading a request --------------------------------------------------------------------------------------- */

static void deliver(struct connection *c)
{
    refit_buf_append_u8(&c->body, 0);
    c->exchange.body = c->body.data;
    c->exchange.body_len = c->body.len - 1;
    c->state = STATE_WORK;
    evtimer_del(c->timer);
    c->server->config.on_request(c->server->config.context, &c->exchange);
}

static void read_body(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->io);
    size_t need = (size_t)c->exchange.head.content_length - c->body.len;
    size_t have = evbuffer_get_length(in);
    size_t take = have < need ? have : need;
    uint8_t *at = refit_buf_reserve(&c->body, take + 1);
    if (!at) {
        refuse(c, 507, "no-memory", "no memory for the body of this request");
        return;
    }
    if (take > 0 && evbuffer_remove(in, at, take) == (int)take)
        c->body.len += take;
    if (c->body.len == c->exchange.head.content_length)
        deliver(c);
}

static bool reserve_body(struct connection *c, uint64_t bytes)
{
    struct refit_httpd *server = c->server;
    if (bytes > server->config.bodies_max - server->bodies) {
        refuse(c, 503, "busy", "too many large requests at once; retry");
        return false;
    }
    server->bodies += bytes;
    c->reserved = bytes;
    refit_buf_init(&c->body, (size_t)bytes + 1);
    return true;
}

static void begin_body(struct connection *c)
{
    const struct refit_http_head *head = &c->exchange.head;
    if (head->content_length > c->limits.body_bytes) {
        char why[128];
        snprintf(why, sizeof why, "body of %" PRIu64 " bytes; at most %" PRIu64 " are taken here", head->content_length,
                 c->limits.body_bytes);
        refuse(c, 413, "body-too-large", why);
        return;
    }
    if (!reserve_body(c, head->content_length))
        return;
    int64_t used_ms = (refit_clock_ns() - c->first_byte_ns) / 1000000;
    set_timer(c, used_ms < c->limits.deadline_ms ? c->limits.deadline_ms - used_ms : 0);
    c->state = STATE_BODY;
    if (head->expect_continue && head->content_length)
        evbuffer_add_printf(bufferevent_get_output(c->io), "HTTP/1.1 100 Continue\r\n\r\n");
    read_body(c);
}

static void head_complete(struct connection *c, size_t len)
{
    struct evbuffer *in = bufferevent_get_input(c->io);
    const char *data = (const char *)evbuffer_pullup(in, (ev_ssize_t)len);
    const char *why = "";
    struct refit_reply reply;
    int status = data ? refit_http_head_parse(data, len, &c->exchange.head, &why) : 507;
    evbuffer_drain(in, len);
    if (status) {
        refuse(c, status, status == 431 ? "header-too-large" : "bad-request", why);
        return;
    }
    refit_reply_init(&reply);
    c->limits = (struct refit_http_limits){0, c->server->config.deadline_ms};
    c->server->config.on_head(c->server->config.context, &c->exchange, &c->limits, &reply);
    explicit_bzero(c->exchange.head.bearer, sizeof c->exchange.head.bearer);
    if (reply.status) {
        c->close_after = c->exchange.head.content_length > 0; /* that body is not read */
        refit_exchange_reply(&c->exchange, &reply);
        return;
    }
    refit_reply_release(&reply);
    begin_body(c);
}

static void read_head(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->io);
    size_t have = evbuffer_get_length(in), max = c->server->config.header_bytes_max;
    size_t look = have < max ? have : max;
    const char *data = (const char *)evbuffer_pullup(in, (ev_ssize_t)look);
    size_t end = data ? refit_http_head_end(data, look) : 0;
    if (end) {
        head_complete(c, end);
    } else if (have >= max) {
        char why[96];
        snprintf(why, sizeof why, "request line and headers longer than %zu bytes", max);
        refuse(c, 431, "header-too-large", why);
    }
}

static void begin_request(struct connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->io);
    char two[2];
    /* An empty line before a request is allowed, and old clients send one after a body. */
    while (evbuffer_copyout(in, two, 2) == 2 && memcmp(two, "\r\n", 2) == 0)
        evbuffer_drain(in, 2);
    if (evbuffer_get_length(in) == 0)
        return;
    c->state = STATE_HEAD;
    c->first_byte_ns = refit_clock_ns();
    set_timer(c, c->server->config.deadline_ms);
    /* A client hello never becomes a head; its sender should not have to wait to be told. */
    if (evbuffer_copyout(in, two, 1) == 1 && two[0] == TLS_HANDSHAKE_RECORD)
        refuse(c, 400, "bad-request", "TLS came in on a plain HTTP port: use http://");
}

static bool reading(const struct connection *c)
{
    return c->state == STATE_HEAD || c->state == STATE_BODY;
}

/* Goes as far as the bytes at hand allow. */
static void process(struct connection *c)
{
    if (c->state == STATE_IDLE)
        begin_request(c);
    if (c->state == STATE_HEAD)
        read_head(c);
    else if (c->state == STATE_BODY)
        read_body(c);
    else if (c->state == STATE_LINGER)
        evbuffer_drain(bufferevent_get_input(c->io), SIZE_MAX);
}

/* --- events -------------------------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *io, void *context)
{
    (void)io;
    process(context);
}

static void linger(struct connection *c)
{
    c->state = STATE_LINGER;
    refit_http_tls_goodbye(c->io);
    shutdown(bufferevent_getfd(c->io), SHUT_WR);
    set_timer(c, LINGER_MS);
    process(c);
}

/* All is written. */
static void on_write(struct bufferevent *io, void *context)
{
    struct connection *c = context;
    if (evbuffer_get_length(bufferevent_get_output(io)) > 0)
        return;
    if (c->state == STATE_STREAM)
        evtimer_del(c->timer);
    if (c->state != STATE_ANSWER)
        return;
    if (c->close_after) {
        linger(c);
        return;
    }
    c->state = STATE_IDLE;
    memset(&c->exchange.head, 0, sizeof c->exchange.head);
    set_timer(c, c->server->config.idle_ms);
    process(c);
}

static void begin_plain(struct connection *c)
{
    c->state = STATE_IDLE;
    set_timer(c, c->server->config.idle_ms);
}

static void on_event(struct bufferevent *io, short what, void *context);

/* Our alert says why, and a reset would destroy it: the client may have sent a request already. */
static void linger_after_alert(struct connection *c)
{
    evutil_socket_t fd = fcntl(bufferevent_getfd(c->io), F_DUPFD_CLOEXEC, 0);
    struct bufferevent *io = fd >= 0 ? bufferevent_socket_new(c->server->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!io) {
        if (fd >= 0)
            evutil_closesocket(fd);
        connection_free(c);
        return;
    }
    bufferevent_free(c->io);
    c->io = io;
    bufferevent_setcb(io, on_read, on_write, on_event, c);
    bufferevent_enable(io, EV_READ);
    linger(c);
}

/* Others can make these as often as they like. */
static void handshake_failed(struct connection *c, const char *otherwise)
{
    char why[512];
    refit_tls_report_text(&c->tls_report, why, sizeof why);
    refit_log_limited(REFIT_LOG_WARN, "TLS handshake failed", refit_log_text("listener", c->server->config.name),
                      refit_log_text("peer", c->exchange.client), refit_log_text("reason", why[0] ? why : otherwise));
    c->server->handshakes_failed++;
    if (c->tls_report.reason)
        linger_after_alert(c);
    else
        connection_free(c);
}

static void on_event(struct bufferevent *io, short what, void *context)
{
    struct connection *c = context;
    if (what & BEV_EVENT_CONNECTED) {
        c->exchange.peer = c->peer = refit_http_tls_peer(io);
        begin_plain(c);
        return;
    }
    if (c->state == STATE_HANDSHAKE) {
        handshake_failed(c, "the client closed the connection");
        return;
    }
    bool working = c->state == STATE_WORK && !c->exchange.on_gone;
    /* A client may close its half after the request and still wait for the answer. */
    if ((what & BEV_EVENT_EOF) && (c->state == STATE_ANSWER || working)) {
        c->close_after = true;
    } else if (working) {
        c->dead = true;
        bufferevent_disable(c->io, EV_READ | EV_WRITE);
    } else {
        connection_free(c);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct connection *c = context;
    (void)fd;
    (void)what;
    if (c->state == STATE_HANDSHAKE)
        handshake_failed(c, "not done within its deadline");
    else if (reading(c))
        refuse(c, 408, "request-timeout", "the request was not complete within its deadline");
    else
        connection_free(c);
}

/* NULL when out of memory: `fd` is then still the caller's. */
static struct connection *connection_new(struct refit_httpd *server, evutil_socket_t fd)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->timer = evtimer_new(server->base, on_timer, c);
    if (c->timer)
        c->io = server->config.tls ? refit_http_tls_accept(server->base, fd, server->config.tls, &c->tls_report)
                                   : bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->io) {
        if (c->timer)
            event_free(c->timer);
        free(c);
        return NULL;
    }
    c->server = server;
    c->next = server->connections;
    if (c->next)
        c->next->previous = c;
    server->connections = c;
    server->count++;
    bufferevent_setwatermark(c->io, EV_READ, 0, INPUT_MAX);
    bufferevent_setcb(c->io, on_read, on_write, on_event, c);
    return c;
}

/* It has sent something that is not read yet: perhaps the whole request, only accepted in the same turn as many others. */
static bool has_unread(const struct connection *c)
{
    char byte;
    return recv(bufferevent_getfd(c->io), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Drops the oldest connection that has not sent a whole head, if possible one that has nothing to say now: whoever holds
 * connections open must not keep a probe out. */
static bool make_room(struct refit_httpd *server)
{
    struct connection *oldest = NULL, *oldest_silent = NULL;
    for (struct connection *c = server->connections; c; c = c->next) {
        if (c->state != STATE_HANDSHAKE && c->state != STATE_IDLE && c->state != STATE_HEAD && c->state != STATE_LINGER)
            continue;
        oldest = c;
        if (!has_unread(c))
            oldest_silent = c;
    }
    if (oldest_silent)
        oldest = oldest_silent;
    if (oldest)
        connection_free(oldest);
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
    struct connection *c = connection_new(server, fd);
    if (!c) {
        evutil_closesocket(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (peer->sa_family == AF_UNIX)
        name_local_peer(fd, c->exchange.client, sizeof c->exchange.client);
    else
        refit_listen_address_print(peer, c->exchange.client, sizeof c->exchange.client);
    if (server->config.tls) {
        c->state = STATE_HANDSHAKE;
        set_timer(c, server->config.handshake_ms);
    } else {
        begin_plain(c);
    }
    bufferevent_enable(c->io, EV_READ | EV_WRITE);
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
        connection_free(server->connections);
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
