/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_landing.h"

#include <errno.h>
#include <sys/socket.h>

#include "transport/wire.h"

#define PIECE_BYTES (512u << 10)

void refit_landing_init(struct refit_landing *landing, bool verify)
{
    *landing = (struct refit_landing){.staging = NULL};
    refit_segments_init(&landing->segments, verify);
    refit_segments_init(&landing->piece, verify);
}

void refit_landing_release(struct refit_landing *landing)
{
    refit_segments_release(&landing->segments);
    refit_segments_release(&landing->piece);
}

void refit_landing_begin(struct refit_landing *landing, struct refit_walk walk, struct refit_arena *arena,
                         uint8_t *staging)
{
    landing->arena = arena;
    landing->left = walk.left;
    /* Verified bytes are cheaper through staging: the kernel writes to lines that are in cache, and one pass digests
     * them and stores them past the caches. Straight into the arena they would be written, read again and evicted. */
    landing->direct = !landing->segments.digesting && refit_arena_kind(arena) == REFIT_ARENA_HOST &&
                      refit_window_run_bytes(walk) >= REFIT_DIRECT_RUN;
    landing->staging = staging;
    landing->iov_first = landing->iov_count = 0;
    landing->rest = walk;
    landing->segments.count = 0;
    refit_iov_begin(&landing->handed, walk);
}

static enum refit_status received(ssize_t n, struct refit_error *err)
{
    if (n > 0)
        return REFIT_OK;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return REFIT_BUSY;
    if (n == 0 || refit_wire_is_hangup(errno))
        return refit_fail(err, REFIT_PEER, "the holder closed the connection in the middle of a batch");
    return refit_fail_errno(err, errno, "receive");
}

static enum refit_status receive_direct(struct refit_landing *landing, int fd, size_t *got, bool *drained,
                                        struct refit_error *err)
{
    enum refit_status status;
    if (landing->iov_first == landing->iov_count) {
        landing->iov_first = 0;
        status = refit_iov_next(&landing->handed, landing->arena, landing->iov, REFIT_LANDING_IOVS, PIECE_BYTES,
                                &landing->iov_count, err);
        if (status != REFIT_OK)
            return status;
        landing->iov_bytes = 0;
        for (int i = 0; i < landing->iov_count; i++)
            landing->iov_bytes += landing->iov[i].iov_len;
    }
    struct msghdr message = {.msg_iov = landing->iov + landing->iov_first,
                             .msg_iovlen = (size_t)(landing->iov_count - landing->iov_first)};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
    status = received(n, err);
    if (status != REFIT_OK)
        return status;
    *got = (size_t)n;
    *drained = *got < landing->iov_bytes;
    landing->iov_bytes -= *got;
    landing->iov_first = refit_iov_drop(landing->iov, landing->iov_first, landing->iov_count, *got);
    landing->left -= *got;
    return REFIT_OK;
}

/* The staging is the thread's, and empty between two calls: whatever came is scattered at once. */
static enum refit_status receive_staged(struct refit_landing *landing, int fd, struct refit_endpoint_counters *counters,
                                        size_t *got, bool *drained, struct refit_error *err)
{
    size_t want = landing->left < REFIT_LANDING_STAGING ? (size_t)landing->left : REFIT_LANDING_STAGING;
    ssize_t n = recv(fd, landing->staging, want, MSG_DONTWAIT);
    enum refit_status status = received(n, err);
    if (status != REFIT_OK)
        return status;
    *got = (size_t)n;
    *drained = *got < want;
    landing->left -= *got;
    struct refit_walk window = refit_window_cut(&landing->rest, *got);
    struct refit_completion completion;
    int64_t start = refit_clock_ns();
    status = refit_memory_scatter(landing->arena, window, landing->staging, &landing->piece, &completion, err);
    if (status == REFIT_OK)
        status = refit_completion_wait(&completion, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    if (status == REFIT_OK && !refit_segments_join(&landing->segments, &landing->piece))
        status = refit_fail_alloc(err, "segments of a batch", landing->piece.count);
    refit_count(&counters->pack_ns, (uint64_t)(refit_clock_ns() - start));
    refit_count(&counters->copied_bytes, *got);
    return status;
}

enum refit_status refit_landing_receive(struct refit_landing *landing, int fd, struct refit_endpoint_counters *counters,
                                        size_t *got, bool *drained, struct refit_error *err)
{
    *got = 0;
    *drained = false;
    return landing->direct ? receive_direct(landing, fd, got, drained, err)
                           : receive_staged(landing, fd, counters, got, drained, err);
}
