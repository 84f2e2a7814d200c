/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/holders.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

#define MS INT64_C(1000000)
#define AWAY_MS 250          /* not asked after its first loss; doubled by each further one */
#define AWAY_MAX_SHIFT 5
#define OWED_BY_MEMBER (REFIT_GRANTS_PER_STREAM + 2) /* it has one connection */
#define STILL 5              /* so many times longer while there is something else to ask for, or nobody delivers */

/* What all ranks of the origin send comes in over one link, beside what members bring, which others wait for too: in a
 * fleet the ranks share the queue that one of them would have. */
static uint32_t owed_by_rank(uint32_t ranks, uint32_t members, unsigned streams)
{
    uint32_t alone = streams * REFIT_GRANTS_PER_STREAM + 4;
    uint32_t shared = members > 1 && ranks > 1 ? alone / ranks : alone;
    return shared > REFIT_GRANTS_PER_STREAM ? shared : REFIT_GRANTS_PER_STREAM;
}

enum refit_status refit_holders_init(struct refit_holders *holders, const struct refit_fleet *fleet, uint32_t ranks,
                                     const bool *alternatives, const struct refit_receiver_config *config,
                                     struct refit_error *err)
{
    *holders = (struct refit_holders){
        .fleet = fleet,
        .ranks = ranks,
        .members = refit_fleet_members(fleet),
        .sources = refit_fleet_sources(fleet),
        .alternatives = alternatives,
        .silence_ns = config->relay_silence_ms * MS,
        .stall_ns = config->relay_stall_ms * MS,
        .begun_ns = refit_clock_ns(),
        .owed_max = owed_by_rank(ranks, refit_fleet_members(fleet), config->streams),
    };
    holders->trusted_ns = holders->swept_ns = holders->begun_ns;
    holders->count = ranks + holders->members + holders->sources;
    holders->items = calloc((size_t)holders->count + 1, sizeof *holders->items);
    holders->usable = calloc((size_t)holders->members + 1, sizeof *holders->usable);
    if (!holders->items || !holders->usable)
        return refit_fail_alloc(err, "the holders of a refit", holders->count * sizeof *holders->items);
    for (uint32_t i = 0; i < holders->count; i++) {
        holders->items[i].path = -1;
        holders->items[i].usable = true;
    }
    for (uint32_t i = 0; i < holders->members; i++)
        holders->usable[i] = true;
    return REFIT_OK;
}

void refit_holders_release(struct refit_holders *holders)
{
    free(holders->items);
    free(holders->usable);
}

/* --- looking ---------------------------------------------------------------------------------------------------- */

static void note_loss(struct refit_holders *holders, struct refit_holder *h, int64_t now)
{
    uint32_t shift = h->losses < AWAY_MAX_SHIFT ? h->losses : AWAY_MAX_SHIFT;
    h->lost_ns = now;
    h->losses++;
    h->path = -1;
    if (refit_holders_is_member(holders, (uint32_t)(h - holders->items)))
        h->away_until_ns = now + (((int64_t)AWAY_MS << shift) * MS);
}

static void drop(struct refit_holders *holders, uint32_t holder, int64_t now, const char *why)
{
    struct refit_holder *h = &holders->items[holder];
    const struct refit_path *path = &holders->path[h->path];
    char name[REFIT_HOLDER_NAME_MAX];
    refit_holders_name(holders, holder, name);
    refit_log_limited(REFIT_LOG_WARN, "holder dropped, its batches are asked elsewhere", refit_log_text("holder", name),
                      refit_log_text("reason", why), refit_log_u64("owed", h->owed));
    path->transport->drop(path->endpoint, holder);
    note_loss(holders, h, now);
}

