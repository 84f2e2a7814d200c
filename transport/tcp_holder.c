/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending end of `tcp`: one thread per connection, which answers grants in the order in which they come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/io.h"
#include "transport/address.h"
#include "transport/greeting.h"
#include "transport/tcp.h"
#include "transport/tcp_sending.h"

struct outflow {
    struct tcp_holder *holder;
    pthread_t thread;
    struct refit_stream stream;
    struct refit_sending sending;
};

struct tcp_holder {
    struct refit_endpoint base;
    struct refit_holding holding;
    struct outflow *flows[REFIT_STREAMS_MAX]; /* under holding.lock */
    unsigned flow_count;
};

/* Of a card. */
struct target {
    struct refit_address address;
    char text[128];
    bool tls;
    const char *name; /* borrowed: to be found in its certificate */
};

static void *outflow_run(void *arg)
{
    struct outflow *flow = arg;
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = refit_serving_run(&flow->sending.serving, &err);
    if (status == REFIT_OK)
        refit_stream_end(&flow->stream);
    else
        refit_stream_shutdown(&flow->stream);
    refit_holding_ended(&flow->holder->holding, status, &err);
    return NULL;
}

/* ---- dialling ---- */

static void flow_free(struct outflow *flow)
{
    refit_stream_close(&flow->stream);
    refit_sending_release(&flow->sending);
    free(flow);
}

static enum refit_status greet(struct tcp_holder *holder, struct refit_stream *stream, unsigned number,
                               struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_buf greeting;
    refit_buf_init(&greeting, REFIT_GREETING_HEAD_BYTES + REFIT_OFFER_MAX * (size_t)REFIT_GREETING_EDGE_BYTES);
    enum refit_status status = refit_greeting_encode(&holder->base.config, number, &greeting, err);
    struct iovec iov = {.iov_base = greeting.data, .iov_len = greeting.len};
    if (status == REFIT_OK)
        status = refit_stream_send_by(stream, &iov, 1, 0, holder->base.wake, deadline, err);
    /* Refused before all was sent: the reason is there to be read. */
    if (status == REFIT_OK || status == REFIT_PEER)
        status = refit_greeting_await(stream, holder->base.wake, deadline, err);
    refit_buf_release(&greeting);
    return status;
}

/* The receiver's card demanded TLS, or it did not: nothing that comes from the connection itself changes that. */
static enum refit_status secure(struct tcp_holder *holder, const struct target *target, struct refit_stream *stream,
                                struct refit_deadline deadline, struct refit_error *err)
{
    if (!target->tls)
        return REFIT_OK;
    enum refit_status status = refit_stream_secure(stream, holder->base.config.tls, target->name, err);
    return status == REFIT_OK ? refit_stream_shake(stream, holder->base.wake, deadline, err) : status;
}

