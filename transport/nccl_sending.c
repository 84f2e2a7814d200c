/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_reshard.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/io.h"
#include "transport/greeting.h"

#define NS_PER_MS INT64_C(1000000)
#define SILENCE_MS 5000 /* of a receiver that has a device of ours: others want it, too */

static struct refit_endpoint *endpoint_of(const struct refit_nccl_sending *sending)
{
    return &sending->holding->base;
}

static struct refit_deadline patience(const struct refit_nccl_sending *sending)
{
    return refit_deadline_in_ms(refit_endpoint_patience_ms(endpoint_of(sending)));
}

/* ---- saying ---- */

static enum refit_status say_bytes(struct refit_nccl_sending *sending, struct iovec *iov, int count,
                                   struct refit_error *err)
{
    struct refit_endpoint *endpoint = endpoint_of(sending);
    for (int i = 0; i < count; i++)
        refit_count(&endpoint->counters.wire_bytes, iov[i].iov_len);
    sending->said_ns = refit_clock_ns();
    return refit_stream_send_by(&sending->stream, iov, count, 0, endpoint->wake, patience(sending), err);
}

enum refit_status refit_nccl_say(struct refit_nccl_sending *sending, struct refit_frame frame, struct refit_error *err)
{
    struct iovec iov = {.iov_base = &frame, .iov_len = sizeof frame};
    return say_bytes(sending, &iov, 1, err);
}

static enum refit_status say_digests(struct refit_nccl_sending *sending, const struct refit_nccl_op *op,
                                     struct refit_error *err)
{
    size_t count = op->segments.digesting ? op->segments.count : 0;
    uint8_t *digests = malloc(count * REFIT_DIGEST_BYTES + 1);
    if (!digests)
        return refit_fail_alloc(err, "digests of a batch", count * REFIT_DIGEST_BYTES);
    refit_digests_encode(&op->segments, 0, count, digests);
    struct refit_frame frame = {.type = REFIT_FRAME_DIGESTS, .edge = op->edge->digest, .batch = op->batch,
                                .length = (uint32_t)(count * REFIT_DIGEST_BYTES)};
    struct iovec iov[] = {{.iov_base = &frame, .iov_len = sizeof frame},
                          {.iov_base = digests, .iov_len = frame.length}};
    enum refit_status status = say_bytes(sending, iov, 2, err);
    free(digests);
    return status;
}

/* ---- batches that are asked for ---- */

struct refit_nccl_source *refit_nccl_source_of(struct refit_nccl_sending *sending, const struct refit_arena *arena)
{
    struct refit_nccl_source *source = sending->sources;
    while (source->device->ordinal != refit_arena_device(arena)) /* one was made for every arena */
        source++;
    return source;
}

static enum refit_status take_grant(struct refit_nccl_sending *sending, struct refit_error *err)
{
    const struct refit_frame *frame = &sending->frame;
    const struct refit_view *view = &sending->holding->view;
    const struct refit_edge *edge = refit_plan_edge(view->plan, frame->edge);
    const struct refit_arena *arena;
    struct refit_walk walk;
    if (!edge || frame->batch >= edge->batches)
        return refit_fail(err, REFIT_PEER, "the receiver asked for batch %u of edge %016llx, which is not in the plan",
                          frame->batch, (unsigned long long)frame->edge);
    if (sending->owed_count == REFIT_OWED_MAX)
        return refit_fail(err, REFIT_PEER, "the receiver granted more than %d batches at once", REFIT_OWED_MAX);
    if (!refit_view_window(view, edge, frame->batch, &arena, &walk))
        return refit_fail(err, REFIT_INVALID, "no arena here has edge %016llx, which was offered",
                          (unsigned long long)edge->digest);
    sending->owed[sending->owed_count++] = (struct refit_nccl_owed){
        .edge = edge, .batch = frame->batch, .source = (uint32_t)(refit_nccl_source_of(sending, arena) - sending->sources)};
    return REFIT_OK;
}

