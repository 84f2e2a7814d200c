/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_sending.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/frame.h"
#include "transport/wire.h"

#define PIECE_BYTES (512u << 10) /* digested, then copied by the kernel from the second-level cache */

void refit_sending_init(struct refit_sending *sending, struct refit_endpoint *endpoint, struct refit_rate *rate, int fd)
{
    *sending = (struct refit_sending){.endpoint = endpoint, .rate = rate, .fd = fd};
    refit_segments_init(&sending->segments, endpoint->config.verify);
    refit_segments_init(&sending->piece, endpoint->config.verify);
}

void refit_sending_release(struct refit_sending *sending)
{
    free(sending->staging);
    free(sending->trailer);
    refit_segments_release(&sending->segments);
    refit_segments_release(&sending->piece);
}

/* iov[0] is kept free for the frame, which travels with the first piece. */
static enum refit_status send_iovs(struct refit_sending *sending, struct refit_frame *frame, int count, uint64_t bytes,
                                   int flags, struct refit_error *err)
{
    struct refit_endpoint *endpoint = sending->endpoint;
    size_t framing = frame ? sizeof *frame : 0;
    sending->iov[0] = (struct iovec){.iov_base = frame, .iov_len = framing};
    enum refit_status status = refit_rate_wait(sending->rate, bytes, endpoint->wake, err);
    if (status == REFIT_OK)
        status = refit_wire_send(sending->fd, sending->iov, count + 1, flags, endpoint->wake, REFIT_FOREVER, err);
    if (status == REFIT_OK)
        refit_count(&endpoint->counters.wire_bytes, bytes + framing);
    return status;
}

static uint64_t iov_bytes(const struct iovec *iov, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

static enum refit_status send_direct(struct refit_sending *sending, struct refit_walk walk, struct refit_frame *frame,
                                     struct refit_error *err)
{
    struct refit_endpoint *endpoint = sending->endpoint;
    const struct refit_arena *arena = endpoint->config.arenas[0];
    struct refit_iov_cursor handed, digested;
    refit_iov_begin(&handed, walk);
    refit_iov_begin(&digested, walk);
    for (;;) {
        int count;
        enum refit_status status =
            refit_iov_next(&handed, arena, sending->iov + 1, REFIT_SENDING_IOVS, PIECE_BYTES, &count, err);
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

static enum refit_status pack_piece(struct refit_sending *sending, struct refit_walk window, struct refit_error *err)
{
    struct refit_endpoint *endpoint = sending->endpoint;
    struct refit_completion completion;
    int64_t start = refit_clock_ns();
    enum refit_status status = refit_memory_pack(endpoint->config.arenas[0], window, sending->staging, &sending->piece,
                                                 &completion, err);
    if (status == REFIT_OK)
        status = refit_completion_wait(&completion, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    if (status == REFIT_OK && !refit_segments_join(&sending->segments, &sending->piece))
        status = refit_fail_alloc(err, "segments of a batch", sending->piece.count);
    refit_count(&endpoint->counters.pack_ns, (uint64_t)(refit_clock_ns() - start));
    refit_count(&endpoint->counters.copied_bytes, window.left);
    return status;
}

static enum refit_status send_packed(struct refit_sending *sending, struct refit_walk walk, struct refit_frame *frame,
                                     struct refit_error *err)
{
    if (!sending->staging && !(sending->staging = malloc(PIECE_BYTES)))
        return refit_fail_alloc(err, "staging of a connection", PIECE_BYTES);
    while (walk.left > 0) {
        struct refit_walk window = refit_window_cut(&walk, PIECE_BYTES);
        enum refit_status status = pack_piece(sending, window, err);
        if (status != REFIT_OK)
            return status;
        sending->iov[1] = (struct iovec){.iov_base = sending->staging, .iov_len = window.left};
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

enum refit_status refit_sending_batch(struct refit_sending *sending, const struct refit_edge *edge, uint32_t batch,
                                      struct refit_error *err)
{
    struct refit_endpoint *endpoint = sending->endpoint;
    const struct refit_endpoint_config *config = &endpoint->config;
    struct refit_walk walk = refit_walk_batch(config->plan, edge, batch);
    struct refit_frame frame = {.type = REFIT_FRAME_DATA,
                                .destination_rank = edge->destination_rank,
                                .batch = batch,
                                .length = (uint32_t)walk.left};
    bool direct = refit_arena_kind(config->arenas[0]) == REFIT_ARENA_HOST &&
                  refit_window_run_bytes(walk) >= REFIT_DIRECT_RUN;
    sending->segments.count = 0;
    enum refit_status status =
        direct ? send_direct(sending, walk, &frame, err) : send_packed(sending, walk, &frame, err);
    if (status == REFIT_OK)
        status = send_trailer(sending, err);
    if (status == REFIT_OK)
        refit_count(&endpoint->counters.payload_bytes, frame.length);
    return status;
}
