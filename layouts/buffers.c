/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's buffers and fills, expanded on the fly.
 */
#include <string.h>

#include "layouts/layout_internal.h"

/* A rank's entries in document order: mesh entries and its listed ones, merged. */
struct entry_walk {
    const struct refit_layout *layout;
    uint32_t rank;
    size_t mesh_at;
    uint32_t listed_at, listed_end;
};

static struct entry_walk walk_entries(const struct refit_layout *layout, uint32_t rank)
{
    return (struct entry_walk){.layout = layout, .rank = rank, .listed_at = layout->first_rank_entry[rank],
                               .listed_end = layout->first_rank_entry[rank + 1]};
}

static const struct refit_entry *next_entry(struct entry_walk *walk)
{
    const struct refit_layout *layout = walk->layout;
    while (walk->mesh_at < layout->mesh_entry_count &&
           !refit_layout_on_rank(layout, &layout->entries[layout->mesh_entries[walk->mesh_at]], walk->rank))
        walk->mesh_at++;
    bool mesh = walk->mesh_at < layout->mesh_entry_count, listed = walk->listed_at < walk->listed_end;
    if (mesh && listed)
        mesh = layout->mesh_entries[walk->mesh_at] < layout->rank_entries[walk->listed_at];
    if (mesh)
        return &layout->entries[layout->mesh_entries[walk->mesh_at++]];
    return listed ? &layout->entries[layout->rank_entries[walk->listed_at++]] : NULL;
}

static const uint32_t *coords_of(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank)
{
    const struct refit_mesh *mesh = &layout->meshes[entry->mesh];
    return mesh->coords + (size_t)mesh->cell_of[rank] * mesh->axes;
}

void refit_pattern_first(const struct refit_layout *layout, const struct refit_entry *entry,
                         const struct refit_pattern *pattern, uint32_t rank, uint32_t values[static REFIT_NAME_FIELDS])
{
    for (uint32_t f = 0; f < pattern->fields; f++) {
        int v = pattern->var[f];
        if (v < 0)
            values[f] = pattern->literal[f];
        else if (pattern->local >> v & 1)
            values[f] = 0;
        else
            values[f] = refit_index_id(&entry->indices[v], coords_of(layout, entry, rank), 0);
    }
}

/* ---- buffers ---- */

static bool listed_buffer(const struct refit_layout *layout, const struct refit_entry *entry, refit_buffer_sink sink,
                          void *ctx)
{
    struct refit_buffer buffer = {.offset = entry->base, .bytes = entry->bytes, .derived = entry->derived};
    refit_names_render(&layout->buffer_names, entry->buffer.skeleton, entry->buffer.literal, buffer.name);
    return sink(ctx, &buffer);
}

static void buffer_numbers(const struct refit_entry *entry, const uint32_t *coords, const uint32_t *position,
                           uint32_t *values)
{
    const struct refit_pattern *pattern = &entry->buffer;
    for (uint32_t f = 0; f < pattern->fields; f++) {
        int v = pattern->var[f];
        if (v < 0)
            values[f] = pattern->literal[f];
        else if (pattern->local >> v & 1)
            values[f] = position[v];
        else
            values[f] = refit_index_id(&entry->indices[v], coords, position[v]);
    }
}

/* Counts up the positions of the named indices, last one fastest. */
static void next_position(const struct refit_entry *entry, const uint32_t *coords, uint32_t *position)
{
    for (uint32_t i = entry->named_count; i-- > 0;) {
        uint32_t v = entry->index_order[i];
        if (++position[v] < refit_index_count(&entry->indices[v], coords))
            return;
        position[v] = 0;
    }
}

static bool mesh_buffers(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank,
                         refit_buffer_sink sink, void *ctx)
{
    const uint32_t *coords = coords_of(layout, entry, rank);
    uint32_t position[REFIT_INDICES_MAX] = {0}, values[REFIT_NAME_FIELDS];
    struct refit_geometry geometry;
    refit_entry_geometry(layout, entry, coords, 0, &geometry);
    struct refit_buffer buffer = {.offset = refit_entry_base(layout, entry, rank), .bytes = geometry.buffer_bytes,
                                  .derived = entry->derived};
    for (uint64_t i = 0; i < geometry.buffers; i++) {
        buffer_numbers(entry, coords, position, values);
        refit_names_render(&layout->buffer_names, entry->buffer.skeleton, values, buffer.name);
        if (!sink(ctx, &buffer))
            return false;
        buffer.offset += geometry.buffer_step;
        next_position(entry, coords, position);
    }
    return true;
}

bool refit_layout_buffers(const struct refit_layout *layout, uint32_t rank, refit_buffer_sink sink, void *ctx)
{
    const struct refit_entry *entry;
    if (rank >= layout->ranks)
        return true;
    struct entry_walk walk = walk_entries(layout, rank);
    while ((entry = next_entry(&walk)))
        if (!(entry->listed ? listed_buffer(layout, entry, sink, ctx) : mesh_buffers(layout, entry, rank, sink, ctx)))
            return false;
    return true;
}

uint64_t refit_layout_arena_bytes(const struct refit_layout *layout, uint32_t rank)
{
    return rank < layout->ranks ? layout->arena_bytes[rank] : 0;
}

