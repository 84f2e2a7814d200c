/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_landing.h"

#include "transport/window.h"

#define PIECE_BYTES (512u << 10)

void refit_landing_init(struct refit_landing *landing, bool verify)
{
    *landing = (struct refit_landing){.staging = NULL};
    refit_places_init(&landing->places);
    refit_segments_init(&landing->segments, verify);
    refit_segments_init(&landing->piece, verify);
}

void refit_landing_release(struct refit_landing *landing)
{
    refit_places_release(&landing->places);
    refit_segments_release(&landing->segments);
    refit_segments_release(&landing->piece);
}

enum refit_status refit_landing_begin(struct refit_landing *landing, const struct refit_endpoint_config *receiver,
                                      const struct refit_edge *edge, uint32_t batch, uint8_t *staging,
                                      struct refit_error *err)
{
    enum refit_status status = refit_places_of(&landing->places, receiver, edge, batch, err);
    if (status != REFIT_OK)
        return status;
    const struct refit_place *first = &landing->places.items[0];
    landing->left = first->walk.left;
    /* Verified bytes are cheaper through staging: the kernel writes to lines that are in cache, and one pass digests
     * them and stores them past the caches. Straight into the arena they would be written, read again and evicted. */
    landing->direct = !landing->segments.digesting && refit_arena_kind(first->arena) == REFIT_ARENA_HOST &&
                      refit_window_run_bytes(first->walk) >= REFIT_DIRECT_RUN;
    landing->staging = staging;
    landing->iov_first = landing->iov_count = 0;
    landing->segments.count = 0;
    refit_iov_begin(&landing->handed, first->walk);
    return REFIT_OK;
}

static enum refit_status receive_direct(struct refit_landing *landing, struct refit_stream *stream, size_t *got,
                                        bool *drained, struct refit_error *err)
{
    enum refit_status status;
    if (landing->iov_first == landing->iov_count) {
        landing->iov_first = 0;
        status = refit_iov_next(&landing->handed, landing->places.items[0].arena, landing->iov, REFIT_LANDING_IOVS,
                                PIECE_BYTES, &landing->iov_count, err);
        if (status != REFIT_OK)
            return status;
        landing->iov_bytes = 0;
        for (int i = 0; i < landing->iov_count; i++)
            landing->iov_bytes += landing->iov[i].iov_len;
    }
    status = refit_stream_receive(stream, landing->iov + landing->iov_first, landing->iov_count - landing->iov_first,
                                  got, err);
    if (status != REFIT_OK)
        return status;
    *drained = *got < landing->iov_bytes;
    landing->iov_bytes -= *got;
    landing->iov_first = refit_iov_drop(landing->iov, landing->iov_first, landing->iov_count, *got);
    landing->left -= *got;
    return landing->left == 0 ? refit_places_spread(&landing->places, err) : REFIT_OK;
}

/* The staging is the thread's, and empty between two calls: whatever came is scattered at once. */
static enum refit_status receive_staged(struct refit_landing *landing, struct refit_stream *stream,
                                        struct refit_endpoint_counters *counters, size_t *got, bool *drained,
                                        struct refit_error *err)
{
    size_t want = landing->left < REFIT_LANDING_STAGING ? (size_t)landing->left : REFIT_LANDING_STAGING;
    struct iovec iov = {.iov_base = landing->staging, .iov_len = want};
    enum refit_status status = refit_stream_receive(stream, &iov, 1, got, err);
    if (status != REFIT_OK)
        return status;
    *drained = *got < want;
    landing->left -= *got;
    int64_t start = refit_clock_ns();
    status = refit_places_scatter(&landing->places, landing->staging, *got, &landing->piece, err);
    if (status == REFIT_OK && !refit_segments_join(&landing->segments, &landing->piece))
        status = refit_fail_alloc(err, "segments of a batch", landing->piece.count);
    refit_count(&counters->pack_ns, (uint64_t)(refit_clock_ns() - start));
    refit_count(&counters->copied_bytes, *got);
    return status;
}

enum refit_status refit_landing_receive(struct refit_landing *landing, struct refit_stream *stream,
                                        struct refit_endpoint_counters *counters, size_t *got, bool *drained,
                                        struct refit_error *err)
{
    *got = 0;
    *drained = false;
    return landing->direct ? receive_direct(landing, stream, got, drained, err)
                           : receive_staged(landing, stream, counters, got, drained, err);
}
