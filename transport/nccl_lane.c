/* SPDX-License-Identifier: Apache-2.0
 *
 * A device of the receiver at work: which holder is next, and a burst of groups with it.
 *
 * A turn of our device is taken before the holder is asked for its own, which it tries for and does not wait for; so
 * nobody waits for a turn while he has one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "transport/nccl_reshard.h"

#define NS_PER_MS INT64_C(1000000)
#define TURN_MS 2         /* a turn that is taken is tried for again, told or not */
#define DENIED_MS 1       /* the same of a holder's, if it does not say FREE before; doubled on end */
#define DENIED_DOUBLINGS 5
#define BURST_GROUPS 16   /* then others have the turn */

struct burst {
    struct refit_nccl_lane *lane;
    struct refit_nccl_flow *flow;
    uint32_t source; /* the holder's device */
    struct refit_nccl_pair *pair;
    bool placed;         /* its batches are: no pair, and no bytes */
    uint64_t tag;        /* the pair's, or of batches that are placed */
    unsigned first, active, done; /* groups: the oldest of those on their way, how many those are, ended */
    int64_t poll_ns;
    int64_t said_ns; /* when the holder last heard of us */
};

static struct refit_grants *grants_of(const struct refit_nccl_lane *lane)
{
    return &lane->receiver->base.grants;
}

static struct refit_deadline patience(const struct refit_nccl_lane *lane)
{
    return refit_deadline_in_ms(refit_endpoint_patience_ms(&lane->receiver->base.base));
}

/* ---- waiting ---- */

/* The lock is held. */
static void wait_until(struct refit_nccl_lane *lane, int64_t at_ns)
{
    struct timespec until = refit_deadline_timespec((struct refit_deadline){.at_ns = at_ns});
    pthread_cond_timedwait(&lane->receiver->work, &grants_of(lane)->lock, &until);
}

/* The lock is held. */
static enum refit_status go_on(const struct burst *b, struct refit_error *err)
{
    if (grants_of(b->lane)->stopped || refit_endpoint_stopping(&b->lane->receiver->base.base))
        return refit_fail(err, REFIT_ABORTED, "aborted");
    return b->flow->cut ? refit_fail(err, REFIT_PEER, "dropped") : REFIT_OK;
}

/* For something to come, but not beyond the time at which a device is to be asked again. */
static enum refit_status pause_for(struct burst *b, int64_t ns, struct refit_error *err)
{
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    enum refit_status status = go_on(b, err);
    if (status == REFIT_OK) {
        wait_until(b->lane, refit_clock_ns() + ns);
        status = go_on(b, err);
    }
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
    return status;
}

/* A holder whose device we have hears of us, or gives it to others. */
static void say_alive(struct burst *b)
{
    if (refit_clock_ns() - b->said_ns < REFIT_ALIVE_MS * NS_PER_MS)
        return;
    b->said_ns = refit_clock_ns();
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    if (!refit_stream_post_type(&b->flow->stream, REFIT_FRAME_ALIVE))
        refit_stream_shutdown(&b->flow->stream);
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
}

/* ---- a group's batches (the lock is held) ---- */

static struct refit_nccl_granted *granted_of(struct refit_nccl_flow *flow, const struct refit_nccl_op *op)
{
    for (unsigned i = 0; i < flow->granted_count; i++)
        if (flow->granted[i].grant.edge == op->edge && flow->granted[i].grant.batch == op->batch)
            return &flow->granted[i];
    return NULL;
}

static bool is_for(const struct refit_nccl_granted *granted, const struct refit_nccl_lane *lane)
{
    return granted->lane == lane && granted->ready && !granted->going;
}

static enum refit_status place_op(struct burst *b, struct refit_nccl_op *op, struct refit_nccl_granted *granted,
                                  struct refit_error *err)
{
    const struct refit_endpoint_config *config = &b->lane->receiver->base.base.config;
    enum refit_status status = refit_places_of(&op->places, config, op->edge, op->batch, err);
    if (status != REFIT_OK)
        return status;
    op->arena = op->places.items[0].arena;
    op->walk = op->places.items[0].walk;
    status = refit_segments_of(&op->segments, op->walk, err);
    granted->expected = config->verify ? op->segments.count : 0;
    granted->going = true;
    return status;
}

