/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/broadcast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/thread.h"
#include "memory/ops.h"
#include "receiver/receiver_internal.h"
#include "transport/collect.h"

#define BUFFERS 2
#define STEP_NS INT64_C(50000000) /* between two notices of progress */

struct landing {
    const struct refit_broadcast_config *config;
    struct refit_buckets buckets;
    void *memory[BUFFERS];
    struct refit_arena *arena[BUFFERS]; /* a bucket's part of the model's arena space, bound to that memory */
    struct refit_endpoint_stats stats;  /* of what came in */
    int64_t told_ns;

    pthread_mutex_t lock; /* of the next ones */
    pthread_cond_t changed;
    uint32_t received, scattered; /* buckets */
    bool stopping;
    struct refit_error error; /* why nothing more comes in */
};

/* --- what both halves need ---------------------------------------------------------------------------------------- */

static enum refit_status check(void *context, struct refit_error *err)
{
    struct landing *landing = context;
    enum refit_status status = refit_session_check(landing->config->session, err);
    pthread_mutex_lock(&landing->lock);
    bool stopping = landing->stopping;
    pthread_mutex_unlock(&landing->lock);
    return status == REFIT_OK && stopping ? refit_fail(err, REFIT_ABORTED, "the other half of the transfer failed") : status;
}

static enum refit_status plan_bucket(const struct landing *landing, uint32_t number, struct refit_layout *destination,
                                     struct refit_plan_scope scope, struct refit_plan **out, struct refit_error *err)
{
    uint8_t *mask = refit_bucket_mask(&landing->buckets, number, destination);
    scope.wanted = mask;
    enum refit_status status = mask ? refit_plan_build(landing->buckets.dense, destination, scope, out, err)
                                    : refit_fail_alloc(err, "the mask of a bucket", refit_layout_tensor_count(destination));
    free(mask);
    return status;
}

/* An endpoint that both halves can open: with its inbox and its table of what has landed. */
struct catching {
    struct refit_plan *plan;
    struct refit_inbox *inbox;
    struct refit_landed *landed;
    struct refit_collect_path path;
};

static enum refit_status catching_init(struct catching *catching, struct refit_error *err)
{
    enum refit_status status = refit_inbox_create(refit_collect_batches(catching->plan) + 1, &catching->inbox, err);
    return status == REFIT_OK ? refit_landed_create(catching->plan, &catching->landed, err) : status;
}

static void catching_release(struct catching *catching)
{
    if (catching->path.endpoint)
        catching->path.transport->close(catching->path.endpoint);
    refit_inbox_destroy(catching->inbox);
    refit_landed_release(catching->landed);
    refit_plan_release(catching->plan);
}

static struct refit_endpoint_config endpoint_config(const struct landing *landing, const struct catching *catching)
{
    const struct refit_session *session = landing->config->session;
    const struct refit_receiver_config *config = &session->receiver->config;
    struct refit_endpoint_config endpoint = {
        .role = REFIT_RECEIVER,
        .refit_id = session->id,
        .plan = catching->plan,
        .holder = 1,
        .landed = catching->landed,
        .inbox = catching->inbox,
        .verify = config->verify,
        .streams = config->streams,
        .nice = config->nice,
    };
    memcpy(endpoint.token, session->token, sizeof endpoint.token);
    return endpoint;
}

