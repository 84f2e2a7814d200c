/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending end of `nccl`: a connection, and the thread that serves it, for each process that receives: one, unless the
 * card says how many engines do.
 */
#include <stdlib.h>

#include "transport/dialling.h"
#include "transport/nccl_endpoints.h"
#include "transport/nccl_reshard.h"

struct line {
    struct nccl_holder *holder;
    struct refit_nccl_sending sending; /* its thread's, once that has begun */
    pthread_t thread;
    bool has_thread;
};

struct nccl_holder {
    struct refit_holding holding;
    struct line *lines[REFIT_STREAMS_MAX]; /* owned; the first is there from the start, others stay */
    unsigned line_count;                   /* grows under holding.lock */
};

/* What broke with a communicator or a device is made good by dialling again, as what the peer did. */
static enum refit_status may_dial_again(enum refit_status status, struct refit_error *err)
{
    if (status == REFIT_OK || status == REFIT_ABORTED)
        return status;
    struct refit_error why = *err;
    return refit_fail(err, REFIT_PEER, "%s", why.text);
}

/* Who has lost one has lost them all, and dials anew. */
static void hang_up_others(struct line *line)
{
    struct nccl_holder *holder = line->holder;
    pthread_mutex_lock(&holder->holding.lock);
    for (unsigned i = 0; i < holder->line_count; i++)
        if (holder->lines[i] != line)
            refit_stream_shutdown(&holder->lines[i]->sending.stream);
    pthread_mutex_unlock(&holder->holding.lock);
}

static void *line_run(void *arg)
{
    struct line *line = arg;
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = may_dial_again(refit_nccl_sending_run(&line->sending, &err), &err);
    if (status == REFIT_OK)
        refit_stream_end(&line->sending.stream);
    else {
        refit_stream_shutdown(&line->sending.stream);
        hang_up_others(line);
    }
    refit_holding_ended(&line->holder->holding, status, &err);
    return NULL;
}

/* Those that came up when not all did. An abort is seen by the wake descriptor. */
static void hang_up(struct refit_holding *holding)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    if (refit_endpoint_stopping(&holding->base))
        return;
    pthread_mutex_lock(&holding->lock);
    for (unsigned i = 0; i < holder->line_count; i++)
        refit_stream_shutdown(&holder->lines[i]->sending.stream);
    pthread_mutex_unlock(&holding->lock);
}

static void reap(struct refit_holding *holding)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    for (unsigned i = 0; i < holder->line_count; i++) {
        struct line *line = holder->lines[i];
        if (line->has_thread)
            pthread_join(line->thread, NULL);
        line->has_thread = false;
        pthread_mutex_lock(&holding->lock);
        refit_stream_close(&line->sending.stream);
        pthread_mutex_unlock(&holding->lock);
    }
}

static enum refit_status add_line(struct nccl_holder *holder, struct refit_error *err)
{
    struct line *line = calloc(1, sizeof *line);
    if (!line)
        return refit_fail_alloc(err, "a connection", sizeof *line);
    line->holder = holder;
    enum refit_status status = refit_nccl_sending_open(&line->sending, &holder->holding, err);
    if (status != REFIT_OK) {
        refit_nccl_sending_close(&line->sending);
        free(line);
        return status;
    }
    pthread_mutex_lock(&holder->holding.lock);
    holder->lines[holder->line_count++] = line;
    pthread_mutex_unlock(&holder->holding.lock);
    return REFIT_OK;
}

/* Before anybody dials: NCCL itself would find out in the middle of making a communicator. */
static enum refit_status check_version(const struct nccl_holder *holder, const json_t *card, const char *peer,
                                       struct refit_error *err)
{
    int64_t theirs;
    enum refit_status status = refit_json_get_int(card, "version", "card", 0, INT32_MAX, &theirs, err);
    if (status != REFIT_OK)
        return status;
    return refit_nccl_check_versions(holder->lines[0]->sending.sources[0].device->nccl->version, (int)theirs, peer, err);
}

