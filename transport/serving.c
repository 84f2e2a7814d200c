/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "base/io.h"
#include "transport/holding.h"

#define NS_PER_MS 1000000

static enum refit_status send_alive(struct refit_serving *serving, struct refit_error *err)
{
    struct refit_frame frame = {.type = REFIT_FRAME_ALIVE};
    struct iovec iov = {.iov_base = &frame, .iov_len = sizeof frame};
    return refit_stream_send(serving->stream, &iov, 1, 0, serving->holding->base.wake, err);
}

enum refit_status refit_serving_pace(struct refit_serving *serving, uint64_t bytes, struct refit_error *err)
{
    int64_t due = refit_clock_ns();
    due += refit_rate_take(&serving->holding->rate, bytes, due);
    for (int64_t left; (left = due - refit_clock_ns()) > 0;) {
        struct pollfd p[] = {{.fd = serving->holding->base.wake, .events = POLLIN},
                             {.fd = serving->stream->fd, .events = 0}};
        int64_t ms = (left + NS_PER_MS - 1) / NS_PER_MS;
        int n = poll(p, 2, ms < REFIT_ALIVE_MS ? (int)ms : REFIT_ALIVE_MS);
        if (n > 0 && p[0].revents)
            return refit_fail(err, REFIT_ABORTED, "aborted while waiting for the rate limit");
        if (n > 0)
            return refit_fail(err, REFIT_PEER, "the connection ended while waiting for the rate limit");
        enum refit_status status = ms > REFIT_ALIVE_MS ? send_alive(serving, err) : REFIT_OK;
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

/* ---- grants in ---- */

static enum refit_status take_grant(struct refit_serving *serving, struct refit_error *err)
{
    const struct refit_frame *frame = &serving->frame;
    const struct refit_edge *edge = refit_plan_edge(serving->holding->view.plan, frame->edge);
    if (!edge || frame->batch >= edge->batches)
        return refit_fail(err, REFIT_PEER, "the receiver asked for batch %u of edge %016llx, which is not in the plan",
                          frame->batch, (unsigned long long)frame->edge);
    if (serving->owed_count == REFIT_OWED_MAX)
        return refit_fail(err, REFIT_PEER, "the receiver granted more than %d batches at once", REFIT_OWED_MAX);
    serving->owed[serving->owed_count++] = (struct refit_owed){.grant = *frame, .edge = edge};
    return REFIT_OK;
}

static enum refit_status take_frame(struct refit_serving *serving, struct refit_error *err)
{
    if (serving->frame.length == 0 && serving->frame.type == REFIT_FRAME_GRANT)
        return take_grant(serving, err);
    if (serving->frame.length != 0 || serving->frame.type != REFIT_FRAME_DONE)
        return refit_fail(err, REFIT_PEER, "the receiver sent a frame of unknown type %08x", serving->frame.type);
    serving->done = true;
    return REFIT_OK;
}

/* All frames that are there. */
static enum refit_status take_frames(struct refit_serving *serving, struct refit_error *err)
{
    while (!serving->done) {
        struct iovec iov = {.iov_base = (uint8_t *)&serving->frame + serving->have,
                            .iov_len = sizeof serving->frame - serving->have};
        size_t got;
        enum refit_status status = refit_stream_receive(serving->stream, &iov, 1, &got, err);
        serving->have += got;
        if (status == REFIT_OK && serving->have == sizeof serving->frame) {
            serving->have = 0;
            status = take_frame(serving, err);
        }
        if (status != REFIT_OK)
            return status == REFIT_BUSY ? REFIT_OK : status;
    }
    return REFIT_OK;
}

/* ---- batches out ---- */

/* The first one that has landed here; owed_count: all wait. */
static unsigned find_ready(const struct refit_serving *serving)
{
    const struct refit_landed *landed = serving->holding->base.config.landed;
    unsigned i = 0;
    while (i < serving->owed_count && landed &&
           !refit_landed_has(landed, serving->owed[i].edge, serving->owed[i].grant.batch))
        i++;
    return i;
}

/* False: none has landed, or it is not our turn. */
static bool take_ready(struct refit_serving *serving, struct refit_owed *out)
{
    unsigned i = find_ready(serving);
    if (i == serving->owed_count) {
        refit_fair_rest(&serving->place, refit_clock_ns());
        return false;
    }
    if (!refit_fair_may_send(&serving->place, refit_clock_ns()))
        return false;
    *out = serving->owed[i];
    serving->owed_count--;
    for (; i < serving->owed_count; i++)
        serving->owed[i] = serving->owed[i + 1];
    return true;
}

static enum refit_status serve_one(struct refit_serving *serving, const struct refit_owed *owed,
                                   struct refit_error *err)
{
    struct refit_holding *holding = serving->holding;
    const struct refit_endpoint_config *config = &holding->base.config;
    enum refit_status status = serving->send(serving, owed, err);
    if (status != REFIT_OK)
        return status;
    refit_count(&holding->base.counters.payload_bytes,
                refit_batch_bytes(holding->view.plan, owed->edge, owed->grant.batch));
    if (config->tally && config->verify && refit_batch_set_add(holding->sent, owed->edge, owed->grant.batch))
        refit_segments_tally(serving->segments, config->tally);
    return REFIT_OK;
}

/* For a frame, or for a batch to land while some are owed; then with signs of life. */
static enum refit_status wait_for_work(struct refit_serving *serving, struct refit_error *err)
{
    struct pollfd p[] = {{.fd = serving->holding->base.wake, .events = POLLIN},
                         {.fd = serving->stream->fd, .events = POLLIN},
                         {.fd = serving->owed_count > 0 ? serving->news : -1, .events = POLLIN}};
    int n = poll(p, 3, serving->owed_count > 0 ? REFIT_ALIVE_MS : -1);
    if (n < 0 && errno != EINTR)
        return refit_fail_errno(err, errno, "poll");
    if (n > 0 && p[0].revents)
        return refit_fail(err, REFIT_ABORTED, "aborted");
    if (n == 0)
        return send_alive(serving, err);
    return REFIT_OK;
}

static enum refit_status serve(struct refit_serving *serving, struct refit_error *err)
{
    for (;;) {
        struct refit_owed owed;
        eventfd_t ignored;
        enum refit_status status = take_frames(serving, err);
        if (status != REFIT_OK)
            return status;
        if (serving->done) {
            /* The receiver has all it needs whether or not it hears the answer. */
            (void)refit_stream_post(serving->stream, &(struct refit_frame){.type = REFIT_FRAME_BYE});
            return REFIT_OK;
        }
        if (refit_endpoint_stopping(&serving->holding->base))
            return refit_fail(err, REFIT_ABORTED, "aborted");
        /* Read before looking, so that what lands after the look wakes the wait. */
        if (serving->news >= 0)
            (void)eventfd_read(serving->news, &ignored);
        status = take_ready(serving, &owed) ? serve_one(serving, &owed, err) : wait_for_work(serving, err);
        if (status != REFIT_OK)
            return status;
    }
}

static enum refit_status subscribe(struct refit_serving *serving, struct refit_error *err)
{
    const struct refit_endpoint_config *config = &serving->holding->base.config;
    serving->news = -1;
    if (!config->landed && !config->fair)
        return REFIT_OK;
    serving->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (serving->news < 0)
        return refit_fail_errno(err, errno, "a holder's connection: eventfd");
    enum refit_status status = config->landed ? refit_landed_subscribe(config->landed, serving->news, err) : REFIT_OK;
    if (status != REFIT_OK)
        refit_io_close(&serving->news);
    return status;
}

static void unsubscribe(struct refit_serving *serving)
{
    struct refit_landed *landed = serving->holding->base.config.landed;
    if (serving->news >= 0 && landed)
        refit_landed_unsubscribe(landed, serving->news);
    refit_io_close(&serving->news);
}

enum refit_status refit_serving_run(struct refit_serving *serving, struct refit_error *err)
{
    refit_bulk_thread_nice(serving->holding->base.config.nice);
    enum refit_status status = subscribe(serving, err);
    refit_fair_open(&serving->place, &serving->holding->member, serving->news);
    if (status == REFIT_OK)
        status = serve(serving, err);
    refit_fair_close(&serving->place);
    unsubscribe(serving);
    return status;
}
