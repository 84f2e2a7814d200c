/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_reshard.h"

#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"

#define NS_PER_MS INT64_C(1000000)
#define POLL_MS 1
#define AGAIN_MS 4 /* a holder's device was taken: again after so long, and as much by chance */

enum stage {
    STAGE_WAITING, /* for all holders, and then for all turns */
    STAGE_PLACED,  /* what is on the list is in place */
    STAGE_OVER,    /* nothing is: by ordinary grants */
};

/* A source rank. */
struct part {
    struct refit_nccl_flow *flow; /* used, so that it stays; NULL: not there */
    enum refit_nccl_answer answer;
    bool ran;
    enum refit_status status; /* as it says */
};

struct refit_nccl_reshard {
    struct refit_nccl_receiver *receiver;
    pthread_t thread;
    bool runs;
    /* Under the ledger's lock. */
    enum stage stage;
    bool refused; /* a holder can't */
    uint64_t tag; /* of what was asked last; 0: nothing */
    struct part *parts; /* owned; by source rank */
    uint32_t part_count;
    struct refit_deadline deadline; /* for all to be there */
    /* The thread's own until it is over, then constant. */
    struct refit_reshard_list list;
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
    struct refit_nccl_member *members[REFIT_NCCL_DEVICES_MAX]; /* by lane */
    int64_t said_ns;
};

static const struct refit_endpoint_config *config_of(const struct refit_nccl_reshard *reshard)
{
    return &reshard->receiver->base.base.config;
}

static struct refit_grants *grants_of(const struct refit_nccl_reshard *reshard)
{
    return &reshard->receiver->base.grants;
}

static struct refit_deadline patience(const struct refit_nccl_reshard *reshard)
{
    return refit_deadline_in_ms(refit_endpoint_patience_ms(&reshard->receiver->base.base));
}

/* ---- what others see (the lock is held) ---- */

bool refit_nccl_reshard_holds(const struct refit_nccl_receiver *receiver)
{
    return receiver->reshard && receiver->reshard->stage == STAGE_WAITING;
}

bool refit_nccl_reshard_placed(const struct refit_nccl_receiver *receiver, struct refit_grant grant)
{
    const struct refit_nccl_reshard *reshard = receiver->reshard;
    return reshard && reshard->stage == STAGE_PLACED &&
           refit_reshard_covers(&reshard->list, config_of(reshard)->plan, grant.edge, grant.batch);
}

void refit_nccl_reshard_distrust(struct refit_nccl_receiver *receiver)
{
    if (!receiver->reshard || receiver->reshard->stage != STAGE_PLACED)
        return;
    receiver->reshard->stage = STAGE_OVER;
    refit_log_limited(REFIT_LOG_ERROR, "what a reshard put in place has not the source's digests; the rest is sent again",
                      refit_log_text("refit", receiver->base.base.config.refit_id));
}

void refit_nccl_reshard_greeted(struct refit_nccl_flow *flow)
{
    struct refit_nccl_reshard *reshard = flow->receiver->reshard;
    if (!reshard || reshard->stage != STAGE_WAITING)
        return;
    const struct refit_nccl_hello *hello = &flow->hello;
    struct part *part = hello->reshards && hello->rank < reshard->part_count ? &reshard->parts[hello->rank] : NULL;
    if (part && part->flow && part->flow->cut) {
        refit_nccl_flow_leave(part->flow);
        part->flow = NULL;
    }
    if (!part || part->flow) {
        reshard->refused = true; /* one that can't, or two of one rank */
        return;
    }
    flow->users++;
    *part = (struct part){.flow = flow};
}

bool refit_nccl_reshard_take(struct refit_nccl_flow *flow)
{
    const struct refit_frame *frame = &flow->frame;
    struct refit_nccl_reshard *reshard = flow->receiver->reshard;
    bool ours =
        frame->type == REFIT_FRAME_RAN || frame->type == REFIT_FRAME_STARTED || frame->type == REFIT_FRAME_DENIED;
    if (!reshard || !ours || frame->edge != reshard->tag || reshard->tag == 0)
        return false;
    for (uint32_t i = 0; i < reshard->part_count; i++) {
        struct part *part = &reshard->parts[i];
        if (part->flow != flow) /* none is, once it was given up */
            continue;
        part->ran = frame->type == REFIT_FRAME_RAN;
        if (part->ran)
            part->status = frame->argument == 0 ? REFIT_OK : refit_refusal_status(frame->argument);
        else if (frame->type == REFIT_FRAME_STARTED)
            part->answer = REFIT_NCCL_STARTED;
        else
            part->answer = frame->argument == REFIT_DENIED_BUSY ? REFIT_NCCL_DENIED : REFIT_NCCL_UNKNOWN;
    }
    return true;
}

