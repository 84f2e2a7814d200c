/* SPDX-License-Identifier: Apache-2.0
 *
 * A member fed by replicas of another layout: those are asked to serve it. They can as soon as they have a slot that is
 * being filled, so they are asked again until they accept.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sender/follower.h"

#define LEND_MS 5000 /* one request; the refit goes on meanwhile at the replica, not here */

bool refit_replica_is_served(const struct refit_replica *replica)
{
    return replica->class && replica->class->server_count > 0 && !replica->fell_back;
}

/* A replica that failed has given its slot up. */
static bool is_lost(const struct refit_replica *server)
{
    return server->stage == REFIT_REPLICA_ENDED && server->report.outcome != REFIT_OUTCOME_COMMITTED &&
           server->report.outcome != REFIT_OUTCOME_STAGED;
}

bool refit_follower_is_deserted(const struct refit_replica *replica)
{
    const struct refit_class *class = replica->class;
    size_t lost = 0;
    pthread_mutex_lock(&replica->lead->lock);
    for (size_t i = 0; i < class->server_count; i++)
        lost += is_lost(class->servers[i]);
    pthread_mutex_unlock(&replica->lead->lock);
    return lost == class->server_count;
}

static json_t *serve_body(const struct refit_replica *replica, size_t number, const char *transport)
{
    const struct refit_class *class = replica->class;
    uint64_t holder = (uint64_t)refit_layout_ranks(class->source) + class->count + number;
    return json_pack("{s:o, s:s, s:s, s:I, s:s, s:O, s:s, s:I, s:I, s:I}", "version",
                     refit_json_u64(replica->lead->publish.version), "refit", class->id, "token", class->token, "holder",
                     (json_int_t)holder, "transport", transport, "card", json_object_get(replica->cards, transport),
                     "layout", refit_layout_digest(replica->layout), "first_rank", (json_int_t)replica->first_rank,
                     "rank_count", (json_int_t)replica->rank_count, "deadline_ms",
                     (json_int_t)refit_deadline_left_ms(replica->lead->publish.deadline));
}

/* Both have their slots on GPUs, and one NCCL. A server whose engines receive has it in them, and reads slots itself. */
static bool nccl_between(const struct refit_replica *server, const struct refit_replica *replica)
{
    const json_t *card = json_object_get(server->cards, "nccl");
    const json_t *from = json_object_get(card, "version");
    const json_t *to = json_object_get(json_object_get(replica->cards, "nccl"), "version");
    return json_is_integer(from) && json_equal(from, to) && !json_object_get(card, "engines");
}

/* From GPU to GPU; or both on one host, and reachable so. */
static const char *path_between(const struct refit_replica *server, const struct refit_replica *replica)
{
    if (nccl_between(server, replica))
        return "nccl";
    bool near = *server->domain && strcmp(server->domain, replica->domain) == 0;
    return near && json_is_object(json_object_get(replica->cards, "local")) ? "local" : "tcp";
}

/* One that does not know the layout that it is to serve says so, and is given it. */
static enum refit_status serve_with_layout(struct refit_replica *replica, struct refit_control *control,
                                           const json_t *order, struct refit_error *err)
{
    size_t len = 0;
    const char *digest = refit_layout_digest(replica->layout), *text = refit_layout_text(replica->layout, &len);
    struct refit_error why = {0};
    enum refit_status status = refit_control_serve(control, order, refit_follower_deadline(replica, LEND_MS), &why);
    if (status == REFIT_NOT_FOUND && strstr(why.text, digest)) {
        struct refit_deadline deadline = refit_follower_deadline(replica, REFIT_UPLOAD_MS);
        status = refit_control_put_source(control, digest, text, len, deadline, &why);
        if (status == REFIT_OK)
            status = refit_control_serve(control, order, refit_follower_deadline(replica, LEND_MS), &why);
    }
    return status == REFIT_OK ? status : refit_fail(err, status, "%s", why.text);
}

static enum refit_status ask_server(struct refit_replica *replica, size_t number, struct refit_error *err)
{
    const struct refit_replica *server = replica->class->servers[number];
    struct refit_control control; /* the server's own is its follower's */
    enum refit_status status = refit_control_init(&control, server->control.url.text, err);
    control.credentials = server->control.credentials;
    json_t *order = serve_body(replica, number, path_between(server, replica));
    if (status == REFIT_OK && !order)
        status = refit_fail(err, REFIT_UNSUPPORTED, "%s: has no card to be reached by", replica->control.url.text);
    if (status == REFIT_OK)
        status = serve_with_layout(replica, &control, order, err);
    json_decref(order);
    return status;
}

void refit_follower_ask_servers(struct refit_replica *replica)
{
    struct refit_error err;
    for (size_t i = 0; i < replica->class->server_count; i++) {
        if (replica->asked_to_serve >> i & 1)
            continue;
        if (ask_server(replica, i, &err) == REFIT_OK)
            replica->asked_to_serve |= UINT64_C(1) << i;
        else
            refit_log_event(REFIT_LOG_DEBUG, "a replica does not serve another yet",
                            refit_log_text("replica", replica->class->servers[i]->control.url.text), REFIT_LOG_CAUSE(&err));
    }
}
