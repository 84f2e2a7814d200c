/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/uio.h>

#include "memory/ops.h"
#include "memory/rows.h"

void refit_iov_begin(struct refit_iov_cursor *cursor, struct refit_walk walk)
{
    *cursor = (struct refit_iov_cursor){.walk = walk};
}

/* What is handed out so far, as iovecs or as runs of a device; runs that happen to touch are joined. */
struct iov_fill {
    struct iovec *iov;
    struct refit_device_run *runs;
    int max;
    int count;
    uint64_t left; /* bytes that may still be handed out */
    uint64_t end;  /* address behind the last one */
};

/* False when there is no room for one more. */
static bool append(struct iov_fill *fill, uint64_t address, uint64_t len)
{
    bool joins = fill->count > 0 && fill->end == address;
    if (!joins && fill->count == fill->max)
        return false;
    int at = joins ? fill->count - 1 : fill->count++;
    if (fill->iov && joins)
        fill->iov[at].iov_len += len;
    else if (fill->iov)
        fill->iov[at] = (struct iovec){.iov_base = (void *)(uintptr_t)address, .iov_len = len};
    else if (joins)
        fill->runs[at].bytes += len;
    else
        fill->runs[at] = (struct refit_device_run){.address = address, .bytes = len};
    fill->end = address + len;
    fill->left -= len;
    return true;
}

/* As many bytes of `rows` as there is room for. */
static uint64_t append_rows(struct iov_fill *fill, const struct refit_rows *rows)
{
    uint64_t at = fill->iov ? (uint64_t)(uintptr_t)rows->piece->host : rows->piece->address;
    uint64_t done = 0;
    at += rows->offset;
    for (uint64_t i = 0; i < rows->count && append(fill, at, rows->run_bytes); i++) {
        at += (uint64_t)rows->stride;
        done += rows->run_bytes;
    }
    return done;
}

static enum refit_status hand_out(struct iov_fill *fill, struct refit_iov_cursor *cursor,
                                  const struct refit_arena *arena, struct refit_error *err)
{
    while (fill->left > 0) {
        struct refit_rows rows;
        enum refit_status status = refit_rows_peek(cursor, arena, &rows, err);
        if (status != REFIT_OK)
            return status;
        if (rows.count == 0)
            break;
        refit_rows_limit(&rows, fill->left);
        uint64_t done = append_rows(fill, &rows);
        if (done == 0)
            break;
        refit_rows_take(cursor, done);
    }
    return REFIT_OK;
}

enum refit_status refit_iov_next(struct refit_iov_cursor *cursor, const struct refit_arena *arena, struct iovec *iov,
                                 int max, uint64_t max_bytes, int *count, struct refit_error *err)
{
    struct iov_fill fill = {.iov = iov, .max = max, .left = max_bytes};
    *count = 0;
    if (arena->kind != REFIT_ARENA_HOST)
        return refit_fail(err, REFIT_UNSUPPORTED, "arena: %s memory has no address; use pack and scatter",
                          arena->ops->name);
    enum refit_status status = hand_out(&fill, cursor, arena, err);
    *count = status == REFIT_OK ? fill.count : 0;
    return status;
}

enum refit_status refit_device_runs_next(struct refit_iov_cursor *cursor, const struct refit_arena *arena,
                                         struct refit_device_run *runs, int max, uint64_t max_bytes, int *count,
                                         struct refit_error *err)
{
    struct iov_fill fill = {.runs = runs, .max = max, .left = max_bytes};
    *count = 0;
    if (arena->kind != REFIT_ARENA_CUDA)
        return refit_fail(err, REFIT_UNSUPPORTED, "arena: %s memory is at no address of a GPU", arena->ops->name);
    enum refit_status status = hand_out(&fill, cursor, arena, err);
    *count = status == REFIT_OK ? fill.count : 0;
    return status;
}

enum refit_status refit_segments_advance(struct refit_segments *segments, struct refit_iov_cursor *cursor,
                                         const struct refit_arena *arena, uint64_t bytes, struct refit_error *err)
{
    if (arena->ops->finish)
        return refit_fail(err, REFIT_UNSUPPORTED, "arena: %s memory is digested by whole windows", arena->ops->name);
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