/* ---- steps of the thread (the lock is held, but where it says so) ---- */

static void wait_ms(struct refit_nccl_reshard *reshard, int64_t ms)
{
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    pthread_cond_timedwait(&reshard->receiver->work, &grants_of(reshard)->lock, &until);
}

/* REFIT_OK: still of use. */
static enum refit_status go_on(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    const struct refit_grants *grants = grants_of(reshard);
    if (grants->stopped || grants->finished || refit_endpoint_stopping(&reshard->receiver->base.base))
        return refit_fail(err, REFIT_ABORTED, "aborted");
    if (reshard->refused)
        return refit_fail(err, REFIT_UNSUPPORTED, "a holder can't take part, or is not a source rank's");
    for (uint32_t i = 0; i < reshard->part_count; i++)
        if (reshard->parts[i].flow && reshard->parts[i].flow->cut)
            return refit_fail(err, REFIT_PEER, "the holder of source rank %u is gone", i);
    return REFIT_OK;
}

static bool all_are_there(const struct refit_nccl_reshard *reshard)
{
    for (uint32_t i = 0; i < reshard->part_count; i++)
        if (!reshard->parts[i].flow)
            return false;
    return true;
}

static enum refit_status await_all(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    enum refit_status status = go_on(reshard, err);
    while (status == REFIT_OK && !all_are_there(reshard)) {
        if (refit_deadline_passed(reshard->deadline))
            return refit_fail(err, REFIT_TIMEOUT, "not all source ranks have come");
        wait_ms(reshard, 100);
        status = go_on(reshard, err);
    }
    return status;
}

static void leave_turns(struct refit_nccl_reshard *reshard, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        refit_turn_leave(&reshard->receiver->lanes[i].seat);
}

/* Of all devices or of none. The lanes have nothing to do meanwhile, and so their seats are ours. */
static bool take_turns(struct refit_nccl_reshard *reshard)
{
    for (unsigned i = 0; i < reshard->receiver->lane_count; i++) {
        if (!refit_turn_try(&reshard->receiver->lanes[i].seat)) {
            leave_turns(reshard, i);
            return false;
        }
    }
    return true;
}

static bool say(struct refit_nccl_reshard *reshard, const struct part *part, const void *bytes, size_t len)
{
    refit_count(&reshard->receiver->base.base.counters.wire_bytes, len);
    return part->flow->cut || refit_stream_try(&part->flow->stream, bytes, len, 0);
}

/* One whose socket is full will be found gone. */
static void say_all(struct refit_nccl_reshard *reshard, enum refit_frame_type type)
{
    const struct refit_frame frame = {.type = type, .edge = reshard->tag};
    for (uint32_t i = 0; i < reshard->part_count; i++)
        if (reshard->parts[i].flow && !say(reshard, &reshard->parts[i], &frame, sizeof frame))
            refit_nccl_flow_cut(reshard->parts[i].flow);
}

static void say_alive(struct refit_nccl_reshard *reshard)
{
    if (refit_clock_ns() - reshard->said_ns < REFIT_ALIVE_MS * NS_PER_MS)
        return;
    reshard->said_ns = refit_clock_ns();
    say_all(reshard, REFIT_FRAME_ALIVE);
}

static void say_shard(struct refit_nccl_reshard *reshard)
{
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_SHARD_BYTES];
    struct refit_nccl_shard shard = {.ranks = reshard->list.sources + reshard->list.destinations,
                                     .list = reshard->list.digest};
    refit_io_random(&reshard->tag, sizeof reshard->tag);
    reshard->tag |= 1;
    shard.tag = reshard->tag;
    memcpy(shard.unique, reshard->unique, sizeof shard.unique);
    size_t len = refit_nccl_shard_encode(&shard, bytes);
    for (uint32_t i = 0; i < reshard->part_count; i++) {
        struct part *part = &reshard->parts[i];
        *part = (struct part){.flow = part->flow};
        if (!say(reshard, part, bytes, len))
            refit_nccl_flow_cut(part->flow);
    }
    reshard->said_ns = refit_clock_ns();
}

