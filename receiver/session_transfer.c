/* SPDX-License-Identifier: Apache-2.0
 *
 * Brings in every batch of a plan: decides whom each is asked of (supply.h), keeps those holders' queues full, asks
 * again what did not land, elsewhere when its holder is lost or passed by (holders.h).
 *
 * Due batches wait in one list per target: a member, or the origin's ranks of one source group. All lists are in the
 * same order on all members, which is the order in which a member gets what it is the seed of; so what is asked of it
 * lands there soon. When other holders can be used than before, the lists are made anew.
 */
#include "receiver/session_transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "receiver/progress.h"
#include "receiver/receiver_internal.h"

#define GRANTS_MAX 4   /* by the origin, of one batch: the first and three retries */
#define CORRUPT_MAX 3  /* broken batches of one member until it is not asked any more */
#define SLICE_MS 50    /* how soon an abort is noticed */
#define SWEEP_NS INT64_C(20000000)
#define STEP_NS INT64_C(50000000) /* between two notices of progress */
#define COMPLETIONS 64


/* --- setting up ------------------------------------------------------------------------------------------------- */

static void count_groups(struct refit_progress *p)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(p->transfer->plan, &count);
    for (size_t i = 0; i < count; i++)
        if (edges[i].source_group >= p->groups)
            p->groups = edges[i].source_group + 1;
}

static enum refit_status find_alternatives(struct refit_progress *p, uint32_t ranks, struct refit_error *err)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(p->transfer->plan, &count);
    size_t lacks = (size_t)refit_fleet_sources(p->transfer->fleet) * p->groups;
    p->alternatives = malloc(ranks + 1);
    p->origin = malloc(p->groups + 1);
    p->lacks = calloc(lacks + 1, sizeof *p->lacks);
    if (!p->alternatives || !p->origin || !p->lacks)
        return refit_fail_alloc(err, "the holders of a refit", ranks + lacks);
    memset(p->alternatives, true, ranks + 1);
    memset(p->origin, true, p->groups + 1);
    for (size_t i = 0; i < count; i++) {
        struct refit_group group = refit_progress_group(p, edges[i].source_group);
        if (group.count == 1)
            p->alternatives[group.ranks[0]] = false;
    }
    return REFIT_OK;
}

static enum refit_status make_supply(struct refit_progress *p, struct refit_error *err)
{
    const struct refit_fleet *fleet = p->transfer->fleet;
    uint32_t members = refit_fleet_members(fleet);
    const char **domains = calloc((size_t)members + 1, sizeof *domains);
    uint32_t *bytes = calloc((size_t)p->batches.total + 1, sizeof *bytes);
    enum refit_status status = REFIT_NO_MEMORY;
    if (domains && bytes) {
        for (uint32_t i = 0; i < members; i++)
            domains[i] = refit_fleet_member(fleet, i).domain;
        for (uint32_t i = 0; i < p->batches.total; i++)
            bytes[i] = (uint32_t)refit_batches_bytes(&p->batches, i);
        struct refit_supply_config config = {.domains = domains, .members = members,
                                             .self = members ? refit_fleet_self(fleet) : 0, .batch_bytes = bytes,
                                             .batches = p->batches.total};
        status = refit_supply_create(&config, &p->supply, err);
    } else
        refit_fail_alloc(err, "the order of a fleet", p->batches.total * sizeof *bytes);
    free(domains);
    free(bytes);
    return status;
}

static enum refit_status progress_init(struct refit_progress *p, const struct refit_transfer *transfer,
                                       struct refit_error *err)
{
    uint32_t ranks = refit_layout_ranks(refit_plan_source(transfer->plan));
    uint32_t members = refit_fleet_members(transfer->fleet);
    *p = (struct refit_progress){.transfer = transfer, .landed_ns = refit_clock_ns()};
    count_groups(p);
    p->nobody = members + p->groups;
    enum refit_status status = refit_batches_init(&p->batches, transfer->plan, p->nobody + 1, err);
    if (status == REFIT_OK)
        status = find_alternatives(p, ranks, err);
    if (status == REFIT_OK)
        status = refit_holders_init(&p->holders, transfer->fleet, ranks, p->alternatives,
                                    &transfer->session->receiver->config, err);
    if (status == REFIT_OK)
        status = make_supply(p, err);
    memcpy(p->holders.path, transfer->path, sizeof p->holders.path);
    p->holders.paths = transfer->paths;
    return status;
}

