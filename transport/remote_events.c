/* SPDX-License-Identifier: Apache-2.0
 *
 * What engines say, on a thread of refitd. Nothing of it is believed that does not fit what they were granted: an engine
 * that says anything else is lost.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "transport/remote_receiver.h"

#define LOOK_MS 250
#define NS_PER_MS INT64_C(1000000)
#define TURN_PACKETS 256 /* of one engine, before the next has its turn */

static const struct refit_endpoint_config *config_of(const struct refit_remote *remote)
{
    return &remote->base.base.config;
}

/* ---- batches (the lock is held) ---- */

static struct refit_remote_granted *find_granted(struct refit_remote_link *link, const struct refit_remote_message *m)
{
    for (unsigned i = 0; i < link->granted_count; i++)
        if (link->granted[i].grant.edge->digest == m->edge && link->granted[i].grant.batch == m->batch)
            return &link->granted[i];
    return NULL;
}

/* Of whichever holder: a batch is granted to one at a time. */
static struct refit_remote_granted *find_batch(struct refit_remote *remote, size_t side,
                                               const struct refit_remote_message *m)
{
    struct refit_remote_granted *granted = NULL;
    for (struct refit_peer *peer = remote->base.grants.peers; peer && !granted; peer = peer->next)
        if (refit_remote_links(peer))
            granted = find_granted(&refit_remote_links(peer)[side], m);
    return granted;
}

static enum refit_status take_digests(struct refit_remote *remote, size_t side, struct refit_error *err)
{
    const struct refit_remote_packet *packet = &remote->packet;
    struct refit_remote_granted *granted = find_batch(remote, side, &packet->message);
    size_t count = packet->len / REFIT_DIGEST_BYTES;
    if (!granted)
        return refit_fail(err, REFIT_PEER, "it sent digests of batch %u of edge %016llx, which was not granted",
                          packet->message.batch, (unsigned long long)packet->message.edge);
    if (packet->len % REFIT_DIGEST_BYTES != 0 || packet->message.argument != granted->have ||
        count > granted->segments.count - granted->have)
        return refit_fail(err, REFIT_PEER, "it sent %zu bytes of digests from %u on for batch %u, which has %zu", packet->len,
                          packet->message.argument, packet->message.batch, granted->segments.count);
    for (size_t i = 0; i < count; i++)
        memcpy(granted->segments.items[granted->have++].digest.d, packet->payload + i * REFIT_DIGEST_BYTES,
               REFIT_DIGEST_BYTES);
    return REFIT_OK;
}

/* To the other ranks that want it, from where it has landed. Without the lock, so that others go on; whoever ends the
 * holder waits for it. */
static enum refit_status spread(struct refit_remote *remote, struct refit_peer *peer,
                                const struct refit_remote_granted *granted, struct refit_error *err)
{
    struct refit_grant grant = granted->grant;
    remote->spreading = peer;
    pthread_mutex_unlock(&remote->base.grants.lock);
    enum refit_status status = refit_places_of(&remote->places, config_of(remote), grant.edge, grant.batch, err);
    if (status == REFIT_OK)
        status = refit_places_spread(&remote->places, err);
    pthread_mutex_lock(&remote->base.grants.lock);
    remote->spreading = NULL;
    pthread_cond_broadcast(&remote->base.grants.event);
    return status;
}

static enum refit_status land(struct refit_remote *remote, struct refit_peer *peer, struct refit_remote_granted *granted,
                              struct refit_error *err)
{
    struct refit_grant grant = granted->grant;
    if (config_of(remote)->verify && granted->have != granted->segments.count)
        return refit_fail(err, REFIT_PEER, "it has %zu of %zu digests of batch %u", granted->have, granted->segments.count,
                          grant.batch);
    struct refit_error why;
    enum refit_status status = spread(remote, peer, granted, &why);
    if (status == REFIT_OK)
        refit_grants_landed(&remote->base.grants, grant, &granted->segments);
    return status;
}

static enum refit_status status_of(uint32_t argument)
{
    return argument == REFIT_OK || argument == REFIT_CORRUPT ? (enum refit_status)argument : REFIT_PEER;
}

