/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/ops.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "memory/carry.h"
#include "memory/rows.h"

static _Atomic int64_t patience_ms = 10000;

void refit_memory_set_patience(int64_t ms)
{
    atomic_store_explicit(&patience_ms, ms, memory_order_relaxed);
}

struct refit_deadline refit_memory_patience(void)
{
    return refit_deadline_in_ms(atomic_load_explicit(&patience_ms, memory_order_relaxed));
}

enum refit_status refit_completion_wait(struct refit_completion *completion, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    struct refit_pending *pending = completion->pending;
    if (pending) {
        completion->pending = NULL;
        completion->status = pending->wait(pending, deadline, err);
    }
    return completion->status;
}

enum refit_status refit_completion_end(struct refit_completion *completion, enum refit_status status,
                                       struct refit_deadline deadline, struct refit_error *err)
{
    enum refit_status ended = refit_completion_wait(completion, deadline, status == REFIT_OK ? err : NULL);
    return status == REFIT_OK ? ended : status;
}

enum refit_status refit_completion_poll(struct refit_completion *completion, struct refit_error *err)
{
    struct refit_pending *pending = completion->pending;
    if (!pending)
        return completion->status;
    enum refit_status status = pending->poll(pending, err);
    if (status == REFIT_BUSY)
        return status;
    completion->pending = NULL;
    return completion->status = status;
}

enum refit_status refit_operation_begin(const struct refit_arena *arena, struct refit_walk walk, bool writing,
                                        struct refit_segments *segments, struct refit_completion *completion,
                                        struct refit_error *err)
{
    *completion = (struct refit_completion){.status = REFIT_OK};
    enum refit_status status = refit_rows_check(arena, walk, writing, err);
    if (status == REFIT_OK)
        status = refit_segments_of(segments, walk, err);
    segments->count = 0;
    return completion->status = status;
}

static enum refit_status end(const struct refit_arena *arena, enum refit_status status,
                             struct refit_completion *completion, struct refit_error *err)
{
    /* Also after a failure: what was queued before it must have ended when the caller's wait returns. */
    if (arena->ops->finish) {
        enum refit_status finished = arena->ops->finish(arena, completion, status == REFIT_OK ? err : NULL);
        status = status == REFIT_OK ? finished : status;
    }
    if (!completion->pending)
        completion->status = status;
    return status;
}

struct refit_digest *refit_segments_digest(struct refit_segments *segments, const struct refit_strip *strip)
{
    struct refit_segment *segment = refit_segments_enter(segments, strip->tensor, strip->counted);
    return segments->digesting && segment ? &segment->digest : NULL;
}

enum refit_status refit_memory_pack(const struct refit_arena *source, struct refit_walk walk, void *out,
                                    struct refit_segments *segments, struct refit_completion *completion,
                                    struct refit_error *err)
{
    struct refit_iov_cursor cursor;
    struct refit_rows rows;
    uint8_t *at = out;
    enum refit_status status = refit_operation_begin(source, walk, false, segments, completion, err);
    if (status != REFIT_OK)
        return status;
    refit_iov_begin(&cursor, walk);
    while ((status = refit_rows_peek(&cursor, source, &rows, err)) == REFIT_OK && rows.count > 0) {
        struct refit_digest *digest = refit_segments_digest(segments, &cursor.strip);
        status = source->ops->load(source, &rows, at, (int64_t)rows.run_bytes, digest, err);
        if (status != REFIT_OK)
            break;
        at += refit_rows_bytes(&rows);
        refit_rows_take(&cursor, refit_rows_bytes(&rows));
    }
    return end(source, status, completion, err);
}

enum refit_status refit_memory_scatter(struct refit_arena *destination, struct refit_walk walk, const void *in,
                                       struct refit_segments *segments, struct refit_completion *completion,
                                       struct refit_error *err)
{
    struct refit_iov_cursor cursor;
    struct refit_rows rows;
    const uint8_t *at = in;
    enum refit_status status = refit_operation_begin(destination, walk, true, segments, completion, err);
    if (status != REFIT_OK)
        return status;
    refit_iov_begin(&cursor, walk);
    while ((status = refit_rows_peek(&cursor, destination, &rows, err)) == REFIT_OK && rows.count > 0) {
        struct refit_digest *digest = refit_segments_digest(segments, &cursor.strip);
        status = destination->ops->store(destination, &rows, at, (int64_t)rows.run_bytes, digest, err);
        if (status != REFIT_OK)
            break;
        at += refit_rows_bytes(&rows);
        refit_rows_take(&cursor, refit_rows_bytes(&rows));
    }
    return end(destination, status, completion, err);
}