/* Of an earlier attempt that broke off. */
static void skip_landed(struct refit_progress *p)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->batches.total; i++) {
        uint32_t within;
        const struct refit_edge *edge = refit_batches_edge(&p->batches, i, &within);
        if (!refit_landed_has(p->transfer->landed, edge, within))
            continue;
        p->batches.items[i].state = REFIT_BATCH_DONE;
        p->batches.left--;
        bytes += refit_batches_bytes(&p->batches, i);
    }
    struct refit_session *session = p->transfer->session;
    refit_receiver_lock(session->receiver);
    session->supplied.kept_bytes += bytes;
    refit_receiver_unlock(session->receiver);
}

static void progress_release(struct refit_progress *p)
{
    refit_batches_release(&p->batches);
    refit_holders_release(&p->holders);
    refit_supply_destroy(p->supply);
    free(p->alternatives);
    free(p->origin);
    free(p->lacks);
}

/* --- whom to ask ------------------------------------------------------------------------------------------------ */

static uint32_t members_of(const struct refit_progress *p)
{
    return p->holders.members;
}

static uint32_t choose(struct refit_progress *p, uint32_t number)
{
    uint32_t within;
    struct refit_batch *batch = &p->batches.items[number];
    uint32_t group = refit_batches_edge(&p->batches, number, &within)->source_group;
    bool direct = batch->direct && p->origin[group];
    struct refit_supply_answer answer = {.from = REFIT_SUPPLY_ORIGIN, .excess = direct};
    if (!direct)
        answer = refit_supply_choose(p->supply, number, p->holders.usable, p->origin[group]);
    batch->excess = answer.excess;
    if (answer.from == REFIT_SUPPLY_MEMBER)
        return answer.member;
    return answer.from == REFIT_SUPPLY_ORIGIN ? members_of(p) + group : p->nobody;
}

static void make_lists(struct refit_progress *p)
{
    refit_batches_clear(&p->batches);
    for (uint32_t i = 0; i < p->batches.total; i++) {
        uint32_t number = p->batches.order[i];
        if (p->batches.items[number].state == REFIT_BATCH_DUE)
            refit_batches_append(&p->batches, choose(p, number), number);
    }
}

static bool is_origin_there(const struct refit_progress *p, uint32_t group)
{
    struct refit_group ranks = refit_progress_group(p, group);
    for (uint32_t i = 0; i < ranks.count; i++)
        if (p->holders.items[ranks.ranks[i]].usable)
            return true;
    for (uint32_t i = 0; i < p->holders.sources; i++)
        if (!p->lacks[(size_t)i * p->groups + group] &&
            p->holders.items[p->holders.ranks + p->holders.members + i].usable)
            return true;
    return false;
}

/* Everything else is asked for, and what is left waits for one member that needs much longer. */
static void pass_by_the_slow(struct refit_progress *p)
{
    uint32_t slow = REFIT_BATCH_NONE;
    for (uint32_t target = 0; target < p->nobody; target++) {
        if (p->batches.lists[target].count == 0)
            continue;
        if (target >= members_of(p) || slow != REFIT_BATCH_NONE)
            return;
        slow = target;
    }
    if (slow == REFIT_BATCH_NONE)
        return;
    struct refit_holder *h = &p->holders.items[refit_holders_member(&p->holders, slow)];
    int64_t spent = refit_clock_ns() - p->holders.begun_ns;
    double needs = (double)spent * p->batches.lists[slow].count / (h->landed + 1.0);
    if (h->slow || spent <= p->holders.stall_ns || needs <= 2.0 * (double)p->holders.stall_ns ||
        needs <= 0.5 * (double)spent)
        return;
    char name[REFIT_HOLDER_NAME_MAX];
    refit_holders_name(&p->holders, refit_holders_member(&p->holders, slow), name);
    refit_log_event(REFIT_LOG_WARN, "holder passed by, it is slow when all else is asked for", refit_log_text("holder", name),
                    refit_log_i64("needs_ms", (int64_t)(needs / 1e6)));
    h->slow = true;
}

