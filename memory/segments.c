/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "memory/ops.h"
#include "memory/rows.h"

void refit_segments_init(struct refit_segments *segments, bool digesting)
{
    *segments = (struct refit_segments){.digesting = digesting};
}

void refit_segments_release(struct refit_segments *segments)
{
    free(segments->items);
    refit_segments_init(segments, segments->digesting);
}

static bool reserve(struct refit_segments *segments)
{
    if (segments->count < segments->capacity)
        return true;
    size_t capacity = segments->capacity ? 2 * segments->capacity : 16;
    struct refit_segment *items = reallocarray(segments->items, capacity, sizeof *items);
    if (!items)
        return false;
    segments->items = items;
    segments->capacity = capacity;
    return true;
}

struct refit_segment *refit_segments_enter(struct refit_segments *segments, uint32_t tensor, bool counted)
{
    if (segments->count > 0) {
        struct refit_segment *last = &segments->items[segments->count - 1];
        if (last->tensor == tensor && last->counted == counted)
            return last;
    }
    if (!reserve(segments))
        return NULL;
    struct refit_segment *segment = &segments->items[segments->count++];
    *segment = (struct refit_segment){.tensor = tensor, .counted = counted};
    return segment;
}

enum refit_status refit_segments_of(struct refit_segments *segments, struct refit_walk walk, struct refit_error *err)
{
    struct refit_strip strip;
    segments->count = 0;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        if (!refit_segments_enter(segments, strip.tensor, strip.counted))
            return refit_fail_alloc(err, "digest segments", (segments->count + 1) * sizeof *segments->items);
    return REFIT_OK;
}

void refit_segments_tally(const struct refit_segments *segments, struct refit_tally *tally)
{
    for (size_t i = 0; i < segments->count; i++)
        if (segments->items[i].counted)
            refit_tally_add(tally, segments->items[i].tensor, segments->items[i].digest);
}