enum refit_status refit_memory_digest(const struct refit_arena *arena, struct refit_walk walk,
                                      struct refit_segments *segments, struct refit_completion *completion,
                                      struct refit_error *err)
{
    struct refit_iov_cursor cursor;
    struct refit_rows rows;
    enum refit_status status = refit_operation_begin(arena, walk, false, segments, completion, err);
    if (status != REFIT_OK)
        return status;
    refit_iov_begin(&cursor, walk);
    while ((status = refit_rows_peek(&cursor, arena, &rows, err)) == REFIT_OK && rows.count > 0) {
        struct refit_digest *digest = refit_segments_digest(segments, &cursor.strip);
        status = digest ? arena->ops->sum(arena, &rows, digest, err) : REFIT_OK;
        if (status != REFIT_OK)
            break;
        refit_rows_take(&cursor, refit_rows_bytes(&rows));
    }
    return end(arena, status, completion, err);
}

enum refit_status refit_memory_digest_range(const struct refit_arena *arena, uint64_t offset, uint64_t bytes,
                                            uint64_t tensor_offset, struct refit_digest *digest,
                                            struct refit_error *err)
{
    if (bytes == 0)
        return REFIT_OK;
    struct refit_rows rows = {
        .piece = refit_arena_find(arena, offset),
        .run_bytes = bytes,
        .count = 1,
        .tensor_offset = tensor_offset,
    };
    if (!rows.piece || bytes > rows.piece->bytes - (offset - rows.piece->offset))
        return refit_fail(err, REFIT_INVALID, "arena: %" PRIu64 " bytes at offset %" PRIu64 " do not lie in one piece",
                          bytes, offset);
    rows.offset = offset - rows.piece->offset;
    struct refit_completion completion = {.status = REFIT_OK};
    enum refit_status status = end(arena, arena->ops->sum(arena, &rows, digest, err), &completion, err);
    enum refit_status waited =
        refit_completion_wait(&completion, refit_memory_patience(), status == REFIT_OK ? err : NULL);
    return status == REFIT_OK ? waited : status;
}

/* ---- copy: both sides in lockstep ---- */

/* What both cursors have next, cut at the shorter run: a longer run on the other side is so many short ones on end. */
static void match(struct refit_rows *a, struct refit_rows *b)
{
    if (a->run_bytes == b->run_bytes) {
        a->count = b->count = a->count < b->count ? a->count : b->count;
        return;
    }
    struct refit_rows *longer = a->run_bytes > b->run_bytes ? a : b;
    struct refit_rows *shorter = longer == a ? b : a;
    uint64_t fit = longer->run_bytes / shorter->run_bytes;
    shorter->count = fit < shorter->count ? fit : shorter->count;
    longer->run_bytes = shorter->run_bytes;
    longer->count = shorter->count;
    longer->stride = (int64_t)shorter->run_bytes;
    longer->tensor_stride = (int64_t)shorter->run_bytes;
}

bool refit_memory_reaches(const struct refit_arena *destination, const struct refit_arena *source)
{
    return destination->kind == REFIT_ARENA_HOST || source->kind == REFIT_ARENA_HOST ||
           (destination->ops == source->ops && destination->ops->copy && destination->ops->reaches(destination, source));
}

static _Atomic uint64_t direct_bytes, by_host_bytes;

void refit_memory_between_devices(struct refit_memory_between_devices *out)
{
    out->direct_bytes = atomic_load_explicit(&direct_bytes, memory_order_relaxed);
    out->by_host_bytes = atomic_load_explicit(&by_host_bytes, memory_order_relaxed);
}

static void count_between(const struct refit_arena *destination, const struct refit_arena *source,
                          _Atomic uint64_t *counter, uint64_t bytes)
{
    if (destination->ordinal >= 0 && source->ordinal >= 0 && destination->ordinal != source->ordinal)
        atomic_fetch_add_explicit(counter, bytes, memory_order_relaxed);
}

static enum refit_status copy_rows(struct refit_arena *destination, const struct refit_rows *to,
                                   const struct refit_arena *source, const struct refit_rows *from,
                                   struct refit_digest *digest, struct refit_error *err)
{
    if (!from->piece->host && !to->piece->host)
        return destination->ops->copy(destination, to, source, from, digest, err);
    if (from->piece->host)
        return destination->ops->store(destination, to, from->piece->host + from->offset, from->stride, digest, err);
    return source->ops->load(source, from, to->piece->host + to->offset, to->stride, digest, err);
}