/* Batches that lie on one device of the holder: those of `b->source` once that is chosen. */
static enum refit_status gather(struct burst *b, struct refit_nccl_group *group, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    refit_nccl_group_empty(group);
    for (unsigned i = 0; i < b->flow->granted_count && status == REFIT_OK; i++) {
        struct refit_nccl_granted *granted = &b->flow->granted[i];
        bool begun = b->source != UINT32_MAX;
        if (!is_for(granted, b->lane) || (begun && (granted->source != b->source || granted->placed != b->placed)))
            continue;
        uint64_t bytes = refit_batch_bytes(b->lane->receiver->base.base.config.plan, granted->grant.edge,
                                           granted->grant.batch);
        struct refit_nccl_op *op = refit_nccl_group_add(group, granted->grant.edge, granted->grant.batch, bytes);
        if (!op)
            break;
        b->source = granted->source;
        b->placed = granted->placed;
        status = place_op(b, op, granted, err);
    }
    return status;
}

/* They may be asked for again, in another group. */
static void scatter_again(struct burst *b, struct refit_nccl_group *group)
{
    for (unsigned i = 0; i < group->count; i++) {
        struct refit_nccl_granted *granted = granted_of(b->flow, &group->ops[i]);
        if (granted)
            granted->going = false;
    }
    refit_nccl_group_empty(group);
}

/* ---- asking ---- */

static enum refit_status say_go(struct burst *b, const struct refit_nccl_group *group, uint64_t tag,
                                const uint8_t *unique, struct refit_error *err)
{
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_GO_MAX];
    struct refit_nccl_go go = {
        .tag = tag, .fresh = unique, .placed = b->placed, .count = group->count,
        .process = refit_nccl_process(), .device = b->lane->device->uuid};
    if (unique)
        memcpy(go.unique, unique, sizeof go.unique);
    for (unsigned i = 0; i < group->count; i++) {
        go.batches[i].edge = group->ops[i].edge->digest;
        go.batches[i].batch = group->ops[i].batch;
    }
    size_t len = refit_nccl_go_encode(&go, bytes);
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    enum refit_status status = go_on(b, err);
    b->lane->asked = tag;
    b->lane->answer = REFIT_NCCL_NO_ANSWER;
    if (status == REFIT_OK && !refit_stream_try(&b->flow->stream, bytes, len, 0))
        status = refit_fail(err, REFIT_PEER, "did not take a frame of %zu bytes", len);
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
    b->said_ns = refit_clock_ns();
    b->tag = tag;
    refit_count(&b->lane->receiver->base.base.counters.wire_bytes, len);
    return status;
}

static enum refit_status await_answer(struct burst *b, enum refit_nccl_answer *out, struct refit_error *err)
{
    struct refit_nccl_lane *lane = b->lane;
    struct refit_deadline deadline = patience(lane);
    pthread_mutex_lock(&grants_of(lane)->lock);
    enum refit_status status = go_on(b, err);
    while (status == REFIT_OK && lane->answer == REFIT_NCCL_NO_ANSWER) {
        if (refit_deadline_passed(deadline)) {
            status = refit_fail(err, REFIT_TIMEOUT, "did not answer for a group");
            break;
        }
        wait_until(lane, deadline.at_ns);
        status = go_on(b, err);
    }
    *out = lane->answer;
    if (lane->answer == REFIT_NCCL_STARTED)
        b->flow->denials = 0;
    pthread_mutex_unlock(&grants_of(lane)->lock);
    return status;
}

