/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/rows.h"

#include <inttypes.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How many of `count` runs lie in [0, piece_bytes) when the first begins at `at` and fits. */
static uint64_t runs_within(uint64_t at, uint64_t run_bytes, int64_t stride, uint64_t count, uint64_t piece_bytes)
{
    if (count == 1 || stride == 0)
        return count;
    uint64_t room = stride > 0 ? piece_bytes - at - run_bytes : at;
    uint64_t step = stride > 0 ? (uint64_t)stride : -(uint64_t)stride;
    return min_u64(count, room / step + 1);
}

enum refit_status refit_rows_peek(struct refit_iov_cursor *cursor, const struct refit_arena *arena,
                                  struct refit_rows *rows, struct refit_error *err)
{
    struct refit_strip *strip = &cursor->strip;
    *rows = (struct refit_rows){.count = 0};
    if (cursor->next_run >= strip->count) {
        if (!refit_walk_next(&cursor->walk, UINT64_MAX, strip))
            return REFIT_OK;
        cursor->next_run = 0;
        cursor->run_done = 0;
    }
    uint64_t offset = strip->offset + cursor->next_run * (uint64_t)strip->stride + cursor->run_done;
    const struct refit_arena_piece *piece = refit_arena_find(arena, offset);
    if (!piece)
        return refit_fail(err, REFIT_INVALID,
                          "arena: tensor %" PRIu32 " needs %" PRIu64 " bytes at offset %" PRIu64
                          ", where no memory is bound; bind every buffer of the layout",
                          strip->tensor, strip->run_bytes, offset);
    rows->piece = piece;
    rows->offset = offset - piece->offset;
    rows->stride = strip->stride;
    rows->tensor_offset = strip->tensor_offset + cursor->next_run * (uint64_t)strip->tensor_stride + cursor->run_done;
    rows->tensor_stride = strip->tensor_stride;
    rows->run_bytes = min_u64(strip->run_bytes - cursor->run_done, piece->bytes - rows->offset);
    rows->count = rows->run_bytes < strip->run_bytes
                      ? 1
                      : runs_within(rows->offset, rows->run_bytes, rows->stride, strip->count - cursor->next_run,
                                    piece->bytes);
    return REFIT_OK;
}

void refit_rows_take(struct refit_iov_cursor *cursor, uint64_t bytes)
{
    uint64_t done = cursor->run_done + bytes;
    cursor->next_run += done / cursor->strip.run_bytes;
    cursor->run_done = done % cursor->strip.run_bytes;
}

void refit_rows_limit(struct refit_rows *rows, uint64_t bytes)
{
    if (bytes >= refit_rows_bytes(rows))
        return;
    if (bytes < rows->run_bytes) {
        rows->run_bytes = bytes;
        rows->count = 1;
    } else {
        rows->count = bytes / rows->run_bytes;
    }
}

enum refit_status refit_rows_check(const struct refit_arena *arena, struct refit_walk walk, bool writing,
                                   struct refit_error *err)
{
    if (writing && (arena->read_only || !arena->ops->store))
        return refit_fail(err, REFIT_INVALID, "arena: %s memory is read-only", arena->ops->name);
    struct refit_iov_cursor cursor;
    refit_iov_begin(&cursor, walk);
    for (;;) {
        struct refit_rows rows;
        enum refit_status status = refit_rows_peek(&cursor, arena, &rows, err);
        if (status != REFIT_OK || rows.count == 0)
            return status;
        refit_rows_take(&cursor, refit_rows_bytes(&rows));
    }
}