static void tell_what_is_due(struct refit_progress *p)
{
    p->holders.due = 0;
    for (uint32_t target = 0; target < p->nobody; target++) {
        uint32_t count = p->batches.lists[target].count;
        p->holders.due += count;
        if (target < members_of(p))
            p->holders.items[refit_holders_member(&p->holders, target)].due = count;
    }
}

static void sweep(struct refit_progress *p, bool anew)
{
    tell_what_is_due(p);
    if (members_of(p) > 0)
        pass_by_the_slow(p);
    anew |= refit_holders_sweep(&p->holders);
    for (uint32_t group = 0; anew && group < p->groups; group++)
        p->origin[group] = is_origin_there(p, group);
    if (anew)
        make_lists(p);
}

/* --- granting --------------------------------------------------------------------------------------------------- */

static void note_granted(struct refit_progress *p, uint32_t target)
{
    struct refit_batch *batch = &p->batches.items[refit_batches_pop(&p->batches, target)];
    batch->state = REFIT_BATCH_GRANTED;
    batch->grants = (uint8_t)(batch->grants + (target >= members_of(p)));
}

/* Of the origin's holders of a group the one that has the least to do; REFIT_HOLDERS_MAX: none has room. */
static uint32_t pick(const struct refit_progress *p, uint32_t group, uint32_t number)
{
    struct refit_group ranks = refit_progress_group(p, group);
    uint32_t count = ranks.count + p->holders.sources, best = REFIT_HOLDERS_MAX;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = (number + k) % count; /* equals take turns */
        uint32_t holder = i < ranks.count ? ranks.ranks[i]
                                          : p->holders.ranks + p->holders.members + (i - ranks.count);
        const struct refit_holder *h = &p->holders.items[holder];
        if (h->full || !h->usable || (i >= ranks.count && p->lacks[(size_t)(i - ranks.count) * p->groups + group]))
            continue;
        const struct refit_holder *b = best == REFIT_HOLDERS_MAX ? NULL : &p->holders.items[best];
        if (!b || refit_supply_before((struct refit_supply_load){h->owed, h->bytes},
                                      (struct refit_supply_load){b->owed, b->bytes},
                                      refit_plan_batch_bytes(p->transfer->plan)))
            best = holder;
    }
    return best;
}

/* It has no such edge: a member of another plan, or a replica that has other ranks. */
static enum refit_status note_unsupported(struct refit_progress *p, uint32_t holder, const struct refit_edge *edge,
                                          struct refit_error *err)
{
    char name[REFIT_HOLDER_NAME_MAX];
    if (refit_holders_is_member(&p->holders, holder)) {
        refit_holders_exclude(&p->holders, holder);
        return REFIT_OK;
    }
    if (holder >= p->holders.ranks) {
        p->lacks[(size_t)(holder - p->holders.ranks - p->holders.members) * p->groups + edge->source_group] = true;
        return REFIT_OK;
    }
    refit_holders_name(&p->holders, holder, name);
    return refit_error_prefix(err, REFIT_UNSUPPORTED, "asking %s", name);
}

/* Grants the first batch of a list, and tells whether. */
static enum refit_status grant_one(struct refit_progress *p, uint32_t target, bool *granted, bool *anew,
                                   struct refit_error *err)
{
    uint32_t number = p->batches.lists[target].head, within;
    const struct refit_edge *edge = refit_batches_edge(&p->batches, number, &within);
    uint32_t holder = target < members_of(p) ? refit_holders_member(&p->holders, target)
                                             : pick(p, target - members_of(p), number);
    *granted = false;
    if (holder == REFIT_HOLDERS_MAX || p->holders.items[holder].full)
        return REFIT_OK;
    enum refit_status status = refit_holders_post(&p->holders, holder, edge, within, err);
    switch (status) {
    case REFIT_OK:
        note_granted(p, target);
        *granted = true;
        return REFIT_OK;
    case REFIT_BUSY:
    case REFIT_NOT_FOUND:
    case REFIT_PEER: /* the next sweep sees it; until then it counts as full */
        *granted = target >= members_of(p); /* another of the group may have room */
        return REFIT_OK;
    case REFIT_UNSUPPORTED:
        *anew = true;
        return note_unsupported(p, holder, edge, err);
    default:
        return refit_error_prefix(err, status, "granting batch %" PRIu32, within);
    }
}