/* The answer that counts: UNKNOWN before DENIED before STARTED. */
static enum refit_nccl_answer answer_of_all(const struct refit_nccl_reshard *reshard)
{
    enum refit_nccl_answer all = REFIT_NCCL_STARTED;
    for (uint32_t i = 0; i < reshard->part_count; i++) {
        enum refit_nccl_answer one = reshard->parts[i].answer;
        if (one == REFIT_NCCL_NO_ANSWER)
            return one;
        all = one > all ? one : all;
    }
    return all;
}

static enum refit_status ask_all(struct refit_nccl_reshard *reshard, enum refit_nccl_answer *answer,
                                 struct refit_error *err)
{
    struct refit_deadline deadline = patience(reshard);
    say_shard(reshard);
    enum refit_status status = go_on(reshard, err);
    while (status == REFIT_OK && (*answer = answer_of_all(reshard)) == REFIT_NCCL_NO_ANSWER) {
        if (refit_deadline_passed(deadline))
            return refit_fail(err, REFIT_TIMEOUT, "not all holders have said whether they take part");
        say_alive(reshard);
        wait_ms(reshard, 100);
        status = go_on(reshard, err);
    }
    if (status == REFIT_OK && *answer == REFIT_NCCL_UNKNOWN)
        return refit_fail(err, REFIT_MISMATCH, "a holder finds other tensors than we do, or can't");
    return status;
}

/* Our devices' turns, and then the holders'. REFIT_OK: we have them all. REFIT_BUSY: none. */
static enum refit_status try_all_turns(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    enum refit_nccl_answer answer = REFIT_NCCL_DENIED;
    if (!take_turns(reshard))
        return REFIT_BUSY;
    enum refit_status status = ask_all(reshard, &answer, err);
    if (status == REFIT_OK && answer == REFIT_NCCL_STARTED)
        return REFIT_OK;
    say_all(reshard, REFIT_FRAME_PAUSE);
    leave_turns(reshard, reshard->receiver->lane_count);
    return status == REFIT_OK ? REFIT_BUSY : status;
}

static enum refit_status take_all_turns(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    struct refit_deadline deadline = patience(reshard);
    enum refit_status status;
    while ((status = try_all_turns(reshard, err)) == REFIT_BUSY) {
        uint8_t chance;
        refit_io_random(&chance, sizeof chance);
        if (refit_deadline_passed(deadline))
            return refit_fail(err, REFIT_TIMEOUT, "the devices of all ranks were never free at once");
        wait_ms(reshard, AGAIN_MS + chance * AGAIN_MS / 256);
        if ((status = go_on(reshard, err)) != REFIT_OK)
            break;
    }
    return status;
}

/* ---- the collective ---- */

/* The destination rank that lands on the lane's device. */
static uint32_t rank_on(const struct refit_nccl_reshard *reshard, const struct refit_nccl_lane *lane)
{
    uint32_t index = 0;
    while (refit_arena_device(config_of(reshard)->arenas[index]) != lane->device->ordinal)
        index++;
    return index;
}

static enum refit_status start_members(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    const struct refit_plan *plan = config_of(reshard)->plan;
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < reshard->receiver->lane_count && status == REFIT_OK; i++) {
        struct refit_nccl_lane *lane = &reshard->receiver->lanes[i];
        uint32_t index = rank_on(reshard, lane);
        struct refit_nccl_member_config config = {
            .device = lane->device, .list = &reshard->list, .layout = refit_plan_destination(plan),
            .side = REFIT_DESTINATION, .layout_rank = refit_plan_first_rank(plan) + index,
            .arena = config_of(reshard)->arenas[index], .rank = reshard->list.sources + index};
        memcpy(config.unique, reshard->unique, sizeof config.unique);
        status = refit_nccl_member_start(&config, &reshard->members[i], err);
    }
    return status;
}