static enum refit_status collect(struct landing *landing, const struct catching *catching, bool in_process,
                                 void (*landed)(void *context, uint64_t bytes), struct refit_error *err)
{
    struct refit_collect given = {
        .plan = catching->plan,
        .inbox = catching->inbox,
        .path = {catching->path},
        .paths = 1,
        .in_process = in_process,
        .deadline = landing->config->session->deadline,
        .check = check,
        .landed = landed,
        .context = landing,
    };
    return refit_collect_run(&given, err);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static enum refit_status bind(struct landing *landing, uint32_t number, struct refit_error *err)
{
    const struct refit_bucket *bucket = &landing->buckets.items[number];
    struct refit_arena **arena = &landing->arena[number % BUFFERS];
    enum refit_status status =
        refit_arena_create(REFIT_ARENA_HOST, refit_layout_arena_bytes(landing->buckets.dense, 0), arena, err);
    return status == REFIT_OK ? refit_arena_bind_host(*arena, bucket->begin, landing->memory[number % BUFFERS],
                                                      bucket->bytes, -1, 0, err)
                              : status;
}

/* Of the thread that receives; told by the other one. */
static void add_stats(struct landing *landing, const struct catching *catching)
{
    struct refit_endpoint_stats one = {0};
    catching->path.transport->stats(catching->path.endpoint, &one);
    pthread_mutex_lock(&landing->lock);
    landing->stats.payload_bytes += one.payload_bytes;
    landing->stats.wire_bytes += one.wire_bytes;
    landing->stats.copied_bytes += one.copied_bytes;
    landing->stats.pack_ns += one.pack_ns;
    landing->stats.verify_ns += one.verify_ns;
    pthread_mutex_unlock(&landing->lock);
}

/* A bucket's endpoint is known by the refit's id and the bucket's number. */
static enum refit_status receive_into(struct landing *landing, uint32_t number, struct catching *catching,
                                      struct refit_error *err)
{
    const struct refit_session *session = landing->config->session;
    char id[REFIT_REFIT_ID_MAX + 12];
    enum refit_status status = catching_init(catching, err);
    if (status == REFIT_OK)
        status = bind(landing, number, err);
    if (status != REFIT_OK)
        return status;
    struct refit_endpoint_config config = endpoint_config(landing, catching);
    snprintf(id, sizeof id, "%s/%" PRIu32, session->id, number);
    config.refit_id = id;
    config.arenas = &landing->arena[number % BUFFERS];
    config.arena_count = 1;
    config.listener = session->receiver->listener;
    config.rate_bytes_per_s = session->receiver->config.rate_bytes_per_s;
    catching->path.transport = refit_transport_find(session->request.transport);
    status = catching->path.transport->open(&config, &catching->path.endpoint, err);
    if (status == REFIT_OK)
        status = collect(landing, catching, false, NULL, err);
    if (catching->path.endpoint)
        add_stats(landing, catching);
    if (status == REFIT_PEER || status == REFIT_TIMEOUT)
        status = refit_error_prefix(err, status, "bucket %" PRIu32 " of %" PRIu32, number, landing->buckets.count);
    /* It keeps the id, which is on this stack. */
    if (catching->path.endpoint)
        catching->path.transport->close(catching->path.endpoint);
    catching->path.endpoint = NULL;
    return status;
}

static enum refit_status receive(struct landing *landing, uint32_t number, struct refit_error *err)
{
    struct catching catching = {.plan = NULL};
    enum refit_status status =
        plan_bucket(landing, number, landing->buckets.dense,
                    (struct refit_plan_scope){.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS}, &catching.plan, err);
    if (status == REFIT_OK && refit_collect_batches(catching.plan) > 0)
        status = receive_into(landing, number, &catching, err);
    catching_release(&catching);
    return status;
}

/* False: the other half has failed. */
static bool wait_for_buffer(struct landing *landing, uint32_t number)
{
    pthread_mutex_lock(&landing->lock);
    while (!landing->stopping && number >= landing->scattered + BUFFERS)
        pthread_cond_wait(&landing->changed, &landing->lock);
    bool go_on = !landing->stopping;
    pthread_mutex_unlock(&landing->lock);
    return go_on;
}

static void *receive_all(void *context)
{
    struct landing *landing = context;
    struct refit_error err = {.status = REFIT_OK};
    for (uint32_t number = 0; number < landing->buckets.count && err.status == REFIT_OK; number++) {
        if (!wait_for_buffer(landing, number))
            break;
        err.status = receive(landing, number, &err);
        pthread_mutex_lock(&landing->lock);
        landing->received += err.status == REFIT_OK;
        landing->error = err;
        pthread_cond_broadcast(&landing->changed);
        pthread_mutex_unlock(&landing->lock);
    }
    return NULL;
}

/* --- on into the slot --------------------------------------------------------------------------------------------- */

static void note_scattered(void *context, uint64_t bytes)
{
    struct landing *landing = context;
    struct refit_session *session = landing->config->session;
    int64_t now = refit_clock_ns();
    bool tell = now - landing->told_ns >= STEP_NS;
    pthread_mutex_lock(&landing->lock);
    struct refit_endpoint_stats stats = landing->stats;
    pthread_mutex_unlock(&landing->lock);
    refit_receiver_lock(session->receiver);
    session->bytes_done += bytes;
    session->supplied.origin_bytes += bytes;
    session->stats = stats;
    session->sequence += tell;
    refit_receiver_unlock(session->receiver);
    if (!tell)
        return;
    landing->told_ns = now;
    refit_receiver_changed(session->receiver);
}

static enum refit_status scatter_from(struct landing *landing, uint32_t number, struct catching *catching,
                                      const struct refit_plan *from, struct refit_error *err)
{
    const struct refit_broadcast_config *given = landing->config;
    enum refit_status status = catching_init(catching, err);
    if (status != REFIT_OK)
        return status;
    struct refit_endpoint_config config = endpoint_config(landing, catching);
    config.arenas = refit_bank_arenas(given->session->receiver->bank, given->slot);
    config.arena_count = refit_plan_rank_count(catching->plan);
    config.tally = given->tally;
    catching->path.transport = &refit_transport_local;
    status = refit_local_open_source(&config, from, &landing->arena[number % BUFFERS], 1, &catching->path.endpoint, err);
    return status == REFIT_OK ? collect(landing, catching, true, note_scattered, err) : status;
}

static enum refit_status scatter(struct landing *landing, uint32_t number, struct refit_error *err)
{
    struct refit_plan *whole = landing->config->plan, *from = NULL;
    struct refit_layout *destination = refit_plan_destination(whole);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS,
                                     .first_rank = refit_plan_first_rank(whole),
                                     .rank_count = refit_plan_rank_count(whole)};
    struct catching catching = {.plan = NULL};
    enum refit_status status = plan_bucket(landing, number, destination, scope, &from, err);
    scope.side = REFIT_DESTINATION;
    if (status == REFIT_OK)
        status = plan_bucket(landing, number, destination, scope, &catching.plan, err);
    if (status == REFIT_OK && refit_collect_batches(catching.plan) > 0)
        status = scatter_from(landing, number, &catching, from, err);
    catching_release(&catching);
    refit_plan_release(from);
    return status;
}

