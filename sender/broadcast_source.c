/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/io.h"
#include "base/log.h"
#include "sender/broadcast_internal.h"
#include "sender/serve.h"
#include "transport/collect.h"

#define ORDER_MS 15000

/* --- where ranks come in ------------------------------------------------------------------------------------------ */

static enum refit_status make_directory(struct refit_broadcast *broadcast, struct refit_error *err)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || !*parent || strlen(parent) > sizeof broadcast->directory - 16)
        parent = "/tmp";
    snprintf(broadcast->directory, sizeof broadcast->directory, "%s/refit-XXXXXX", parent);
    if (!mkdtemp(broadcast->directory)) {
        broadcast->directory[0] = '\0';
        return refit_fail_errno(err, errno, "%s: make a directory for the socket where ranks bring their parts", parent);
    }
    snprintf(broadcast->path, sizeof broadcast->path, "%s/gather", broadcast->directory);
    return REFIT_OK;
}

/* On all addresses: ranks know which one leads here. */
static enum refit_status listen_on(struct refit_broadcast *broadcast, const char *address, struct refit_error *err)
{
    struct refit_listener_config config = {.tcp_address = address, .local_path = broadcast->path,
                                           .tls = broadcast->tls};
    return refit_listener_start(&config, &broadcast->listener, err);
}

enum refit_status refit_broadcast_open_source(struct refit_broadcast *broadcast, struct refit_error *err)
{
    struct refit_error unheard;
    if (broadcast->gathering.gather)
        return REFIT_OK;
    enum refit_status status = make_directory(broadcast, err);
    if (status != REFIT_OK)
        return status;
    if (broadcast->lead->rank_count == 1)
        return listen_on(broadcast, NULL, err);
    if (broadcast->lead->credentials)
        status = refit_credentials_ranks_tls(broadcast->lead->credentials, true, &broadcast->tls, err);
    if (status != REFIT_OK)
        return status;
    status = listen_on(broadcast, "::", &unheard);
    return status == REFIT_OK ? status : listen_on(broadcast, "0.0.0.0", err);
}

void refit_broadcast_close_source(struct refit_broadcast *broadcast)
{
    refit_listener_stop(broadcast->listener);
    refit_tls_close(broadcast->tls);
    if (broadcast->directory[0])
        rmdir(broadcast->directory);
}

static json_t *cards_of(const struct refit_broadcast *broadcast)
{
    char boot_id[REFIT_BOOT_ID_MAX];
    refit_boot_id(boot_id);
    json_t *cards = json_pack("{s:s}", "boot_id", boot_id), *card;
    static const char *const names[] = {"tcp", "local"};
    for (size_t i = 0; cards && i < 2; i++)
        if (refit_listener_card(broadcast->listener, names[i], &card, NULL) == REFIT_OK)
            json_object_set_new(cards, names[i], card);
    return cards;
}

enum refit_status refit_broadcast_order_ranks(struct refit_broadcast *broadcast, struct refit_error *err)
{
    struct refit_lead *lead = broadcast->lead;
    json_t *cards = cards_of(broadcast);
    struct refit_serve_order order = {
        .replica = REFIT_SERVE_GATHER,
        .attempt = broadcast->attempt,
        .refit_id = broadcast->id,
        .token = broadcast->token,
        .card = cards,
        .transport = lead->transport,
        .destination = refit_layout_digest(broadcast->dense),
        .check_source = lead->publish.check_source,
        .deadline_ms = refit_deadline_left_ms(lead->publish.deadline),
    };
    size_t len = 0;
    char *text = cards ? refit_serve_order_text(&order, &len) : NULL;
    json_decref(cards);
    if (!text)
        return refit_fail_alloc(err, "an order", sizeof order);
    enum refit_status status =
        refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_SERVE, text, len,
                              refit_deadline_earlier(lead->publish.deadline, refit_deadline_in_ms(ORDER_MS)), err);
    free(text);
    return status;
}

/* --- a bucket ----------------------------------------------------------------------------------------------------- */

