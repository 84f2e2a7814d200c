/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/http_client.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/thread.h>
#include <event2/util.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_HEADER_MAX (16 * 1024)
#define PORT_DEFAULT 80
#define PORT_SECURE 443
#define HANDSHAKE_TRIES 4
#define AGAIN_MS 50

/* Name look-ups draw random numbers from state that all of libevent shares; with this it is locked. */
static void use_threads(void)
{
    evthread_use_pthreads();
}

static pthread_once_t threads_once = PTHREAD_ONCE_INIT;

static enum refit_status bad_url(struct refit_error *err, const char *text, const char *why)
{
    return refit_fail(err, REFIT_INVALID, "URL \"%s\": %s; expected http://HOST:PORT or https://HOST:PORT", text, why);
}

static enum refit_status take_apart(struct evhttp_uri *uri, const char *text, struct refit_http_url *out,
                                    struct refit_error *err)
{
    const char *scheme = evhttp_uri_get_scheme(uri);
    const char *host = evhttp_uri_get_host(uri);
    const char *path = evhttp_uri_get_path(uri), *name = evhttp_uri_get_fragment(uri);
    int port = evhttp_uri_get_port(uri);
    out->secure = scheme && strcmp(scheme, "https") == 0;
    if (!scheme || (!out->secure && strcmp(scheme, "http") != 0))
        return bad_url(err, text, "only the schemes http and https are spoken");
    if (!host || !*host)
        return bad_url(err, text, "no host");
    if (evhttp_uri_get_userinfo(uri) || evhttp_uri_get_query(uri) || (name && (!out->secure || !*name)))
        return bad_url(err, text, "a base URL has no user or query, and a name behind a # only with https");
    if (port == 0)
        return bad_url(err, text, "port 0");
    size_t len = strlen(host);
    bool bracketed = host[0] == '[';
    snprintf(out->host, sizeof out->host, "%.*s", (int)(bracketed ? len - 2 : len), host + bracketed);
    snprintf(out->name, sizeof out->name, "%s", name ? name : out->host);
    out->port = (uint16_t)(port >= 0 ? port : out->secure ? PORT_SECURE : PORT_DEFAULT);
    len = path ? strlen(path) : 0;
    while (len > 0 && path[len - 1] == '/')
        len--;
    snprintf(out->prefix, sizeof out->prefix, "%.*s", (int)len, path ? path : "");
    return REFIT_OK;
}

enum refit_status refit_http_url_parse(const char *text, struct refit_http_url *out, struct refit_error *err)
{
    memset(out, 0, sizeof *out);
    const char *scheme = strstr(text, "://") ? "" : "http://";
    if (snprintf(out->text, sizeof out->text, "%s%s", scheme, text) >= (int)sizeof out->text)
        return bad_url(err, text, "too long");
    size_t len = strlen(out->text);
    while (len > 0 && out->text[len - 1] == '/')
        out->text[--len] = '\0';
    struct evhttp_uri *uri = evhttp_uri_parse(out->text);
    if (!uri)
        return bad_url(err, text, "not a URL");
    enum refit_status status = take_apart(uri, text, out, err);
    evhttp_uri_free(uri);
    return status;
}

/* One call under way. */
struct call {
    const struct refit_http_url *url;
    const struct refit_http_request *request;
    struct refit_http_answer *answer;
    struct refit_error *err;
    struct event_base *loop;
    struct evdns_base *dns;
    struct evhttp_connection *connection;
    struct refit_tls_report tls; /* what went wrong with TLS */
    enum refit_status status;
    bool done;
    int failure; /* enum evhttp_request_error, or -1 */
};

static const char *method_name(enum refit_http_method method)
{
    switch (method) {
    case REFIT_HTTP_GET: return "GET";
    case REFIT_HTTP_POST: return "POST";
    case REFIT_HTTP_PUT: return "PUT";
    }
    return "?";
}

static enum evhttp_cmd_type method_code(enum refit_http_method method)
{
    switch (method) {
    case REFIT_HTTP_GET: return EVHTTP_REQ_GET;
    case REFIT_HTTP_POST: return EVHTTP_REQ_POST;
    case REFIT_HTTP_PUT: return EVHTTP_REQ_PUT;
    }
    return EVHTTP_REQ_GET;
}

static enum refit_status call_failed(struct call *call, enum refit_status status, const char *why)
{
    return refit_fail(call->err, status, "%s %s%s: %s", method_name(call->request->method), call->url->text,
                      call->request->path, why);
}

static void copy_header(struct evhttp_request *reply, const char *key, char out[static REFIT_HTTP_HEADER_MAX])
{
    const char *value = evhttp_find_header(evhttp_request_get_input_headers(reply), key);
    snprintf(out, REFIT_HTTP_HEADER_MAX, "%s", value ? value : "");
}

