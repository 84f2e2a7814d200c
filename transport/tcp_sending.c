/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_sending.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PIECE_BYTES (512u << 10) /* digested, then copied by the kernel from the second-level cache */
#define PIECE_BYTES_MIN 4096u

static enum refit_status send_batch(struct refit_serving *serving, const struct refit_owed *owed,
                                    struct refit_error *err);

/* Under a rate limit the bytes are the signs of life, so pieces are what half of REFIT_ALIVE_MS allows. */
static uint32_t piece_bytes(uint64_t rate)
{
    uint64_t allowed;
    if (rate == 0 || __builtin_mul_overflow(rate, REFIT_ALIVE_MS / 2, &allowed))
        return PIECE_BYTES;
    allowed /= 1000;
    return allowed < PIECE_BYTES_MIN ? PIECE_BYTES_MIN : allowed > PIECE_BYTES ? PIECE_BYTES : (uint32_t)allowed;
}

void refit_sending_init(struct refit_sending *sending, struct refit_holding *holding, struct refit_stream *stream)
{
    const struct refit_endpoint_config *config = &holding->base.config;
    *sending = (struct refit_sending){.piece_bytes = piece_bytes(config->rate_bytes_per_s)};
    sending->serving = (struct refit_serving){
        .holding = holding, .stream = stream, .send = send_batch, .segments = &sending->segments};
    refit_segments_init(&sending->segments, config->verify);
    refit_segments_init(&sending->piece, config->verify);
}

void refit_sending_release(struct refit_sending *sending)
{
    refit_host_buffer_destroy(sending->staging);
    free(sending->trailer);
    refit_segments_release(&sending->segments);
    refit_segments_release(&sending->piece);
}

/* iov[0] is kept free for the frame, which travels with the first piece. */
static enum refit_status send_iovs(struct refit_sending *sending, struct refit_frame *frame, int count, uint64_t bytes,
                                   int flags, struct refit_error *err)
{
    struct refit_stream *stream = sending->serving.stream;
    struct refit_holding *holding = sending->serving.holding;
    struct refit_endpoint *endpoint = &holding->base;
    size_t framing = frame ? sizeof *frame : 0;
    sending->iov[0] = (struct iovec){.iov_base = frame, .iov_len = framing};
    enum refit_status status = frame ? refit_serving_pace(&sending->serving, bytes, err)
                                     : refit_rate_wait(&holding->rate, bytes, endpoint->wake, stream->fd, err);
    if (status == REFIT_OK)
        status = refit_stream_send(stream, sending->iov, count + 1, flags, endpoint->wake, err);
    if (status != REFIT_OK)
        return status;
    refit_count(&endpoint->counters.wire_bytes, bytes + framing);
    refit_fair_sent(&sending->serving.place, bytes, refit_clock_ns());
    return REFIT_OK;
}

