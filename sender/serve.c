/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/serve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cursor.h"
#include "base/log.h"
#include "base/thread.h"
#include "sender/check.h"
#include "sender/gather.h"
#include "sender/served.h"
#include "transport/endpoint.h" /* REFIT_STREAMS_MAX */
#include "transport/fair.h"

#define SERVED_MAX (64u << 20)
#define SERVED_SEND_MS 30000
#define STREAMS_DEFAULT 2
#define DIAL_AGAIN_MS 100
#define DIALS_MAX 20 /* beyond the first, by a receiver that had dropped this rank */

/* One order being carried out. */
struct service {
    struct service *next;
    struct refit_server *server;
    struct refit_plan_cache *plans; /* NULL: nothing was registered */
    struct refit_arena *arena;
    struct refit_served served;
    json_t *order; /* the texts below are borrowed from it */
    const char *refit_id, *destination;
    uint32_t first_rank, rank_count;
    json_t *card; /* owned */
    const struct refit_transport *transport;
    uint8_t token[REFIT_TOKEN_BYTES];
    unsigned streams; /* 0: our own choice */
    bool check_source;
    struct refit_deadline deadline;
    struct refit_tls *to_lead; /* owned: what rank 0 gathers goes over it; NULL: in the clear, or it gathers nothing */
    struct refit_endpoint *endpoint; /* under the server's lock, for stopping */
    bool stopped;
    bool staged; /* the replica has all its bytes */
};

struct refit_server {
    struct refit_server_config config;
    struct refit_ranks *ranks;
    struct refit_fair *fair; /* owned: among the replicas that take bytes over the network */
    struct refit_plan_cache *plans;
    struct refit_arena *arena;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a service has ended, or what holds of one is another */
    struct service *services; /* running */
    bool serving, ended;
};

/* ---- orders ---- */

char *refit_serve_order_text(const struct refit_serve_order *order, size_t *len)
{
    json_t *json = json_pack("{s:I, s:o, s:s, s:s, s:O, s:s, s:s, s:b, s:I}", "replica", (json_int_t)order->replica,
                             "attempt", refit_json_u64(order->attempt), "refit", order->refit_id, "token", order->token,
                             "card", order->card, "transport", order->transport, "destination", order->destination,
                             "check_source", (int)order->check_source, "deadline_ms", (json_int_t)order->deadline_ms);
    if (json) {
        json_object_set_new(json, "streams", json_integer(order->streams));
        json_object_set_new(json, "first_rank", json_integer(order->first_rank));
        json_object_set_new(json, "rank_count", json_integer(order->rank_count));
        if (order->unchanged)
            json_object_set_new(json, "unchanged", json_deep_copy(order->unchanged));
    }
    char *text = json ? refit_json_canonical(json, len) : NULL;
    json_decref(json);
    return text;
}

static int nibble(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool refit_serve_read_token(const char *hex, uint8_t token[static REFIT_TOKEN_BYTES])
{
    for (size_t i = 0; i < REFIT_TOKEN_BYTES; i++) {
        int high = nibble(hex[2 * i]);
        int low = high < 0 ? -1 : nibble(hex[2 * i + 1]);
        if (low < 0)
            return false;
        token[i] = (uint8_t)(high << 4 | low);
    }
    return hex[2 * REFIT_TOKEN_BYTES] == '\0';
}

static enum refit_status read_transport(struct service *service, const char *token, const char *transport,
                                        struct refit_error *err)
{
    const struct refit_server *server = service->server;
    json_t *card = json_object_get(service->order, "card");
    enum refit_status status = REFIT_OK;
    if (service->served.replica == REFIT_SERVE_GATHER)
        status = refit_gather_path(card, transport, server->config.rank, refit_ranks_lead_address(server->ranks),
                                   &service->transport, &service->card, err);
    else {
        service->card = json_incref(card);
        service->transport = refit_transport_find(transport);
    }
    if (status != REFIT_OK)
        return status;
    if (!service->transport)
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"%s\" is not known to this rank", transport);
    if (!refit_serve_read_token(token, service->token))
        return refit_fail(err, REFIT_PEER, "the lead's token is not well formed");
    return REFIT_OK;
}