/* REFIT_OK: all ranks, ours and the holders', are through. The lock is held. */
static enum refit_status look(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    enum refit_status status = go_on(reshard, err), all = REFIT_OK;
    for (unsigned i = 0; i < reshard->receiver->lane_count && status == REFIT_OK; i++) {
        enum refit_status one = refit_nccl_member_poll(reshard->members[i], err);
        status = one == REFIT_BUSY ? REFIT_OK : one;
        all = one == REFIT_BUSY ? REFIT_BUSY : all;
    }
    for (uint32_t i = 0; i < reshard->part_count && status == REFIT_OK; i++) {
        const struct part *part = &reshard->parts[i];
        if (part->ran && part->status != REFIT_OK)
            status = refit_fail(err, part->status, "source rank %u could not do its part", i);
        all = part->ran ? all : REFIT_BUSY;
    }
    return status == REFIT_OK ? all : status;
}

static uint64_t progress_of(const struct refit_nccl_reshard *reshard)
{
    uint64_t ran = 0;
    struct refit_error ignored;
    for (uint32_t i = 0; i < reshard->part_count; i++)
        ran += reshard->parts[i].ran;
    for (unsigned i = 0; i < reshard->receiver->lane_count; i++)
        ran += refit_nccl_member_poll(reshard->members[i], &ignored) == REFIT_OK;
    return ran;
}

/* How long it may take: what a communicator may, and the bytes at 100 MB/s, which a link of GPUs is above by far. */
static struct refit_deadline due(const struct refit_nccl_reshard *reshard)
{
    int64_t bytes_ms = (int64_t)(reshard->list.bytes / 100000);
    return refit_deadline_after(patience(reshard), bytes_ms);
}

static enum refit_status await_members(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    struct refit_deadline deadline = due(reshard);
    enum refit_status status;
    while ((status = look(reshard, err)) == REFIT_BUSY) {
        if (refit_deadline_passed(deadline))
            return refit_fail(err, REFIT_TIMEOUT, "%llu of %u ranks were through in time",
                              (unsigned long long)progress_of(reshard),
                              reshard->list.sources + reshard->list.destinations);
        say_alive(reshard);
        wait_ms(reshard, POLL_MS);
    }
    return status;
}

/* Without the lock: ends of members wait for devices. */
static void end_members(struct refit_nccl_reshard *reshard)
{
    for (unsigned i = 0; i < reshard->receiver->lane_count; i++) {
        refit_nccl_member_end(reshard->members[i]);
        reshard->members[i] = NULL;
    }
}

/* All turns are ours. The lock is held, and let go meanwhile. */
static enum refit_status collect(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    struct refit_grants *grants = grants_of(reshard);
    say_all(reshard, REFIT_FRAME_RUN);
    pthread_mutex_unlock(&grants->lock);
    enum refit_status status = start_members(reshard, err);
    pthread_mutex_lock(&grants->lock);
    if (status == REFIT_OK)
        status = await_members(reshard, err);
    say_all(reshard, REFIT_FRAME_PAUSE);
    pthread_mutex_unlock(&grants->lock);
    end_members(reshard);
    pthread_mutex_lock(&grants->lock);
    leave_turns(reshard, reshard->receiver->lane_count);
    return status;
}

/* ---- the thread ---- */

static enum refit_status prepare(struct refit_nccl_reshard *reshard, struct refit_error *err)
{
    const struct refit_nccl_receiver *receiver = reshard->receiver;
    enum refit_status status = refit_reshard_list_build(config_of(reshard)->plan, &reshard->list, err);
    if (status == REFIT_OK && reshard->list.count == 0)
        status = refit_fail(err, REFIT_UNSUPPORTED, "no tensor fits");
    return status == REFIT_OK ? refit_nccl_unique(receiver->lanes[0].device, reshard->unique, err) : status;
}