static enum refit_status grant_all(struct refit_progress *p, struct refit_error *err)
{
    bool anew = false;
    for (uint32_t target = 0; target < p->nobody; target++) {
        bool granted = true;
        while (granted && p->batches.lists[target].count > 0) {
            enum refit_status status = grant_one(p, target, &granted, &anew, err);
            if (status != REFIT_OK)
                return status;
        }
    }
    if (anew)
        sweep(p, true);
    return REFIT_OK;
}

/* --- what comes ------------------------------------------------------------------------------------------------- */

static enum refit_status fail_batch(struct refit_progress *p, uint32_t number,
                                    const struct refit_transfer_completion *c, struct refit_error *err)
{
    char name[REFIT_HOLDER_NAME_MAX];
    refit_holders_name(&p->holders, c->holder, name);
    return refit_fail(err, c->status, "batch %" PRIu32 " from %s did not land: %s (granted %u times); %s", c->batch,
                      name, refit_status_name(c->status), p->batches.items[number].grants,
                      refit_status_action(c->status));
}

static enum refit_status note_failed(struct refit_progress *p, uint32_t number,
                                     const struct refit_transfer_completion *c, struct refit_error *err)
{
    struct refit_batch *batch = &p->batches.items[number];
    bool member = refit_holders_is_member(&p->holders, c->holder);
    if (c->status != REFIT_CORRUPT && c->status != REFIT_PEER)
        return fail_batch(p, number, c, err);
    if (!member && batch->grants >= GRANTS_MAX)
        return fail_batch(p, number, c, err);
    batch->state = REFIT_BATCH_DUE;
    if (member && c->status == REFIT_CORRUPT) {
        batch->direct = true;
        if (p->holders.items[c->holder].corrupt >= CORRUPT_MAX)
            refit_holders_exclude(&p->holders, c->holder);
    }
    /* A lost holder is seen first, or it would be asked again at once. */
    if (c->status == REFIT_PEER)
        sweep(p, true);
    else
        refit_batches_prepend(&p->batches, choose(p, number), number);
    return REFIT_OK;
}

static void note_landed(struct refit_progress *p, uint32_t number, uint32_t holder)
{
    struct refit_batch *batch = &p->batches.items[number];
    uint64_t bytes = refit_batches_bytes(&p->batches, number);
    batch->state = REFIT_BATCH_DONE;
    p->batches.left--;
    p->bytes_done += bytes;
    p->landed_ns = refit_clock_ns();
    if (!refit_holders_is_member(&p->holders, holder)) {
        p->supplied.origin_bytes += bytes;
        p->supplied.excess_bytes += batch->excess ? bytes : 0;
    } else if (refit_supply_same_domain(p->supply, holder - p->holders.ranks))
        p->supplied.domain_bytes += bytes;
    else
        p->supplied.fleet_bytes += bytes;
}

static enum refit_status note_completion(struct refit_progress *p, const struct refit_transfer_completion *c,
                                         struct refit_error *err)
{
    uint32_t number = refit_batches_number(&p->batches, c->edge, c->batch);
    if (number == REFIT_BATCH_NONE || c->holder >= p->holders.count ||
        p->batches.items[number].state != REFIT_BATCH_GRANTED)
        return refit_fail(err, REFIT_PEER, "completion of a batch that was not granted: %" PRIu32 " of edge %016" PRIx64
                          " from holder %" PRIu32, c->batch, c->edge, c->holder);
    refit_holders_completed(&p->holders, c, refit_batches_bytes(&p->batches, number));
    if (c->status != REFIT_OK)
        return note_failed(p, number, c, err);
    note_landed(p, number, c->holder);
    return REFIT_OK;
}

static void copy_holders(const struct refit_progress *p, struct refit_session *session)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->holders.count && count < REFIT_HOLDERS_SHOWN; i++) {
        char name[REFIT_HOLDER_NAME_MAX];
        if (p->transfer->fleet && i == refit_holders_member(&p->holders, refit_fleet_self(p->transfer->fleet)))
            continue;
        struct refit_holder_view *view = &session->holders[count++];
        *view = (struct refit_holder_view){.bytes = p->holders.items[i].bytes, .owed = p->holders.items[i].owed,
                                           .condition = refit_holders_condition(&p->holders, i)};
        refit_holders_name(&p->holders, i, name);
        snprintf(view->name, sizeof view->name, "%.*s", (int)sizeof view->name - 1, name);
    }
    session->holder_count = count;
}