static enum refit_status dial(struct tcp_holder *holder, const struct target *target, unsigned number,
                              struct refit_deadline deadline, struct outflow **out, struct refit_error *err)
{
    const struct refit_address *address = &target->address;
    struct outflow *flow = malloc(sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    flow->stream = (struct refit_stream){.fd = -1};
    enum refit_status status = refit_address_dial(&address->any, address->len, SOCK_STREAM, target->text,
                                                  holder->base.wake, deadline, &flow->stream.fd, err);
    if (status == REFIT_OK) {
        refit_socket_tune(flow->stream.fd);
        status = secure(holder, target, &flow->stream, deadline, err);
    }
    if (status == REFIT_OK)
        status = greet(holder, &flow->stream, number, deadline, err);
    if (status != REFIT_OK) {
        refit_stream_close(&flow->stream);
        free(flow);
        return status;
    }
    flow->holder = holder;
    refit_sending_init(&flow->sending, &holder->holding, &flow->stream);
    *out = flow;
    return REFIT_OK;
}

static enum refit_status add_flow(struct tcp_holder *holder, struct outflow *flow, struct refit_error *err)
{
    pthread_mutex_lock(&holder->holding.lock);
    enum refit_status status = refit_holding_began(&holder->holding, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&flow->thread, outflow_run, flow, err);
    if (status == REFIT_OK) {
        holder->flows[holder->flow_count++] = flow;
        holder->holding.running++;
    }
    pthread_mutex_unlock(&holder->holding.lock);
    if (status != REFIT_OK)
        flow_free(flow);
    return status;
}

static enum refit_status parse_tls(const json_t *card, const struct refit_tls *tls, const char *host,
                                   struct target *target, struct refit_error *err)
{
    enum refit_status status = refit_json_opt_bool(card, "tls", "card", &target->tls, err);
    if (status != REFIT_OK || !target->tls)
        return status;
    target->name = host;
    if (json_object_get(card, "name"))
        status = refit_json_get_string(card, "name", "card", &target->name, err);
    if (status == REFIT_OK && !tls)
        return refit_fail(err, REFIT_INVALID, "%s: the receiver demands TLS for bulk bytes, and no certificates are "
                          "configured here: a refitd needs --data-tls-ca (or --tls-cert), a sender its cacert",
                          target->text);
    return status;
}

static enum refit_status parse_card(const json_t *card, const struct refit_tls *tls, struct target *target,
                                    struct refit_error *err)
{
    const char *host, *transport;
    int64_t port;
    *target = (struct target){.tls = false};
    enum refit_status status = refit_json_get_string(card, "transport", "card", &transport, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(card, "address", "card", &host, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(card, "port", "card", 1, 65535, &port, err);
    if (status != REFIT_OK)
        return status;
    snprintf(target->text, sizeof target->text, "%s port %d", host, (int)port);
    status = refit_address_parse(host, (uint16_t)port, &target->address, err);
    return status == REFIT_OK ? parse_tls(card, tls, host, target, err) : status;
}

/* Joins what has ended or is about to. holding.threads_lock is held, holding.lock is not. */
static void reap(struct tcp_holder *holder)
{
    struct outflow *flows[REFIT_STREAMS_MAX];
    pthread_mutex_lock(&holder->holding.lock);
    unsigned count = holder->flow_count;
    memcpy(flows, holder->flows, sizeof flows);
    holder->flow_count = 0;
    pthread_mutex_unlock(&holder->holding.lock);
    for (unsigned i = 0; i < count; i++) {
        pthread_join(flows[i]->thread, NULL);
        flow_free(flows[i]);
    }
}

static enum refit_status connect_all(struct tcp_holder *holder, const json_t *card, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    struct target target;
    enum refit_status status = refit_holding_reconnect(&holder->holding, err);
    if (status == REFIT_OK)
        status = parse_card(card, holder->base.config.tls, &target, err);
    if (status != REFIT_OK)
        return status;
    reap(holder);
    for (unsigned i = 0; i < holder->base.config.streams && status == REFIT_OK; i++) {
        struct outflow *flow = NULL;
        status = dial(holder, &target, i, deadline, &flow, err);
        if (status == REFIT_OK)
            status = add_flow(holder, flow, err);
        else if (status == REFIT_NOT_FOUND && i > 0)
            return REFIT_OK; /* the streams that are up were enough: the receiver needs no more bytes */
    }
    if (status == REFIT_OK)
        return REFIT_OK;
    return refit_error_prefix(err, status, "refit %s, holder %u, dialling %s", holder->base.config.refit_id,
                              holder->base.config.holder, target.text);
}

static void hang_up(struct tcp_holder *holder)
{
    pthread_mutex_lock(&holder->holding.lock);
    for (unsigned i = 0; i < holder->flow_count; i++)
        refit_stream_shutdown(&holder->flows[i]->stream);
    pthread_mutex_unlock(&holder->holding.lock);
}

/* ---- operations ---- */

static enum refit_status holder_connect(struct refit_endpoint *endpoint, const json_t *card,
                                        struct refit_deadline deadline, struct refit_error *err)
{
    struct tcp_holder *holder = (struct tcp_holder *)endpoint;
    pthread_mutex_lock(&holder->holding.threads_lock);
    enum refit_status status = connect_all(holder, card, deadline, err);
    if (status != REFIT_OK) {
        hang_up(holder);
        reap(holder);
    }
    pthread_mutex_unlock(&holder->holding.threads_lock);
    return status;
}

static enum refit_status holder_wait_done(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                          struct refit_error *err)
{
    return refit_holding_wait(&((struct tcp_holder *)endpoint)->holding, deadline, err);
}

static void holder_abort(struct refit_endpoint *endpoint)
{
    struct tcp_holder *holder = (struct tcp_holder *)endpoint;
    refit_endpoint_stop(endpoint);
    refit_holding_stop(&holder->holding);
    hang_up(holder);
    /* A connect that is dialling sees the wake descriptor and leaves. */
    pthread_mutex_lock(&holder->holding.threads_lock);
    reap(holder);
    pthread_mutex_unlock(&holder->holding.threads_lock);
}

static void holder_close(struct refit_endpoint *endpoint)
{
    struct tcp_holder *holder = (struct tcp_holder *)endpoint;
    refit_holding_release(&holder->holding);
    refit_endpoint_release(endpoint);
    free(holder);
}

static const struct refit_endpoint_ops holder_ops = {
    .connect = holder_connect,
    .wait_done = holder_wait_done,
    .abort = holder_abort,
    .close = holder_close,
};

enum refit_status refit_tcp_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                        struct refit_error *err)
{
    struct tcp_holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return refit_fail_alloc(err, "an endpoint", sizeof *holder);
    enum refit_status status = refit_endpoint_init(&holder->base, &holder_ops, config, err);
    if (status == REFIT_OK) {
        status = refit_holding_init(&holder->holding, &holder->base, err);
        if (status != REFIT_OK)
            refit_endpoint_release(&holder->base);
    }
    if (status != REFIT_OK) {
        free(holder);
        return status;
    }
    *out = &holder->base;
    return REFIT_OK;
}
