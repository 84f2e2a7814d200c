/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoint in refitd whose bytes land in engines: opening it, new connections, and what the ledger asks of it.
 */
#include "transport/remote_receiver.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/io.h"

#define GRANTED_STREAMS 8 /* as the receiver of nccl has it: REFIT_REMOTE_GRANTS_MAX batches of a holder */
#define SLICE_MS 50       /* how soon a cancel is noticed */
_Static_assert(REFIT_REMOTE_GRANTS_MAX == GRANTED_STREAMS * REFIT_GRANTS_PER_STREAM + REFIT_QUEUE_MAX, "one limit");

/* ---- a new connection, on the listener's thread ---- */

/* The lock is held, as in the next. */
static enum refit_status find_links(struct refit_remote *remote, struct refit_peer *peer, struct refit_error *err)
{
    if (peer->flows)
        return REFIT_OK;
    peer->flows = calloc(remote->side_count, sizeof(struct refit_remote_link));
    return peer->flows ? REFIT_OK : refit_fail_alloc(err, "a holder", sizeof(struct refit_remote_link));
}

static enum refit_status pass_on(struct refit_remote *remote, const struct refit_greeting *greeting, int fd, int edges,
                                 struct refit_error *err)
{
    struct refit_remote_side *side = &remote->sides[greeting->stream];
    const struct refit_remote_message m = {.type = REFIT_REMOTE_ADMIT, .holder = greeting->holder,
                                           .argument = greeting->edges};
    if (!refit_remote_usable(side))
        return refit_fail(err, REFIT_UNSUPPORTED, "the engine of rank %u receives no more: %s", side->engine->rank,
                          side->engine->why);
    if (side->queue_count > 0)
        return refit_fail(err, REFIT_BUSY, "the engine of rank %u is behind; dial again", side->engine->rank);
    return refit_remote_send(side->engine->sock, &m, NULL, 0, (const int[]){fd, edges}, 2, err);
}

/* The first of its connections ends what there was before; the others follow in order. */
static enum refit_status check_order(struct refit_remote *remote, const struct refit_greeting *greeting,
                                     struct refit_error *err)
{
    struct refit_peer *peer = remote->base.grants.by_number[greeting->holder];
    const struct refit_remote_link *links = peer ? refit_remote_links(peer) : NULL;
    if (greeting->stream == 0 && links)
        refit_remote_leave_peer(remote, peer, "it dialled again");
    for (uint32_t i = 0; i < greeting->stream; i++)
        if (!links || !links[i].admitted)
            return refit_fail(err, REFIT_BUSY, "connection %u of holder %u has ended; dial all anew", i, greeting->holder);
    return REFIT_OK;
}

static enum refit_status admit_holder(struct refit_remote *remote, const struct refit_greeting *greeting,
                                      const uint8_t *edges, int fd, int edges_fd, struct refit_error *err)
{
    struct refit_peer *peer = NULL;
    enum refit_status status = check_order(remote, greeting, err);
    if (status == REFIT_OK)
        status = refit_receiving_welcome(&remote->base, greeting, edges, &peer, err);
    if (status == REFIT_OK)
        status = find_links(remote, peer, err);
    if (status == REFIT_OK)
        status = pass_on(remote, greeting, fd, edges_fd, err);
    if (status == REFIT_OK)
        refit_remote_links(peer)[greeting->stream].admitted = true;
    return status;
}