static uint64_t iov_bytes(const struct iovec *iov, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

static enum refit_status send_direct(struct refit_sending *sending, const struct refit_arena *arena,
                                     struct refit_walk walk, struct refit_frame *frame, struct refit_error *err)
{
    struct refit_endpoint *endpoint = &sending->serving.holding->base;
    struct refit_iov_cursor handed, digested;
    refit_iov_begin(&handed, walk);
    refit_iov_begin(&digested, walk);
    for (;;) {
        int count;
        enum refit_status status =
            refit_iov_next(&handed, arena, sending->iov + 1, REFIT_SENDING_IOVS, sending->piece_bytes, &count, err);
        if (status != REFIT_OK || count == 0)
            return status;
        uint64_t bytes = iov_bytes(sending->iov + 1, count);
        if (sending->segments.digesting) {
            int64_t start = refit_clock_ns();
            status = refit_segments_advance(&sending->segments, &digested, arena, bytes, err);
            refit_count(&endpoint->counters.verify_ns, (uint64_t)(refit_clock_ns() - start));
        }
        if (status == REFIT_OK)
            status = send_iovs(sending, frame, count, bytes, MSG_MORE, err);
        if (status != REFIT_OK)
            return status;
        frame = NULL;
    }
}

static enum refit_status pack_piece(struct refit_sending *sending, const struct refit_arena *arena,
                                    struct refit_walk window, struct refit_error *err)
{
    struct refit_endpoint *endpoint = &sending->serving.holding->base;
    struct refit_completion completion;
    int64_t start = refit_clock_ns();
    enum refit_status status = refit_memory_pack(
        arena, window, refit_host_buffer_bytes(sending->staging), &sending->piece, &completion, err);
    status = refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    if (status == REFIT_OK && !refit_segments_join(&sending->segments, &sending->piece))
        status = refit_fail_alloc(err, "segments of a batch", sending->piece.count);
    refit_count(&endpoint->counters.pack_ns, (uint64_t)(refit_clock_ns() - start));
    refit_count(&endpoint->counters.copied_bytes, window.left);
    return status;
}

static enum refit_status send_packed(struct refit_sending *sending, const struct refit_arena *arena,
                                     struct refit_walk walk, struct refit_frame *frame, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (!sending->staging)
        status = refit_host_buffer_create(refit_arena_device(arena), PIECE_BYTES, &sending->staging, err);
    if (status != REFIT_OK)
        return status;
    while (walk.left > 0) {
        struct refit_walk window = refit_window_cut(&walk, sending->piece_bytes);
        status = pack_piece(sending, arena, window, err);
        if (status != REFIT_OK)
            return status;
        sending->iov[1] = (struct iovec){.iov_base = refit_host_buffer_bytes(sending->staging), .iov_len = window.left};
        status = send_iovs(sending, frame, 1, window.left, MSG_MORE, err);
        if (status != REFIT_OK)
            return status;
        frame = NULL;
    }
    return REFIT_OK;
}

static enum refit_status send_trailer(struct refit_sending *sending, struct refit_error *err)
{
    uint32_t count = sending->segments.digesting ? (uint32_t)sending->segments.count : 0;
    size_t bytes = sizeof count + (size_t)count * REFIT_DIGEST_BYTES;
    if (bytes > sending->trailer_capacity) {
        uint8_t *trailer = realloc(sending->trailer, bytes);
        if (!trailer)
            return refit_fail_alloc(err, "digests of a batch", bytes);
        sending->trailer = trailer;
        sending->trailer_capacity = bytes;
    }
    memcpy(sending->trailer, &count, sizeof count);
    refit_digests_encode(&sending->segments, 0, count, sending->trailer + sizeof count);
    sending->iov[1] = (struct iovec){.iov_base = sending->trailer, .iov_len = bytes};
    return send_iovs(sending, NULL, 1, bytes, 0, err);
}

static enum refit_status send_batch(struct refit_serving *serving, const struct refit_owed *owed,
                                    struct refit_error *err)
{
    struct refit_sending *sending = (struct refit_sending *)serving;
    const struct refit_arena *arena;
    struct refit_walk walk;
    if (!refit_view_window(&serving->holding->view, owed->edge, owed->grant.batch, &arena, &walk))
        return refit_fail(err, REFIT_INVALID, "no arena here has edge %016llx, which was offered",
                          (unsigned long long)owed->edge->digest);
    struct refit_frame frame = {.type = REFIT_FRAME_DATA,
                                .length = (uint32_t)walk.left,
                                .edge = owed->edge->digest,
                                .batch = owed->grant.batch};
    bool direct = refit_arena_kind(arena) == REFIT_ARENA_HOST && refit_window_run_bytes(walk) >= REFIT_DIRECT_RUN;
    sending->segments.count = 0;
    enum refit_status status =
        direct ? send_direct(sending, arena, walk, &frame, err) : send_packed(sending, arena, walk, &frame, err);
    return status == REFIT_OK ? send_trailer(sending, err) : status;
}