/* An error of spreading is the batch's; one of *err is the engine's. */
static enum refit_status take_ended(struct refit_remote *remote, size_t side, struct refit_error *err)
{
    const struct refit_remote_message m = remote->packet.message;
    struct refit_peer *peer = remote->base.grants.by_number[m.holder];
    struct refit_remote_link *link = peer && refit_remote_links(peer) ? &refit_remote_links(peer)[side] : NULL;
    struct refit_remote_granted *granted = link ? find_granted(link, &m) : NULL;
    enum refit_status status = status_of(m.argument);
    if (!granted)
        return refit_fail(err, REFIT_PEER, "it ended batch %u of edge %016llx, which was not granted to holder %u", m.batch,
                          (unsigned long long)m.edge, m.holder);
    err->status = REFIT_OK;
    if (status == REFIT_OK)
        status = land(remote, peer, granted, err);
    if (err->status != REFIT_OK)
        return err->status;
    granted = find_granted(link, &m);
    refit_remote_end_grant(remote, peer, link, (unsigned)(granted - link->granted), status);
    if (!refit_remote_usable(&remote->sides[side])) /* lost meanwhile: the rest was left to us */
        refit_remote_end_grants(remote, peer, link, REFIT_PEER);
    remote->base.kind->dispatch(&remote->base, peer);
    return REFIT_OK;
}

/* ---- holders (the lock is held) ---- */

/* At the end they say goodbye one by one. */
static bool is_up_anywhere(const struct refit_remote *remote, const struct refit_peer *peer)
{
    bool any = false;
    for (size_t i = 0; i < remote->side_count; i++)
        any |= refit_remote_links(peer)[i].up;
    return any;
}

static enum refit_status take_state(struct refit_remote *remote, size_t side, struct refit_error *err)
{
    const struct refit_remote_message *m = &remote->packet.message;
    struct refit_peer *peer = remote->base.grants.by_number[m->holder];
    struct refit_remote_link *link = peer && refit_remote_links(peer) ? &refit_remote_links(peer)[side] : NULL;
    bool up = m->argument & REFIT_REMOTE_CONNECTED;
    if (!link)
        return refit_fail(err, REFIT_PEER, "it speaks of holder %u, which has not dialled", m->holder);
    int64_t now = refit_clock_ns(), heard = m->value[0] < (uint64_t)now ? now - (int64_t)m->value[0] : 0;
    link->heard_ns = heard > link->heard_ns ? heard : link->heard_ns;
    if (link->dropping || link->up == up || (up && !link->admitted))
        return REFIT_OK;
    link->up = up;
    if (up) {
        refit_remote_join_peer(remote, peer);
        remote->base.kind->dispatch(&remote->base, peer);
    } else if (!remote->base.grants.finished || !is_up_anywhere(remote, peer))
        refit_remote_leave_peer(remote, peer, "its connection to an engine ended");
    return REFIT_OK;
}

static enum refit_status take_dropped(struct refit_remote *remote, size_t side, struct refit_error *err)
{
    struct refit_peer *peer = remote->base.grants.by_number[remote->packet.message.holder];
    struct refit_remote_link *link = peer && refit_remote_links(peer) ? &refit_remote_links(peer)[side] : NULL;
    if (!link || !link->dropping)
        return refit_fail(err, REFIT_PEER, "it dropped holder %u unasked", remote->packet.message.holder);
    link->dropping = false;
    refit_remote_end_grants(remote, peer, link, REFIT_PEER);
    pthread_cond_broadcast(&remote->base.grants.event);
    return REFIT_OK;
}

/* ---- the engine (the lock is held) ---- */

static enum refit_status take_opened(struct refit_remote *remote, struct refit_remote_side *side, struct refit_error *err)
{
    const struct refit_remote_packet *packet = &remote->packet;
    char text[256] = {0};
    if (side->state != REFIT_REMOTE_IS_OPENING)
        return refit_fail(err, REFIT_PEER, "it opened twice");
    memcpy(text, packet->payload, packet->len < sizeof text ? packet->len : sizeof text - 1);
    if (packet->message.argument != REFIT_OK)
        return refit_fail(err, refit_refusal_status(packet->message.argument), "%s", text);
    if (packet->message.value[0] != refit_plan_class(config_of(remote)->plan))
        return refit_fail(err, REFIT_MISMATCH, "it plans something else: use one release of refitd and the engine's library");
    side->state = REFIT_REMOTE_IS_OPEN;
    pthread_cond_broadcast(&remote->base.grants.event);
    return REFIT_OK;
}

static void take_alive(struct refit_remote *remote, struct refit_remote_side *side)
{
    struct refit_endpoint_counters *counters = &remote->base.base.counters;
    _Atomic uint64_t *const sums[3] = {&counters->payload_bytes, &counters->wire_bytes, &counters->copied_bytes};
    for (int i = 0; i < 3; i++) {
        uint64_t value = remote->packet.message.value[i];
        if (value > side->counted[i])
            refit_count(sums[i], value - side->counted[i]);
        side->counted[i] = value;
    }
}