static enum refit_status admit(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               const struct refit_stream *stream, struct refit_error *err)
{
    struct refit_remote *remote = refit_remote_of(refit_receiving_of_gate(gate));
    const struct refit_endpoint_config *config = &remote->base.base.config;
    int edges_fd = -1;
    enum refit_status status = refit_greeting_check(greeting, config, err);
    if (status == REFIT_OK && greeting->streams != remote->side_count)
        status = refit_fail(err, REFIT_MISMATCH, "%u connections, the %zu engines here need one each; use one release at both "
                            "ends", greeting->streams, remote->side_count);
    if (status == REFIT_OK)
        status = refit_remote_memfd(edges, (size_t)greeting->edges * REFIT_GREETING_EDGE_BYTES, &edges_fd, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&remote->base.grants.lock);
    status = admit_holder(remote, greeting, edges, stream->fd, edges_fd, err);
    pthread_mutex_unlock(&remote->base.grants.lock);
    refit_io_close(&edges_fd);
    if (status != REFIT_OK)
        return status;
    /* The engine has it now, and counts it; here it is over. */
    struct refit_stream ours = *stream;
    refit_stream_close(&ours);
    refit_listener_forget(config->listener);
    return REFIT_OK;
}

/* ---- the kind (the lock is held, but in join and free) ---- */

static size_t side_of(const struct refit_remote *remote, struct refit_grant grant)
{
    const struct refit_plan *plan = remote->base.base.config.plan;
    return refit_plan_landing_rank(plan, grant.edge, grant.batch) - refit_plan_first_rank(plan);
}

/* What is to land there, and its segments, are known before it is granted: its digests have a place. */
static enum refit_status grant(struct refit_remote *remote, struct refit_peer *peer, struct refit_grant grant,
                               struct refit_error *err)
{
    const struct refit_plan *plan = remote->base.base.config.plan;
    size_t side = side_of(remote, grant);
    struct refit_remote_link *link = &refit_remote_links(peer)[side];
    struct refit_remote_granted *granted = &link->granted[link->granted_count];
    uint32_t rank = refit_plan_first_rank(plan) + (uint32_t)side;
    *granted = (struct refit_remote_granted){.grant = grant};
    refit_segments_init(&granted->segments, remote->base.base.config.verify);
    enum refit_status status =
        refit_segments_of(&granted->segments, refit_walk_batch(plan, grant.edge, grant.batch, rank), err);
    if (status != REFIT_OK) {
        refit_segments_release(&granted->segments);
        return status;
    }
    if (link->granted_count++ == 0)
        link->heard_ns = refit_clock_ns(); /* from here on it owes */
    refit_remote_tell(remote, &remote->sides[side],
                      &(struct refit_remote_message){.type = REFIT_REMOTE_POST, .holder = peer->number,
                                                     .edge = grant.edge->digest, .batch = grant.batch});
    return REFIT_OK;
}

static void dispatch(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    struct refit_error err;
    struct refit_grant next;
    while (peer->connections > 0 && peer->queue_count > 0) {
        const struct refit_grant *first = &peer->queue[peer->queue_first];
        if (refit_remote_links(peer)[side_of(remote, *first)].granted_count == REFIT_REMOTE_GRANTS_MAX)
            return;
        if (refit_peer_next(peer, &next) && grant(remote, peer, next, &err) != REFIT_OK)
            refit_grants_end(&receiving->grants, peer, next, err.status);
    }
}

static void cut(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    for (size_t i = 0; i < remote->side_count && !receiving->grants.stopped; i++) /* then engines end as a whole: join */
        refit_remote_drop_link(remote, peer, i);
}

static bool landing(const struct refit_receiving *receiving, const struct refit_peer *peer)
{
    const struct refit_remote *remote = refit_remote_of(receiving);
    const struct refit_remote_link *links = refit_remote_links(peer);
    bool any = remote->spreading == peer;
    for (size_t i = 0; i < remote->side_count && links && !any; i++)
        any = links[i].dropping;
    return any;
}

static void reap(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    struct refit_remote_link *links = refit_remote_links(peer);
    for (size_t i = 0; i < remote->side_count && links; i++)
        refit_remote_end_grants(remote, peer, &links[i], status);
    if (peer->connections > 0)
        refit_peer_left(&receiving->grants, peer, "dropped");
}