/* Landed here, and within the rate limit. *due: when it is to be looked at again, if it is by the limit. */
static bool is_ready(struct refit_nccl_sending *sending, struct refit_nccl_owed *owed, int64_t *due)
{
    struct refit_landed *landed = endpoint_of(sending)->config.landed;
    int64_t now = refit_clock_ns();
    if (owed->said || (landed && !refit_landed_has(landed, owed->edge, owed->batch)))
        return false;
    if (owed->due_ns == 0)
        owed->due_ns = now + refit_rate_take(&sending->holding->rate,
                                             refit_batch_bytes(sending->holding->view.plan, owed->edge, owed->batch), now);
    if (owed->due_ns > now && owed->due_ns < *due)
        *due = owed->due_ns;
    return owed->due_ns <= now;
}

static enum refit_status say_ready(struct refit_nccl_sending *sending, int64_t *due, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < sending->owed_count && status == REFIT_OK; i++) {
        struct refit_nccl_owed *owed = &sending->owed[i];
        if (!is_ready(sending, owed, due))
            continue;
        owed->said = true;
        status = refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_READY, .edge = owed->edge->digest,
                                                   .batch = owed->batch, .argument = owed->source}, err);
    }
    return status;
}

/* ---- groups ---- */

static bool take_owed(struct refit_nccl_sending *sending, uint64_t edge, uint32_t batch, struct refit_nccl_owed *out)
{
    for (unsigned i = 0; i < sending->owed_count; i++) {
        struct refit_nccl_owed *owed = &sending->owed[i];
        if (!owed->said || owed->edge->digest != edge || owed->batch != batch)
            continue;
        *out = *owed;
        memmove(owed, owed + 1, (--sending->owed_count - i) * sizeof *owed);
        return true;
    }
    return false;
}

static enum refit_status fill_op(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                 struct refit_nccl_group *group, uint64_t edge, uint32_t batch, struct refit_error *err)
{
    const struct refit_view *view = &sending->holding->view;
    struct refit_nccl_owed owed;
    const struct refit_arena *arena;
    if (!take_owed(sending, edge, batch, &owed) || &sending->sources[owed.source] != source)
        return refit_fail(err, REFIT_PEER, "the receiver's group has batch %u of edge %016llx, which is not ready here",
                          batch, (unsigned long long)edge);
    struct refit_nccl_op *op =
        refit_nccl_group_add(group, owed.edge, batch, refit_batch_bytes(view->plan, owed.edge, batch));
    if (!op)
        return refit_fail(err, REFIT_PEER, "the receiver's group is larger than %u bytes", REFIT_NCCL_GROUP_BYTES);
    if (!refit_view_window(view, owed.edge, batch, &arena, &op->walk))
        return refit_fail(err, REFIT_INVALID, "no arena here has edge %016llx", (unsigned long long)edge);
    op->arena = (struct refit_arena *)(uintptr_t)arena; /* read only, as sending does */
    return REFIT_OK;
}

static enum refit_status fill(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                              const struct refit_nccl_go *go, struct refit_error *err)
{
    if (source->active == REFIT_NCCL_GROUPS)
        return refit_fail(err, REFIT_PEER, "the receiver wants more than %d groups at once", REFIT_NCCL_GROUPS);
    struct refit_nccl_group *group = &source->groups[(source->first + source->active++) % REFIT_NCCL_GROUPS];
    enum refit_status status = REFIT_OK;
    refit_nccl_group_empty(group);
    group->deadline = patience(sending);
    sending->poll_ns = REFIT_NCCL_POLL_NS;
    for (uint32_t i = 0; i < go->count && status == REFIT_OK; i++)
        status = fill_op(sending, source, group, go->batches[i].edge, go->batches[i].batch, err);
    return status;
}

static enum refit_status deny(struct refit_nccl_sending *sending, struct refit_nccl_source *source, uint64_t tag,
                              enum refit_denial why, struct refit_error *err)
{
    source->refused |= why == REFIT_DENIED_BUSY;
    return refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_DENIED, .edge = tag, .argument = why}, err);
}