static enum refit_status read_order(struct service *service, struct refit_error *err)
{
    static const char *what = "the lead's order";
    const json_t *order = service->order;
    const char *token = NULL, *transport = NULL;
    int64_t replica = 0, deadline_ms = 0, streams = 0, first_rank = 0, rank_count = 0;
    enum refit_status status = refit_json_get_int(order, "replica", what, 0, UINT32_MAX, &replica, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(order, "attempt", what, &service->served.attempt, err);
    service->served.replica = (uint32_t)replica;
    if (status == REFIT_OK)
        status = refit_json_get_int(order, "deadline_ms", what, 0, INT64_MAX, &deadline_ms, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(order, "refit", what, &service->refit_id, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(order, "destination", what, &service->destination, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(order, "token", what, &token, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(order, "transport", what, &transport, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(order, "check_source", what, &service->check_source, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(order, "first_rank", what, 0, REFIT_RANKS_MAX, &first_rank, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(order, "rank_count", what, 0, REFIT_RANKS_MAX, &rank_count, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(order, "streams", what, 0, REFIT_STREAMS_MAX, &streams, err);
    service->streams = (unsigned)streams;
    service->first_rank = (uint32_t)first_rank;
    service->rank_count = (uint32_t)rank_count;
    service->deadline = refit_deadline_in_ms(deadline_ms);
    return status == REFIT_OK ? read_transport(service, token, transport, err) : status;
}

/* ---- serving ---- */

/* From here on the service can be stopped; REFIT_ABORTED: it was already. */
static enum refit_status set_endpoint(struct service *service, struct refit_endpoint *endpoint, struct refit_error *err)
{
    pthread_mutex_lock(&service->server->lock);
    bool stopped = service->stopped;
    service->endpoint = endpoint;
    pthread_mutex_unlock(&service->server->lock);
    return stopped ? refit_fail(err, REFIT_ABORTED, "stopped by the lead") : REFIT_OK;
}

static void close_endpoint(struct service *service, struct refit_endpoint *endpoint)
{
    struct refit_endpoint_stats stats = {0};
    pthread_mutex_lock(&service->server->lock);
    service->endpoint = NULL;
    pthread_mutex_unlock(&service->server->lock);
    service->transport->stats(endpoint, &stats);
    service->served.payload_bytes += stats.payload_bytes;
    service->served.wire_bytes += stats.wire_bytes;
    service->transport->close(endpoint);
}

/* False: it is stopped, its time is over, or nobody waits for it any more. */
static bool pause_service(const struct service *service)
{
    struct refit_server *server = service->server;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(DIAL_AGAIN_MS));
    bool late = false;
    pthread_mutex_lock(&server->lock);
    while (!service->stopped && !service->staged && !late)
        late = pthread_cond_timedwait(&server->changed, &server->lock, &until) != 0;
    bool over = service->stopped || service->staged;
    pthread_mutex_unlock(&server->lock);
    return !over && !refit_deadline_passed(service->deadline);
}

/* A receiver that has no slot yet parks a connection for some seconds only, and then answers REFIT_NOT_FOUND; one whose
 * refit has ended does so at once, also when it got from other ranks what this one has. The lead says which it is. */
static enum refit_status connect_endpoint(const struct service *service, struct refit_endpoint *endpoint,
                                          struct refit_error *err)
{
    enum refit_status status;
    do
        status = service->transport->connect(endpoint, service->card, service->deadline, err);
    while (status == REFIT_NOT_FOUND && pause_service(service));
    return status;
}

/* A receiver drops who seems silent, and takes it back when it dials again. One whose refit has ended, or that is gone, does
 * not: then the loss it was. */
static enum refit_status serve_until_done(const struct service *service, struct refit_endpoint *endpoint,
                                          struct refit_error *err)
{
    struct refit_error refused;
    enum refit_status status = connect_endpoint(service, endpoint, err);
    for (unsigned dials = 0; status == REFIT_OK; dials++) {
        status = service->transport->wait_done(endpoint, service->deadline, err);
        if (status != REFIT_PEER || dials == DIALS_MAX || !pause_service(service))
            break;
        if (service->transport->connect(endpoint, service->card, service->deadline, &refused) != REFIT_OK)
            break;
        status = REFIT_OK;
    }
    return status;
}

static unsigned streams_of(const struct service *service)
{
    if (service->server->config.streams)
        return service->server->config.streams;
    return service->streams ? service->streams : STREAMS_DEFAULT;
}

/* The receiver does, and certificates may be configured here. */
static bool asks_for_tls(const struct service *service)
{
    return service->server->config.credentials && json_is_true(json_object_get(service->card, "tls"));
}

/* Rank 0 is known by the job's CA, as on every connection between ranks; a replica, by name, too. */
static enum refit_status choose_tls(const struct service *service, struct refit_endpoint_config *config,
                                    struct refit_error *err)
{
    config->tls = service->to_lead;
    config->tls_any_name = service->to_lead != NULL;
    if (config->tls || !asks_for_tls(service))
        return REFIT_OK;
    return refit_credentials_data_tls(service->server->config.credentials, &config->tls, err);
}

static enum refit_status move_bytes(struct service *service, struct refit_plan *plan, struct refit_tally *tally,
                                    struct refit_error *err)
{
    struct refit_server *server = service->server;
    const struct refit_transport *transport = service->transport;
    struct refit_endpoint_config config = {
        .role = REFIT_HOLDER,
        .refit_id = service->refit_id,
        .plan = plan,
        .holder = server->config.rank,
        .arenas = &service->arena,
        .arena_count = 1,
        .tally = tally,
        .verify = true,
        .streams = streams_of(service),
        .fair = transport == &refit_transport_tcp ? server->fair : NULL,
    };
    memcpy(config.token, service->token, sizeof config.token);
    struct refit_endpoint *endpoint = NULL;
    enum refit_status status = choose_tls(service, &config, err);
    if (status == REFIT_OK)
        status = transport->open(&config, &endpoint, err);
    if (status != REFIT_OK)
        return status;
    status = set_endpoint(service, endpoint, err);
    if (status == REFIT_OK)
        status = serve_until_done(service, endpoint, err);
    close_endpoint(service, endpoint);
    return status;
}

/* What this rank sent, and what it holds afterwards. */
struct account {
    struct refit_tally *sent, *again;
};

/* `unchanged` NULL: everything. */
static enum refit_status find_plan(const struct service *service, const json_t *unchanged, struct refit_plan **plan,
                                   struct refit_error *err)
{
    struct refit_plan_part part = {.layout = service->destination, .first_rank = service->first_rank,
                                   .rank_count = service->rank_count, .unchanged = unchanged};
    return refit_plan_cache_get(service->plans, &part, plan, err);
}

/* Of everything, also what was said to be unchanged and so was not sent: that is checked as well. */
static enum refit_status check(const struct service *service, struct refit_tally *again, struct refit_error *err)
{
    struct refit_plan *plan = NULL;
    enum refit_status status = find_plan(service, NULL, &plan, err);
    if (status == REFIT_OK)
        status = refit_check_source(plan, service->server->config.rank, service->arena, again, err);
    refit_plan_release(plan);
    return status;
}

static enum refit_status serve_plan(struct service *service, struct refit_plan *plan, struct account *account,
                                    struct refit_error *err)
{
    size_t edges = 0;
    refit_plan_edges(plan, &edges);
    enum refit_status status = edges ? move_bytes(service, plan, account->sent, err) : REFIT_OK;
    /* A replica that has got all may let go of a rank that it never needed. That one's memory is checked all the same. */
    struct refit_error unchecked;
    if (!service->check_source || (status != REFIT_OK && !refit_served_is_let_go(status)))
        return status;
    enum refit_status checked = check(service, account->again, &unchecked);
    if (status == REFIT_OK && checked != REFIT_OK && err)
        *err = unchecked;
    return status == REFIT_OK ? checked : status;
}

/* ---- the whole model, gathered at rank 0 ---- */

struct bucket_service {
    struct service *service;
    struct refit_tally *sent;
};

static enum refit_status move_bucket(void *context, const char *refit_id, struct refit_plan *plan, struct refit_error *err)
{
    struct bucket_service *bucket = context;
    bucket->service->refit_id = refit_id;
    return move_bytes(bucket->service, plan, bucket->sent, err);
}

static enum refit_status serve_gathering(struct service *service, struct account *account, struct refit_error *err)
{
    struct refit_layout *source = refit_plan_cache_source(service->plans);
    uint32_t rank = service->server->config.rank, tensors = refit_layout_tensor_count(source);
    struct bucket_service bucket = {.service = service};
    const char *id = service->refit_id;
    account->sent = refit_tally_create(tensors);
    account->again = refit_tally_create(tensors);
    if (!account->sent || !account->again)
        return refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    bucket.sent = account->sent;
    enum refit_status status = REFIT_OK;
    if (asks_for_tls(service))
        status = refit_credentials_ranks_tls(service->server->config.credentials, false, &service->to_lead, err);
    if (status == REFIT_OK)
        status = refit_gather_serve(source, rank, id, move_bucket, &bucket, err);
    service->refit_id = id;
    if (status == REFIT_OK && service->check_source)
        status = refit_gather_check(source, rank, service->arena, account->again, err);
    return status;
}

/* ---- an order ---- */

static enum refit_status serve(struct service *service, struct account *account, struct refit_error *err)
{
    struct refit_plan *plan = NULL;
    if (!service->plans)
        return refit_fail(err, REFIT_INVALID, "nothing is registered");
    if (service->served.replica == REFIT_SERVE_GATHER)
        return serve_gathering(service, account, err);
    enum refit_status status = find_plan(service, json_object_get(service->order, "unchanged"), &plan, err);
    if (status != REFIT_OK)
        return status;
    uint32_t tensors = refit_layout_tensor_count(refit_plan_destination(plan));
    account->sent = refit_tally_create(tensors);
    account->again = refit_tally_create(tensors);
    status = account->sent && account->again ? serve_plan(service, plan, account, err)
                                             : refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    refit_plan_release(plan);
    return status;
}

static void answer(struct service *service, const struct account *account)
{
    struct refit_buf body;
    struct refit_error err;
    refit_buf_init(&body, SERVED_MAX);
    bool ok = service->served.outcome.status == REFIT_OK;
    if (!refit_served_write(&body, &service->served, ok ? account->sent : NULL, account->again))
        refit_log_event(REFIT_LOG_ERROR, "out of memory for the account of a refit", refit_log_text("refit", service->refit_id));
    else if (refit_ranks_send(service->server->ranks, 0, REFIT_MESSAGE_SERVED, body.data, body.len,
                              refit_deadline_in_ms(SERVED_SEND_MS), &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "the lead was not told how serving ended", refit_log_text("refit", service->refit_id),
                        REFIT_LOG_CAUSE(&err));
    refit_buf_release(&body);
}

static void end_service(struct service *service)
{
    struct refit_server *server = service->server;
    pthread_mutex_lock(&server->lock);
    struct service **at = &server->services;
    while (*at != service)
        at = &(*at)->next;
    *at = service->next;
    refit_tls_close(service->to_lead);
    json_decref(service->card);
    json_decref(service->order);
    free(service);
    /* The destroyer may free the server as soon as the lock is let go. */
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void carry_out(struct service *service)
{
    struct account account = {0};
    if (service->served.outcome.status == REFIT_OK)
        service->served.outcome.status = serve(service, &account, &service->served.outcome);
    answer(service, &account);
    refit_tally_destroy(account.sent);
    refit_tally_destroy(account.again);
    end_service(service);
}

static void *run_service(void *context)
{
    pthread_detach(pthread_self());
    carry_out(context);
    return NULL;
}

static bool enlist(struct service *service)
{
    struct refit_server *server = service->server;
    pthread_mutex_lock(&server->lock);
    bool ended = server->ended;
    if (!server->serving && service->served.outcome.status == REFIT_OK)
        refit_fail(&service->served.outcome, REFIT_ABORTED, "its publish is over");
    service->plans = server->plans;
    service->arena = server->arena;
    service->next = server->services;
    if (!ended)
        server->services = service;
    pthread_mutex_unlock(&server->lock);
    return !ended;
}

static void on_serve(struct refit_server *server, const void *body, size_t len)
{
    struct service *service = calloc(1, sizeof *service);
    struct refit_error err;
    if (!service || refit_json_parse(body, len, "the lead's order", &service->order, &err) != REFIT_OK) {
        /* Without its replica's number it can't be answered; the lead's deadline ends it. */
        refit_log_event(REFIT_LOG_ERROR, "an order of the lead was lost",
                        refit_log_text("reason", service ? err.text : "out of memory"));
        free(service);
        return;
    }
    service->server = server;
    service->served.outcome.status = read_order(service, &service->served.outcome);
    if (!enlist(service)) {
        json_decref(service->card);
        json_decref(service->order);
        free(service);
        return;
    }
    pthread_t thread;
    enum refit_status status = refit_thread_start(&thread, run_service, service, "a thread to serve", &err);
    if (status != REFIT_OK) {
        service->served.outcome = err;
        carry_out(service);
    }
}

static void on_layout(struct refit_server *server, const void *body, size_t len)
{
    struct refit_error err;
    /* Under the lock, for the plans go when another source is registered. */
    pthread_mutex_lock(&server->lock);
    if (server->plans && refit_plan_cache_offer(server->plans, body, len, &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_ERROR, "a replica's layout is of no use", REFIT_LOG_CAUSE(&err));
    pthread_mutex_unlock(&server->lock);
}

/* ---- stopping ---- */

/* `replica` UINT32_MAX: all. */
static void stop(struct refit_server *server, uint32_t replica)
{
    pthread_mutex_lock(&server->lock);
    for (struct service *service = server->services; service; service = service->next) {
        if (replica != UINT32_MAX && service->served.replica != replica)
            continue;
        service->stopped = true;
        if (service->endpoint)
            service->transport->abort(service->endpoint);
    }
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void staged(struct refit_server *server, uint32_t replica)
{
    pthread_mutex_lock(&server->lock);
    for (struct service *service = server->services; service; service = service->next)
        service->staged |= service->served.replica == replica;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void on_replica(struct refit_server *server, void (*act)(struct refit_server *server, uint32_t replica),
                       const void *body, size_t len)
{
    struct refit_cursor cursor = refit_cursor_over(body, len);
    uint32_t replica = refit_cursor_u32(&cursor);
    if (refit_cursor_done(&cursor))
        act(server, replica);
}

void refit_server_stop_all(struct refit_server *server)
{
    stop(server, UINT32_MAX);
}

enum refit_status refit_server_wait_idle(struct refit_server *server, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    struct timespec until = refit_deadline_timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&server->lock);
    while (server->services && !late)
        late = pthread_cond_timedwait(&server->changed, &server->lock, &until) != 0;
    bool idle = !server->services;
    pthread_mutex_unlock(&server->lock);
    return idle ? REFIT_OK : refit_fail(err, REFIT_TIMEOUT, "a replica still reads this rank's memory");
}

/* ---- life ---- */

enum refit_status refit_server_create(const struct refit_server_config *config, struct refit_server **out,
                                      struct refit_error *err)
{
    struct refit_server *server = calloc(1, sizeof *server);
    if (!server)
        return refit_fail_alloc(err, "a server", sizeof *server);
    enum refit_status status = refit_fair_create(&server->fair, err);
    if (status != REFIT_OK) {
        free(server);
        return status;
    }
    server->config = *config;
    pthread_mutex_init(&server->lock, NULL);
    refit_cond_init(&server->changed);
    *out = server;
    return REFIT_OK;
}

void refit_server_end(struct refit_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->ended = true;
    pthread_mutex_unlock(&server->lock);
    refit_server_stop_all(server);
    pthread_mutex_lock(&server->lock);
    while (server->services)
        pthread_cond_wait(&server->changed, &server->lock);
    pthread_mutex_unlock(&server->lock);
}

void refit_server_destroy(struct refit_server *server)
{
    if (!server)
        return;
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    refit_fair_destroy(server->fair);
    free(server);
}

void refit_server_set_ranks(struct refit_server *server, struct refit_ranks *ranks)
{
    server->ranks = ranks;
}

void refit_server_set_source(struct refit_server *server, struct refit_plan_cache *plans, struct refit_arena *arena)
{
    pthread_mutex_lock(&server->lock);
    server->plans = plans;
    server->arena = arena;
    pthread_mutex_unlock(&server->lock);
}

void refit_server_set_serving(struct refit_server *server, bool serving)
{
    pthread_mutex_lock(&server->lock);
    server->serving = serving;
    pthread_mutex_unlock(&server->lock);
}

void refit_server_message(struct refit_server *server, enum refit_message type, const void *body, size_t len)
{
    switch (type) {
    case REFIT_MESSAGE_SERVE: on_serve(server, body, len); break;
    case REFIT_MESSAGE_LAYOUT: on_layout(server, body, len); break;
    case REFIT_MESSAGE_STOP: on_replica(server, stop, body, len); break;
    case REFIT_MESSAGE_STAGED: on_replica(server, staged, body, len); break;
    default: refit_log_event(REFIT_LOG_WARN, "a message of the lead is not known", refit_log_i64("type", (int)type));
    }
}
