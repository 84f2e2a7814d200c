/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/carry.h"

#include <stdlib.h>

#include "memory/arena_ops.h"

/* Both sides walk the same stream, or the plans they come from differ. */
static enum refit_status compare(const struct refit_segments *read, const struct refit_segments *written,
                                 struct refit_error *err)
{
    bool same = read->count == written->count;
    for (size_t i = 0; same && i < read->count; i++)
        same = read->items[i].tensor == written->items[i].tensor;
    return same ? REFIT_OK : refit_fail(err, REFIT_MISMATCH, "copy: the sides are at other tensors; their plans differ");
}

enum refit_status refit_memory_carry(struct refit_arena *destination, struct refit_walk to,
                                     const struct refit_arena *source, struct refit_walk from,
                                     struct refit_segments *segments, struct refit_error *err)
{
    struct refit_completion completion = {.status = REFIT_OK};
    struct refit_segments read;
    void *message = malloc(from.left + 1);
    if (!message)
        return refit_fail_alloc(err, "a message between two memories", from.left);
    refit_segments_init(&read, false);
    enum refit_status status = refit_memory_pack(source, from, message, &read, &completion, err);
    status = refit_completion_end(&completion, status, refit_memory_patience(), err);
    if (status == REFIT_OK) {
        status = refit_memory_scatter(destination, to, message, segments, &completion, err);
        status = refit_completion_end(&completion, status, refit_memory_patience(), err);
    }
    if (status == REFIT_OK)
        status = compare(&read, segments, err);
    refit_segments_release(&read);
    free(message);
    return status;
}
