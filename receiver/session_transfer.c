/* SPDX-License-Identifier: Apache-2.0
 *
 * The granting loop: keeps every holder's queue full, one batch per edge and round, and grants again what did not land.
 *
 * Per batch one byte is kept (4 MiB of model each): its state, and how often it was granted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "receiver/receiver_internal.h"
#include "receiver/session.h"

#define GRANTS_MAX 4           /* of one batch: the first and three retries */
#define GRACE_NS INT64_C(10000000000) /* for a lost holder to come back */
#define SLICE_MS 50            /* how soon an abort is noticed */
#define STEP_NS INT64_C(50000000)     /* between two notices of progress */
#define COMPLETIONS 64

enum batch_state { BATCH_DUE = 0, BATCH_GRANTED = 1, BATCH_FAILED = 2, BATCH_DONE = 3 };
#define STATE_BITS 3u /* of a batch byte; the rest counts grants */
#define ONE_GRANT 4u

struct edge_progress {
    uint64_t first;        /* index of its batch 0 */
    uint32_t next;         /* the first batch that was never granted */
    uint32_t failed;       /* batches below `next` to grant again */
    uint32_t done;
    bool blocked;          /* its queue is full or its holder away: until a completion or a change */
    bool absent;           /* its holder has not connected yet */
    int64_t lost_since_ns; /* 0: not lost */
};

struct progress {
    const struct refit_transfer *transfer;
    const struct refit_edge *edges;
    size_t edge_count, edges_left;
    struct edge_progress *edge;
    uint8_t *batches;
    uint64_t bytes_done, bytes_told;
    int64_t told_ns;
};

static enum refit_status progress_init(struct progress *p, const struct refit_transfer *transfer,
                                       struct refit_error *err)
{
    *p = (struct progress){.transfer = transfer};
    p->edges = refit_plan_edges(transfer->plan, &p->edge_count);
    p->edges_left = p->edge_count;
    uint64_t total = 0;
    p->edge = calloc(p->edge_count + 1, sizeof *p->edge);
    if (!p->edge)
        return refit_fail_alloc(err, "the state of a transfer's edges", p->edge_count * sizeof *p->edge);
    for (size_t i = 0; i < p->edge_count; i++) {
        p->edge[i].first = total;
        total += p->edges[i].batches;
    }
    p->batches = calloc(total + 1, 1);
    return p->batches ? REFIT_OK : refit_fail_alloc(err, "the state of a transfer's batches", total);
}

static void progress_release(struct progress *p)
{
    free(p->edge);
    free(p->batches);
}

static uint8_t *batch_at(const struct progress *p, size_t edge, uint32_t number)
{
    return &p->batches[p->edge[edge].first + number];
}

static enum batch_state batch_state(uint8_t batch)
{
    return (enum batch_state)(batch & STATE_BITS);
}

static void batch_set(uint8_t *batch, enum batch_state state)
{
    *batch = (uint8_t)((*batch & ~STATE_BITS) | (unsigned)state);
}

/* False: nothing of this edge is left to grant now. */
static bool next_batch(const struct progress *p, size_t edge, uint32_t *number)
{
    const struct edge_progress *e = &p->edge[edge];
    for (uint32_t i = 0; e->failed > 0 && i < e->next; i++) {
        if (batch_state(*batch_at(p, edge, i)) == BATCH_FAILED) {
            *number = i;
            return true;
        }
    }
    *number = e->next;
    return e->next < p->edges[edge].batches;
}

static void note_granted(struct progress *p, size_t edge, uint32_t number)
{
    struct edge_progress *e = &p->edge[edge];
    uint8_t *batch = batch_at(p, edge, number);
    if (batch_state(*batch) == BATCH_FAILED)
        e->failed--;
    else
        e->next++;
    batch_set(batch, BATCH_GRANTED);
    *batch = (uint8_t)(*batch + ONE_GRANT);
    e->absent = false;
    e->lost_since_ns = 0;
}

