/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/uio.h>

#include "memory/ops.h"
#include "memory/rows.h"

void refit_iov_begin(struct refit_iov_cursor *cursor, struct refit_walk walk)
{
    *cursor = (struct refit_iov_cursor){.walk = walk};
}

/* What is handed out so far; runs that happen to touch are joined. */
struct iov_fill {
    struct iovec *iov;
    int max;
    int count;
    uint64_t left; /* bytes that may still be handed out */
};

/* False when the iovecs are used up. */
static bool append(struct iov_fill *fill, uint8_t *data, uint64_t len)
{
    struct iovec *last = fill->count > 0 ? &fill->iov[fill->count - 1] : NULL;
    if (last && (uint8_t *)last->iov_base + last->iov_len == data) {
        last->iov_len += len;
    } else {
        if (fill->count == fill->max)
            return false;
        fill->iov[fill->count++] = (struct iovec){.iov_base = data, .iov_len = len};
    }
    fill->left -= len;
    return true;
}

/* As many bytes of `rows` as there is room for. */
static uint64_t append_rows(struct iov_fill *fill, const struct refit_rows *rows)
{
    uint8_t *at = rows->piece->host + rows->offset;
    uint64_t done = 0;
    for (uint64_t i = 0; i < rows->count && append(fill, at, rows->run_bytes); i++) {
        at += rows->stride;
        done += rows->run_bytes;
    }
    return done;
}

enum refit_status refit_iov_next(struct refit_iov_cursor *cursor, const struct refit_arena *arena, struct iovec *iov,
                                 int max, uint64_t max_bytes, int *count, struct refit_error *err)
{
    struct iov_fill fill = {.iov = iov, .max = max, .left = max_bytes};
    *count = 0;
    if (arena->kind != REFIT_ARENA_HOST)
        return refit_fail(err, REFIT_UNSUPPORTED, "arena: %s memory has no address; use pack and scatter",
                          arena->ops->name);
    while (fill.left > 0) {
        struct refit_rows rows;
        enum refit_status status = refit_rows_peek(cursor, arena, &rows, err);
        if (status != REFIT_OK)
            return status;
        if (rows.count == 0)
            break;
        refit_rows_limit(&rows, fill.left);
        uint64_t done = append_rows(&fill, &rows);
        if (done == 0)
            break;
        refit_rows_take(cursor, done);
    }
    *count = fill.count;
    return REFIT_OK;
}

enum refit_status refit_segments_advance(struct refit_segments *segments, struct refit_iov_cursor *cursor,
                                         const struct refit_arena *arena, uint64_t bytes, struct refit_error *err)
{
    if (cursor->strip.count == 0)
        segments->count = 0;
    while (bytes > 0) {
        struct refit_rows rows;
        enum refit_status status = refit_rows_peek(cursor, arena, &rows, err);
        if (status != REFIT_OK)
            return status;
        if (rows.count == 0)
            return refit_fail(err, REFIT_INVALID, "digest: %llu bytes past the end of the window",
                              (unsigned long long)bytes);
        struct refit_segment *segment = refit_segments_enter(segments, cursor->strip.tensor, cursor->strip.counted);
        if (!segment)
            return refit_fail_alloc(err, "digest segments", (segments->count + 1) * sizeof *segment);
        refit_rows_limit(&rows, bytes);
        status = segments->digesting ? arena->ops->sum(arena, &rows, &segment->digest, err) : REFIT_OK;
        if (status != REFIT_OK)
            return status;
        refit_rows_take(cursor, refit_rows_bytes(&rows));
        bytes -= refit_rows_bytes(&rows);
    }
    return REFIT_OK;
}
