/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/collect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport/inbox.h"

#define GRANTS_MAX 4
#define GRACE_NS INT64_C(10000000000) /* for a rank that was lost to come back */
#define COMPLETIONS 64

enum state { DUE, GRANTED, DONE };

struct item {
    uint32_t edge, batch;
    uint8_t state, grants;
};

struct collecting {
    const struct refit_collect *given;
    const struct refit_edge *edges;
    size_t edge_count;
    struct item *items;
    size_t count, left;
    size_t *first;    /* by edge: its batch 0 among the items */
    bool *full;       /* by edge: nobody has room for more of it now */
    bool *dialled;    /* by source rank: it has, or has nothing to give */
    uint32_t ranks;
    int64_t moved_ns; /* when something last landed, or nobody was lost */
};

static struct refit_group holders_of(const struct collecting *c, const struct refit_edge *edge)
{
    static const uint32_t in_process = 0;
    return c->given->in_process ? (struct refit_group){.ranks = &in_process, .count = 1}
                                : refit_plan_group(c->given->plan, REFIT_SOURCE, edge->source_group);
}

size_t refit_collect_batches(const struct refit_plan *plan)
{
    size_t count, batches = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++)
        batches += edges[i].batches;
    return batches;
}

/* Edges side by side, so that all ranks work at once. */
static void list_batches(struct collecting *c)
{
    size_t at = 0;
    for (uint32_t e = 0; e < c->edge_count; e++) {
        c->first[e] = at;
        for (uint32_t b = 0; b < c->edges[e].batches; b++)
            c->items[at++] = (struct item){.edge = e, .batch = b};
    }
}

static void expect_holders(struct collecting *c)
{
    for (uint32_t rank = 0; rank < c->ranks; rank++)
        c->dialled[rank] = true;
    for (size_t e = 0; e < c->edge_count && !c->given->in_process; e++) {
        struct refit_group group = holders_of(c, &c->edges[e]);
        for (uint32_t i = 0; i < group.count; i++)
            c->dialled[group.ranks[i]] = false;
    }
}

static enum refit_status init(struct collecting *c, const struct refit_collect *given, struct refit_error *err)
{
    *c = (struct collecting){.given = given, .ranks = refit_layout_ranks(refit_plan_source(given->plan)),
                             .moved_ns = refit_clock_ns()};
    c->edges = refit_plan_edges(given->plan, &c->edge_count);
    c->count = c->left = refit_collect_batches(given->plan);
    c->items = calloc(c->count + 1, sizeof *c->items);
    c->first = calloc(c->edge_count + 1, sizeof *c->first);
    c->full = calloc(c->edge_count + 1, sizeof *c->full);
    c->dialled = calloc((size_t)c->ranks + 1, sizeof *c->dialled);
    if (!c->items || !c->first || !c->full || !c->dialled)
        return refit_fail_alloc(err, "a list of batches", c->count * sizeof *c->items);
    list_batches(c);
    expect_holders(c);
    return REFIT_OK;
}

static void release(struct collecting *c)
{
    free(c->items);
    free(c->first);
    free(c->full);
    free(c->dialled);
}

/* --- granting --------------------------------------------------------------------------------------------------- */

/* By whichever path that rank came. */
static enum refit_status post(const struct collecting *c, uint32_t rank, const struct item *item, struct refit_error *err)
{
    enum refit_status status = REFIT_NOT_FOUND;
    for (size_t i = 0; i < c->given->paths && (status == REFIT_NOT_FOUND || status == REFIT_PEER); i++) {
        const struct refit_collect_path *path = &c->given->path[i];
        status = path->transport->post(path->endpoint, rank, &c->edges[item->edge], item->batch, err);
    }
    return status;
}

static enum refit_status grant(struct collecting *c, struct item *item, struct refit_error *err)
{
    struct refit_group group = holders_of(c, &c->edges[item->edge]);
    for (uint32_t i = 0; i < group.count; i++) {
        uint32_t rank = group.ranks[(item->batch + i) % group.count]; /* equals take turns */
        enum refit_status status = post(c, rank, item, err);
        if (status == REFIT_OK) {
            item->state = GRANTED;
            item->grants++;
            return REFIT_OK;
        }
        if (status != REFIT_BUSY && status != REFIT_NOT_FOUND && status != REFIT_PEER)
            return refit_error_prefix(err, status, "asking source rank %" PRIu32, rank);
    }
    c->full[item->edge] = true;
    return REFIT_OK;
}