static enum refit_status wait_for_bucket(struct landing *landing, uint32_t number, struct refit_error *err)
{
    pthread_mutex_lock(&landing->lock);
    while (landing->received <= number && landing->error.status == REFIT_OK)
        pthread_cond_wait(&landing->changed, &landing->lock);
    if (landing->received <= number)
        *err = landing->error;
    enum refit_status status = landing->received <= number ? landing->error.status : REFIT_OK;
    pthread_mutex_unlock(&landing->lock);
    return status;
}

static void give_buffer_back(struct landing *landing, uint32_t number)
{
    refit_arena_release(landing->arena[number % BUFFERS]);
    pthread_mutex_lock(&landing->lock);
    landing->arena[number % BUFFERS] = NULL;
    landing->scattered++;
    pthread_cond_broadcast(&landing->changed);
    pthread_mutex_unlock(&landing->lock);
}

static enum refit_status scatter_all(struct landing *landing, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (uint32_t number = 0; number < landing->buckets.count && status == REFIT_OK; number++) {
        status = wait_for_bucket(landing, number, err);
        if (status == REFIT_OK)
            status = scatter(landing, number, err);
        if (status == REFIT_OK)
            give_buffer_back(landing, number);
    }
    return status;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

static enum refit_status take_buckets(const struct refit_session *session, struct refit_buckets *out,
                                      struct refit_error *err)
{
    enum refit_status status = refit_buckets_create(session->source, out, err);
    if (status != REFIT_OK || out->count == session->request.buckets)
        return status;
    status = refit_fail(err, REFIT_MISMATCH, "refit: the lead broadcasts %" PRIu32 " buckets, here the same model has %" PRIu32
                        "; both must be of one version", session->request.buckets, out->count);
    refit_buckets_release(out);
    return status;
}

enum refit_status refit_broadcast_needs(const struct refit_session *session, uint64_t *bytes, struct refit_error *err)
{
    struct refit_buckets buckets;
    enum refit_status status = take_buckets(session, &buckets, err);
    if (status != REFIT_OK)
        return status;
    *bytes = BUFFERS * buckets.bytes_max;
    refit_buckets_release(&buckets);
    return REFIT_OK;
}

static enum refit_status map_buffers(struct landing *landing, struct refit_error *err)
{
    for (int i = 0; i < BUFFERS && landing->buckets.bytes_max > 0; i++) {
        landing->memory[i] = mmap(NULL, landing->buckets.bytes_max, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (landing->memory[i] == MAP_FAILED) {
            landing->memory[i] = NULL;
            return refit_fail_alloc(err, "a buffer for a bucket", landing->buckets.bytes_max);
        }
    }
    return REFIT_OK;
}

static enum refit_status fill(const struct refit_broadcast_config *config, struct refit_error *err)
{
    struct refit_arena *const *arenas = refit_bank_arenas(config->session->receiver->bank, config->slot);
    uint32_t first = refit_plan_first_rank(config->plan), count = refit_plan_rank_count(config->plan);
    enum refit_status status = REFIT_OK;
    for (uint32_t rank = 0; rank < count && status == REFIT_OK; rank++)
        status = refit_memory_fill(arenas[rank], refit_plan_destination(config->plan), first + rank, err);
    return status;
}

static enum refit_status run_both(struct landing *landing, struct refit_error *err)
{
    pthread_t thread;
    enum refit_status status = refit_thread_start(&thread, receive_all, landing, "the thread that receives buckets", err);
    if (status != REFIT_OK)
        return status;
    status = scatter_all(landing, err);
    pthread_mutex_lock(&landing->lock);
    landing->stopping = true;
    pthread_cond_broadcast(&landing->changed);
    pthread_mutex_unlock(&landing->lock);
    pthread_join(thread, NULL);
    landing->told_ns = 0;
    note_scattered(landing, 0); /* the last word */
    return status;
}

static void release(struct landing *landing)
{
    for (int i = 0; i < BUFFERS; i++) {
        refit_arena_release(landing->arena[i]);
        if (landing->memory[i])
            munmap(landing->memory[i], landing->buckets.bytes_max);
    }
    pthread_cond_destroy(&landing->changed);
    pthread_mutex_destroy(&landing->lock);
    refit_buckets_release(&landing->buckets);
}

enum refit_status refit_broadcast_run(const struct refit_broadcast_config *config, struct refit_error *err)
{
    struct landing landing = {.config = config};
    enum refit_status status = take_buckets(config->session, &landing.buckets, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_init(&landing.lock, NULL);
    pthread_cond_init(&landing.changed, NULL);
    status = map_buffers(&landing, err);
    if (status == REFIT_OK)
        status = fill(config, err);
    if (status == REFIT_OK)
        status = run_both(&landing, err);
    release(&landing);
    return status;
}
