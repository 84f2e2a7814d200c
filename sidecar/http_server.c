/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "sidecar/http_connection.h"
#include "sidecar/http_tls.h"

#define INPUT_MAX (128u << 10) /* read ahead while a request is worked on */
#define STREAM_BACKLOG (64u << 10)
#define LINGER_MS 1000
#define TLS_HANDSHAKE_RECORD 0x16

static void set_timer(struct refit_http_connection *c, int64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    evtimer_add(c->timer, &tv);
}

static void release_body(struct refit_http_connection *c)
{
    refit_buf_release(&c->body);
    c->server->bodies -= c->reserved;
    c->reserved = 0;
    c->exchange.body = NULL;
    c->exchange.body_len = 0;
}

void refit_http_connection_free(struct refit_http_connection *c)
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

static void begin_answer(struct refit_http_connection *c)
{
    c->state = STATE_ANSWER;
    c->exchange.on_gone = NULL;
    release_body(c);
    set_timer(c, c->server->config.answer_ms);
}

static void write_head(struct refit_http_connection *c, struct refit_reply *reply)
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
static void write_body(struct refit_http_connection *c, struct refit_reply *reply)
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
    struct refit_http_connection *c = (struct refit_http_connection *)exchange;
    if (c->dead) {
        refit_reply_release(reply);
        refit_http_connection_free(c);
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
    struct refit_http_connection *c = (struct refit_http_connection *)exchange;
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
    struct refit_http_connection *c = (struct refit_http_connection *)exchange;
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
    struct refit_http_connection *c = (struct refit_http_connection *)exchange;
    begin_answer(c);
    /* With nothing left to write there would be no write event to go on from. */
    bufferevent_trigger(c->io, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

static void refuse(struct refit_http_connection *c, int status, const char *type, const char *why)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    refit_reply_problem(&reply, status, type, "%s", why);
    c->close_after = true;
    refit_exchange_reply(&c->exchange, &reply);
}

/* --- reading a request --------------------------------------------------------------------------------------- */

static void deliver(struct refit_http_connection *c)
{
    refit_buf_append_u8(&c->body, 0);
    c->exchange.body = c->body.data;
    c->exchange.body_len = c->body.len - 1;
    c->state = STATE_WORK;
    evtimer_del(c->timer);
    c->server->config.on_request(c->server->config.context, &c->exchange);
}

static void read_body(struct refit_http_connection *c)
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

static bool reserve_body(struct refit_http_connection *c, uint64_t bytes)
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

static void begin_body(struct refit_http_connection *c)
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

static void head_complete(struct refit_http_connection *c, size_t len)
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

static void read_head(struct refit_http_connection *c)
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

static void begin_request(struct refit_http_connection *c)
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

static bool reading(const struct refit_http_connection *c)
{
    return c->state == STATE_HEAD || c->state == STATE_BODY;
}

/* Goes as far as the bytes at hand allow. */
static void process(struct refit_http_connection *c)
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

static void linger(struct refit_http_connection *c)
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
    struct refit_http_connection *c = context;
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

static void begin_plain(struct refit_http_connection *c)
{
    c->state = STATE_IDLE;
    set_timer(c, c->server->config.idle_ms);
}

static void on_event(struct bufferevent *io, short what, void *context);

/* Our alert says why, and a reset would destroy it: the client may have sent a request already. */
static void linger_after_alert(struct refit_http_connection *c)
{
    evutil_socket_t fd = fcntl(bufferevent_getfd(c->io), F_DUPFD_CLOEXEC, 0);
    struct bufferevent *io = fd >= 0 ? bufferevent_socket_new(c->server->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!io) {
        if (fd >= 0)
            evutil_closesocket(fd);
        refit_http_connection_free(c);
        return;
    }
    bufferevent_free(c->io);
    c->io = io;
    bufferevent_setcb(io, on_read, on_write, on_event, c);
    bufferevent_enable(io, EV_READ);
    linger(c);
}

/* Others can make these as often as they like. */
static void handshake_failed(struct refit_http_connection *c, const char *otherwise)
{
    char why[512];
    refit_tls_report_text(&c->tls_report, why, sizeof why);
    refit_log_limited(REFIT_LOG_WARN, "TLS handshake failed", refit_log_text("listener", c->server->config.name),
                      refit_log_text("peer", c->exchange.client), refit_log_text("reason", why[0] ? why : otherwise));
    c->server->handshakes_failed++;
    if (c->tls_report.reason)
        linger_after_alert(c);
    else
        refit_http_connection_free(c);
}

static void on_event(struct bufferevent *io, short what, void *context)
{
    struct refit_http_connection *c = context;
    if (what & BEV_EVENT_CONNECTED) {
        c->exchange.peer = c->peer = refit_http_tls_peer(io);
        begin_plain(c);
        return;
    }
    if (c->state == STATE_HANDSHAKE) {
        handshake_failed(c, "the client closed the connection");
        return;
    }
    /* A client may close its half after the request and still wait for the answer. One that closed both halves looks the
     * same; a long poll of that one is answered at its end, at the latest, into nothing. */
    if ((what & BEV_EVENT_EOF) && (c->state == STATE_ANSWER || c->state == STATE_WORK)) {
        c->close_after = true;
    } else if (c->state == STATE_WORK && !c->exchange.on_gone) {
        c->dead = true;
        bufferevent_disable(c->io, EV_READ | EV_WRITE);
    } else {
        refit_http_connection_free(c);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct refit_http_connection *c = context;
    (void)fd;
    (void)what;
    if (c->state == STATE_HANDSHAKE)
        handshake_failed(c, "not done within its deadline");
    else if (reading(c))
        refuse(c, 408, "request-timeout", "the request was not complete within its deadline");
    else
        refit_http_connection_free(c);
}

struct refit_http_connection *refit_http_connection_new(struct refit_httpd *server, evutil_socket_t fd)
{
    struct refit_http_connection *c = calloc(1, sizeof *c);
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

void refit_http_connection_begin(struct refit_http_connection *c)
{
    if (c->server->config.tls) {
        c->state = STATE_HANDSHAKE;
        set_timer(c, c->server->config.handshake_ms);
    } else {
        begin_plain(c);
    }
    bufferevent_enable(c->io, EV_READ | EV_WRITE);
}