static struct refit_endpoint_stats sum_stats(const struct refit_transfer *transfer)
{
    struct refit_endpoint_stats sum = {0};
    for (size_t i = 0; i < transfer->paths; i++) {
        struct refit_endpoint_stats one;
        transfer->path[i].transport->stats(transfer->path[i].endpoint, &one);
        sum.payload_bytes += one.payload_bytes;
        sum.wire_bytes += one.wire_bytes;
        sum.copied_bytes += one.copied_bytes;
        sum.pack_ns += one.pack_ns;
        sum.verify_ns += one.verify_ns;
    }
    return sum;
}

/* Batches that landed one by one would flood whoever listens, so progress is told in steps. */
static void tell(struct refit_progress *p, bool last)
{
    int64_t now = refit_clock_ns();
    if (!last && (p->bytes_done == p->bytes_told || now - p->told_ns < STEP_NS))
        return;
    p->told_ns = now;
    p->bytes_told = p->bytes_done;
    struct refit_session *session = p->transfer->session;
    struct refit_endpoint_stats stats = sum_stats(p->transfer);
    refit_receiver_lock(session->receiver);
    session->bytes_done = session->supplied.kept_bytes + p->bytes_done;
    p->supplied.kept_bytes = session->supplied.kept_bytes;
    session->supplied = p->supplied;
    session->stats = stats;
    copy_holders(p, session);
    session->sequence++;
    refit_receiver_unlock(session->receiver);
    refit_receiver_changed(session->receiver);
}

static enum refit_status collect(struct refit_progress *p, struct refit_error *err)
{
    struct refit_transfer_completion done[COMPLETIONS];
    struct refit_deadline slice =
        refit_deadline_earlier(p->transfer->session->deadline, refit_deadline_in_ms(SLICE_MS));
    size_t count = refit_inbox_take(p->transfer->inbox, done, COMPLETIONS, slice);
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        status = note_completion(p, &done[i], err);
    if (status == REFIT_OK && (count == 0 || refit_clock_ns() - p->holders.swept_ns > SWEEP_NS))
        sweep(p, false);
    tell(p, p->batches.left == 0);
    return status;
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static enum refit_status run(struct refit_progress *p, struct refit_error *err)
{
    skip_landed(p);
    sweep(p, true);
    while (p->batches.left > 0) {
        enum refit_status status = refit_session_check(p->transfer->session, err);
        if (status == REFIT_TIMEOUT)
            return refit_progress_explain(p, err);
        if (status == REFIT_OK)
            status = refit_progress_check(p, err);
        if (status == REFIT_OK)
            status = grant_all(p, err);
        if (status == REFIT_OK)
            status = collect(p, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

/* All is landed: a member, or a replica that serves, that does not answer delays nobody, it sees its connection end. */
static enum refit_status finish(struct refit_progress *p, struct refit_error *err)
{
    struct refit_deadline deadline = p->transfer->session->deadline;
    bool fleet = members_of(p) > 1 || refit_fleet_sources(p->transfer->fleet) > 0;
    if (fleet)
        deadline = refit_deadline_earlier(
            deadline, refit_deadline_in_ms((p->holders.silence_ns + 2 * p->holders.gap_ns) / 1000000));
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < p->transfer->paths && status == REFIT_OK; i++) {
        const struct refit_path *path = &p->transfer->path[i];
        status = path->transport->finish(path->endpoint, deadline, err);
        if (fleet && status != REFIT_OK && !refit_deadline_passed(p->transfer->session->deadline))
            status = REFIT_OK;
    }
    return status;
}

uint32_t refit_transfer_holders(const struct refit_plan *plan, const struct refit_fleet *fleet)
{
    return refit_layout_ranks(refit_plan_source(plan)) + refit_fleet_members(fleet) + refit_fleet_sources(fleet);
}

enum refit_status refit_transfer_run(const struct refit_transfer *transfer, struct refit_error *err)
{
    struct refit_progress p;
    enum refit_status status = progress_init(&p, transfer, err);
    bool begun = status == REFIT_OK;
    if (status == REFIT_OK)
        status = run(&p, err);
    if (status == REFIT_OK)
        status = finish(&p, err);
    if (begun)
        tell(&p, true);
    progress_release(&p);
    return status;
}