static enum refit_status note_lost(struct progress *p, size_t edge, struct refit_error *err)
{
    struct edge_progress *e = &p->edge[edge];
    int64_t now = refit_clock_ns();
    e->blocked = true;
    if (e->lost_since_ns == 0)
        e->lost_since_ns = now;
    if (now - e->lost_since_ns < GRACE_NS)
        return REFIT_OK;
    return refit_fail(err, REFIT_PEER, "source rank %" PRIu32 " was lost with %" PRIu32 " of %" PRIu32
                      " batches landed for rank %" PRIu32 " and did not come back within %d s; publish again",
                      p->edges[edge].source_rank, e->done, p->edges[edge].batches, p->edges[edge].destination_rank,
                      (int)(GRACE_NS / 1000000000));
}

/* Grants one batch of an edge, and tells whether. An edge that can't take more is blocked until something happens. */
static enum refit_status grant_one(struct progress *p, size_t edge, bool *granted, struct refit_error *err)
{
    uint32_t number;
    *granted = false;
    if (p->edge[edge].blocked || !next_batch(p, edge, &number))
        return REFIT_OK;
    enum refit_status status =
        p->transfer->transport->post(p->transfer->endpoint, &p->edges[edge], number, err);
    switch (status) {
    case REFIT_OK:
        note_granted(p, edge, number);
        *granted = true;
        return REFIT_OK;
    case REFIT_PEER:
        return note_lost(p, edge, err);
    case REFIT_NOT_FOUND:
        p->edge[edge].absent = true;
        p->edge[edge].blocked = true;
        return REFIT_OK;
    case REFIT_BUSY:
        p->edge[edge].blocked = true;
        return REFIT_OK;
    default:
        return refit_error_prefix(err, status, "granting batch %" PRIu32 " of source rank %" PRIu32, number,
                                  p->edges[edge].source_rank);
    }
}

static enum refit_status grant_all(struct progress *p, struct refit_error *err)
{
    bool any;
    do {
        any = false;
        for (size_t i = 0; i < p->edge_count; i++) {
            bool granted;
            enum refit_status status = grant_one(p, i, &granted, err);
            if (status != REFIT_OK)
                return status;
            any |= granted;
        }
    } while (any);
    return REFIT_OK;
}

/* A holder's queue is shared by its edges. */
static void unblock_source(struct progress *p, uint32_t source_rank)
{
    for (size_t i = 0; i < p->edge_count; i++)
        if (p->edges[i].source_rank == source_rank)
            p->edge[i].blocked = false;
}

static void unblock_all(struct progress *p)
{
    for (size_t i = 0; i < p->edge_count; i++)
        p->edge[i].blocked = false;
}

static enum refit_status note_failed(struct progress *p, size_t edge, uint8_t *batch,
                                     const struct refit_transfer_completion *c, struct refit_error *err)
{
    bool again = c->status == REFIT_CORRUPT || c->status == REFIT_PEER;
    if (again && *batch / ONE_GRANT < GRANTS_MAX) {
        batch_set(batch, BATCH_FAILED);
        p->edge[edge].failed++;
        return REFIT_OK;
    }
    return refit_fail(err, c->status, "batch %" PRIu32 " from source rank %" PRIu32 " to rank %" PRIu32
                      " did not land: %s (granted %u times); %s", c->batch, c->source_rank, c->destination_rank,
                      refit_status_name(c->status), *batch / ONE_GRANT, refit_status_action(c->status));
}

static enum refit_status note_completion(struct progress *p, const struct refit_transfer_completion *c,
                                         struct refit_error *err)
{
    const struct refit_edge *found = refit_plan_edge(p->transfer->plan, c->source_rank, c->destination_rank);
    size_t edge = found ? (size_t)(found - p->edges) : 0;
    if (!found || c->batch >= found->batches || batch_state(*batch_at(p, edge, c->batch)) != BATCH_GRANTED)
        return refit_fail(err, REFIT_PEER, "completion of a batch that was not granted: %" PRIu32 " from source rank %"
                          PRIu32 " to rank %" PRIu32, c->batch, c->source_rank, c->destination_rank);
    uint8_t *batch = batch_at(p, edge, c->batch);
    unblock_source(p, c->source_rank);
    if (c->status != REFIT_OK)
        return note_failed(p, edge, batch, c, err);
    batch_set(batch, BATCH_DONE);
    p->bytes_done += refit_batch_bytes(found, c->batch);
    if (++p->edge[edge].done == found->batches)
        p->edges_left--;
    return REFIT_OK;
}