/* The last byte heard, wherever it is connected. */
static int64_t look(struct refit_holders *holders, uint32_t holder, int64_t now)
{
    struct refit_holder *h = &holders->items[holder];
    int path = -1;
    int64_t heard = 0;
    for (size_t i = 0; i < holders->paths; i++) {
        struct refit_holder_state state = {0};
        if (holders->path[i].in_process)
            state = (struct refit_holder_state){.connected = true, .heard_ns = now};
        else
            holders->path[i].transport->look(holders->path[i].endpoint, holder, &state);
        if (state.connected)
            path = (int)i;
        h->ever |= state.connected || state.lost;
        heard = state.heard_ns > heard ? state.heard_ns : heard;
    }
    if (path < 0 && h->ever && h->lost_ns == 0) {
        char name[REFIT_HOLDER_NAME_MAX];
        refit_holders_name(holders, holder, name);
        refit_log_event(REFIT_LOG_DEBUG, "holder lost", refit_log_text("holder", name), refit_log_u64("owed", h->owed));
        note_loss(holders, h, now);
    }
    if (path >= 0)
        h->lost_ns = 0;
    h->path = path;
    h->full = false;
    return heard;
}

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* On a link whose buffers are full a lost packet silences a connection for longer than a process is likely to be
 * stopped; how long, is learned from what was heard again. */
static void learn(struct refit_holders *holders, struct refit_holder *h, int64_t heard)
{
    int64_t from = latest(latest(h->heard_ns, h->since_ns), holders->trusted_ns);
    if (h->owed > 0 && heard > h->heard_ns && heard - from > holders->gap_ns)
        holders->gap_ns = heard - from;
    h->heard_ns = latest(heard, h->heard_ns);
}

/* Waiting for a member costs nothing while there is enough to ask of others. After that it is dropped soon, for they
 * have what it has. */
static int64_t patience_with_member(const struct refit_holders *holders, const struct refit_holder *h)
{
    if (holders->due > h->due)
        return latest(holders->silence_ns, holders->stall_ns);
    return latest(holders->silence_ns, holders->gap_ns + holders->gap_ns / 2);
}

/* A source that is not the only one is dropped soon, too. */
static int64_t patience(const struct refit_holders *holders, uint32_t holder)
{
    if (refit_holders_is_member(holders, holder))
        return patience_with_member(holders, &holders->items[holder]);
    bool is_rank = holder < holders->ranks;
    bool others = is_rank ? holders->alternatives[holder] || holders->sources > 0 : holders->sources > 1;
    return others ? holders->silence_ns : latest(REFIT_GRACE_NS, holders->silence_ns);
}

/* It lives, and nothing comes although others deliver; or has not for long. Links are not fair for seconds, so this
 * too is looked at only when there is nothing else to ask for. */
static bool stands_still(const struct refit_holders *holders, const struct refit_holder *h, int64_t now)
{
    int64_t since = now - latest(h->since_ns, holders->trusted_ns);
    uint64_t others = holders->landed - h->mark;
    bool waited_for = holders->due <= h->due && others >= 2 * (uint64_t)holders->members;
    return since > (waited_for ? holders->stall_ns : STILL * holders->stall_ns);
}

static void watch(struct refit_holders *holders, uint32_t holder, int64_t heard, int64_t now)
{
    struct refit_holder *h = &holders->items[holder];
    if (h->path < 0 || h->owed == 0 || holders->path[h->path].in_process)
        return;
    if (refit_holders_is_member(holders, holder))
        learn(holders, h, heard);
    int64_t quiet = now - latest(latest(heard, h->since_ns), holders->trusted_ns);
    if (quiet > patience(holders, holder))
        drop(holders, holder, now, "is silent");
    else if (refit_holders_is_member(holders, holder) && stands_still(holders, h, now))
        drop(holders, holder, now, "delivers nothing");
}

static bool can_use(const struct refit_holders *holders, uint32_t holder, int64_t now)
{
    const struct refit_holder *h = &holders->items[holder];
    if (h->out)
        return false;
    if (!refit_holders_is_member(holders, holder))
        return h->path >= 0 || h->lost_ns == 0 || now - h->lost_ns < REFIT_GRACE_NS;
    if (h->path >= 0)
        return !h->slow && now >= h->away_until_ns;
    return !h->ever && now - holders->begun_ns < holders->stall_ns;
}