static enum refit_status meet(struct nccl_holder *holder, unsigned number, const json_t *card,
                              const struct refit_target *target, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_stream stream = {.fd = -1};
    refit_nccl_sharing_offer(&holder->lines[number]->sending, json_string_value(json_object_get(card, "reshard")));
    enum refit_status status =
        refit_target_dial(target, &holder->holding.base, number, REFIT_GREETING_NCCL, deadline, &stream, err);
    if (status == REFIT_OK)
        status = refit_nccl_sending_introduce(&holder->lines[number]->sending, &stream, deadline, err);
    if (status != REFIT_OK && stream.fd >= 0)
        refit_stream_close(&stream);
    return status;
}

static enum refit_status start(struct nccl_holder *holder, struct line *line, struct refit_error *err)
{
    pthread_mutex_lock(&holder->holding.lock);
    enum refit_status status = refit_holding_began(&holder->holding, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&line->thread, line_run, line, err);
    line->has_thread = status == REFIT_OK;
    holder->holding.running += line->has_thread;
    if (!line->has_thread)
        refit_stream_close(&line->sending.stream);
    pthread_mutex_unlock(&holder->holding.lock);
    return status;
}

static enum refit_status dial_line(struct nccl_holder *holder, unsigned number, const json_t *card,
                                   const struct refit_target *target, struct refit_deadline deadline,
                                   struct refit_error *err)
{
    enum refit_status status = number < holder->line_count ? REFIT_OK : add_line(holder, err);
    if (status == REFIT_OK)
        status = meet(holder, number, card, target, deadline, err);
    return status == REFIT_OK ? start(holder, holder->lines[number], err) : status;
}

static enum refit_status dial_lines(struct nccl_holder *holder, const json_t *card, const struct refit_target *target,
                                    struct refit_deadline deadline, struct refit_error *err)
{
    int64_t engines = 1;
    enum refit_status status = refit_json_opt_int(card, "engines", "card", 1, REFIT_STREAMS_MAX, &engines, err);
    if (status == REFIT_OK)
        status = check_version(holder, card, target->text, err);
    holder->holding.base.config.streams = (unsigned)engines;
    for (unsigned i = 0; i < (unsigned)engines && status == REFIT_OK; i++) {
        status = dial_line(holder, i, card, target, deadline, err);
        if (status == REFIT_NOT_FOUND && i > 0)
            return REFIT_OK; /* the receiver needs no more bytes */
    }
    return status;
}

/* What waits sees the wake descriptor: this while it dials, and the threads between two looks at their devices. */
static enum refit_status dial(struct refit_holding *holding, const json_t *card, struct refit_deadline deadline,
                              struct refit_error *err)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    struct refit_target target;
    enum refit_status status = refit_target_parse(card, holder->holding.base.config.tls, &target, err);
    if (status != REFIT_OK)
        return status;
    status = dial_lines(holder, card, &target, deadline, err);
    if (status == REFIT_OK)
        return REFIT_OK;
    return refit_error_prefix(err, status, "refit %s, holder %u, dialling %s", holder->holding.base.config.refit_id,
                              holder->holding.base.config.holder, target.text);
}

static void release(struct refit_holding *holding)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    for (unsigned i = 0; i < holder->line_count; i++) {
        refit_nccl_sending_close(&holder->lines[i]->sending);
        free(holder->lines[i]);
    }
}

static const struct refit_holding_kind nccl_kind = {.dial = dial, .hang_up = hang_up, .reap = reap, .release = release};

enum refit_status refit_nccl_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                         struct refit_error *err)
{
    struct nccl_holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return refit_fail_alloc(err, "an endpoint", sizeof *holder);
    struct refit_endpoint_config own = *config;
    own.streams = 1; /* until a card says otherwise */
    enum refit_status status = refit_holding_open(&holder->holding, &nccl_kind, &own, err);
    if (status != REFIT_OK) {
        free(holder);
        return status;
    }
    status = add_line(holder, err);
    if (status == REFIT_OK)
        *out = &holder->holding.base;
    else
        holder->holding.base.ops->close(&holder->holding.base);
    return status;
}
