/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: a window of an edge stream as rows, each within one piece of an arena. Lookups are per strip,
 * not per run, when the strip lies in one piece.
 */
#ifndef REFIT_MEMORY_ROWS_H
#define REFIT_MEMORY_ROWS_H

#include "memory/arena_ops.h"

/* What comes next at the cursor, as much of it as lies regularly in one piece; count 0 at the end. The tensor is the
 * cursor's strip's. REFIT_INVALID when the space is unbound there. */
REFIT_MUST_CHECK enum refit_status refit_rows_peek(struct refit_iov_cursor *cursor, const struct refit_arena *arena,
                                                   struct refit_rows *rows, struct refit_error *err);
/* `bytes` of what was peeked are done. */
void refit_rows_take(struct refit_iov_cursor *cursor, uint64_t bytes);
/* The first rows of at most `bytes` (> 0): whole runs, or part of one. */
void refit_rows_limit(struct refit_rows *rows, uint64_t bytes);
static inline uint64_t refit_rows_bytes(const struct refit_rows *rows)
{
    return rows->run_bytes * rows->count;
}
/* Every run of the window is bound, and may be written when `writing`. */
REFIT_MUST_CHECK enum refit_status refit_rows_check(const struct refit_arena *arena, struct refit_walk walk,
                                                    bool writing, struct refit_error *err);

/* How an operation on a window begins: everything is checked, and there is room for every segment, so that no pointer to
 * a digest moves until the batch is done. */
REFIT_MUST_CHECK enum refit_status refit_operation_begin(const struct refit_arena *arena, struct refit_walk walk,
                                                         bool writing, struct refit_segments *segments,
                                                         struct refit_completion *completion, struct refit_error *err);
/* Where the strip's bytes are digested; NULL when nothing is to be verified. After refit_operation_begin. */
struct refit_digest *refit_segments_digest(struct refit_segments *segments, const struct refit_strip *strip);
/* The segment of (tensor, counted), which is the last one or a new one. NULL when out of memory. */
struct refit_segment *refit_segments_enter(struct refit_segments *segments, uint32_t tensor, bool counted);

#endif
