/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/session_landing.h"

#include <inttypes.h>
#include <string.h>

#include "memory/ops.h"
#include "receiver/receiver_internal.h"

#define ENGINES_MS 20000 /* to map a slot and to make a plan of it */

static struct refit_arena *const *arenas_of(const struct refit_landing *landing)
{
    return refit_bank_arenas(landing->config.session->receiver->bank, landing->config.slot);
}

/* --- endpoints -------------------------------------------------------------------------------------------------- */

/* Holders greet with the fleet's id where there is one: it is the same for all members, and known before any of them is
 * asked. */
static struct refit_endpoint_config endpoint_config(const struct refit_landing *landing)
{
    const struct refit_session *session = landing->config.session;
    const struct refit_receiver_config *config = &session->receiver->config;
    const struct refit_fleet *fleet = session->request.fleet;
    struct refit_endpoint_config endpoint = {
        .role = REFIT_RECEIVER,
        .refit_id = fleet ? refit_fleet_id(fleet) : session->id,
        .plan = landing->config.plan,
        .holder = refit_transfer_holders(landing->config.plan, fleet),
        .arenas = arenas_of(landing),
        .arena_count = refit_plan_rank_count(landing->config.plan),
        .landed = landing->landed,
        .inbox = landing->inbox,
        .listener = session->receiver->listener,
        .tally = landing->config.tally,
        .verify = config->verify,
        .streams = config->streams,
        .rate_bytes_per_s = config->rate_bytes_per_s,
        .nice = config->nice,
    };
    memcpy(endpoint.token, session->token, sizeof endpoint.token);
    return endpoint;
}

/* Of nccl, where engines receive. */
static enum refit_status open_engines(struct refit_landing *landing, const struct refit_endpoint_config *config,
                                      struct refit_endpoint **out, struct refit_error *err)
{
    struct refit_session *session = landing->config.session;
    struct refit_deadline deadline = refit_deadline_earlier(session->deadline, refit_deadline_in_ms(ENGINES_MS));
    enum refit_status status = refit_bank_engage(session->receiver->bank, session->id, landing->engines, err);
    landing->engaged = status == REFIT_OK;
    return status == REFIT_OK ? refit_remote_open(config, landing->engines, config->arena_count, deadline, &session->cancel,
                                                  out, err)
                              : status;
}

static enum refit_status open_path(struct refit_landing *landing, const struct refit_transport *transport,
                                   struct refit_error *err)
{
    struct refit_endpoint_config config = endpoint_config(landing);
    struct refit_path path = {.transport = transport};
    bool in_engine = landing->config.session->receiver->config.bank.in_engine && transport == &refit_transport_nccl;
    enum refit_status status = in_engine ? open_engines(landing, &config, &path.endpoint, err)
                                         : transport->open(&config, &path.endpoint, err);
    if (status == REFIT_OK)
        landing->path[landing->paths++] = path;
    return status;
}

static enum refit_status open_files(struct refit_landing *landing, struct refit_error *err)
{
    struct refit_endpoint_config config = endpoint_config(landing);
    struct refit_path path = {.transport = &refit_transport_local, .in_process = true};
    struct refit_arena *files = refit_checkpoint_arena(landing->config.checkpoint);
    enum refit_status status =
        refit_local_open_source(&config, landing->config.source_plan, &files, 1, &path.endpoint, err);
    if (status == REFIT_OK)
        landing->path[landing->paths++] = path;
    return status;
}

/* The source's path first. Members choose between each other, so all are there for them. */
static enum refit_status open_paths(struct refit_landing *landing, struct refit_error *err)
{
    const struct refit_request *request = &landing->config.session->request;
    if (landing->config.checkpoint)
        return open_files(landing, err);
    const struct refit_transport *first = refit_transport_find(request->transport);
    enum refit_status status = open_path(landing, first, err);
    for (const struct refit_transport *const *t = refit_transports(); request->fleet && *t && status == REFIT_OK; t++) {
        json_t *card;
        if (*t == first || landing->paths == REFIT_PATHS_MAX ||
            refit_receiver_card(landing->config.session->receiver, (*t)->name, &card, NULL) != REFIT_OK)
            continue;
        json_decref(card);
        status = open_path(landing, *t, err);
    }
    return status;
}