static enum refit_status grant_all(struct collecting *c, struct refit_error *err)
{
    for (size_t e = 0; e < c->edge_count; e++)
        c->full[e] = false;
    for (size_t i = 0; i < c->count; i++) {
        if (c->items[i].state != DUE || c->full[c->items[i].edge])
            continue;
        enum refit_status status = grant(c, &c->items[i], err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

/* --- what comes ------------------------------------------------------------------------------------------------- */

static struct item *find(const struct collecting *c, const struct refit_transfer_completion *done)
{
    for (size_t e = 0; e < c->edge_count; e++)
        if (c->edges[e].digest == done->edge && done->batch < c->edges[e].batches)
            return &c->items[c->first[e] + done->batch];
    return NULL;
}

static enum refit_status note(struct collecting *c, const struct refit_transfer_completion *done, struct refit_error *err)
{
    struct item *item = find(c, done);
    if (!item || item->state != GRANTED)
        return refit_fail(err, REFIT_PEER, "completion of a batch that was not granted: %" PRIu32 " of edge %016" PRIx64,
                          done->batch, done->edge);
    if (done->status == REFIT_OK) {
        item->state = DONE;
        c->left--;
        c->moved_ns = refit_clock_ns();
        if (c->given->landed)
            c->given->landed(c->given->context, refit_batch_bytes(c->given->plan, &c->edges[item->edge], item->batch));
        return REFIT_OK;
    }
    item->state = DUE;
    if ((done->status == REFIT_PEER || done->status == REFIT_CORRUPT) && item->grants < GRANTS_MAX)
        return REFIT_OK;
    return refit_fail(err, done->status, "batch %" PRIu32 " from source rank %" PRIu32 " did not land: %s; %s", done->batch,
                      done->holder, refit_status_name(done->status), refit_status_action(done->status));
}

/* Connected by one of the paths; *lost: was, and is not. */
static bool is_connected(const struct collecting *c, uint32_t rank, bool *lost)
{
    bool connected = false;
    *lost = false;
    for (size_t i = 0; i < c->given->paths; i++) {
        struct refit_holder_state state = {.connected = false};
        c->given->path[i].transport->look(c->given->path[i].endpoint, rank, &state);
        connected |= state.connected;
        *lost |= state.lost;
    }
    *lost = *lost && !connected;
    return connected;
}

/* A rank that is gone is missed for as long as others deliver; then, and when it does not come back, it is the end. */
static enum refit_status look_at_holders(struct collecting *c, struct refit_error *err)
{
    uint32_t missed = UINT32_MAX;
    for (uint32_t rank = 0; rank < c->ranks && !c->given->in_process; rank++) {
        bool lost;
        c->dialled[rank] |= is_connected(c, rank, &lost);
        if (lost && c->left > 0)
            missed = rank;
    }
    if (missed == UINT32_MAX)
        c->moved_ns = refit_clock_ns();
    if (refit_clock_ns() - c->moved_ns < GRACE_NS)
        return REFIT_OK;
    return refit_fail(err, REFIT_PEER, "source rank %" PRIu32 " was lost with %zu of %zu batches landed and did not come back "
                      "within %d s", missed, c->count - c->left, c->count, (int)(GRACE_NS / 1000000000));
}

static uint32_t missing_rank(const struct collecting *c)
{
    for (uint32_t rank = 0; rank < c->ranks; rank++)
        if (!c->dialled[rank])
            return rank;
    return UINT32_MAX;
}

static enum refit_status fail_late(const struct collecting *c, struct refit_error *err)
{
    uint32_t absent = missing_rank(c), rank = absent;
    for (size_t i = 0; i < c->count && rank == UINT32_MAX; i++)
        if (c->items[i].state != DONE)
            rank = holders_of(c, &c->edges[c->items[i].edge]).ranks[0];
    return refit_fail(err, REFIT_TIMEOUT, "deadline passed with %zu of %zu batches landed; source rank %" PRIu32 " %s",
                      c->count - c->left, c->count, rank, absent == rank ? "never connected" : "did not send all");
}

static enum refit_status collect(struct collecting *c, struct refit_error *err)
{
    struct refit_transfer_completion done[COMPLETIONS];
    struct refit_deadline slice =
        refit_deadline_earlier(c->given->deadline, refit_deadline_in_ms(REFIT_COLLECT_SLICE_MS));
    size_t count = refit_inbox_take(c->given->inbox, done, COMPLETIONS, slice);
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        status = note(c, &done[i], err);
    if (status == REFIT_OK && (count == 0 || c->left == 0))
        status = look_at_holders(c, err);
    return status;
}

static enum refit_status run(struct collecting *c, struct refit_error *err)
{
    while (c->left > 0 || missing_rank(c) != UINT32_MAX) {
        enum refit_status status = c->given->check(c->given->context, err);
        if (status == REFIT_OK && refit_deadline_passed(c->given->deadline))
            status = fail_late(c, err);
        if (status == REFIT_OK)
            status = grant_all(c, err);
        if (status == REFIT_OK)
            status = collect(c, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

enum refit_status refit_collect_run(const struct refit_collect *given, struct refit_error *err)
{
    struct collecting c;
    enum refit_status status = init(&c, given, err);
    if (status == REFIT_OK)
        status = run(&c, err);
    for (size_t i = 0; i < given->paths && status == REFIT_OK && !given->in_process; i++)
        status = given->path[i].transport->finish(given->path[i].endpoint, given->deadline, err);
    release(&c);
    return status;
}