bool refit_holders_sweep(struct refit_holders *holders)
{
    int64_t now = refit_clock_ns();
    bool changed = false;
    /* Stopped or starved ourselves: what others did meanwhile is not known yet. */
    if (now - holders->swept_ns > holders->silence_ns / 2)
        holders->trusted_ns = now;
    holders->swept_ns = now;
    for (uint32_t i = 0; i < holders->count; i++) {
        struct refit_holder *h = &holders->items[i];
        watch(holders, i, look(holders, i, now), now);
        bool usable = can_use(holders, i, now);
        changed |= usable != h->usable;
        h->usable = usable;
        if (refit_holders_is_member(holders, i))
            holders->usable[i - holders->ranks] = usable;
    }
    return changed;
}

/* --- asking ----------------------------------------------------------------------------------------------------- */

enum refit_status refit_holders_post(struct refit_holders *holders, uint32_t holder, const struct refit_edge *edge,
                                     uint32_t batch, struct refit_error *err)
{
    struct refit_holder *h = &holders->items[holder];
    enum refit_status status = REFIT_NOT_FOUND;
    /* What a slow one owes is waited for at the end: its queue stays short. */
    if (h->owed >= (refit_holders_is_member(holders, holder) ? OWED_BY_MEMBER : holders->owed_max)) {
        h->full = true;
        return refit_fail(err, REFIT_BUSY, "it owes %" PRIu32 " batches", h->owed);
    }
    for (size_t i = 0; i < holders->paths && status == REFIT_NOT_FOUND; i++) {
        if (h->path >= 0 && (size_t)h->path != i)
            continue;
        status = holders->path[i].transport->post(holders->path[i].endpoint, holder, edge, batch, err);
    }
    h->full = status != REFIT_OK;
    if (status != REFIT_OK)
        return status;
    if (h->owed++ == 0) {
        h->since_ns = refit_clock_ns();
        h->mark = holders->landed;
    }
    holders->owed++;
    return REFIT_OK;
}

void refit_holders_completed(struct refit_holders *holders, const struct refit_transfer_completion *completion,
                             uint64_t bytes)
{
    struct refit_holder *h = &holders->items[completion->holder];
    h->full = false;
    h->owed--;
    holders->owed--;
    if (completion->status == REFIT_OK) {
        h->landed++;
        holders->landed++;
        h->bytes += bytes;
        h->since_ns = refit_clock_ns();
        h->mark = holders->landed;
    }
    h->corrupt += completion->status == REFIT_CORRUPT;
}

void refit_holders_exclude(struct refit_holders *holders, uint32_t holder)
{
    struct refit_holder *h = &holders->items[holder];
    h->out = true;
    if (h->path >= 0 && h->owed > 0)
        drop(holders, holder, refit_clock_ns(), "is not used any more");
}

void refit_holders_name(const struct refit_holders *holders, uint32_t holder, char out[static REFIT_HOLDER_NAME_MAX])
{
    if (holder < holders->ranks)
        snprintf(out, REFIT_HOLDER_NAME_MAX, "source rank %" PRIu32, holder);
    else if (refit_holders_is_member(holders, holder))
        snprintf(out, REFIT_HOLDER_NAME_MAX, "member %s",
                 refit_fleet_member(holders->fleet, holder - holders->ranks).name);
    else
        snprintf(out, REFIT_HOLDER_NAME_MAX, "serving replica %" PRIu32, holder - holders->ranks - holders->members);
}

enum refit_holder_condition refit_holders_condition(const struct refit_holders *holders, uint32_t holder)
{
    const struct refit_holder *h = &holders->items[holder];
    if (h->out || h->slow)
        return REFIT_HOLDER_PASSED_BY;
    if (h->path >= 0)
        return REFIT_HOLDER_CONNECTED;
    return h->ever ? REFIT_HOLDER_LOST : REFIT_HOLDER_ABSENT;
}