static enum refit_status take_answer(struct call *call, struct evhttp_request *reply)
{
    struct refit_http_answer *answer = call->answer;
    struct evbuffer *body = evhttp_request_get_input_buffer(reply);
    answer->status = evhttp_request_get_response_code(reply);
    answer->body_bytes = evbuffer_get_length(body);
    answer->body = malloc(answer->body_bytes + 1);
    if (!answer->body)
        return refit_fail_alloc(call->err, "an HTTP answer", answer->body_bytes + 1);
    evbuffer_copyout(body, answer->body, answer->body_bytes);
    answer->body[answer->body_bytes] = '\0';
    copy_header(reply, "Refit-Instance", answer->instance);
    return REFIT_OK;
}

/* A server with too many at its door drops one without a word; nothing of the request was sent. */
static bool is_cut_in_handshake(const struct call *call)
{
    const struct refit_tls_report *tls = &call->tls;
    return tls->spoke && !tls->done && !tls->reason && !tls->alert && !tls->verify;
}

static enum refit_status no_answer(struct call *call)
{
    int unknown = bufferevent_socket_get_dns_error(evhttp_connection_get_bufferevent(call->connection));
    if (unknown) /* libevent reports it as an end of the connection */
        return call_failed(call, REFIT_PEER, unknown == EVUTIL_EAI_NONAME ? "no host has that name; check the URL, and the name service"
                                                                          : evutil_gai_strerror(unknown));
    char why[512];
    refit_tls_report_text(&call->tls, why, sizeof why);
    if (why[0])
        return call_failed(call, REFIT_PEER, why);
    if (is_cut_in_handshake(call))
        return call_failed(call, REFIT_PEER, "the connection closed in the middle of the TLS handshake");
    switch (call->failure) {
    case EVREQ_HTTP_DATA_TOO_LONG: return call_failed(call, REFIT_INVALID, "the answer is larger than is accepted");
    case EVREQ_HTTP_INVALID_HEADER: return call_failed(call, REFIT_INVALID, "the answer is not HTTP");
    case EVREQ_HTTP_TIMEOUT: return call_failed(call, REFIT_TIMEOUT, "no answer in time");
    case EVREQ_HTTP_EOF:
        return call_failed(call, REFIT_PEER, call->url->secure ? "the connection closed before the answer was whole"
                                                               : "the connection closed before the answer was whole; if that "
                                                                 "port speaks TLS, the URL begins with https://");
    default: break;
    }
    return call_failed(call, REFIT_PEER, "cannot connect; is refitd running there?");
}

static void on_failure(enum evhttp_request_error failure, void *context)
{
    struct call *call = context;
    call->failure = (int)failure;
}

static void on_answer(struct evhttp_request *reply, void *context)
{
    struct call *call = context;
    bool answered = reply && evhttp_request_get_response_code(reply) != 0 && call->failure < 0;
    call->done = true;
    call->status = answered ? take_answer(call, reply) : no_answer(call);
    event_base_loopbreak(call->loop);
}