/* The communicator is made while both ends have their turn: it takes memory of the device, and may wait for it. */
static enum refit_status make_pair(struct burst *b, uint64_t tag, const uint8_t *unique, struct refit_error *err)
{
    struct refit_nccl_device *device = b->lane->device;
    struct refit_deadline deadline = patience(b->lane);
    const struct refit_nccl_pair like = {.receiving = true, .tag = tag, .process = b->flow->hello.process,
                                         .peer = b->flow->hello.devices[b->source]};
    enum refit_status status = refit_nccl_pair_begin(device, &like, unique, &b->pair, err);
    while (status == REFIT_OK && (status = refit_nccl_pair_poll(device, b->pair, err)) == REFIT_BUSY) {
        say_alive(b);
        status = refit_deadline_passed(deadline)
                     ? refit_fail(err, REFIT_TIMEOUT, "NCCL did not make a communicator in time")
                     : pause_for(b, REFIT_NCCL_POLL_MAX_NS, err);
    }
    return status;
}

static enum refit_status ask_anew(struct burst *b, struct refit_nccl_group *group, enum refit_nccl_answer *answer,
                                  struct refit_error *err)
{
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
    uint64_t tag;
    refit_io_random(&tag, sizeof tag);
    enum refit_status status = refit_nccl_unique(b->lane->device, unique, err);
    if (status == REFIT_OK)
        status = say_go(b, group, tag, unique, err);
    if (status == REFIT_OK)
        status = await_answer(b, answer, err);
    if (status == REFIT_OK && *answer == REFIT_NCCL_UNKNOWN)
        status = refit_fail(err, REFIT_PEER, "does not know a communicator that it was to make");
    return status == REFIT_OK && *answer == REFIT_NCCL_STARTED ? make_pair(b, tag, unique, err) : status;
}

static enum refit_status ask_placed(struct burst *b, struct refit_nccl_group *group, enum refit_nccl_answer *answer,
                                    struct refit_error *err)
{
    uint64_t tag;
    refit_io_random(&tag, sizeof tag);
    enum refit_status status = say_go(b, group, tag, NULL, err);
    return status == REFIT_OK ? await_answer(b, answer, err) : status;
}

/* *answer is STARTED or DENIED when all went well. */
static enum refit_status ask(struct burst *b, struct refit_nccl_group *group, enum refit_nccl_answer *answer,
                             struct refit_error *err)
{
    struct refit_nccl_device *device = b->lane->device;
    *answer = REFIT_NCCL_UNKNOWN;
    if (b->placed)
        return ask_placed(b, group, answer, err);
    b->pair = refit_nccl_pair_to(device, &b->flow->hello.process, &b->flow->hello.devices[b->source]);
    if (!b->pair)
        return ask_anew(b, group, answer, err);
    enum refit_status status = say_go(b, group, b->pair->tag, NULL, err);
    if (status == REFIT_OK)
        status = await_answer(b, answer, err);
    if (status != REFIT_OK || *answer == REFIT_NCCL_STARTED)
        return status;
    struct refit_nccl_pair *pair = b->pair;
    b->pair = NULL;
    if (*answer == REFIT_NCCL_DENIED)
        return REFIT_OK;
    refit_nccl_pair_abort(device, pair);
    return ask_anew(b, group, answer, err);
}

static enum refit_status post(struct burst *b, struct refit_nccl_group *group, struct refit_error *err)
{
    group->deadline = patience(b->lane);
    b->active++;
    return b->placed ? refit_nccl_group_verify(group, err) : refit_nccl_group_post(group, b->pair, err);
}

/* ---- what has come ---- */

static enum refit_status spread(struct burst *b, struct refit_nccl_op *op, struct refit_error *err)
{
    uint64_t carried;
    enum refit_status status = refit_nccl_op_spread(op, patience(b->lane), &carried, err);
    refit_count(&b->lane->receiver->base.base.counters.copied_bytes, carried);
    return status;
}

static bool digests_came(struct burst *b, const struct refit_nccl_group *group)
{
    bool all = true;
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    for (unsigned i = 0; i < group->count && all; i++) {
        struct refit_nccl_granted *granted = granted_of(b->flow, &group->ops[i]);
        all = granted && granted->digests;
    }
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
    return all;
}

static bool is_equal(struct burst *b, const struct refit_nccl_op *op)
{
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    struct refit_nccl_granted *granted = granted_of(b->flow, op);
    bool equal = granted && granted->digests && refit_digests_match(&op->segments, 0, granted->expected, granted->digests);
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
    return equal;
}

