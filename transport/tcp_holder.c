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
    int bytes = (int)refit_plan_batch_bytes(holder->holding.base.config.plan);
    bytes = bytes < UNSENT_MAX ? bytes : UNSENT_MAX;
    if (holder->holding.base.config.fair)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

static enum refit_status dial(struct tcp_holder *holder, const struct refit_target *target, unsigned number,
                              struct refit_deadline deadline, struct outflow **out, struct refit_error *err)
{
    struct outflow *flow = malloc(sizeof *flow);
    if (!flow)
        return refit_fail_alloc(err, "a connection", sizeof *flow);
    enum refit_status status = refit_target_dial(target, &holder->holding.base, number, 0, deadline, &flow->stream, err);
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

static void reap(struct refit_holding *holding)
{
    struct tcp_holder *holder = (struct tcp_holder *)holding;
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

static enum refit_status dial_all(struct refit_holding *holding, const json_t *card, struct refit_deadline deadline,
                                  struct refit_error *err)
{
    struct tcp_holder *holder = (struct tcp_holder *)holding;
    struct refit_target target;
    enum refit_status status = refit_target_parse(card, holder->holding.base.config.tls, &target, err);
    if (status != REFIT_OK)
        return status;
    for (unsigned i = 0; i < holder->holding.base.config.streams && status == REFIT_OK; i++) {
        struct outflow *flow = NULL;
        status = dial(holder, &target, i, deadline, &flow, err);
        if (status == REFIT_OK)
            status = add_flow(holder, flow, err);
        else if (status == REFIT_NOT_FOUND && i > 0)
            return REFIT_OK; /* the streams that are up were enough: the receiver needs no more bytes */
    }
    if (status == REFIT_OK)
        return REFIT_OK;
    return refit_error_prefix(err, status, "refit %s, holder %u, dialling %s", holder->holding.base.config.refit_id,
                              holder->holding.base.config.holder, target.text);
}

static void hang_up(struct refit_holding *holding)
{
    struct tcp_holder *holder = (struct tcp_holder *)holding;
    pthread_mutex_lock(&holder->holding.lock);
    for (unsigned i = 0; i < holder->flow_count; i++)
        refit_stream_shutdown(&holder->flows[i]->stream);
    pthread_mutex_unlock(&holder->holding.lock);
}

static const struct refit_holding_kind tcp_kind = {.dial = dial_all, .hang_up = hang_up, .reap = reap};

enum refit_status refit_tcp_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                        struct refit_error *err)
{
    struct tcp_holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return refit_fail_alloc(err, "an endpoint", sizeof *holder);
    enum refit_status status = refit_holding_open(&holder->holding, &tcp_kind, config, err);
    if (status != REFIT_OK) {
        free(holder);
        return status;
    }
    *out = &holder->holding.base;
    return REFIT_OK;
}