/* The turn is ours. */
static enum refit_status begin_burst(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                     const struct refit_nccl_go *go, struct refit_error *err)
{
    const struct refit_nccl_pair like = {.tag = go->tag, .process = go->process, .peer = go->device};
    source->pair = go->fresh || go->placed ? NULL : refit_nccl_pair_tagged(source->device, go->tag);
    if (!source->pair && !go->fresh && !go->placed) {
        refit_turn_leave(&source->seat);
        return deny(sending, source, go->tag, REFIT_DENIED_UNKNOWN, err);
    }
    source->burst = go->fresh ? REFIT_NCCL_MAKING : REFIT_NCCL_ON;
    source->tag = go->tag;
    source->first = source->active = 0;
    source->deadline = patience(sending);
    enum refit_status status = fill(sending, source, go, err);
    if (status == REFIT_OK)
        status = refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_STARTED, .edge = go->tag}, err);
    if (status == REFIT_OK && go->fresh)
        status = refit_nccl_pair_begin(source->device, &like, go->unique, &source->pair, err);
    return status;
}

/* Which of our devices a group is of: that of its first batch. */
static struct refit_nccl_source *source_of_go(struct refit_nccl_sending *sending, const struct refit_nccl_go *go)
{
    for (unsigned i = 0; i < sending->owed_count; i++)
        if (sending->owed[i].edge->digest == go->batches[0].edge && sending->owed[i].batch == go->batches[0].batch)
            return &sending->sources[sending->owed[i].source];
    return NULL;
}

static enum refit_status take_go(struct refit_nccl_sending *sending, struct refit_error *err)
{
    struct refit_nccl_go go;
    enum refit_status status = refit_nccl_go_decode(&sending->frame, sending->payload, &go, err);
    if (status != REFIT_OK)
        return status;
    struct refit_nccl_source *source = source_of_go(sending, &go);
    if (!source)
        return refit_fail(err, REFIT_PEER, "the receiver's group begins with batch %u of edge %016llx, which is not owed",
                          go.batches[0].batch, (unsigned long long)go.batches[0].edge);
    if (source->burst == REFIT_NCCL_OFF)
        return refit_turn_try(&source->seat) ? begin_burst(sending, source, &go, err)
                                             : deny(sending, source, go.tag, REFIT_DENIED_BUSY, err);
    if (source->tag != go.tag || !source->pair != go.placed) /* another device of the receiver's */
        return deny(sending, source, go.tag, REFIT_DENIED_BUSY, err);
    if (go.fresh)
        return refit_fail(err, REFIT_PEER, "the receiver's group is out of turn");
    return fill(sending, source, &go, err);
}

static enum refit_status end_burst(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                   struct refit_error *err)
{
    bool refused = source->refused;
    source->burst = REFIT_NCCL_OFF;
    source->pair = NULL;
    source->refused = false;
    refit_turn_leave(&source->seat);
    if (!refused || sending->done)
        return REFIT_OK;
    return refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_FREE}, err);
}

/* The receiver has all of its groups, and so we have ended them. */
static enum refit_status take_pause(struct refit_nccl_sending *sending, struct refit_error *err)
{
    if (refit_nccl_sharing_pause(sending))
        return REFIT_OK;
    for (unsigned i = 0; i < sending->source_count; i++) {
        struct refit_nccl_source *source = &sending->sources[i];
        if (source->burst == REFIT_NCCL_ON && source->tag == sending->frame.edge && source->active == 0)
            return end_burst(sending, source, err);
    }
    return refit_fail(err, REFIT_PEER, "the receiver ends groups that it did not begin");
}

/* ---- frames ---- */

static enum refit_status take_frame(struct refit_nccl_sending *sending, struct refit_error *err)
{
    switch (sending->frame.type) {
    case REFIT_FRAME_GRANT: return take_grant(sending, err);
    case REFIT_FRAME_GO: return take_go(sending, err);
    case REFIT_FRAME_PAUSE: return take_pause(sending, err);
    case REFIT_FRAME_SHARD: return refit_nccl_sharing_ask(sending, err);
    case REFIT_FRAME_RUN: return refit_nccl_sharing_run(sending, err);
    case REFIT_FRAME_DONE: sending->done = true; return REFIT_OK;
    case REFIT_FRAME_ALIVE: return REFIT_OK;
    default:
        return refit_fail(err, REFIT_PEER, "the receiver sent a frame of unknown type %08x", sending->frame.type);
    }
}