/* The engine it owes to that has heard of it longest ago; else the last byte. */
static int64_t heard(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    const struct refit_remote_link *links = refit_remote_links(peer);
    int64_t owing = INT64_MAX, latest = peer->heard_ns;
    for (size_t i = 0; i < remote->side_count && links; i++) {
        if (links[i].granted_count > 0 && links[i].heard_ns < owing)
            owing = links[i].heard_ns;
        latest = links[i].heard_ns > latest ? links[i].heard_ns : latest;
    }
    return owing < INT64_MAX ? owing : latest;
}

/* Engines tell all their holders. */
static void say_done(struct refit_receiving *receiving, struct refit_peer *peer)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    if (peer != receiving->grants.peers)
        return;
    for (size_t i = 0; i < remote->side_count; i++)
        refit_remote_tell(remote, &remote->sides[i], &(struct refit_remote_message){.type = REFIT_REMOTE_FINISH});
}

static bool all_ended(const struct refit_remote *remote)
{
    for (size_t i = 0; i < remote->side_count; i++)
        if (remote->sides[i].state != REFIT_REMOTE_IS_ENDED)
            return false;
    return true;
}

/* One that was silent before is not waited for. */
static bool silent(const struct refit_remote *remote)
{
    int64_t now = refit_clock_ns();
    bool any = false, heard_of = false;
    for (size_t i = 0; i < remote->side_count; i++) {
        const struct refit_remote_side *side = &remote->sides[i];
        if (side->state == REFIT_REMOTE_IS_ENDED)
            continue;
        any = true;
        heard_of |= now - side->heard_ns < (int64_t)REFIT_REMOTE_SILENCE_MS * 1000000;
    }
    return any && !heard_of;
}

static void join(struct refit_receiving *receiving)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(REFIT_REMOTE_CLOSE_MS));
    pthread_mutex_lock(&receiving->grants.lock);
    for (size_t i = 0; i < remote->side_count; i++) {
        if (!remote->sides[i].closing)
            refit_remote_tell(remote, &remote->sides[i], &(struct refit_remote_message){.type = REFIT_REMOTE_CLOSE});
        remote->sides[i].closing = true;
    }
    while (remote->has_events && !all_ended(remote) && !silent(remote))
        if (pthread_cond_timedwait(&receiving->grants.event, &receiving->grants.lock, &until) != 0)
            break;
    for (size_t i = 0; i < remote->side_count; i++)
        if (remote->sides[i].state != REFIT_REMOTE_IS_ENDED)
            refit_remote_lose(remote, &remote->sides[i], REFIT_TIMEOUT, "it did not say that it has stopped");
    remote->quits = true;
    eventfd_write(remote->nudge, 1);
    pthread_mutex_unlock(&receiving->grants.lock);
    if (remote->has_events)
        pthread_join(remote->events, NULL);
    remote->has_events = false;
}

static void remote_free(struct refit_receiving *receiving)
{
    struct refit_remote *remote = refit_remote_of(receiving);
    for (struct refit_peer *peer = receiving->grants.peers; peer; peer = peer->next) {
        free(peer->flows);
        peer->flows = NULL;
    }
    for (size_t i = 0; i < remote->side_count; i++)
        free(remote->sides[i].queue);
    refit_places_release(&remote->places);
    refit_io_close(&remote->nudge);
    refit_receiving_release(receiving);
    free(remote);
}

static const struct refit_receiving_kind kind = {
    .name = "nccl",
    .dispatch = dispatch,
    .cut = cut,
    .landing = landing,
    .reap = reap,
    .heard = heard,
    .say_done = say_done,
    .join = join,
    .free = remote_free,
};

/* ---- opening ---- */

