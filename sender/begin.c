/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica made ready for a refit: its layout, the path to it, the source layout, the epoch, and then the request. What is
 * known of the process that answered before is not asked for again.
 */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "layouts/topology.h"
#include "sender/follower.h"
#include "transport/nccl.h"
#include "transport/nccl_version.h"

static enum refit_status know_layout(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_control_weights weights;
    enum refit_status status =
        refit_control_weights(&replica->control, refit_follower_deadline(replica, REFIT_CALL_MS), &weights, err);
    if (status != REFIT_OK)
        return status;
    replica->active_before = weights.active.version;
    const struct refit_lead *lead = replica->lead;
    replica->keeps = lead->publish.unchanged && !lead->broadcast &&
                     weights.active.version == lead->publish.unchanged_since;
    /* Said before the fleet is formed: one that is a member and refuses then is missed by the others first. */
    if (weights.held)
        return refit_fail(err, REFIT_CONFLICT, "%s: held: newer versions are held off, by a rollback or by request, until "
                          "'refit release'", replica->control.url.text);
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
    replica->host_instance[0] = '\0'; /* its ranks are of the layout before */
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

/* From GPU to GPU. The path is reported either way; why it is not this one, where it could be, is said here. */
static bool nccl_works(const struct refit_replica *replica, const json_t *host)
{
    const json_t *card = json_object_get(json_object_get(host, "transports"), "nccl");
    struct refit_error err;
    int64_t theirs;
    int ours;
    if (!card)
        return false;
    enum refit_status status = replica->lead->on_device
                                   ? refit_nccl_version(&ours, &err)
                                   : refit_fail(&err, REFIT_UNSUPPORTED, "this rank's memory is in the host");
    if (status == REFIT_OK)
        status = refit_json_get_int(card, "version", "card", 0, INT32_MAX, &theirs, &err);
    if (status == REFIT_OK)
        status = refit_nccl_check_versions(ours, (int)theirs, replica->control.url.text, &err);
    if (status != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "nccl is not used", refit_log_text("replica", replica->control.url.text),
                          REFIT_LOG_CAUSE(&err));
    return status == REFIT_OK;
}

/* Without being told. */
static const char *best_path(const struct refit_replica *replica, const json_t *host)
{
    if (nccl_works(replica, host))
        return "nccl";
    return local_works(replica, host) ? "local" : "tcp";
}

/* Which ranks of its layout it holds: all, unless it says otherwise. */
static enum refit_status read_ranks(struct refit_replica *replica, const json_t *host, struct refit_error *err)
{
    const json_t *ranks = json_object_get(host, "ranks");
    int64_t all = (int64_t)refit_layout_ranks(replica->layout), first = 0, count = all;
    enum refit_status status = REFIT_OK;
    if (ranks)
        status = refit_json_get_int(ranks, "first", "ranks", 0, all - 1, &first, err);
    if (status == REFIT_OK && ranks)
        status = refit_json_get_int(ranks, "count", "ranks", 1, all - first, &count, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "%s", replica->control.url.text);
    replica->first_rank = (uint32_t)first;
    replica->rank_count = (uint32_t)count;
    return REFIT_OK;
}

static enum refit_status read_host(struct refit_replica *replica, const json_t *host, struct refit_error *err)
{
    const char *forced = replica->lead->transport, *boot_id = "";
    enum refit_status status = refit_json_opt_string(host, "boot_id", "host", &boot_id, err);
    if (status == REFIT_OK)
        status = read_ranks(replica, host, err);
    if (status != REFIT_OK)
        return status;
    snprintf(replica->domain, sizeof replica->domain, "%s", boot_id);
    json_decref(replica->cards);
    replica->cards = json_deep_copy(json_object_get(host, "transports"));
    bool automatic = strcmp(forced, "auto") == 0;
    snprintf(replica->transport, sizeof replica->transport, "%s",
             automatic ? best_path(replica, host) : forced);
    return REFIT_OK;
}

static enum refit_status know_host(struct refit_replica *replica, struct refit_error *err)
{
    if (replica->transport[0] && strcmp(replica->host_instance, replica->control.instance) == 0)
        return REFIT_OK;
    json_t *host = NULL;
    struct refit_deadline deadline = refit_follower_deadline(replica, REFIT_CALL_MS);
    enum refit_status status = refit_control_host(&replica->control, deadline, &host, err);
    if (status != REFIT_OK)
        return status;
    status = read_host(replica, host, err);
    if (status == REFIT_OK)
        memcpy(replica->host_instance, replica->control.instance, sizeof replica->host_instance);
    json_decref(host);
    return status;
}

/* The layout that it is fed from. */
static const struct refit_layout *source_of(const struct refit_replica *replica)
{
    if (replica->lead->broadcast)
        return refit_broadcast_layout(replica->lead->broadcast);
    return refit_replica_is_served(replica) ? replica->class->source : replica->lead->source;
}

static enum refit_status give_source(struct refit_replica *replica, struct refit_error *err)
{
    const struct refit_layout *source = source_of(replica);
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

static void set_publish_id(struct refit_replica *replica)
{
    const struct refit_lead *lead = replica->lead;
    const char *id = replica->class ? replica->class->id : lead->publish_id;
    /* A request with the same identity must have the same body. */
    snprintf(replica->publish_id, sizeof replica->publish_id, "%s%s", id, replica->fell_back ? ".t" : "");
}

static json_t *request_body(struct refit_replica *replica)
{
    const struct refit_lead *lead = replica->lead;
    const struct refit_lead_publish *publish = &lead->publish;
    set_publish_id(replica);
    json_t *body = json_pack("{s:o, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:I}", "version",
                             refit_json_u64(publish->version), "label", publish->label, "epoch",
                             refit_json_u64(replica->epoch), "publish_id", replica->publish_id, "source",
                             refit_layout_digest(source_of(replica)), "transport", replica->transport, "commit",
                             "barrier", "kv", publish->kv, "deadline_ms", (json_int_t)publish->deadline_ms);
    if (body && replica->class && !replica->fell_back)
        json_object_set_new(body, "fleet", refit_class_json(replica));
    if (body && lead->broadcast)
        json_object_set_new(body, "broadcast", json_pack("{s:I}", "buckets",
                                                         (json_int_t)refit_broadcast_buckets(lead->broadcast)));
    if (body && replica->keeps)
        json_object_set_new(body, "unchanged",
                            json_pack("{s:o, s:O}", "since", refit_json_u64(publish->unchanged_since), "tensors",
                                      publish->unchanged));
    if (body && replica->resume[0])
        json_object_set_new(body, "resume", json_string(replica->resume));
    if (body && !refit_replica_is_whole(replica))
        json_object_set_new(body, "ranks", json_pack("{s:I, s:I}", "first", (json_int_t)replica->first_rank, "count",
                                                     (json_int_t)replica->rank_count));
    return body;
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
    if (status == REFIT_OK)
        replica->keeps = replica->ticket.unchanged;
    if (status == REFIT_STALE)
        replica->epoch = 0;
    if (status == REFIT_NOT_FOUND)
        replica->source_instance[0] = '\0';
    return status;
}

/* ---- in two steps: what all must know of each, then the request ---- */

static enum refit_status get_to_know(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = know_layout(replica, err);
    if (status == REFIT_OK)
        status = know_host(replica, err);
    return status == REFIT_OK ? lead_it(replica, err) : status;
}

/* The refit of this version that broke off here, if the trainer says that nothing has changed since. */
static void find_broken(struct refit_replica *replica)
{
    struct refit_control_state state;
    replica->resume[0] = '\0';
    if (!replica->lead->publish.resume || replica->lead->broadcast ||
        refit_control_state(&replica->control, NULL, -1, 0, refit_follower_deadline(replica, REFIT_CALL_MS), &state, NULL) !=
            REFIT_OK)
        return;
    if (state.version == replica->lead->publish.version && state.phase == REFIT_CONTROL_ABORTED)
        memcpy(replica->resume, state.id, sizeof replica->resume);
}

static enum refit_status ask_for_refit(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = get_to_know(replica, err);
    if (status == REFIT_OK)
        status = give_source(replica, err);
    return status == REFIT_OK ? request(replica, err) : status;
}

typedef enum refit_status (*attempt_fn)(struct refit_replica *replica, struct refit_error *err);

static void say_trouble(struct refit_replica *replica)
{
    pthread_mutex_lock(&replica->lead->lock);
    replica->in_trouble = true;
    pthread_cond_broadcast(&replica->lead->changed);
    pthread_mutex_unlock(&replica->lead->lock);
}

static enum refit_status persist(struct refit_replica *replica, attempt_fn attempt, struct refit_error *err)
{
    struct refit_deadline patience = refit_deadline_in_ms(REFIT_PATIENCE_MS);
    bool again = true;
    for (;;) {
        enum refit_status status = attempt(replica, err);
        if (status == REFIT_OK)
            return status;
        bool renew = again && (status == REFIT_STALE || status == REFIT_NOT_FOUND);
        again = again && !renew;
        if (renew)
            continue;
        if (!refit_follower_may_pass(status) || refit_deadline_passed(patience) ||
            refit_follower_given_up(replica, NULL))
            return status;
        say_trouble(replica);
        refit_follower_pause(replica, REFIT_AGAIN_MS);
    }
}

/* Until the fleet is formed; whoever came too late is no part of it. */
static enum refit_status meet(struct refit_replica *replica, struct refit_error *err)
{
    struct refit_lead *lead = replica->lead;
    pthread_mutex_lock(&lead->lock);
    if (!lead->formed)
        replica->stage = REFIT_REPLICA_ASKED;
    pthread_cond_broadcast(&lead->changed);
    while (!lead->formed && !lead->cancelled && lead->rank_lost.status == REFIT_OK)
        pthread_cond_wait(&lead->changed, &lead->lock);
    replica->stage = REFIT_REPLICA_MOVING;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
    return refit_follower_given_up(replica, err) ? err->status : REFIT_OK;
}

/* False: not yet, and a moment, or a change at the lead, has passed. */
static bool has_slot(const struct refit_replica *leader)
{
    struct refit_lead *lead = leader->lead;
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(REFIT_AGAIN_MS));
    pthread_mutex_lock(&lead->lock);
    bool has = leader->phase >= REFIT_CONTROL_TRANSFER || leader->stage >= REFIT_REPLICA_STAGED;
    if (!has)
        pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
    pthread_mutex_unlock(&lead->lock);
    return has;
}

/* A pod without rank 0 must not reclaim a slot while the leader's readers may still name its version. */
static enum refit_status wait_for_leader(struct refit_replica *replica, struct refit_error *err)
{
    const struct refit_replica *leader = replica->unit->pods[0];
    while (leader != replica && !has_slot(leader))
        if (refit_follower_given_up(replica, err))
            return err->status;
    return REFIT_OK;
}

enum refit_status refit_follower_begin(struct refit_replica *replica, struct refit_error *err)
{
    enum refit_status status = persist(replica, get_to_know, err);
    if (status == REFIT_OK)
        find_broken(replica);
    if (status == REFIT_OK)
        status = meet(replica, err);
    if (status == REFIT_OK)
        status = wait_for_leader(replica, err);
    return status == REFIT_OK ? persist(replica, ask_for_refit, err) : status;
}

enum refit_status refit_follower_begin_again(struct refit_replica *replica, struct refit_error *err)
{
    replica->resume[0] = '\0';
    return persist(replica, ask_for_refit, err);
}
