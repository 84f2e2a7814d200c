/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine as the ledger knows it: what it is told, and what its end, or a holder's, means for what was granted. The
 * lock is held throughout.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "transport/remote_receiver.h"

#define QUEUE_MAX 65536 /* messages; more than all holders may owe by far */

/* ---- telling ---- */

static bool enqueue(struct refit_remote_side *side, const struct refit_remote_message *message)
{
    if (side->queue_count == side->queue_capacity) {
        size_t capacity = side->queue_capacity ? 2 * side->queue_capacity : 64;
        struct refit_remote_message *queue =
            capacity > QUEUE_MAX ? NULL : reallocarray(side->queue, capacity, sizeof *queue);
        if (!queue)
            return false;
        side->queue = queue;
        side->queue_capacity = capacity;
    }
    side->queue[side->queue_count++] = *message;
    return true;
}

static enum refit_status send_one(const struct refit_remote_side *side, const struct refit_remote_message *message)
{
    return refit_remote_send(side->engine->sock, message, NULL, 0, NULL, 0, NULL);
}

/* That it is gone is seen by who reads its socket. */
void refit_remote_tell(struct refit_remote *remote, struct refit_remote_side *side,
                       const struct refit_remote_message *message)
{
    if (side->state == REFIT_REMOTE_IS_ENDED || side->mute)
        return;
    if (side->queue_count == 0 && send_one(side, message) != REFIT_BUSY)
        return;
    if (enqueue(side, message))
        eventfd_write(remote->nudge, 1);
    else
        refit_remote_lose(remote, side, REFIT_NO_MEMORY, "it does not read its messages");
}

void refit_remote_flush(struct refit_remote *remote, struct refit_remote_side *side)
{
    size_t sent = 0;
    (void)remote;
    while (sent < side->queue_count && send_one(side, &side->queue[sent]) != REFIT_BUSY)
        sent++;
    memmove(side->queue, side->queue + sent, (side->queue_count - sent) * sizeof *side->queue);
    side->queue_count -= sent;
}

/* ---- grants ---- */

void refit_remote_end_grant(struct refit_remote *remote, struct refit_peer *peer, struct refit_remote_link *link,
                            unsigned at, enum refit_status status)
{
    struct refit_remote_granted granted = link->granted[at];
    link->granted[at] = link->granted[--link->granted_count];
    refit_segments_release(&granted.segments);
    if (status == REFIT_PEER && remote->base.grants.stopped)
        status = REFIT_ABORTED;
    refit_grants_end(&remote->base.grants, peer, granted.grant, status);
}

void refit_remote_end_grants(struct refit_remote *remote, struct refit_peer *peer, struct refit_remote_link *link,
                             enum refit_status status)
{
    while (link->granted_count > 0)
        refit_remote_end_grant(remote, peer, link, link->granted_count - 1, status);
}

/* ---- holders ---- */

void refit_remote_join_peer(struct refit_remote *remote, struct refit_peer *peer)
{
    const struct refit_remote_link *links = refit_remote_links(peer);
    bool all = links && peer->connections == 0 && !remote->base.grants.stopped;
    for (size_t i = 0; i < remote->side_count && all; i++)
        all = links[i].up && !links[i].dropping;
    if (all)
        refit_peer_joined(&remote->base.grants, peer);
}

/* What it owes elsewhere ends when the engines there say so: until then it may land. */
void refit_remote_leave_peer(struct refit_remote *remote, struct refit_peer *peer, const char *why)
{
    if (peer->connections > 0)
        refit_peer_left(&remote->base.grants, peer, why);
    for (size_t i = 0; i < remote->side_count; i++)
        refit_remote_drop_link(remote, peer, i);
}

void refit_remote_drop_link(struct refit_remote *remote, struct refit_peer *peer, size_t side)
{
    struct refit_remote_link *links = refit_remote_links(peer);
    if (!links || !links[side].admitted || links[side].dropping || !refit_remote_usable(&remote->sides[side]))
        return;
    links[side].dropping = true;
    links[side].admitted = links[side].up = false;
    refit_remote_tell(remote, &remote->sides[side],
                      &(struct refit_remote_message){.type = REFIT_REMOTE_DROP, .holder = peer->number});
}

/* ---- the end of an engine ---- */

static void forget_links(struct refit_remote *remote, const struct refit_remote_side *side, const char *why)
{
    struct refit_grants *grants = &remote->base.grants;
    size_t index = (size_t)(side - remote->sides);
    for (struct refit_peer *peer = grants->peers; peer; peer = peer->next) {
        struct refit_remote_link *links = refit_remote_links(peer);
        if (!links)
            continue;
        struct refit_remote_link *link = &links[index];
        bool was = link->admitted || link->up;
        link->admitted = link->up = link->dropping = false;
        /* One that is being copied here is complete. */
        if (remote->spreading != peer)
            refit_remote_end_grants(remote, peer, link, REFIT_PEER);
        if (was)
            refit_remote_leave_peer(remote, peer, why);
    }
    pthread_cond_broadcast(&grants->event);
    refit_inbox_wake(grants->config->inbox);
}

static void note_why(struct refit_remote_side *side, enum refit_status status, const char *why)
{
    if (side->engine->why[0] != '\0')
        return;
    side->failed = status;
    snprintf(side->engine->why, sizeof side->engine->why, "%s", why);
}

void refit_remote_lose(struct refit_remote *remote, struct refit_remote_side *side, enum refit_status status,
                       const char *why)
{
    if (side->state == REFIT_REMOTE_IS_LOST || side->state == REFIT_REMOTE_IS_ENDED)
        return;
    side->state = REFIT_REMOTE_IS_LOST;
    note_why(side, status, why);
    refit_log_limited(REFIT_LOG_WARN, "engine receives no more", refit_log_text("refit", remote->base.base.config.refit_id),
                      refit_log_u64("rank", side->engine->rank), refit_log_i64("pid", side->engine->pid),
                      refit_log_text("reason", why));
    forget_links(remote, side, why);
    refit_remote_tell(remote, side, &(struct refit_remote_message){.type = REFIT_REMOTE_CLOSE});
    side->closing = true;
}

void refit_remote_end(struct refit_remote *remote, struct refit_remote_side *side, const char *why)
{
    if (!side->closing)
        refit_remote_lose(remote, side, REFIT_PEER, why);
    side->state = REFIT_REMOTE_IS_ENDED;
    side->engine->ended = true;
    forget_links(remote, side, why);
}