/* Batches that landed one by one would flood whoever listens, so progress is told in steps. */
static void tell(struct progress *p, bool last)
{
    int64_t now = refit_clock_ns();
    if (!last && (p->bytes_done == p->bytes_told || now - p->told_ns < STEP_NS))
        return;
    p->told_ns = now;
    p->bytes_told = p->bytes_done;
    struct refit_session *session = p->transfer->session;
    struct refit_endpoint_stats stats;
    p->transfer->transport->stats(p->transfer->endpoint, &stats);
    refit_receiver_lock(session->receiver);
    session->bytes_done = p->bytes_done;
    session->stats = stats;
    session->sequence++;
    refit_receiver_unlock(session->receiver);
    refit_receiver_changed(session->receiver);
}

static enum refit_status collect(struct progress *p, struct refit_error *err)
{
    struct refit_transfer_completion done[COMPLETIONS];
    size_t count = 0;
    struct refit_deadline slice =
        refit_deadline_earlier(p->transfer->session->deadline, refit_deadline_in_ms(SLICE_MS));
    enum refit_status status =
        p->transfer->transport->poll(p->transfer->endpoint, done, COMPLETIONS, &count, slice, err);
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        status = note_completion(p, &done[i], err);
    if (count == 0)
        unblock_all(p);
    tell(p, p->edges_left == 0);
    return status;
}

#define NAMES_MAX 8

/* Source ranks that are to blame; a few are enough. Returns how many are in `ranks`. */
static size_t blame(const struct progress *p, bool absent_only, uint32_t ranks[static NAMES_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < p->edge_count && count < NAMES_MAX; i++) {
        if (p->edge[i].done == p->edges[i].batches || (absent_only && !p->edge[i].absent))
            continue;
        size_t k = 0;
        while (k < count && ranks[k] != p->edges[i].source_rank)
            k++;
        ranks[k] = p->edges[i].source_rank;
        count += k == count;
    }
    return count;
}

static enum refit_status explain_timeout(const struct progress *p, struct refit_error *err)
{
    uint32_t ranks[NAMES_MAX];
    size_t absent = blame(p, true, ranks);
    size_t count = absent > 0 ? absent : blame(p, false, ranks);
    char names[NAMES_MAX * 12] = "";
    for (size_t i = 0, used = 0; i < count; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%" PRIu32, i ? ", " : "", ranks[i]);
    return refit_fail(err, REFIT_TIMEOUT, "deadline passed with %" PRIu64 " of %" PRIu64
                      " bytes landed; source rank %s%s %s; publish again, with more time or a look at that rank",
                      p->bytes_done, refit_plan_bytes(p->transfer->plan), names, count == NAMES_MAX ? ", ..." : "",
                      absent > 0 ? "never connected" : "did not send all");
}

static enum refit_status run(struct progress *p, struct refit_error *err)
{
    while (p->edges_left > 0) {
        enum refit_status status = refit_session_check(p->transfer->session, err);
        if (status == REFIT_TIMEOUT)
            return explain_timeout(p, err);
        if (status == REFIT_OK)
            status = grant_all(p, err);
        if (status == REFIT_OK)
            status = collect(p, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

enum refit_status refit_transfer_run(const struct refit_transfer *transfer, struct refit_error *err)
{
    struct progress p;
    enum refit_status status = progress_init(&p, transfer, err);
    if (status == REFIT_OK)
        status = run(&p, err);
    if (status == REFIT_OK)
        status = transfer->transport->finish(transfer->endpoint, transfer->session->deadline, err);
    if (p.edge)
        tell(&p, true);
    progress_release(&p);
    return status;
}