static enum refit_status copy_windows(struct refit_arena *destination, struct refit_walk to,
                                      const struct refit_arena *source, struct refit_walk from,
                                      struct refit_segments *segments, struct refit_error *err)
{
    struct refit_iov_cursor to_cursor, from_cursor;
    refit_iov_begin(&to_cursor, to);
    refit_iov_begin(&from_cursor, from);
    for (;;) {
        struct refit_rows to_rows, from_rows;
        enum refit_status status = refit_rows_peek(&to_cursor, destination, &to_rows, err);
        if (status == REFIT_OK)
            status = refit_rows_peek(&from_cursor, source, &from_rows, err);
        if (status != REFIT_OK || to_rows.count == 0 || from_rows.count == 0)
            return status;
        if (to_rows.tensor_offset != from_rows.tensor_offset || to_cursor.strip.tensor != from_cursor.strip.tensor)
            return refit_fail(err, REFIT_MISMATCH,
                              "copy: the sides are at tensor %" PRIu32 " byte %" PRIu64 " and tensor %" PRIu32
                              " byte %" PRIu64 "; their plans differ",
                              to_cursor.strip.tensor, to_rows.tensor_offset, from_cursor.strip.tensor,
                              from_rows.tensor_offset);
        match(&to_rows, &from_rows);
        status = copy_rows(destination, &to_rows, source, &from_rows, refit_segments_digest(segments, &to_cursor.strip), err);
        if (status != REFIT_OK)
            return status;
        refit_rows_take(&to_cursor, refit_rows_bytes(&to_rows));
        refit_rows_take(&from_cursor, refit_rows_bytes(&from_rows));
    }
}

enum refit_status refit_memory_copy(struct refit_arena *destination, struct refit_walk to,
                                    const struct refit_arena *source, struct refit_walk from,
                                    struct refit_segments *segments, struct refit_completion *completion,
                                    struct refit_error *err)
{
    enum refit_status status = refit_operation_begin(destination, to, true, segments, completion, err);
    if (status == REFIT_OK)
        status = refit_rows_check(source, from, false, err);
    if (status == REFIT_OK && to.left != from.left)
        status = refit_fail(err, REFIT_MISMATCH, "copy: windows of %" PRIu64 " and %" PRIu64 " bytes", to.left,
                            from.left);
    if (status != REFIT_OK)
        return completion->status = status;
    if (!refit_memory_reaches(destination, source)) {
        count_between(destination, source, &by_host_bytes, to.left);
        return completion->status = refit_memory_carry(destination, to, source, from, segments, err);
    }
    count_between(destination, source, &direct_bytes, to.left);
    status = copy_windows(destination, to, source, from, segments, err);
    return end(destination->kind == REFIT_ARENA_HOST ? source : destination, status, completion, err);
}

/* ---- fills ---- */

struct fill_pass {
    struct refit_arena *arena;
    struct refit_error *err;
    enum refit_status status;
    bool writing; /* false: check only */
};

static enum refit_status fill_run(struct fill_pass *pass, uint64_t offset, uint64_t bytes, uint8_t value)
{
    while (bytes > 0) {
        struct refit_rows rows = {.piece = refit_arena_find(pass->arena, offset), .count = 1};
        if (!rows.piece)
            return refit_fail(pass->err, REFIT_INVALID, "arena: fill at offset %" PRIu64 ", where no memory is bound",
                              offset);
        rows.offset = offset - rows.piece->offset;
        rows.run_bytes = rows.piece->bytes - rows.offset < bytes ? rows.piece->bytes - rows.offset : bytes;
        enum refit_status status = REFIT_OK;
        if (pass->writing)
            status = pass->arena->ops->fill(pass->arena, &rows, value, pass->err);
        if (status != REFIT_OK)
            return status;
        offset += rows.run_bytes;
        bytes -= rows.run_bytes;
    }
    return REFIT_OK;
}

static bool fill_rows(void *ctx, const struct refit_fill *fill)
{
    struct fill_pass *pass = ctx;
    for (uint64_t i = 0; i < fill->count && pass->status == REFIT_OK; i++)
        pass->status = fill_run(pass, fill->offset + i * fill->stride, fill->row_bytes, fill->value);
    return pass->status == REFIT_OK;
}

enum refit_status refit_memory_fill(struct refit_arena *destination, const struct refit_layout *layout, uint32_t rank,
                                    struct refit_error *err)
{
    struct fill_pass pass = {.arena = destination, .err = err, .status = REFIT_OK};
    struct refit_completion completion = {.status = REFIT_OK};
    if (destination->read_only || !destination->ops->fill)
        return refit_fail(err, REFIT_INVALID, "arena: %s memory is read-only", destination->ops->name);
    if (refit_layout_fills(layout, rank, fill_rows, &pass)) {
        pass.writing = true;
        refit_layout_fills(layout, rank, fill_rows, &pass);
        pass.status = end(destination, pass.status, &completion, err);
        enum refit_status waited =
            refit_completion_wait(&completion, refit_memory_patience(), pass.status == REFIT_OK ? err : NULL);
        pass.status = pass.status == REFIT_OK ? waited : pass.status;
    }
    return pass.status;
}
