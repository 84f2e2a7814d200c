/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/sibling_ask.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sidecar/fetch_target.h"

/* The ranks of a layout that is not ours are those of the document, which is fetched once per process that serves
 * it. */
static enum refit_status count_ranks(struct refit_receiver *receiver, struct refit_control *control, const char *digest,
                                     uint32_t *out, struct refit_error *err)
{
    struct refit_layout *layout = refit_bank_layout(refit_receiver_bank(receiver));
    enum refit_status status = REFIT_OK;
    if (!layout || strcmp(refit_layout_digest(layout), digest) != 0) {
        refit_layout_release(layout);
        layout = NULL;
        status = refit_control_layout(control, refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), &layout, err);
    }
    if (status == REFIT_OK)
        *out = refit_layout_ranks(layout);
    refit_layout_release(layout);
    return status;
}

static enum refit_status read_host(const json_t *host, struct refit_sibling *sibling, struct refit_error *err)
{
    const char *domain = "", *replica = "";
    int64_t first = 0, count = 0;
    enum refit_status status = refit_json_opt_string(host, "boot_id", "host", &domain, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(host, "replica", "host", &replica, err);
    const json_t *held = json_object_get(host, "ranks");
    if (status == REFIT_OK && held)
        status = refit_json_get_int(held, "first", "ranks", 0, INT32_MAX, &first, err);
    if (status == REFIT_OK && held)
        status = refit_json_get_int(held, "count", "ranks", 1, INT32_MAX, &count, err);
    if (status != REFIT_OK)
        return status;
    snprintf(sibling->domain, sizeof sibling->domain, "%s", domain);
    snprintf(sibling->replica, sizeof sibling->replica, "%s", replica);
    sibling->first_rank = (uint32_t)first;
    sibling->rank_count = (uint32_t)count;
    return REFIT_OK;
}

/* Which part of its replica a process holds, and where it is: the same for as long as it lives. */
static enum refit_status get_to_know(struct refit_receiver *receiver, struct refit_sibling *sibling,
                                     struct refit_control *control, struct refit_error *err)
{
    json_t *host = NULL;
    uint32_t ranks = 0;
    if (!sibling->layout[0] || strcmp(sibling->instance, control->instance) == 0)
        return REFIT_OK; /* no engine has attached there, so there is nothing to fetch either */
    enum refit_status status = refit_control_host(control, refit_deadline_in_ms(REFIT_FETCH_CALL_MS), &host, err);
    if (status == REFIT_OK)
        status = count_ranks(receiver, control, sibling->layout, &ranks, err);
    if (status == REFIT_OK)
        status = read_host(host, sibling, err);
    if (status == REFIT_OK) {
        sibling->ranks = ranks;
        sibling->whole = sibling->rank_count == 0 || (sibling->first_rank == 0 && sibling->rank_count == ranks);
        memcpy(sibling->instance, control->instance, sizeof sibling->instance);
    }
    json_decref(host);
    return status;
}

void refit_sibling_ask(struct refit_sibling *sibling, struct refit_receiver *receiver,
                       struct refit_credentials *credentials, int64_t pause_ms)
{
    struct refit_control control;
    struct refit_error err;
    json_t *weights = NULL;
    enum refit_status status = refit_control_init(&control, sibling->url, &err);
    control.credentials = credentials;
    if (status == REFIT_OK)
        status = refit_control_call(&control, REFIT_HTTP_GET, "/v1/weights", NULL,
                                    refit_deadline_in_ms(REFIT_FETCH_CALL_MS), &weights, &err);
    sibling->self = status == REFIT_OK && strcmp(control.instance, refit_receiver_instance(receiver)) == 0;
    if (status == REFIT_OK)
        status = refit_sibling_heard(sibling, weights, refit_clock_ns(), pause_ms, &err);
    if (status == REFIT_OK && !sibling->self)
        status = get_to_know(receiver, sibling, &control, &err);
    if (status != REFIT_OK) {
        refit_sibling_failed(sibling, refit_clock_ns());
        refit_log_event(REFIT_LOG_DEBUG, "sibling did not answer", refit_log_text("sibling", sibling->url),
                        REFIT_LOG_CAUSE(&err));
    }
    json_decref(weights);
}