static enum refit_status land(struct burst *b, struct refit_nccl_op *op, struct refit_error *err)
{
    struct refit_receiving *receiving = &b->lane->receiver->base;
    struct refit_grant grant = {.edge = op->edge, .batch = op->batch};
    bool equal = is_equal(b, op);
    enum refit_status status = equal ? spread(b, op, err) : REFIT_OK;
    if (status != REFIT_OK)
        return status;
    refit_count(&receiving->base.counters.payload_bytes, op->bytes);
    refit_count(&receiving->base.counters.wire_bytes, op->bytes);
    refit_count(&receiving->base.counters.copied_bytes, op->staged ? op->bytes : 0);
    if (equal)
        refit_grants_landed(&receiving->grants, grant, &op->segments);
    pthread_mutex_lock(&receiving->grants.lock);
    if (!equal && b->placed)
        refit_nccl_reshard_distrust(b->lane->receiver);
    struct refit_nccl_granted *granted = granted_of(b->flow, op);
    if (granted)
        refit_nccl_flow_end(b->flow, (size_t)(granted - b->flow->granted), equal ? REFIT_OK : REFIT_CORRUPT);
    pthread_mutex_unlock(&receiving->grants.lock);
    return REFIT_OK;
}

/* REFIT_BUSY: the oldest group is not through. */
static enum refit_status end_oldest(struct burst *b, struct refit_error *err)
{
    struct refit_nccl_group *group = &b->lane->groups[b->first];
    enum refit_status status = REFIT_OK;
    if (!digests_came(b, group))
        return refit_deadline_passed(group->deadline)
                   ? refit_fail(err, REFIT_TIMEOUT, "did not say the digests of a group in time")
                   : REFIT_BUSY;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = land(b, &group->ops[i], err);
    if (status != REFIT_OK)
        return status;
    refit_nccl_group_empty(group);
    b->first = (b->first + 1) % REFIT_NCCL_GROUPS;
    b->active--;
    b->done++;
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    refit_nccl_dispatch(&b->lane->receiver->base, b->flow->peer);
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
    return REFIT_OK;
}

/* ---- a burst ---- */

/* Another group behind the one on its way, so that the wire does not wait for a question and its answer. */
static enum refit_status follow(struct burst *b, struct refit_error *err)
{
    struct refit_nccl_lane *lane = b->lane;
    struct refit_nccl_group *last = &lane->groups[(b->first + b->active + REFIT_NCCL_GROUPS - 1) % REFIT_NCCL_GROUPS];
    struct refit_nccl_group *group = &lane->groups[(b->first + b->active) % REFIT_NCCL_GROUPS];
    if (b->active == REFIT_NCCL_GROUPS || b->done + b->active >= BURST_GROUPS ||
        lane->receiver->base.base.config.rate_bytes_per_s > 0 || (b->active > 0 && last->stage == REFIT_NCCL_POSTED))
        return REFIT_OK;
    pthread_mutex_lock(&grants_of(lane)->lock);
    enum refit_status status = grants_of(lane)->finished ? REFIT_OK : gather(b, group, err);
    pthread_mutex_unlock(&grants_of(lane)->lock);
    if (status != REFIT_OK || group->count == 0)
        return status;
    status = say_go(b, group, b->tag, NULL, err);
    return status == REFIT_OK ? post(b, group, err) : status;
}

static enum refit_status step_all(struct burst *b, struct refit_error *err)
{
    for (unsigned i = 0; i < b->active; i++) {
        struct refit_nccl_group *group = &b->lane->groups[(b->first + i) % REFIT_NCCL_GROUPS];
        enum refit_status status = refit_nccl_group_step(group, err);
        if (status != REFIT_OK && status != REFIT_BUSY)
            return status;
    }
    return REFIT_OK;
}

