/* SPDX-License-Identifier: Apache-2.0
 *
 * vLLM, started with VLLM_SERVER_DEV_MODE=1, which gives it the routes used here.
 */
#include <string.h>

#include "drivers/call.h"
#include "drivers/engine.h"

static enum refit_status look(const struct refit_driver_link *link, struct refit_driver_sight *out,
                              struct refit_error *err)
{
    json_t *answer = NULL;
    memset(out, 0, sizeof *out);
    enum refit_status status = refit_driver_get(&link->url, "/weight_info", refit_driver_call_deadline(link), &answer,
                                                err);
    if (status == REFIT_OK)
        status = refit_driver_take_version(answer, "/weight_info", out, err);
    json_decref(answer);
    if (status != REFIT_OK)
        return status;
    status = refit_driver_get(&link->url, "/is_paused", refit_driver_call_deadline(link), &answer, err);
    const json_t *paused = json_object_get(answer, "is_paused");
    if (status == REFIT_OK && !json_is_boolean(paused))
        status = refit_fail(err, REFIT_UNSUPPORTED, "engine: /is_paused has no \"is_paused\"; a newer vLLM is needed");
    out->knows_pause = true;
    out->paused = json_is_true(paused);
    json_decref(answer);
    return status;
}

/* "keep" freezes requests where they are. "abort" would drop them, "wait" could take as long as the longest answer. */
static enum refit_status pause(const struct refit_driver_link *link, bool keep, struct refit_error *err)
{
    (void)keep; /* what they have computed so far is dropped by flush() */
    return refit_driver_post(&link->url, "/pause?mode=keep", NULL, refit_driver_call_deadline(link), NULL, err);
}

static enum refit_status load_by_rpc(const struct refit_driver_link *link, const struct refit_driver_order *order,
                                     struct refit_deadline deadline, struct refit_error *err)
{
    json_t *call = json_pack("{s:s, s:{s:s, s:b}}", "method", "reload_weights", "kwargs", "weights_path", order->path,
                             "is_checkpoint_format", 1);
    enum refit_status status = refit_driver_post_json(&link->url, "/collective_rpc", call, deadline, NULL, err);
    if (status != REFIT_OK)
        return status;
    return refit_driver_post_json(&link->url, "/update_weight_version",
                                  json_pack("{s:s}", "new_version", order->version), refit_driver_call_deadline(link),
                                  NULL, err);
}

static enum refit_status load_by_transfer(const struct refit_driver_link *link, const struct refit_driver_order *order,
                                          struct refit_deadline deadline, struct refit_error *err)
{
    enum refit_status status =
        refit_driver_post(&link->url, "/start_weight_update", NULL, refit_driver_call_deadline(link), NULL, err);
    if (status == REFIT_OK)
        status = refit_driver_post_json(&link->url, "/update_weights",
                                        json_pack("{s:{s:s}}", "update_info", "path", order->path), deadline, NULL,
                                        err);
    if (status == REFIT_OK) /* what a loader put off, such as quantising, is done here: it gets the same time */
        status = refit_driver_post_json(&link->url, "/finish_weight_update",
                                        json_pack("{s:s}", "weight_version", order->version), deadline, NULL, err);
    /* An update that was begun and not finished would refuse the next one. This ends it, whatever is answered; it may
     * be that there is none. */
    if (status != REFIT_OK)
        (void)!refit_driver_post_json(&link->url, "/finish_weight_update", json_object(),
                                      refit_driver_call_deadline(link), NULL, NULL);
    return status;
}

static enum refit_status load(const struct refit_driver_link *link, const struct refit_driver_order *order,
                              struct refit_deadline deadline, struct refit_error *err)
{
    return link->load == REFIT_DRIVER_LOAD_TRANSFER ? load_by_transfer(link, order, deadline, err)
                                                    : load_by_rpc(link, order, deadline, err);
}

static enum refit_status flush_one(const struct refit_driver_link *link, const char *path, struct refit_error *err)
{
    json_t *answer = NULL;
    enum refit_status status = refit_driver_post(&link->url, path, NULL, refit_driver_call_deadline(link), &answer,
                                                 err);
    /* Older versions answer 200 without a body, whatever came of it; newer ones say. */
    if (status == REFIT_OK)
        status = refit_driver_check_success(answer, path, err);
    json_decref(answer);
    return status;
}

static enum refit_status flush(const struct refit_driver_link *link, struct refit_error *err)
{
    static const char *const paths[] = {"/reset_prefix_cache?reset_running_requests=true", "/reset_mm_cache",
                                        "/reset_encoder_cache"};
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && status == REFIT_OK; i++)
        status = flush_one(link, paths[i], err);
    return status;
}

static enum refit_status resume(const struct refit_driver_link *link, struct refit_error *err)
{
    return refit_driver_post(&link->url, "/resume", NULL, refit_driver_call_deadline(link), NULL, err);
}

const struct refit_driver_engine refit_driver_vllm = {
    .name = "vllm", .look = look, .pause = pause, .load = load, .flush = flush, .resume = resume};
