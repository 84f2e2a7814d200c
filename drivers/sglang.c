/* SPDX-License-Identifier: Apache-2.0
 *
 * SGLang. A load from disk is one chunk and brings its own preparation and finish: begin_weight_update and
 * end_weight_update are for weights that come as tensors, and around a load from disk the latter would post-process
 * twice.
 */
#include <string.h>

#include "drivers/call.h"
#include "drivers/engine.h"

static enum refit_status look(const struct refit_driver_link *link, struct refit_driver_sight *out,
                              struct refit_error *err)
{
    json_t *answer = NULL;
    memset(out, 0, sizeof *out);
    enum refit_status status = refit_driver_get(&link->url, "/model_info", refit_driver_call_deadline(link), &answer,
                                                err);
    if (status == REFIT_NOT_FOUND) /* its older name */
        status = refit_driver_get(&link->url, "/get_model_info", refit_driver_call_deadline(link), &answer, err);
    if (status == REFIT_OK)
        status = refit_driver_take_version(answer, "/model_info", out, err);
    json_decref(answer);
    return status;
}

static enum refit_status pause(const struct refit_driver_link *link, bool keep, struct refit_error *err)
{
    /* in_place leaves requests and their KV where they are; retract puts them back into the queue, to be computed
     * anew. */
    return refit_driver_post_json(&link->url, "/pause_generation",
                                  json_pack("{s:s}", "mode", keep ? "in_place" : "retract"),
                                  refit_driver_call_deadline(link), NULL, err);
}

/* flush_cache is asked for by flush(): after a load it is an assertion there, which takes the scheduler down. */
static enum refit_status load(const struct refit_driver_link *link, const struct refit_driver_order *order,
                              struct refit_deadline deadline, struct refit_error *err)
{
    static const char path[] = "/update_weights_from_disk";
    json_t *answer = NULL;
    json_t *body = json_pack("{s:s, s:s, s:s, s:b, s:b}", "model_path", order->path, "load_format", "auto",
                             "weight_version", order->version, "flush_cache", 0, "abort_all_requests", 0);
    enum refit_status status = refit_driver_post_json(&link->url, path, body, deadline, &answer, err);
    if (status == REFIT_OK)
        status = refit_driver_check_success(answer, path, err);
    json_decref(answer);
    return status;
}

static enum refit_status flush(const struct refit_driver_link *link, struct refit_error *err)
{
    return refit_driver_post(&link->url, "/flush_cache", NULL, refit_driver_call_deadline(link), NULL, err);
}

static enum refit_status resume(const struct refit_driver_link *link, struct refit_error *err)
{
    return refit_driver_post_json(&link->url, "/continue_generation", json_object(),
                                  refit_driver_call_deadline(link), NULL, err);
}

const struct refit_driver_engine refit_driver_sglang = {
    .name = "sglang", .look = look, .pause = pause, .load = load, .flush = flush, .resume = resume};