/* ---- a buffer by name ---- */

/* The number of the buffer with these numbers in its name within the entry's family on a rank. */
static bool buffer_number(const struct refit_entry *entry, const uint32_t *coords, const uint32_t *values,
                          uint64_t *number)
{
    const struct refit_pattern *pattern = &entry->buffer;
    uint32_t position[REFIT_INDICES_MAX] = {0};
    for (uint32_t f = 0; f < pattern->fields; f++) {
        int v = pattern->var[f];
        if (v < 0) {
            if (pattern->literal[f] != values[f])
                return false;
            continue;
        }
        const struct refit_index *index = &entry->indices[v];
        position[v] = values[f];
        if (pattern->local >> v & 1) {
            if (values[f] >= refit_index_count(index, coords))
                return false;
        } else {
            if (!refit_index_positions(index, coords, values[f], &position[v]))
                return false;
            if (index->ids)
                position[v] = index->sorted[position[v]];
        }
    }
    *number = 0;
    for (uint32_t i = 0; i < entry->named_count; i++) {
        uint32_t v = entry->index_order[i];
        *number = *number * refit_index_count(&entry->indices[v], coords) + position[v];
    }
    return true;
}

static bool find_in_entry(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank,
                          const uint32_t *values, struct refit_buffer *out)
{
    uint64_t number;
    if (!refit_layout_on_rank(layout, entry, rank))
        return false;
    out->derived = entry->derived;
    if (entry->listed) {
        out->offset = entry->base;
        out->bytes = entry->bytes;
        return true;
    }
    const uint32_t *coords = coords_of(layout, entry, rank);
    struct refit_geometry geometry;
    if (!buffer_number(entry, coords, values, &number))
        return false;
    refit_entry_geometry(layout, entry, coords, 0, &geometry);
    out->offset = refit_entry_base(layout, entry, rank) + number * geometry.buffer_step;
    out->bytes = geometry.buffer_bytes;
    return true;
}

bool refit_layout_buffer_find(const struct refit_layout *layout, uint32_t rank, const char *name,
                              struct refit_buffer *out)
{
    uint32_t values[REFIT_NAME_FIELDS], group = refit_names_find(&layout->buffer_names, name, values);
    if (group == REFIT_NAME_NONE || rank >= layout->ranks)
        return false;
    uint32_t low = layout->first_buffer_link[group], high = layout->first_buffer_link[group + 1];
    const struct refit_link *links = layout->buffer_links;
    *out = (struct refit_buffer){0};
    memcpy(out->name, name, strlen(name) + 1);
    for (; low < high && !layout->entries[links[low].item].listed; low++)
        if (find_in_entry(layout, &layout->entries[links[low].item], rank, values, out))
            return true;
    /* The listed ones are sorted by rank. */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (layout->entries[links[middle].item].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < layout->first_buffer_link[group + 1] &&
           find_in_entry(layout, &layout->entries[links[low].item], rank, values, out);
}

/* ---- fills ---- */

static bool listed_fills(const struct refit_layout *layout, const struct refit_entry *entry, refit_fill_sink sink,
                         void *ctx)
{
    for (uint32_t i = 0; i < entry->fill_count; i++) {
        const struct refit_listed_fill *listed = &layout->fills[entry->first_fill + i];
        struct refit_fill fill = {.rank = entry->rank, .offset = entry->base + listed->offset,
                                  .row_bytes = listed->bytes, .count = 1, .stride = listed->bytes,
                                  .value = listed->value};
        if (listed->bytes && !sink(ctx, &fill))
            return false;
    }
    return true;
}

static bool fills_of_piece(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t piece,
                           uint32_t rank, refit_fill_sink sink, void *ctx)
{
    const struct refit_piece *p = &layout->pieces[entry->first_piece + piece];
    struct refit_geometry geometry;
    refit_entry_geometry(layout, entry, coords_of(layout, entry, rank), piece, &geometry);
    uint64_t base = refit_entry_base(layout, entry, rank);
    for (uint64_t buffer = 0; buffer < geometry.buffers; buffer++) {
        for (uint64_t cell = 0; cell < geometry.stacked; cell++) {
            uint64_t at = base + buffer * geometry.buffer_step + cell * geometry.cell_bytes;
            if (!refit_piece_fills(entry, p, &geometry, at, rank, sink, ctx))
                return false;
        }
    }
    return true;
}

static bool mesh_fills(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank,
                       refit_fill_sink sink, void *ctx)
{
    for (uint32_t i = 0; i < entry->piece_count; i++) {
        const struct refit_piece *piece = &layout->pieces[entry->first_piece + i];
        if (refit_piece_has_fill(entry, piece) && !fills_of_piece(layout, entry, i, rank, sink, ctx))
            return false;
    }
    return true;
}

bool refit_layout_fills(const struct refit_layout *layout, uint32_t rank, refit_fill_sink sink, void *ctx)
{
    const struct refit_entry *entry;
    if (rank >= layout->ranks)
        return true;
    struct entry_walk walk = walk_entries(layout, rank);
    while ((entry = next_entry(&walk)))
        if (!(entry->listed ? listed_fills(layout, entry, sink, ctx) : mesh_fills(layout, entry, rank, sink, ctx)))
            return false;
    return true;
}