static bool is_numeric(const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* *out is new; the connection takes it over. */
static enum refit_status open_tls(struct call *call, struct bufferevent **out)
{
    struct refit_tls *tls;
    struct ssl_st *ssl;
    if (!call->request->credentials)
        return call_failed(call, REFIT_INVALID, "no credentials were given for https");
    enum refit_status status = refit_credentials_tls(call->request->credentials, &tls, call->err);
    if (status == REFIT_OK)
        status = refit_tls_session(tls, call->url->name, &call->tls, &ssl, call->err);
    if (status)
        return status;
    *out = bufferevent_openssl_socket_new(call->loop, -1, ssl, BUFFEREVENT_SSL_CONNECTING,
                                          BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    return *out ? REFIT_OK : refit_fail_alloc(call->err, "a TLS connection", sizeof(void *));
}

static enum refit_status open_connection(struct call *call)
{
    struct bufferevent *io = NULL;
    enum refit_status status = call->url->secure ? open_tls(call, &io) : REFIT_OK;
    if (status)
        return status;
    call->connection = evhttp_connection_base_bufferevent_new(call->loop, call->dns, io, call->url->host, call->url->port);
    if (call->connection)
        return REFIT_OK;
    if (io)
        bufferevent_free(io);
    return refit_fail_alloc(call->err, "an HTTP connection", sizeof(void *));
}

static enum refit_status open_loop(struct call *call)
{
    struct event_config *config = event_config_new();
    if (config) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        call->loop = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (!call->loop)
        return call_failed(call, REFIT_SYSTEM, "cannot make an event loop");
    if (!is_numeric(call->url->host))
        call->dns = evdns_base_new(call->loop, EVDNS_BASE_INITIALIZE_NAMESERVERS);
    enum refit_status status = open_connection(call);
    if (status)
        return status;
    /* The deadline is the loop's; libevent's own would start again with every byte that trickles in. */
    evhttp_connection_set_timeout(call->connection, refit_deadline_left_ms(call->request->deadline) / 1000 + 2);
    evhttp_connection_set_retries(call->connection, 0);
    evhttp_connection_set_max_headers_size(call->connection, ANSWER_HEADER_MAX);
    size_t most = call->request->answer_max ? call->request->answer_max : REFIT_HTTP_ANSWER_MAX;
    evhttp_connection_set_max_body_size(call->connection, (ev_ssize_t)most);
    return REFIT_OK;
}

static enum refit_status add_token(struct call *call, struct evkeyvalq *headers)
{
    char token[REFIT_TOKEN_TEXT_MAX], value[REFIT_TOKEN_TEXT_MAX + 8];
    if (!call->request->credentials || call->request->without_token)
        return REFIT_OK;
    enum refit_status status = refit_credentials_token(call->request->credentials, call->url->host, call->url->secure,
                                                       token, call->err);
    if (status == REFIT_OK && token[0]) {
        snprintf(value, sizeof value, "Bearer %s", token);
        evhttp_add_header(headers, "Authorization", value);
        explicit_bzero(value, sizeof value);
    }
    explicit_bzero(token, sizeof token);
    return status;
}

static enum refit_status start_request(struct call *call)
{
    const struct refit_http_request *request = call->request;
    struct evhttp_request *sent = evhttp_request_new(on_answer, call);
    if (!sent)
        return refit_fail_alloc(call->err, "an HTTP request", sizeof(void *));
    evhttp_request_set_error_cb(sent, on_failure);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(sent);
    char host[REFIT_URL_MAX + 16];
    bool bracketed = strchr(call->url->host, ':') != NULL;
    snprintf(host, sizeof host, "%s%s%s:%u", bracketed ? "[" : "", call->url->host, bracketed ? "]" : "",
             (unsigned)call->url->port);
    evhttp_add_header(headers, "Host", host);
    evhttp_add_header(headers, "Connection", "close");
    evhttp_add_header(headers, "Accept", "application/json");
    enum refit_status status = add_token(call, headers);
    if (status) {
        evhttp_request_free(sent);
        return status;
    }
    if (request->body) {
        evhttp_add_header(headers, "Content-Type", "application/json");
        evbuffer_add_reference(evhttp_request_get_output_buffer(sent), request->body, request->body_bytes, NULL, NULL);
    }
    char path[2 * REFIT_URL_MAX + 512];
    snprintf(path, sizeof path, "%s%s", call->url->prefix, request->path);
    /* From here the connection owns the request, also when this fails. */
    if (evhttp_make_request(call->connection, sent, method_code(request->method), path) != 0 && !call->done)
        return call_failed(call, REFIT_PEER, "no connection");
    return REFIT_OK;
}

static enum refit_status run_loop(struct call *call)
{
    int left_ms = refit_deadline_left_ms(call->request->deadline);
    struct timeval left = {.tv_sec = left_ms / 1000, .tv_usec = left_ms % 1000 * 1000};
    if (!call->done) {
        event_base_loopexit(call->loop, &left);
        event_base_dispatch(call->loop);
    }
    if (!call->done)
        return call_failed(call, REFIT_TIMEOUT, "no answer before the deadline");
    return call->status;
}

static enum refit_status try_call(const struct refit_http_url *url, const struct refit_http_request *request,
                                  struct refit_http_answer *answer, bool *again, struct refit_error *err)
{
    struct call call = {.url = url, .request = request, .answer = answer, .err = err, .failure = -1};
    memset(answer, 0, sizeof *answer);
    enum refit_status status = open_loop(&call);
    if (status == REFIT_OK)
        status = start_request(&call);
    if (status == REFIT_OK)
        status = run_loop(&call);
    *again = status == REFIT_PEER && is_cut_in_handshake(&call);
    if (call.connection)
        evhttp_connection_free(call.connection);
    if (call.dns)
        evdns_base_free(call.dns, 0);
    if (call.loop)
        event_base_free(call.loop);
    if (status != REFIT_OK)
        refit_http_answer_release(answer);
    return status;
}

enum refit_status refit_http_call(const struct refit_http_url *url, const struct refit_http_request *request,
                                  struct refit_http_answer *answer, struct refit_error *err)
{
    bool again = true;
    enum refit_status status = REFIT_OK;
    pthread_once(&threads_once, use_threads);
    for (int i = 1; again; i++) {
        status = try_call(url, request, answer, &again, err);
        again = again && i < HANDSHAKE_TRIES && refit_deadline_left_ms(request->deadline) > i * AGAIN_MS;
        if (again)
            poll(NULL, 0, i * AGAIN_MS);
    }
    return status;
}

void refit_http_answer_release(struct refit_http_answer *answer)
{
    free(answer->body);
    answer->body = NULL;
    answer->body_bytes = 0;
}