static struct refit_remote_open describe(const struct refit_remote *remote, const struct refit_remote_side *side,
                                         const struct refit_arena *arena)
{
    const struct refit_endpoint_config *config = &remote->base.base.config;
    struct refit_plan_scope scope = refit_plan_scope_of(config->plan);
    struct refit_cuda_slot_info info;
    struct refit_remote_open open = {
        .version = REFIT_REMOTE_VERSION,
        .rank = side->engine->rank,
        .first_rank = refit_plan_first_rank(config->plan),
        .rank_count = refit_plan_rank_count(config->plan),
        .holders = config->holder,
        .patience_ms = config->patience_ms,
        .verify = config->verify,
        .wanted = scope.wanted != NULL,
        .rate = config->rate_bytes_per_s > 0 ? config->rate_bytes_per_s / remote->side_count + 1 : 0,
        .bytes = refit_arena_bytes(arena),
        .nice = config->nice,
    };
    refit_cuda_slot_info(arena, &info);
    memcpy(open.uuid, info.uuid, sizeof open.uuid);
    memcpy(open.id, info.id, sizeof open.id);
    strcpy(open.refit_id, config->refit_id);
    strcpy(open.source, refit_layout_digest(refit_plan_source(config->plan)));
    strcpy(open.destination, refit_layout_digest(refit_plan_destination(config->plan)));
    return open;
}

/* The documents, the same for all engines: descriptors of them go into fds, but for fds[2], the slot. */
static enum refit_status write_documents(const struct refit_plan *plan, int *fds, struct refit_error *err)
{
    const uint8_t *wanted = refit_plan_scope_of(plan).wanted;
    size_t len;
    const char *text = refit_layout_text(refit_plan_source(plan), &len);
    enum refit_status status = refit_remote_memfd(text, len, &fds[0], err);
    text = refit_layout_text(refit_plan_destination(plan), &len);
    if (status == REFIT_OK)
        status = refit_remote_memfd(text, len, &fds[1], err);
    if (status == REFIT_OK && wanted)
        status = refit_remote_memfd(wanted, refit_layout_tensor_count(refit_plan_destination(plan)), &fds[3], err);
    return status;
}

static enum refit_status open_side(struct refit_remote *remote, size_t index, int *fds, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &remote->base.base.config;
    struct refit_remote_side *side = &remote->sides[index];
    const struct refit_arena *arena = index < config->arena_count ? config->arenas[index] : NULL;
    if (!arena || refit_arena_kind(arena) != REFIT_ARENA_CUDA)
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\" lands in the memory of GPUs, and that of rank %u is in "
                          "the host", side->engine->rank);
    const struct refit_remote_open open = describe(remote, side, arena);
    const struct refit_remote_message m = {.type = REFIT_REMOTE_OPEN};
    enum refit_status status = refit_cuda_slot_export(arena, &fds[2], err);
    if (status == REFIT_OK)
        status = refit_remote_send(side->engine->sock, &m, &open, sizeof open, fds, 3u + open.wanted, err);
    refit_io_close(&fds[2]);
    if (status != REFIT_OK)
        return status;
    side->heard_ns = refit_clock_ns();
    side->state = REFIT_REMOTE_IS_OPENING;
    side->engine->ended = false; /* from now on it maps the slot */
    return REFIT_OK;
}

static enum refit_status open_sides(struct refit_remote *remote, struct refit_error *err)
{
    int fds[REFIT_REMOTE_FDS_MAX] = {-1, -1, -1, -1};
    enum refit_status status = write_documents(remote->base.base.config.plan, fds, err);
    for (size_t i = 0; i < remote->side_count && status == REFIT_OK; i++) {
        status = open_side(remote, i, fds, err);
        if (status != REFIT_OK)
            status = refit_error_prefix(err, status, "the engine of rank %u", remote->sides[i].engine->rank);
    }
    for (size_t i = 0; i < REFIT_REMOTE_FDS_MAX; i++)
        refit_io_close(&fds[i]);
    return status;
}

/* REFIT_BUSY: not yet. The lock is held. */
static enum refit_status check_sides(const struct refit_remote *remote, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < remote->side_count; i++) {
        const struct refit_remote_side *side = &remote->sides[i];
        if (side->state == REFIT_REMOTE_IS_OPENING)
            status = REFIT_BUSY;
        else if (side->state != REFIT_REMOTE_IS_OPEN)
            return refit_fail(err, side->failed, "the engine of rank %u can't receive: %s", side->engine->rank,
                              side->engine->why);
    }
    return status;
}