static enum refit_status take(struct refit_remote *remote, struct refit_remote_side *side, struct refit_error *err)
{
    const struct refit_remote_message *m = &remote->packet.message;
    size_t index = (size_t)(side - remote->sides);
    if (remote->packet.fd_count > 0)
        return refit_fail(err, REFIT_PEER, "it sent descriptors");
    if (m->type == REFIT_REMOTE_CLOSED) {
        refit_remote_end(remote, side, "it has stopped receiving");
        return REFIT_OK;
    }
    if (side->state == REFIT_REMOTE_IS_LOST || side->state == REFIT_REMOTE_IS_ENDED)
        return REFIT_OK; /* nothing else counts any more */
    if (m->type == REFIT_REMOTE_OPENED)
        return take_opened(remote, side, err);
    if (side->state != REFIT_REMOTE_IS_OPEN || m->holder >= config_of(remote)->holder)
        return refit_fail(err, REFIT_PEER, "it sent a message of type %u for holder %u of %u", m->type, m->holder,
                          config_of(remote)->holder);
    switch (m->type) {
    case REFIT_REMOTE_STATE: return take_state(remote, index, err);
    case REFIT_REMOTE_DIGESTS: return take_digests(remote, index, err);
    case REFIT_REMOTE_ENDED: return take_ended(remote, index, err);
    case REFIT_REMOTE_DROPPED: return take_dropped(remote, index, err);
    case REFIT_REMOTE_ALIVE: take_alive(remote, side); return REFIT_OK;
    default: return refit_fail(err, REFIT_PEER, "it sent a message of type %u", m->type);
    }
}

/* ---- the thread ---- */

/* What does not make sense, as a message that is too long, costs its engine its place. */
static void read_side(struct refit_remote *remote, struct refit_remote_side *side)
{
    struct refit_error err;
    enum refit_status status = REFIT_OK;
    for (int i = 0; i < TURN_PACKETS && status == REFIT_OK; i++) {
        status = refit_remote_receive(side->engine->sock, &remote->packet, &err);
        if (status == REFIT_BUSY)
            return;
        if (status == REFIT_PEER) {
            side->mute = true;
            break;
        }
        side->heard_ns = refit_clock_ns();
        if (status == REFIT_OK)
            status = take(remote, side, &err);
        refit_remote_packet_release(&remote->packet);
    }
    if (status == REFIT_OK)
        return;
    if (side->mute && side->engine->pidfd < 0)
        refit_remote_end(remote, side, err.text);
    else
        refit_remote_lose(remote, side, err.status, err.text);
}

static void look_at(struct refit_remote *remote, struct refit_remote_side *side, const struct pollfd *fds)
{
    if (side->state == REFIT_REMOTE_IS_ENDED)
        return;
    if (fds[0].revents & (POLLIN | POLLHUP | POLLERR))
        read_side(remote, side);
    else if (side->state == REFIT_REMOTE_IS_OPEN && !side->closing &&
             refit_clock_ns() - side->heard_ns > REFIT_REMOTE_SILENCE_MS * NS_PER_MS)
        refit_remote_lose(remote, side, REFIT_PEER, "it is silent");
    if (fds[0].revents & POLLOUT)
        refit_remote_flush(remote, side);
    /* What it said last was read above. */
    if (fds[1].revents && side->state != REFIT_REMOTE_IS_ENDED)
        refit_remote_end(remote, side, "its process has ended");
}

static nfds_t build_set(const struct refit_remote *remote, struct pollfd *fds)
{
    nfds_t count = 0;
    fds[count++] = (struct pollfd){.fd = remote->nudge, .events = POLLIN};
    for (size_t i = 0; i < remote->side_count; i++) {
        const struct refit_remote_side *side = &remote->sides[i];
        bool ended = side->state == REFIT_REMOTE_IS_ENDED;
        fds[count++] = (struct pollfd){.fd = ended || side->mute ? -1 : side->engine->sock,
                                       .events = (short)(POLLIN | (side->queue_count > 0 ? POLLOUT : 0))};
        fds[count++] = (struct pollfd){.fd = ended ? -1 : side->engine->pidfd, .events = POLLIN};
    }
    return count;
}

void *refit_remote_events_run(void *arg)
{
    struct refit_remote *remote = arg;
    struct refit_grants *grants = &remote->base.grants;
    struct pollfd fds[1 + 2 * REFIT_REMOTE_ENGINES_MAX];
    eventfd_t ignored;
    refit_bulk_thread_nice(config_of(remote)->nice);
    pthread_mutex_lock(&grants->lock);
    while (!remote->quits) {
        nfds_t count = build_set(remote, fds);
        pthread_mutex_unlock(&grants->lock);
        int ready = poll(fds, count, LOOK_MS);
        if (ready > 0 && fds[0].revents)
            (void)eventfd_read(remote->nudge, &ignored);
        pthread_mutex_lock(&grants->lock);
        for (size_t i = 0; i < remote->side_count && ready >= 0; i++)
            look_at(remote, &remote->sides[i], &fds[1 + 2 * i]);
    }
    pthread_mutex_unlock(&grants->lock);
    return NULL;
}
