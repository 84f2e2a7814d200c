/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_landing.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "transport/wire.h"

#define PIECE_BYTES (512u << 10) /* digested while it is in the second-level cache */
#define STAGING_BYTES (64u << 10)

void refit_landing_init(struct refit_landing *landing, bool verify)
{
    *landing = (struct refit_landing){.staging = NULL};
    refit_segments_init(&landing->segments, verify);
    refit_segments_init(&landing->piece, verify);
}

void refit_landing_release(struct refit_landing *landing)
{
    free(landing->staging);
    refit_segments_release(&landing->segments);
    refit_segments_release(&landing->piece);
}

enum refit_status refit_landing_begin(struct refit_landing *landing, struct refit_walk walk, struct refit_arena *arena,
                                      struct refit_error *err)
{
    landing->arena = arena;
    landing->left = walk.left;
    landing->direct = refit_arena_kind(arena) == REFIT_ARENA_HOST && refit_window_run_bytes(walk) >= REFIT_DIRECT_RUN;
    landing->iov_first = landing->iov_count = 0;
    landing->staged = landing->piece_bytes = 0;
    landing->rest = walk;
    landing->segments.count = 0;
    refit_iov_begin(&landing->handed, walk);
    refit_iov_begin(&landing->digested, walk);
    if (!landing->direct && !landing->staging && !(landing->staging = malloc(STAGING_BYTES)))
        return refit_fail_alloc(err, "staging of a connection", STAGING_BYTES);
    return REFIT_OK;
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

static enum refit_status receive_direct(struct refit_landing *landing, int fd, struct refit_endpoint_counters *counters,
                                        size_t *got, bool *drained, struct refit_error *err)
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
    if (!landing->segments.digesting)
        return REFIT_OK;
    int64_t start = refit_clock_ns();
    status = refit_segments_advance(&landing->segments, &landing->digested, landing->arena, *got, err);
    refit_count(&counters->verify_ns, (uint64_t)(refit_clock_ns() - start));
    return status;
}

static enum refit_status scatter_piece(struct refit_landing *landing, struct refit_endpoint_counters *counters,
                                       struct refit_error *err)
{
    struct refit_walk window = refit_window_cut(&landing->rest, landing->staged);
    struct refit_completion completion;
    int64_t start = refit_clock_ns();
    enum refit_status status =
        refit_memory_scatter(landing->arena, window, landing->staging, &landing->piece, &completion, err);
    if (status == REFIT_OK)
        status = refit_completion_wait(&completion, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    if (status == REFIT_OK && !refit_segments_join(&landing->segments, &landing->piece))
        status = refit_fail_alloc(err, "segments of a batch", landing->piece.count);
    refit_count(&counters->pack_ns, (uint64_t)(refit_clock_ns() - start));
    refit_count(&counters->copied_bytes, landing->staged);
    landing->staged = 0;
    return status;
}

static enum refit_status receive_staged(struct refit_landing *landing, int fd, struct refit_endpoint_counters *counters,
                                        size_t *got, bool *drained, struct refit_error *err)
{
    if (landing->staged == 0)
        landing->piece_bytes = landing->left < STAGING_BYTES ? (size_t)landing->left : STAGING_BYTES;
    ssize_t n = recv(fd, landing->staging + landing->staged, landing->piece_bytes - landing->staged, MSG_DONTWAIT);
    enum refit_status status = received(n, err);
    if (status != REFIT_OK)
        return status;
    *got = (size_t)n;
    *drained = *got < landing->piece_bytes - landing->staged;
    landing->staged += *got;
    landing->left -= *got;
    return landing->staged == landing->piece_bytes ? scatter_piece(landing, counters, err) : REFIT_OK;
}

enum refit_status refit_landing_receive(struct refit_landing *landing, int fd, struct refit_endpoint_counters *counters,
                                        size_t *got, bool *drained, struct refit_error *err)
{
    *got = 0;
    *drained = false;
    return landing->direct ? receive_direct(landing, fd, counters, got, drained, err)
                           : receive_staged(landing, fd, counters, got, drained, err);
}
