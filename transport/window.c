/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/window.h"

#include <stdlib.h>

uint64_t refit_window_run_bytes(struct refit_walk walk)
{
    struct refit_strip strip;
    uint64_t bytes = walk.left, runs = 0;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        runs += strip.count;
    return runs ? bytes / runs : 0;
}

struct refit_walk refit_window_cut(struct refit_walk *walk, uint64_t bytes)
{
    struct refit_walk piece = *walk;
    struct refit_strip strip;
    if (bytes > walk->left)
        bytes = walk->left;
    piece.left = bytes;
    while (bytes > 0 && refit_walk_next(walk, bytes, &strip))
        bytes -= strip.run_bytes * strip.count;
    return piece;
}

static bool run_bound(const struct refit_arena *arena, uint64_t offset, uint64_t bytes, struct refit_piece *piece)
{
    while (bytes > 0) {
        if (!refit_arena_piece(arena, offset, piece))
            return false;
        uint64_t fit = piece->offset + piece->bytes - offset;
        if (fit >= bytes)
            return true;
        offset += fit;
        bytes -= fit;
    }
    return true;
}

static bool inside(const struct refit_piece *piece, uint64_t offset, uint64_t bytes)
{
    return offset >= piece->offset && offset - piece->offset < piece->bytes &&
           bytes <= piece->bytes - (offset - piece->offset);
}

bool refit_window_bound(const struct refit_arena *arena, struct refit_walk walk)
{
    struct refit_piece piece = {.bytes = 0};
    struct refit_strip strip;
    while (refit_walk_next(&walk, UINT64_MAX, &strip)) {
        uint64_t last = strip.offset + (strip.count - 1) * (uint64_t)strip.stride;
        if (inside(&piece, strip.offset, strip.run_bytes) && inside(&piece, last, strip.run_bytes))
            continue;
        for (uint64_t i = 0; i < strip.count; i++) {
            uint64_t offset = strip.offset + i * (uint64_t)strip.stride;
            if (!inside(&piece, offset, strip.run_bytes) && !run_bound(arena, offset, strip.run_bytes, &piece))
                return false;
        }
    }
    return true;
}

static bool reserve(struct refit_segments *segments, size_t need)
{
    if (need <= segments->capacity)
        return true;
    size_t capacity = need > 2 * segments->capacity ? need : 2 * segments->capacity;
    struct refit_segment *items = reallocarray(segments->items, capacity, sizeof *items);
    if (!items)
        return false;
    segments->items = items;
    segments->capacity = capacity;
    return true;
}

bool refit_segments_join(struct refit_segments *into, const struct refit_segments *piece)
{
    if (!reserve(into, into->count + piece->count))
        return false;
    for (size_t i = 0; i < piece->count; i++) {
        const struct refit_segment *next = &piece->items[i];
        struct refit_segment *last = into->count ? &into->items[into->count - 1] : NULL;
        if (last && last->tensor == next->tensor && last->counted == next->counted)
            refit_digest_merge(&last->digest, next->digest);
        else
            into->items[into->count++] = *next;
    }
    return true;
}