/* REFIT_BUSY: not all of it has come. */
static enum refit_status read_frame(struct refit_nccl_sending *sending, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (;;) {
        size_t total = REFIT_FRAME_BYTES;
        if (sending->have >= REFIT_FRAME_BYTES) {
            const struct refit_frame *frame = &sending->frame;
            if (frame->length > (frame->type == REFIT_FRAME_GO      ? REFIT_NCCL_GO_MAX
                                 : frame->type == REFIT_FRAME_SHARD ? REFIT_NCCL_SHARD_BYTES
                                                                    : 0))
                return refit_fail(err, REFIT_PEER, "the receiver sent a frame of type %08x with %u bytes", frame->type,
                                  frame->length);
            total += frame->length;
        }
        if (sending->have == total)
            return REFIT_OK;
        uint8_t *at = sending->have < REFIT_FRAME_BYTES ? (uint8_t *)&sending->frame + sending->have
                                                        : sending->payload + (sending->have - REFIT_FRAME_BYTES);
        struct iovec iov = {.iov_base = at, .iov_len = total - sending->have};
        size_t got;
        status = refit_stream_receive(&sending->stream, &iov, 1, &got, err);
        if (status != REFIT_OK)
            return status;
        sending->have += got;
    }
}

/* All that are there. */
static enum refit_status take_frames(struct refit_nccl_sending *sending, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (status == REFIT_OK) {
        status = read_frame(sending, err);
        if (status != REFIT_OK)
            break;
        sending->have = 0;
        sending->heard_ns = refit_clock_ns();
        status = take_frame(sending, err);
    }
    return status == REFIT_BUSY ? REFIT_OK : status;
}

/* ---- moving on ---- */

static enum refit_status end_op(struct refit_nccl_sending *sending, const struct refit_nccl_op *op,
                                struct refit_error *err)
{
    struct refit_endpoint *endpoint = endpoint_of(sending);
    const struct refit_endpoint_config *config = &endpoint->config;
    refit_count(&endpoint->counters.payload_bytes, op->bytes);
    refit_count(&endpoint->counters.wire_bytes, op->bytes);
    refit_count(&endpoint->counters.copied_bytes, op->staged ? op->bytes : 0);
    enum refit_status status = say_digests(sending, op, err);
    if (status == REFIT_OK && config->tally && config->verify &&
        refit_batch_set_add(sending->holding->sent, op->edge, op->batch))
        refit_segments_tally(&op->segments, config->tally);
    return status;
}

static enum refit_status end_group(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                   struct refit_error *err)
{
    struct refit_nccl_group *group = &source->groups[source->first];
    enum refit_status status = REFIT_OK;
    sending->poll_ns = REFIT_NCCL_POLL_NS;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = end_op(sending, &group->ops[i], err);
    refit_nccl_group_empty(group);
    source->first = (source->first + 1) % REFIT_NCCL_GROUPS;
    source->active--;
    source->deadline = patience(sending);
    return status;
}

/* One that waits is posted once the one before is on its stream: until then the communicator takes no other call. */
static enum refit_status step_groups(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                     struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    bool clear = true;
    for (unsigned i = 0; i < source->active; i++) {
        struct refit_nccl_group *group = &source->groups[(source->first + i) % REFIT_NCCL_GROUPS];
        if (group->stage == REFIT_NCCL_IDLE && clear)
            status = source->pair ? refit_nccl_group_post(group, source->pair, err)
                                  : refit_nccl_group_verify(group, err);
        if (status == REFIT_OK && group->stage != REFIT_NCCL_IDLE)
            status = refit_nccl_group_step(group, err);
        if (status != REFIT_OK && status != REFIT_BUSY)
            return status;
        status = REFIT_OK;
        clear = clear && group->stage > REFIT_NCCL_POSTED;
    }
    while (source->active > 0 && source->groups[source->first].stage == REFIT_NCCL_DONE && status == REFIT_OK)
        status = end_group(sending, source, err);
    return status;
}