static enum refit_status plan_bucket(const struct refit_broadcast *broadcast, uint32_t number, struct refit_layout *source,
                                     enum refit_side side, struct refit_plan **out, struct refit_error *err)
{
    uint8_t *mask = refit_bucket_mask(&broadcast->buckets, number, broadcast->dense);
    const struct refit_plan_scope scope = {.side = side, .rank = side == REFIT_SOURCE ? 0 : REFIT_ALL_RANKS, .wanted = mask};
    enum refit_status status =
        mask ? refit_plan_build(source, broadcast->dense, scope, out, err)
             : refit_fail_alloc(err, "the mask of a bucket", refit_layout_tensor_count(broadcast->dense));
    free(mask);
    return status;
}

static enum refit_status bind(const struct refit_broadcast *broadcast, uint32_t number, struct refit_arena **out,
                              struct refit_error *err)
{
    const struct refit_bucket *bucket = &broadcast->buckets.items[number];
    void *memory = broadcast->memory[number % REFIT_BROADCAST_BUFFERS];
    int fd = -1;
    for (const struct refit_shared *shared = broadcast->shared; shared; shared = shared->next)
        fd = shared->data == memory ? shared->fd : fd;
    enum refit_status status = refit_arena_create(REFIT_ARENA_HOST, refit_layout_arena_bytes(broadcast->dense, 0), out, err);
    return status == REFIT_OK ? refit_arena_bind_host(*out, bucket->begin, memory, bucket->bytes, fd, 0, err) : status;
}

static enum refit_status check(void *context, struct refit_error *err)
{
    struct refit_broadcast *broadcast = context;
    pthread_mutex_lock(&broadcast->lead->lock);
    enum refit_status status = refit_broadcast_check(broadcast, err);
    pthread_mutex_unlock(&broadcast->lead->lock);
    return status;
}

struct intake {
    struct refit_plan *plan;
    struct refit_inbox *inbox;
    struct refit_landed *landed;
    struct refit_collect collect;
};

static enum refit_status open_path(struct refit_broadcast *broadcast, const struct refit_transport *transport, const char *id,
                                   struct refit_arena *const *arena, struct intake *intake, struct refit_error *err)
{
    struct refit_endpoint_config config = {
        .role = REFIT_RECEIVER,
        .refit_id = id,
        .plan = intake->plan,
        .holder = broadcast->lead->rank_count,
        .arenas = arena,
        .arena_count = 1,
        .landed = intake->landed,
        .inbox = intake->inbox,
        .listener = broadcast->listener,
        .tally = broadcast->tally,
        .verify = true,
        .streams = REFIT_BROADCAST_STREAMS,
    };
    struct refit_collect_path path = {.transport = transport};
    if (!refit_serve_read_token(broadcast->token, config.token))
        return refit_fail(err, REFIT_INVALID, "the gathering's token is not well formed");
    enum refit_status status = transport->open(&config, &path.endpoint, err);
    if (status == REFIT_OK)
        intake->collect.path[intake->collect.paths++] = path;
    return status;
}

static enum refit_status take_in(struct refit_broadcast *broadcast, uint32_t number, struct refit_arena *const *arena,
                                 struct intake *intake, struct refit_error *err)
{
    char id[sizeof broadcast->id + 12];
    snprintf(id, sizeof id, "%s/%" PRIu32, broadcast->id, number);
    intake->collect = (struct refit_collect){.plan = intake->plan, .inbox = intake->inbox,
                                             .deadline = broadcast->lead->publish.deadline, .check = check,
                                             .context = broadcast};
    enum refit_status status = open_path(broadcast, &refit_transport_local, id, arena, intake, err);
    if (status == REFIT_OK && broadcast->lead->rank_count > 1)
        status = open_path(broadcast, &refit_transport_tcp, id, arena, intake, err);
    if (status == REFIT_OK)
        status = refit_collect_run(&intake->collect, err);
    while (intake->collect.paths > 0) {
        const struct refit_collect_path *path = &intake->collect.path[--intake->collect.paths];
        path->transport->close(path->endpoint);
    }
    return status;
}

