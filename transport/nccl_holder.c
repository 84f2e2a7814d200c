/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending end of `nccl`: one connection, and the thread that serves it.
 */
#include <stdlib.h>

#include "transport/dialling.h"
#include "transport/nccl_endpoints.h"
#include "transport/nccl_reshard.h"

struct nccl_holder {
    struct refit_holding holding;
    struct refit_nccl_sending sending; /* its thread's, once that has begun */
    pthread_t thread;
    bool has_thread;
};

/* What broke with a communicator or a device is made good by dialling again, as what the peer did. */
static enum refit_status may_dial_again(enum refit_status status, struct refit_error *err)
{
    if (status == REFIT_OK || status == REFIT_ABORTED)
        return status;
    struct refit_error why = *err;
    return refit_fail(err, REFIT_PEER, "%s", why.text);
}

static void *holder_run(void *arg)
{
    struct nccl_holder *holder = arg;
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = may_dial_again(refit_nccl_sending_run(&holder->sending, &err), &err);
    if (status == REFIT_OK)
        refit_stream_end(&holder->sending.stream);
    else
        refit_stream_shutdown(&holder->sending.stream);
    refit_holding_ended(&holder->holding, status, &err);
    return NULL;
}

static void reap(struct refit_holding *holding)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    if (holder->has_thread)
        pthread_join(holder->thread, NULL);
    holder->has_thread = false;
    pthread_mutex_lock(&holder->holding.lock);
    refit_stream_close(&holder->sending.stream);
    pthread_mutex_unlock(&holder->holding.lock);
}

/* Before anybody dials: NCCL itself would find out in the middle of making a communicator. */
static enum refit_status check_version(const struct nccl_holder *holder, const json_t *card, const char *peer,
                                       struct refit_error *err)
{
    int64_t theirs;
    enum refit_status status = refit_json_get_int(card, "version", "card", 0, INT32_MAX, &theirs, err);
    if (status != REFIT_OK)
        return status;
    return refit_nccl_check_versions(holder->sending.sources[0].device->nccl->version, (int)theirs, peer, err);
}

static enum refit_status meet(struct nccl_holder *holder, const json_t *card, const struct refit_target *target,
                              struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_stream stream = {.fd = -1};
    enum refit_status status = check_version(holder, card, target->text, err);
    refit_nccl_sharing_offer(&holder->sending, json_string_value(json_object_get(card, "reshard")));
    if (status == REFIT_OK)
        status = refit_target_dial(target, &holder->holding.base, 0, REFIT_GREETING_NCCL, deadline, &stream, err);
    if (status == REFIT_OK)
        status = refit_nccl_sending_introduce(&holder->sending, &stream, deadline, err);
    if (status != REFIT_OK && stream.fd >= 0)
        refit_stream_close(&stream);
    return status;
}

static enum refit_status start(struct nccl_holder *holder, struct refit_error *err)
{
    pthread_mutex_lock(&holder->holding.lock);
    enum refit_status status = refit_holding_began(&holder->holding, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&holder->thread, holder_run, holder, err);
    holder->has_thread = status == REFIT_OK;
    holder->holding.running += holder->has_thread;
    if (!holder->has_thread)
        refit_stream_close(&holder->sending.stream);
    pthread_mutex_unlock(&holder->holding.lock);
    return status;
}

/* What waits sees the wake descriptor: this while it dials, and the thread between two looks at its devices. */
static enum refit_status dial(struct refit_holding *holding, const json_t *card, struct refit_deadline deadline,
                              struct refit_error *err)
{
    struct nccl_holder *holder = (struct nccl_holder *)holding;
    struct refit_target target;
    enum refit_status status = refit_target_parse(card, holder->holding.base.config.tls, &target, err);
    if (status != REFIT_OK)
        return status;
    status = meet(holder, card, &target, deadline, err);
    if (status == REFIT_OK)
        status = start(holder, err);
    if (status == REFIT_OK)
        return REFIT_OK;
    return refit_error_prefix(err, status, "refit %s, holder %u, dialling %s", holder->holding.base.config.refit_id,
                              holder->holding.base.config.holder, target.text);
}

static void release(struct refit_holding *holding)
{
    refit_nccl_sending_close(&((struct nccl_holder *)holding)->sending);
}

static const struct refit_holding_kind nccl_kind = {.dial = dial, .reap = reap, .release = release};

enum refit_status refit_nccl_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                         struct refit_error *err)
{
    struct nccl_holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return refit_fail_alloc(err, "an endpoint", sizeof *holder);
    struct refit_endpoint_config own = *config;
    own.streams = 1;
    enum refit_status status = refit_holding_open(&holder->holding, &nccl_kind, &own, err);
    if (status != REFIT_OK) {
        free(holder);
        return status;
    }
    status = refit_nccl_sending_open(&holder->sending, &holder->holding, err);
    if (status == REFIT_OK)
        *out = &holder->holding.base;
    else
        holder->holding.base.ops->close(&holder->holding.base);
    return status;
}