static enum refit_status check_silence(const struct refit_nccl_sending *sending, struct refit_error *err)
{
    int64_t most = refit_endpoint_patience_ms(endpoint_of(sending));
    most = most < SILENCE_MS ? most : SILENCE_MS;
    if (refit_clock_ns() - sending->heard_ns < most * NS_PER_MS)
        return REFIT_OK;
    return refit_fail(err, REFIT_PEER, "the receiver has a device of ours and was silent for %lld ms", (long long)most);
}

static enum refit_status step_source(struct refit_nccl_sending *sending, struct refit_nccl_source *source,
                                     struct refit_error *err)
{
    enum refit_status status = check_silence(sending, err);
    if (status != REFIT_OK)
        return status;
    if (source->burst == REFIT_NCCL_MAKING) {
        status = refit_nccl_pair_poll(source->device, source->pair, err);
        if (status == REFIT_BUSY)
            return refit_deadline_passed(source->deadline)
                       ? refit_fail(err, REFIT_TIMEOUT, "NCCL did not make a communicator in time")
                       : REFIT_OK;
        source->burst = REFIT_NCCL_ON;
    }
    if (status == REFIT_OK && source->burst == REFIT_NCCL_ON)
        status = step_groups(sending, source, err);
    if (status != REFIT_OK || source->burst != REFIT_NCCL_ON || source->active > 0)
        return status;
    if (sending->done)
        return end_burst(sending, source, err);
    return refit_deadline_passed(source->deadline)
               ? refit_fail(err, REFIT_TIMEOUT, "the receiver holds a device of ours and wants nothing of it")
               : REFIT_OK;
}

/* *working: something is to be polled for. */
static enum refit_status step_sources(struct refit_nccl_sending *sending, bool *working, struct refit_error *err)
{
    enum refit_status status = sending->sharing.source ? check_silence(sending, err) : REFIT_OK;
    if (status == REFIT_OK)
        status = refit_nccl_sharing_step(sending, err);
    *working = sending->sharing.member && !sending->sharing.ran;
    for (unsigned i = 0; i < sending->source_count && status == REFIT_OK; i++) {
        struct refit_nccl_source *source = &sending->sources[i];
        if (source->burst == REFIT_NCCL_OFF)
            continue;
        status = step_source(sending, source, err);
        *working |= source->burst == REFIT_NCCL_MAKING || source->active > 0;
    }
    return status;
}

/* Nothing is under way any more when this returns. */
static void break_off(struct refit_nccl_sending *sending)
{
    refit_nccl_sharing_break_off(sending);
    for (unsigned i = 0; i < sending->source_count; i++) {
        struct refit_nccl_source *source = &sending->sources[i];
        if (source->burst == REFIT_NCCL_OFF)
            continue;
        if (source->pair)
            refit_nccl_pair_abort(source->device, source->pair);
        source->pair = NULL;
        refit_nccl_device_quiet(source->device);
        for (unsigned g = 0; g < REFIT_NCCL_GROUPS; g++)
            refit_nccl_group_settle(&source->groups[g]);
        source->burst = REFIT_NCCL_OFF;
        refit_turn_leave(&source->seat);
    }
}

/* ---- the thread ---- */

