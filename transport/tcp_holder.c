/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending end of `tcp`: one thread per connection, which answers grants in the order in which they come.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/io.h"
#include "transport/dialling.h"
#include "transport/tcp.h"
#include "transport/tcp_sending.h"

#define UNSENT_MAX (512 << 10)

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

/* Whose turn it is, is decided here: what lies in a socket has had its turn. */
static void keep_queue_short(const struct tcp_holder *holder, int fd)
{
    int bytes = (int)refit_plan_batch_bytes(holder->base.config.plan);
    bytes = bytes < UNSENT_MAX ? bytes : UNSENT_MAX;
    if (holder->base.config.fair)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

static enum refit_status dial(struct tcp_holder *holder, const struct refit_target *target, unsigned number,
                              struct refit_deadline deadline, struct outflow **out, struct refit_error *err)
{
    struct outflow *flow = malloc(sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    enum refit_status status = refit_target_dial(target, &holder->base, number, 0, deadline, &flow->stream, err);
    if (status != REFIT_OK) {
        free(flow);
        return status;
    }
    keep_queue_short(holder, flow->stream.fd);
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
    struct refit_target target;
    enum refit_status status = refit_holding_reconnect(&holder->holding, err);
    if (status == REFIT_OK)
        status = refit_target_parse(card, holder->base.config.tls, &target, err);
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
