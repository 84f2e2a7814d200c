/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica made ready for a refit: its layout, the path to it, the source layout, the epoch, and then the request. What is
 * known of the process that answered before is not asked for again.
 */
#include <string.h>
#include <unistd.h>

#include "layouts/topology.h"
#include "sender/follower.h"

static enum refit_status know_layout(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_weights weights;
    enum refit_status status =
        refit_control_weights(&replica->control, refit_follower_deadline(replica, REFIT_CALL_MS), &weights, err);
    if (status != REFIT_OK)
        return status;
    if (!weights.layout[0])
        return refit_fail(err, REFIT_BUSY, "%s: serves no layout yet; no engine has attached",
                          replica->control.url.text);
    if (replica->layout && strcmp(refit_layout_digest(replica->layout), weights.layout) == 0)
        return REFIT_OK;
    struct refit_layout *layout = NULL;
    status = refit_control_layout(&replica->control, refit_follower_deadline(replica, REFIT_UPLOAD_MS), &layout, err);
    if (status != REFIT_OK)
        return status;
    refit_layout_release(replica->layout);
    replica->layout = layout;
    return REFIT_OK;
}

/* Are all ranks of both sides in one domain, and does it name this host? */
static bool one_domain(const struct refit_replica *replica, const json_t *document)
{
    struct refit_topology *topology;
    if (refit_topology_from_json(document, "topology", &topology, NULL) != REFIT_OK)
        return false;
    bool one = refit_topology_domains(topology) == 1 &&
               refit_ranks_on_host(replica->lead->ranks, refit_topology_name(topology, 0));
    refit_topology_release(topology);
    return one;
}

static bool local_works(const struct refit_replica *replica, const json_t *host)
{
    const json_t *card = json_object_get(json_object_get(host, "transports"), "local");
    const char *path = json_string_value(json_object_get(card, "path"));
    return path && one_domain(replica, json_object_get(host, "topology")) && access(path, R_OK | W_OK) == 0;
}

static enum refit_status choose_transport(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    if (strcmp(lead->transport, "auto") != 0) {
        snprintf(replica->transport, sizeof replica->transport, "%s", lead->transport);
        return REFIT_OK;
    }
    if (replica->transport[0] && strcmp(replica->boot_instance, replica->control.instance) == 0)
        return REFIT_OK;
    json_t *host = NULL;
    struct refit_deadline deadline = refit_follower_deadline(replica, REFIT_CALL_MS);
    enum refit_status status = refit_control_host(&replica->control, deadline, &host, err);
    if (status != REFIT_OK)
        return status;
    snprintf(replica->transport, sizeof replica->transport, "%s", local_works(replica, host) ? "local" : "tcp");
    memcpy(replica->boot_instance, replica->control.instance, sizeof replica->boot_instance);
    json_decref(host);
    return REFIT_OK;
}

static enum refit_status give_source(struct refit_replica *replica, struct refit_error *err)
{
    const struct refit_layout *source = replica->lead->source;
    const char *digest = refit_layout_digest(source);
    if (strcmp(replica->source_instance, replica->control.instance) == 0 &&
        strcmp(replica->source_digest, digest) == 0)
        return REFIT_OK;
    size_t len = 0;
    const char *text = refit_layout_text(source, &len);
    struct refit_deadline deadline = refit_follower_deadline(replica, REFIT_UPLOAD_MS);
    enum refit_status status = refit_control_put_source(&replica->control, digest, text, len, deadline, err);
    if (status != REFIT_OK)
        return status;
    memcpy(replica->source_instance, replica->control.instance, sizeof replica->source_instance);
    snprintf(replica->source_digest, sizeof replica->source_digest, "%s", digest);
    return REFIT_OK;
}

static enum refit_status lead_it(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    if (replica->epoch != 0 && strcmp(replica->led_instance, replica->control.instance) == 0)
        return REFIT_OK;
    enum refit_status status = refit_control_lead(&replica->control, lead->name, lead->takeover,
                                                  refit_follower_deadline(replica, REFIT_CALL_MS), &replica->epoch, err);
    if (status == REFIT_OK)
        memcpy(replica->led_instance, replica->control.instance, sizeof replica->led_instance);
    return status;
}

static json_t *request_body(const struct refit_replica *replica)
{
    const struct refit_lead *lead = replica->lead;
    const struct refit_lead_publish *publish = &lead->publish;
    return json_pack("{s:o, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:I}", "version", refit_json_u64(publish->version),
                     "label", publish->label, "epoch", refit_json_u64(replica->epoch), "publish_id", lead->publish_id,
                     "source", refit_layout_digest(lead->source), "transport", replica->transport, "commit", "barrier",
                     "kv", publish->kv, "deadline_ms", (json_int_t)publish->deadline_ms);
}

static enum refit_status request(struct refit_replica *replica, struct refit_error *err)
{
    json_t *body = request_body(replica);
    if (!body)
        return refit_fail(err, REFIT_INVALID, "label and kv must be UTF-8");
    json_decref(replica->ticket.card);
    replica->ticket.card = NULL;
    struct refit_deadline deadline = refit_follower_deadline(replica, REFIT_CALL_MS);
    enum refit_status status = refit_control_begin(&replica->control, body, deadline, &replica->ticket, err);
    json_decref(body);
    if (status == REFIT_STALE)
        replica->epoch = 0;
    if (status == REFIT_NOT_FOUND)
        replica->source_instance[0] = '\0';
    return status;
}

static enum refit_status begin_once(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = know_layout(replica, err);
    if (status == REFIT_OK)
        status = choose_transport(replica, err);
    if (status == REFIT_OK)
        status = give_source(replica, err);
    if (status == REFIT_OK)
        status = lead_it(replica, err);
    return status == REFIT_OK ? request(replica, err) : status;
}

enum refit_status refit_follower_begin(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_deadline patience = refit_deadline_in_ms(REFIT_PATIENCE_MS);
    bool again = true;
    for (;;) {
        enum refit_status status = begin_once(replica, err);
        if (status == REFIT_OK)
            return status;
        bool renew = again && (status == REFIT_STALE || status == REFIT_NOT_FOUND);
        again = again && !renew;
        if (renew)
            continue;
        if (!refit_follower_may_pass(status) || refit_deadline_passed(patience) || refit_lead_given_up(replica->lead, NULL))
            return status;
        refit_follower_pause(replica, REFIT_AGAIN_MS);
    }
}