/* For a frame, a batch that lands, a turn that was left, or the time to look at a device or to say that we live. */
static enum refit_status wait_for_work(struct refit_nccl_sending *sending, bool working, int64_t due,
                                       struct refit_error *err)
{
    struct pollfd p[] = {{.fd = endpoint_of(sending)->wake, .events = POLLIN},
                         {.fd = sending->stream.fd, .events = POLLIN},
                         {.fd = sending->news, .events = POLLIN},
                         {.fd = sending->turns, .events = POLLIN}};
    int64_t now = refit_clock_ns(), until = sending->said_ns + REFIT_ALIVE_MS * NS_PER_MS;
    until = due < until ? due : until;
    int64_t ns = working ? sending->poll_ns : until > now ? until - now : 0;
    sending->poll_ns = sending->poll_ns < REFIT_NCCL_POLL_MAX_NS ? 2 * sending->poll_ns : sending->poll_ns;
    struct timespec span = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    int n = ppoll(p, 4, &span, NULL);
    if (n < 0 && errno != EINTR)
        return refit_fail_errno(err, errno, "poll");
    if (n > 0 && p[0].revents)
        return refit_fail(err, REFIT_ABORTED, "aborted");
    return REFIT_OK;
}

/* A turn that somebody was denied here has been left. */
static enum refit_status say_free(struct refit_nccl_sending *sending, struct refit_error *err)
{
    eventfd_t ignored;
    if (eventfd_read(sending->turns, &ignored) != 0)
        return REFIT_OK;
    return refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_FREE}, err);
}

static bool owes(const struct refit_nccl_sending *sending)
{
    for (unsigned i = 0; i < sending->source_count; i++)
        if (sending->sources[i].burst != REFIT_NCCL_OFF)
            return true;
    return sending->owed_count > 0 || sending->sharing.source;
}

static enum refit_status turn(struct refit_nccl_sending *sending, struct refit_error *err)
{
    int64_t due = INT64_MAX;
    bool working;
    eventfd_t ignored;
    /* Read before looking, so that what lands after the look wakes the wait. */
    if (sending->news >= 0)
        (void)eventfd_read(sending->news, &ignored);
    enum refit_status status = say_free(sending, err);
    if (status == REFIT_OK)
        status = say_ready(sending, &due, err);
    if (status == REFIT_OK)
        status = step_sources(sending, &working, err);
    if (status == REFIT_OK && owes(sending) &&
        refit_clock_ns() - sending->said_ns >= REFIT_ALIVE_MS * NS_PER_MS)
        status = refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_ALIVE}, err);
    return status == REFIT_OK ? wait_for_work(sending, working, due, err) : status;
}

static bool is_busy(const struct refit_nccl_sending *sending)
{
    for (unsigned i = 0; i < sending->source_count; i++)
        if (sending->sources[i].active > 0)
            return true;
    return false;
}

static enum refit_status serve(struct refit_nccl_sending *sending, struct refit_error *err)
{
    for (;;) {
        enum refit_status status = sending->done ? REFIT_OK : take_frames(sending, err);
        if (status == REFIT_OK && refit_endpoint_stopping(endpoint_of(sending)))
            status = refit_fail(err, REFIT_ABORTED, "aborted");
        if (status == REFIT_OK && sending->done && !is_busy(sending)) {
            bool working;
            status = step_sources(sending, &working, err); /* gives back the turns */
            /* The receiver has all it needs whether or not it hears the answer. */
            (void)refit_stream_post(&sending->stream, &(struct refit_frame){.type = REFIT_FRAME_BYE});
            return status;
        }
        if (status == REFIT_OK)
            status = turn(sending, err);
        if (status != REFIT_OK)
            return status;
    }
}

static enum refit_status subscribe(struct refit_nccl_sending *sending, struct refit_error *err)
{
    struct refit_landed *landed = endpoint_of(sending)->config.landed;
    if (!landed)
        return REFIT_OK;
    sending->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sending->news < 0)
        return refit_fail_errno(err, errno, "a relay's connection: eventfd");
    enum refit_status status = refit_landed_subscribe(landed, sending->news, err);
    if (status != REFIT_OK)
        refit_io_close(&sending->news);
    return status;
}

enum refit_status refit_nccl_sending_run(struct refit_nccl_sending *sending, struct refit_error *err)
{
    refit_bulk_thread_nice(endpoint_of(sending)->config.nice);
    enum refit_status status = subscribe(sending, err);
    if (status == REFIT_OK)
        status = serve(sending, err);
    break_off(sending);
    if (sending->news >= 0) {
        refit_landed_unsubscribe(endpoint_of(sending)->config.landed, sending->news);
        refit_io_close(&sending->news);
    }
    return status;
}