/* The lock is held. Those who waited for grants get them. */
static void open_up(struct refit_nccl_reshard *reshard, enum stage stage)
{
    struct refit_receiving *receiving = &reshard->receiver->base;
    reshard->stage = stage;
    for (uint32_t i = 0; i < reshard->part_count; i++) {
        if (reshard->parts[i].flow)
            refit_nccl_flow_leave(reshard->parts[i].flow);
        reshard->parts[i].flow = NULL;
    }
    for (struct refit_peer *peer = receiving->grants.peers; peer && !receiving->grants.stopped; peer = peer->next)
        refit_nccl_dispatch(receiving, peer);
    pthread_cond_broadcast(&reshard->receiver->work);
}

static void tell(const struct refit_nccl_reshard *reshard, enum refit_status status, const struct refit_error *why)
{
    const struct refit_log_field refit = refit_log_text("refit", config_of(reshard)->refit_id);
    if (status == REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "a reshard has put tensors in place", refit,
                  refit_log_u64("tensors", reshard->list.count), refit_log_u64("bytes", reshard->list.bytes));
    else if (status != REFIT_ABORTED)
        refit_log_limited(REFIT_LOG_WARN, "no reshard: tensors go by ordinary grants", refit, REFIT_LOG_CAUSE(why));
}

static void *run(void *arg)
{
    struct refit_nccl_reshard *reshard = arg;
    struct refit_grants *grants = grants_of(reshard);
    struct refit_error err = {.status = REFIT_OK};
    refit_bulk_thread_nice(config_of(reshard)->nice);
    enum refit_status status = prepare(reshard, &err);
    pthread_mutex_lock(&grants->lock);
    if (status == REFIT_OK)
        status = await_all(reshard, &err);
    if (status == REFIT_OK)
        status = take_all_turns(reshard, &err);
    if (status == REFIT_OK)
        status = collect(reshard, &err);
    tell(reshard, status, &err);
    open_up(reshard, status == REFIT_OK ? STAGE_PLACED : STAGE_OVER);
    pthread_mutex_unlock(&grants->lock);
    return NULL;
}

/* ---- opening ---- */

/* Each destination rank has a device of its own, and nobody but the source ranks may be asked: members of a fleet would
 * pass bytes on, and the source send them once. */
static bool is_possible(const struct refit_nccl_receiver *receiver)
{
    const struct refit_endpoint_config *config = &receiver->base.base.config;
    uint32_t sources = refit_layout_ranks(refit_plan_source(config->plan));
    size_t bound = 0;
    for (size_t i = 0; i < config->arena_count; i++)
        bound += config->arenas[i] != NULL;
    return refit_nccl_reshard_id() && !config->partial && config->holder == sources && config->rate_bytes_per_s == 0 &&
           bound == config->arena_count && bound == refit_plan_rank_count(config->plan) && bound == receiver->lane_count;
}

enum refit_status refit_nccl_reshard_open(struct refit_nccl_receiver *receiver, struct refit_error *err)
{
    if (!is_possible(receiver))
        return REFIT_OK;
    struct refit_nccl_reshard *reshard = calloc(1, sizeof *reshard);
    if (!reshard)
        return refit_fail_alloc(err, "a reshard", sizeof *reshard);
    reshard->receiver = receiver;
    reshard->part_count = refit_layout_ranks(refit_plan_source(receiver->base.base.config.plan));
    reshard->parts = calloc(reshard->part_count, sizeof *reshard->parts);
    reshard->deadline = refit_deadline_in_ms(refit_endpoint_patience_ms(&receiver->base.base) / 2);
    receiver->reshard = reshard;
    if (!reshard->parts)
        return refit_fail_alloc(err, "the ranks of a reshard", reshard->part_count * sizeof *reshard->parts);
    enum refit_status status = refit_bulk_thread_start(&reshard->thread, run, reshard, err);
    reshard->runs = status == REFIT_OK;
    return status;
}

void refit_nccl_reshard_join(struct refit_nccl_receiver *receiver)
{
    struct refit_nccl_reshard *reshard = receiver->reshard;
    if (reshard && reshard->runs)
        pthread_join(reshard->thread, NULL);
    if (reshard)
        reshard->runs = false;
}

void refit_nccl_reshard_release(struct refit_nccl_receiver *receiver)
{
    struct refit_nccl_reshard *reshard = receiver->reshard;
    if (!reshard)
        return;
    refit_reshard_list_release(&reshard->list);
    free(reshard->parts);
    free(reshard);
    receiver->reshard = NULL;
}