static enum refit_status make_landing(struct refit_landing *landing, struct refit_error *err)
{
    size_t count, batches = 1;
    const struct refit_edge *edges = refit_plan_edges(landing->config.plan, &count);
    for (size_t i = 0; i < count; i++)
        batches += edges[i].batches;
    enum refit_status status = refit_inbox_create(batches, &landing->inbox, err);
    if (status == REFIT_OK && !landing->landed)
        status = refit_landed_create(landing->config.plan, &landing->landed, err);
    return status;
}

static enum refit_status fill(struct refit_landing *landing, struct refit_error *err)
{
    const struct refit_plan *plan = landing->config.plan;
    struct refit_arena *const *arenas = arenas_of(landing);
    uint32_t first = refit_plan_first_rank(plan), count = refit_plan_rank_count(plan);
    enum refit_status status = REFIT_OK;
    for (uint32_t rank = 0; rank < count && status == REFIT_OK; rank++)
        status = refit_memory_fill(arenas[rank], refit_plan_destination(plan), first + rank, err);
    return status;
}

/* --- what is here already ---------------------------------------------------------------------------------------- */

static bool go_on(void *session)
{
    return !atomic_load_explicit(&((struct refit_session *)session)->cancel, memory_order_relaxed);
}

static enum refit_status copy_from(struct refit_landing *landing, uint32_t slot, struct refit_error *err)
{
    struct refit_session *session = landing->config.session;
    struct refit_receiver *receiver = session->receiver;
    const struct refit_plan *plan = landing->config.plan;
    uint64_t bytes = 0;
    refit_receiver_lock(receiver);
    const struct refit_tally *known = refit_kept_tally(&receiver->kept, slot, session->request.unchanged_since);
    refit_receiver_unlock(receiver);
    if (!known)
        return refit_fail(err, REFIT_CONFLICT, "the digests of version %" PRIu64 " are not known any more; "
                          "publish again", session->request.unchanged_since);
    struct refit_keep keep = {
        .destination = refit_plan_destination(plan),
        .first_rank = refit_plan_first_rank(plan),
        .rank_count = refit_plan_rank_count(plan),
        .mask = landing->config.mask,
        .from = refit_bank_arenas(receiver->bank, slot),
        .to = arenas_of(landing),
        .known = known,
        .tally = landing->config.tally,
        .go_on = go_on,
        .context = session,
    };
    enum refit_status status = refit_kept_copy(&keep, &bytes, err);
    refit_receiver_lock(receiver);
    session->supplied.kept_bytes = session->bytes_done = bytes;
    session->bytes_due += bytes;
    refit_receiver_unlock(receiver);
    return status;
}

/* Pinned meanwhile: a rollback may retire it. */
static enum refit_status keep_unchanged(struct refit_landing *landing, struct refit_error *err)
{
    struct refit_session *session = landing->config.session;
    uint32_t slot;
    if (!landing->config.mask)
        return REFIT_OK;
    enum refit_status status =
        refit_bank_pin(session->receiver->bank, session->request.unchanged_since, &slot, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "taking over what is unchanged");
    status = copy_from(landing, slot, err);
    refit_bank_unpin(session->receiver->bank, slot);
    return status;
}

/* --- others ----------------------------------------------------------------------------------------------------- */

static void on_served(void *receiver)
{
    refit_receiver_changed(receiver);
}

static void show_relay(struct refit_landing *landing, struct refit_relay *relay)
{
    struct refit_session *session = landing->config.session;
    refit_receiver_lock(session->receiver);
    session->relay = relay;
    refit_receiver_unlock(session->receiver);
}