static enum refit_status gather_from_ranks(struct refit_broadcast *broadcast, uint32_t number, struct refit_arena *const *arena,
                                           struct refit_error *err)
{
    struct intake intake = {.plan = NULL};
    enum refit_status status =
        plan_bucket(broadcast, number, broadcast->lead->source, REFIT_DESTINATION, &intake.plan, err);
    size_t batches = status == REFIT_OK ? refit_collect_batches(intake.plan) : 0;
    if (batches > 0)
        status = refit_inbox_create(batches + 1, &intake.inbox, err);
    if (batches > 0 && status == REFIT_OK)
        status = refit_landed_create(intake.plan, &intake.landed, err);
    if (batches > 0 && status == REFIT_OK)
        status = take_in(broadcast, number, arena, &intake, err);
    refit_inbox_destroy(intake.inbox);
    refit_landed_release(intake.landed);
    refit_plan_release(intake.plan);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "gathering bucket %" PRIu32 " of %" PRIu32, number,
                                                            broadcast->buckets.count);
}

/* --- a callback --------------------------------------------------------------------------------------------------- */

static enum refit_status call(struct refit_broadcast *broadcast, uint32_t id, const struct refit_bucket *bucket,
                              uint8_t *memory, struct refit_digest *digest, struct refit_error *err)
{
    struct refit_tensor tensor;
    struct refit_buffer buffer;
    refit_layout_tensor(broadcast->dense, id, &tensor);
    if (!refit_layout_buffer_find(broadcast->dense, 0, tensor.name, &buffer))
        return refit_fail(err, REFIT_INVALID, "tensor %s has no buffer", tensor.name);
    uint8_t *destination = memory + (buffer.bytes > 0 ? buffer.offset - bucket->begin : 0);
    int failed = broadcast->gathering.gather(broadcast->gathering.context, tensor.name, destination, buffer.bytes);
    broadcast->call_failed = failed != 0;
    if (failed != 0)
        return refit_fail(err, REFIT_ABORTED, "the gather callback failed for tensor %s (%d)", tensor.name, failed);
    refit_digest_add(digest, destination, buffer.bytes, 0);
    return REFIT_OK;
}

static enum refit_status call_for_bucket(struct refit_broadcast *broadcast, uint32_t number, struct refit_error *err)
{
    const struct refit_bucket *bucket = &broadcast->buckets.items[number];
    uint8_t *memory = broadcast->memory[number % REFIT_BROADCAST_BUFFERS];
    enum refit_status status = REFIT_OK;
    for (uint32_t id = bucket->first; id < bucket->first + bucket->count && status == REFIT_OK; id++) {
        struct refit_digest digest = {{0}};
        status = call(broadcast, id, bucket, memory, &digest, err);
        if (status == REFIT_OK)
            refit_tally_add(broadcast->tally, id, digest);
    }
    return status;
}

void refit_broadcast_call_rest(struct refit_broadcast *broadcast, uint32_t number)
{
    struct refit_error err = {.status = REFIT_OK};
    bool wanted = broadcast->gathering.gather && !broadcast->call_failed;
    for (; wanted && number < broadcast->buckets.count && err.status == REFIT_OK; number++)
        err.status = call_for_bucket(broadcast, number, &err);
    if (err.status != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a bucket was not called for, nobody was left to be sent it",
                        REFIT_LOG_CAUSE(&err));
}

/* --- either ------------------------------------------------------------------------------------------------------- */

enum refit_status refit_broadcast_gather(struct refit_broadcast *broadcast, uint32_t number, struct refit_error *err)
{
    struct refit_gathered *slot = &broadcast->slot[number % REFIT_BROADCAST_BUFFERS];
    refit_plan_release(slot->plan);
    refit_arena_release(slot->arena);
    *slot = (struct refit_gathered){.plan = NULL};
    enum refit_status status = plan_bucket(broadcast, number, broadcast->dense, REFIT_SOURCE, &slot->plan, err);
    if (status == REFIT_OK)
        status = bind(broadcast, number, &slot->arena, err);
    if (status != REFIT_OK)
        return status;
    return broadcast->gathering.gather ? call_for_bucket(broadcast, number, err)
                                       : gather_from_ranks(broadcast, number, &slot->arena, err);
}