/* From the first group's answer until nothing is on its way. */
static enum refit_status carry(struct burst *b, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK && b->active > 0) {
        say_alive(b);
        status = step_all(b, err);
        enum refit_status oldest = REFIT_BUSY;
        if (status == REFIT_OK && b->lane->groups[b->first].stage == REFIT_NCCL_DONE)
            oldest = end_oldest(b, err);
        if (status == REFIT_OK && oldest != REFIT_BUSY)
            status = oldest;
        if (status == REFIT_OK)
            status = follow(b, err);
        if (oldest != REFIT_BUSY)
            b->poll_ns = REFIT_NCCL_POLL_NS;
        else if (status == REFIT_OK)
            status = pause_for(b, b->poll_ns, err);
        b->poll_ns = b->poll_ns < REFIT_NCCL_POLL_MAX_NS ? 2 * b->poll_ns : b->poll_ns;
    }
    return status;
}

/* Nothing of it is under way any more when this returns; its connection ends. */
static void fail(struct burst *b, const struct refit_error *why)
{
    struct refit_nccl_lane *lane = b->lane;
    if (b->pair)
        refit_nccl_pair_abort(lane->device, b->pair);
    b->pair = NULL;
    refit_nccl_device_quiet(lane->device);
    for (unsigned i = 0; i < REFIT_NCCL_GROUPS; i++)
        refit_nccl_group_settle(&lane->groups[i]);
    pthread_mutex_lock(&grants_of(lane)->lock);
    if (b->flow->why.status == REFIT_OK)
        b->flow->why = *why;
    refit_nccl_flow_cut(b->flow);
    pthread_mutex_unlock(&grants_of(lane)->lock);
}

static void denied(struct burst *b)
{
    struct refit_nccl_flow *flow = b->flow;
    uint8_t chance;
    refit_io_random(&chance, sizeof chance);
    pthread_mutex_lock(&grants_of(b->lane)->lock);
    b->lane->prepaid = b->lane->groups[b->first].bytes;
    scatter_again(b, &b->lane->groups[b->first]);
    unsigned doublings = flow->denials < DENIED_DOUBLINGS ? flow->denials++ : DENIED_DOUBLINGS;
    flow->retry_ns = refit_clock_ns() + ((DENIED_MS * NS_PER_MS) << doublings) * (128 + chance) / 256;
    pthread_mutex_unlock(&grants_of(b->lane)->lock);
}

/* The first group is gathered, and the turn is ours. */
static void run_burst(struct burst *b)
{
    struct refit_nccl_lane *lane = b->lane;
    struct refit_error err = {.status = REFIT_OK};
    enum refit_nccl_answer answer = REFIT_NCCL_NO_ANSWER;
    struct refit_nccl_group *group = &lane->groups[b->first];
    enum refit_status status = ask(b, group, &answer, &err);
    if (status == REFIT_OK && answer == REFIT_NCCL_DENIED) {
        denied(b);
        return;
    }
    if (status == REFIT_OK)
        status = post(b, group, &err);
    if (status == REFIT_OK)
        status = carry(b, &err);
    if (status != REFIT_OK) {
        fail(b, &err);
        return;
    }
    /* One that has gone meanwhile does not need it. */
    pthread_mutex_lock(&grants_of(lane)->lock);
    (void)refit_stream_post(&b->flow->stream, &(struct refit_frame){.type = REFIT_FRAME_PAUSE, .edge = b->tag});
    pthread_mutex_unlock(&grants_of(lane)->lock);
}

/* ---- the thread ---- */

static bool has_work(const struct refit_nccl_flow *flow, const struct refit_nccl_lane *lane)
{
    if (!flow->greeted || flow->cut || grants_of(lane)->finished)
        return false;
    for (unsigned i = 0; i < flow->granted_count; i++)
        if (is_for(&flow->granted[i], lane))
            return true;
    return false;
}

/* One after the other. NULL: none; *until: when one is to be looked at again. The lock is held. */
static struct refit_nccl_flow *pick(struct refit_nccl_lane *lane, int64_t *until)
{
    struct refit_nccl_flow *found = NULL;
    int64_t now = refit_clock_ns();
    unsigned count = 0, at = 0;
    for (struct refit_nccl_flow *flow = lane->receiver->flows; flow; flow = flow->next) {
        bool work = has_work(flow, lane);
        count += work && flow->retry_ns <= now;
        if (work && flow->retry_ns > now && flow->retry_ns < *until)
            *until = flow->retry_ns;
    }
    for (struct refit_nccl_flow *flow = lane->receiver->flows; flow && count > 0; flow = flow->next)
        if (has_work(flow, lane) && flow->retry_ns <= now && at++ == lane->next % count)
            found = flow;
    lane->next++;
    return found;
}