static enum refit_status start_relay(struct refit_landing *landing, struct refit_error *err)
{
    struct refit_session *session = landing->config.session;
    const struct refit_receiver_config *receiver = &session->receiver->config;
    struct refit_fleet *fleet = session->request.fleet;
    if (refit_fleet_members(fleet) < 2)
        return REFIT_OK;
    struct refit_relay_config config = {
        .fleet = fleet,
        .plan = landing->config.plan,
        .landed = landing->landed,
        .arenas = arenas_of(landing),
        .arena_count = refit_plan_rank_count(landing->config.plan),
        .holder = refit_layout_ranks(refit_plan_source(landing->config.plan)) + refit_fleet_self(fleet),
        .tls = receiver->tls,
        .rate_bytes_per_s = receiver->rate_bytes_per_s,
        .nice = receiver->nice,
        .verify = receiver->verify,
        .deadline = session->deadline,
        .nccl = !receiver->bank.in_engine,
        .on_done = on_served,
        .context = session->receiver,
    };
    enum refit_status status = refit_relay_start(&config, &landing->relay, err);
    show_relay(landing, landing->relay);
    return status;
}

/* Whoever asks for this version may be served from the slot while it is filled. */
static void offer(struct refit_landing *landing)
{
    struct refit_receiver *receiver = landing->config.session->receiver;
    refit_receiver_lock(receiver);
    receiver->filling = (struct refit_filling){.version = landing->config.session->request.version,
                                               .slot = landing->config.slot,
                                               .plan = landing->config.plan,
                                               .landed = landing->landed};
    refit_receiver_unlock(receiver);
}

void refit_landing_withdraw(struct refit_landing *landing)
{
    if (!landing->landed)
        return;
    struct refit_receiver *receiver = landing->config.session->receiver;
    refit_receiver_lock(receiver);
    if (receiver->filling.landed == landing->landed)
        receiver->filling = (struct refit_filling){.plan = NULL};
    refit_receiver_unlock(receiver);
}

/* --- from open to leave ----------------------------------------------------------------------------------------- */

enum refit_status refit_landing_open(struct refit_landing *landing, const struct refit_landing_config *config,
                                     struct refit_error *err)
{
    landing->config = *config;
    enum refit_status status = make_landing(landing, err);
    if (status == REFIT_OK)
        status = open_paths(landing, err);
    if (status == REFIT_OK)
        status = fill(landing, err);
    if (status == REFIT_OK)
        status = keep_unchanged(landing, err);
    if (status == REFIT_OK)
        status = start_relay(landing, err);
    if (status == REFIT_OK)
        offer(landing);
    return status;
}

enum refit_status refit_landing_run(struct refit_landing *landing, struct refit_error *err)
{
    struct refit_transfer transfer = {
        .session = landing->config.session,
        .plan = landing->config.plan,
        .fleet = landing->config.session->request.fleet,
        .landed = landing->landed,
        .inbox = landing->inbox,
        .paths = landing->paths,
    };
    memcpy(transfer.path, landing->path, sizeof transfer.path);
    return refit_transfer_run(&transfer, err);
}

void refit_landing_close(struct refit_landing *landing)
{
    while (landing->paths > 0) {
        const struct refit_path *path = &landing->path[--landing->paths];
        path->transport->close(path->endpoint);
    }
    refit_inbox_destroy(landing->inbox);
    landing->inbox = NULL;
    if (!landing->engaged)
        return;
    landing->engaged = false;
    landing->tainted = refit_bank_disengage(landing->config.session->receiver->bank, landing->config.slot,
                                            landing->engines, &landing->taint) != REFIT_OK;
}

bool refit_landing_serves(const struct refit_landing *landing)
{
    return landing->relay && refit_relay_left(landing->relay) > 0;
}

void refit_landing_leave(struct refit_landing *landing)
{
    if (landing->config.session) {
        refit_landing_close(landing);
        refit_landing_withdraw(landing);
        show_relay(landing, NULL);
        refit_relay_stop(landing->relay);
    }
    refit_landed_release(landing->landed);
    landing->relay = NULL;
    landing->landed = NULL;
}