static enum refit_status await_sides(struct refit_remote *remote, struct refit_deadline deadline,
                                     const atomic_bool *cancel, struct refit_error *err)
{
    struct refit_grants *grants = &remote->base.grants;
    enum refit_status status;
    pthread_mutex_lock(&grants->lock);
    while ((status = check_sides(remote, err)) == REFIT_BUSY) {
        struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(SLICE_MS));
        if (cancel && atomic_load_explicit(cancel, memory_order_acquire)) {
            status = refit_fail(err, REFIT_ABORTED, "aborted while engines opened");
            break;
        }
        if (refit_deadline_passed(deadline)) {
            status = refit_fail(err, REFIT_TIMEOUT, "an engine did not say in time that it can receive");
            break;
        }
        pthread_cond_timedwait(&grants->event, &grants->lock, &until);
    }
    pthread_mutex_unlock(&grants->lock);
    return status;
}

static enum refit_status init(struct refit_remote *remote, const struct refit_endpoint_config *config,
                              struct refit_remote_engine *engines, size_t count, struct refit_error *err)
{
    struct refit_endpoint_config own = *config;
    own.streams = GRANTED_STREAMS;
    enum refit_status status = refit_receiving_init(&remote->base, &kind, &own, err);
    if (status != REFIT_OK)
        return status;
    refit_places_init(&remote->places);
    remote->side_count = count;
    for (size_t i = 0; i < count; i++) {
        remote->sides[i].engine = &engines[i];
        engines[i].ended = true; /* until it is told what to map */
    }
    remote->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return REFIT_OK;
}

enum refit_status refit_remote_open(const struct refit_endpoint_config *config, struct refit_remote_engine *engines,
                                    size_t count, struct refit_deadline deadline, const atomic_bool *cancel,
                                    struct refit_endpoint **out, struct refit_error *err)
{
    if (!config->listener || count < 1 || count > REFIT_REMOTE_ENGINES_MAX ||
        count != refit_plan_rank_count(config->plan))
        return refit_fail(err, REFIT_INVALID, "%zu engines that receive, for %u ranks; 1 to %d can", count,
                          refit_plan_rank_count(config->plan), REFIT_REMOTE_ENGINES_MAX);
    struct refit_remote *remote = calloc(1, sizeof *remote);
    if (!remote)
        return refit_fail_alloc(err, "an endpoint", sizeof *remote);
    enum refit_status status = init(remote, config, engines, count, err);
    if (status != REFIT_OK) {
        free(remote);
        return status;
    }
    if (remote->nudge < 0)
        status = refit_fail_errno(err, errno, "endpoint of refit %s: eventfd", config->refit_id);
    if (status == REFIT_OK)
        status = open_sides(remote, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&remote->events, refit_remote_events_run, remote, err);
    remote->has_events = status == REFIT_OK;
    if (status == REFIT_OK)
        status = await_sides(remote, deadline, cancel, err);
    if (status == REFIT_OK)
        status = refit_receiving_listen(&remote->base, REFIT_GATE_NCCL, admit, err);
    if (status != REFIT_OK) {
        refit_transport_nccl.close(&remote->base.base);
        return status;
    }
    *out = &remote->base.base;
    return REFIT_OK;
}

bool refit_remote_ended(struct refit_remote_engine *engine)
{
    struct refit_remote_packet packet;
    struct refit_error err;
    enum refit_status status = REFIT_OK;
    while (!engine->ended && (status = refit_remote_receive(engine->sock, &packet, &err)) == REFIT_OK) {
        refit_remote_packet_release(&packet);
        engine->ended = packet.message.type == REFIT_REMOTE_CLOSED;
    }
    struct pollfd process = {.fd = engine->pidfd, .events = POLLIN};
    if (!engine->ended && engine->pidfd < 0)
        engine->ended = status == REFIT_PEER;
    else if (!engine->ended)
        engine->ended = poll(&process, 1, 0) > 0;
    return engine->ended;
}