/* What the rate limit allows. The turn is not ours yet. */
static enum refit_status pace(struct burst *b, struct refit_error *err)
{
    int64_t due = refit_clock_ns(), left;
    enum refit_status status = REFIT_OK;
    uint64_t bytes = b->lane->groups[b->first].bytes, prepaid = b->lane->prepaid;
    b->lane->prepaid = 0;
    due += refit_rate_take(&b->lane->receiver->base.rate, bytes > prepaid ? bytes - prepaid : 0, due);
    while (status == REFIT_OK && (left = due - refit_clock_ns()) > 0)
        status = pause_for(b, left, err);
    return status;
}

static enum refit_status take_turn(struct burst *b, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK && !refit_turn_try(&b->lane->seat))
        status = pause_for(b, TURN_MS * NS_PER_MS, err);
    return status;
}

/* With a flow that has work. The lock is held, and let go meanwhile. */
static void serve(struct refit_nccl_lane *lane, struct refit_nccl_flow *flow)
{
    struct burst b = {.lane = lane, .flow = flow, .source = UINT32_MAX, .poll_ns = REFIT_NCCL_POLL_NS};
    struct refit_error err = {.status = REFIT_OK};
    flow->users++;
    lane->flow = flow;
    enum refit_status status = gather(&b, &lane->groups[0], &err);
    pthread_mutex_unlock(&grants_of(lane)->lock);
    if (status == REFIT_OK)
        status = pace(&b, &err);
    if (status == REFIT_OK)
        status = take_turn(&b, &err);
    if (status == REFIT_OK) {
        run_burst(&b);
        refit_turn_leave(&lane->seat);
    }
    pthread_mutex_lock(&grants_of(lane)->lock);
    if (status != REFIT_OK) {
        if (flow->why.status == REFIT_OK)
            flow->why = err;
        scatter_again(&b, &lane->groups[0]);
        refit_nccl_flow_cut(flow);
    }
    lane->flow = NULL;
    lane->asked = 0;
    refit_nccl_flow_leave(flow);
}

void *refit_nccl_lane_run(void *arg)
{
    struct refit_nccl_lane *lane = arg;
    struct refit_grants *grants = grants_of(lane);
    refit_bulk_thread_nice(lane->receiver->base.base.config.nice);
    pthread_mutex_lock(&grants->lock);
    while (!grants->stopped) {
        int64_t until = refit_clock_ns() + 1000 * NS_PER_MS;
        struct refit_nccl_flow *flow = pick(lane, &until);
        if (flow)
            serve(lane, flow);
        else
            wait_until(lane, until);
    }
    pthread_mutex_unlock(&grants->lock);
    return NULL;
}

/* Without the lock: the turn's is held. A wake that comes too early is made good by TURN_MS. */
static void turn_was_left(void *context)
{
    struct refit_nccl_lane *lane = context;
    pthread_cond_broadcast(&lane->receiver->work);
}

enum refit_status refit_nccl_lane_open(struct refit_nccl_lane *lane, struct refit_nccl_receiver *receiver,
                                       struct refit_nccl_device *device, struct refit_error *err)
{
    *lane = (struct refit_nccl_lane){.receiver = receiver, .device = device};
    lane->seat = (struct refit_turn_seat){.notify = turn_was_left, .context = lane};
    refit_turn_sit(&device->turn, &lane->seat);
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < REFIT_NCCL_GROUPS && status == REFIT_OK; i++)
        status = refit_nccl_group_init(&lane->groups[i], device, i, receiver->base.base.config.verify, err);
    return status;
}

void refit_nccl_lane_release(struct refit_nccl_lane *lane)
{
    refit_turn_rise(&lane->seat);
    for (unsigned i = 0; i < REFIT_NCCL_GROUPS; i++)
        refit_nccl_group_release(&lane->groups[i]);
    refit_nccl_device_release(lane->device);
}