/* ---- before and after ---- */

static void turn_was_left(void *context)
{
    const struct refit_nccl_sending *sending = context;
    eventfd_write(sending->turns, 1);
}

static enum refit_status add_source(struct refit_nccl_sending *sending, const struct refit_arena *arena,
                                    struct refit_error *err)
{
    struct refit_nccl_device *device;
    enum refit_status status = refit_nccl_device_of(arena, &device, err);
    if (status != REFIT_OK)
        return status;
    bool known = false;
    for (unsigned i = 0; i < sending->source_count; i++)
        known |= sending->sources[i].device == device;
    if (known || sending->source_count == REFIT_NCCL_DEVICES_MAX) {
        refit_nccl_device_release(device);
        return known ? REFIT_OK
                     : refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": memory of more than %d devices at one "
                                  "holder", REFIT_NCCL_DEVICES_MAX);
    }
    struct refit_nccl_source *source = &sending->sources[sending->source_count++];
    source->device = device;
    source->seat = (struct refit_turn_seat){.notify = turn_was_left, .context = sending};
    refit_turn_sit(&device->turn, &source->seat);
    for (unsigned i = 0; i < REFIT_NCCL_GROUPS && status == REFIT_OK; i++)
        status = refit_nccl_group_init(&source->groups[i], device, i, endpoint_of(sending)->config.verify, err);
    return status;
}

enum refit_status refit_nccl_sending_open(struct refit_nccl_sending *sending, struct refit_holding *holding,
                                          struct refit_error *err)
{
    const struct refit_endpoint_config *config = &holding->base.config;
    sending->holding = holding;
    sending->stream.fd = sending->news = -1;
    sending->turns = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sending->turns < 0)
        return refit_fail_errno(err, errno, "a holder's connection: eventfd");
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < config->arena_count && status == REFIT_OK; i++)
        if (config->arenas[i])
            status = add_source(sending, config->arenas[i], err);
    if (status == REFIT_OK && sending->source_count == 0)
        status = refit_fail(err, REFIT_INVALID, "nccl holder: no memory to send");
    return status;
}

void refit_nccl_sending_close(struct refit_nccl_sending *sending)
{
    for (unsigned i = 0; i < sending->source_count; i++) {
        struct refit_nccl_source *source = &sending->sources[i];
        refit_turn_rise(&source->seat);
        for (unsigned g = 0; g < REFIT_NCCL_GROUPS; g++)
            refit_nccl_group_release(&source->groups[g]);
        refit_nccl_device_release(source->device);
    }
    sending->source_count = 0;
    refit_nccl_sharing_release(sending);
    refit_io_close(&sending->turns);
}

enum refit_status refit_nccl_sending_introduce(struct refit_nccl_sending *sending, struct refit_stream *stream,
                                               struct refit_deadline deadline, struct refit_error *err)
{
    int wake = endpoint_of(sending)->wake;
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_HELLO_MAX];
    struct refit_nccl_hello hello = {.version = (uint32_t)sending->sources[0].device->nccl->version,
                                     .device_count = sending->source_count,
                                     .process = refit_nccl_process(),
                                     .reshards = sending->sharing.offers,
                                     .rank = sending->holding->view.rank};
    for (unsigned i = 0; i < sending->source_count; i++)
        hello.devices[i] = sending->sources[i].device->uuid;
    struct iovec iov = {.iov_base = bytes, .iov_len = refit_nccl_hello_encode(&hello, bytes)};
    enum refit_status status = refit_stream_send_by(stream, &iov, 1, 0, wake, deadline, err);
    /* Refused meanwhile: the reason is there to be read. */
    if (status == REFIT_OK || status == REFIT_PEER)
        status = refit_greeting_await(stream, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    sending->stream = *stream;
    sending->owed_count = 0;
    sending->done = false;
    sending->have = 0;
    sending->poll_ns = REFIT_NCCL_POLL_NS;
    sending->said_ns = sending->heard_ns = refit_clock_ns();
    return REFIT_OK;
}
