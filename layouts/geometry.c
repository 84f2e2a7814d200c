/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the pieces of an entry lie on one rank. All members of a family have the same geometry there, so it is
 * computed when asked for, in time of the pieces, and never stored.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "layouts/layout_internal.h"

#define CELLS_MAX (1u << 24) /* of one entry on one rank */

static int64_t shift_of(const struct refit_entry *entry, uint32_t d)
{
    return d + 1 == entry->dims ? entry->unit_shift : 0;
}

/* Along the entry's `dim`: rows of the piece, and how many groups they make. */
static void cut_rows(const struct refit_entry *entry, const struct refit_piece *piece, const uint32_t *coords,
                     int64_t *start, int64_t *extent, int64_t *groups)
{
    uint32_t d = entry->dim;
    *groups = 1;
    if (piece->fill) {
        *start = 0;
        *extent = piece->padded[d];
    } else if (entry->groups > 1) {
        refit_placement_cut(&piece->placement, d, coords, entry->groups, start, groups);
        *start *= piece->group_rows;
        *extent = *groups * piece->group_rows;
    } else {
        refit_placement_cut(&piece->placement, d, coords, piece->padded[d], start, extent);
        *start >>= shift_of(entry, d);
        *extent >>= shift_of(entry, d);
    }
}

void refit_piece_span(const struct refit_entry *entry, const struct refit_piece *piece, const uint32_t *coords,
                      struct refit_span *span)
{
    span->groups = 1;
    for (uint32_t d = 0; d < entry->dims; d++) {
        if (d == entry->dim) {
            cut_rows(entry, piece, coords, &span->start[d], &span->extent[d], &span->groups);
            continue;
        }
        refit_placement_cut(&piece->placement, d, coords, piece->padded[d], &span->start[d], &span->extent[d]);
        span->start[d] >>= shift_of(entry, d);
        span->extent[d] >>= shift_of(entry, d);
    }
}

/* The first piece that has a tensor; parsing made sure that there is one. */
static const struct refit_piece *first_tensor_piece(const struct refit_layout *layout, const struct refit_entry *entry)
{
    const struct refit_piece *piece = &layout->pieces[entry->first_piece];
    while (piece->fill)
        piece++;
    return piece;
}

static int64_t rows_in_group(const struct refit_entry *entry, const struct refit_piece *piece, const uint32_t *coords)
{
    int64_t start, extent, groups;
    if (entry->groups > 1)
        return piece->group_rows;
    cut_rows(entry, piece, coords, &start, &extent, &groups);
    return extent;
}

static void add_up_rows(const struct refit_layout *layout, const struct refit_entry *entry, const uint32_t *coords,
                        uint32_t target, struct refit_geometry *out)
{
    out->group_rows = out->rows_before = 0;
    if (entry->piece_count == 1 && entry->groups <= 1) {
        out->group_rows = entry->dims ? out->span.extent[entry->dim] : 1;
        return;
    }
    for (uint32_t p = 0; p < entry->piece_count; p++) {
        if (p == target)
            out->rows_before = out->group_rows;
        out->group_rows += rows_in_group(entry, &layout->pieces[entry->first_piece + p], coords);
    }
}

static void count_cells(const struct refit_entry *entry, const uint32_t *coords, struct refit_geometry *out)
{
    out->buffers = out->stacked = 1;
    for (uint32_t i = 0; i < entry->index_count; i++) {
        uint32_t count = refit_index_count(&entry->indices[entry->index_order[i]], coords);
        *(i < entry->named_count ? &out->buffers : &out->stacked) *= count;
    }
}

static void set_sizes(struct refit_geometry *out)
{
    out->buffer_bytes = out->cell_bytes * out->stacked;
    out->buffer_step = (out->buffer_bytes + REFIT_BUFFER_ALIGN - 1) & ~(uint64_t)(REFIT_BUFFER_ALIGN - 1);
}

void refit_entry_geometry(const struct refit_layout *layout, const struct refit_entry *entry, const uint32_t *coords,
                          uint32_t piece, struct refit_geometry *out)
{
    count_cells(entry, coords, out);
    if (entry->derived) {
        out->cell_bytes = entry->bytes;
        set_sizes(out);
        return;
    }
    const struct refit_piece *p = &layout->pieces[entry->first_piece + piece];
    refit_piece_span(entry, p, coords, &out->span);
    if (p->fill) {
        struct refit_span other;
        refit_piece_span(entry, first_tensor_piece(layout, entry), coords, &other);
        other.start[entry->dim] = 0;
        other.extent[entry->dim] = p->padded[entry->dim] * other.groups;
        out->span = other;
    }
    out->groups = out->span.groups;
    add_up_rows(layout, entry, coords, piece, out);
    int64_t step = entry->unit_bytes;
    for (uint32_t k = entry->dims; k-- > 0;) {
        uint32_t d = entry->order[k];
        out->stride[d] = step;
        out->extent[d] = d == entry->dim ? out->group_rows * out->groups : out->span.extent[d];
        step *= out->extent[d];
    }
    out->cell_bytes = (uint64_t)step;
    set_sizes(out);
}

/* ---- the same, checked ---- */

struct check {
    const struct refit_layout *layout;
    const struct refit_entry *entry;
    const uint32_t *coords;
    uint32_t rank;
    const char *what;
    struct refit_error *err;
};

static enum refit_status check_units(const struct check *c, const struct refit_piece *piece)
{
    const struct refit_entry *entry = c->entry;
    uint32_t last = entry->dims - 1u;
    int64_t start, extent, unit = (int64_t)1 << entry->unit_shift;
    if (entry->dims == 0 || unit == 1 || piece->fill || (entry->groups > 1 && last == entry->dim))
        return REFIT_OK;
    refit_placement_cut(&piece->placement, last, c->coords, piece->padded[last], &start, &extent);
    if ((extent > 0 && start % unit != 0) || extent % unit != 0)
        return refit_fail(c->err, REFIT_INVALID, "%s: rank %u: its part of dimension %u is [%" PRId64 ", %" PRId64
                          "), but %s packs %" PRId64 " elements and can't be cut between them", c->what, c->rank, last,
                          start, start + extent, refit_dtype_name(entry->dtype), unit);
    return REFIT_OK;
}

static enum refit_status check_alike(const struct check *c, uint32_t number, const struct refit_span *first,
                                     const struct refit_span *span)
{
    const struct refit_entry *entry = c->entry;
    for (uint32_t d = 0; d < entry->dims; d++)
        if (d != entry->dim && first->extent[d] != span->extent[d])
            return refit_fail(c->err, REFIT_INVALID, "%s: rank %u: piece %u has %" PRId64 " units in dimension %u, "
                              "expected %" PRId64 " as the first piece", c->what, c->rank, number, span->extent[d], d,
                              first->extent[d]);
    if (first->groups != span->groups)
        return refit_fail(c->err, REFIT_INVALID, "%s: rank %u: piece %u has %" PRId64 " groups, expected %" PRId64
                          " as the first piece", c->what, c->rank, number, span->groups, first->groups);
    return REFIT_OK;
}

static enum refit_status too_large(const struct check *c, const char *thing)
{
    return refit_fail(c->err, REFIT_INVALID, "%s: rank %u: %s is larger than 2^60 bytes", c->what, c->rank, thing);
}

/* Extents of the whole cell and its size; refit_entry_geometry() then can't overflow. */
static enum refit_status check_size(const struct check *c, const struct refit_span *first, int64_t rows)
{
    const struct refit_entry *entry = c->entry;
    int64_t bytes = entry->unit_bytes;
    for (uint32_t d = 0; d < entry->dims; d++) {
        int64_t extent = d == entry->dim ? rows : first->extent[d];
        if (__builtin_mul_overflow(bytes, extent ? extent : 1, &bytes) || bytes > REFIT_BYTES_MAX)
            return too_large(c, "the buffer");
    }
    for (uint32_t i = entry->named_count; i < entry->index_count; i++) {
        int64_t count = refit_index_count(&entry->indices[entry->index_order[i]], c->coords);
        if (__builtin_mul_overflow(bytes, count ? count : 1, &bytes) || bytes > REFIT_BYTES_MAX)
            return too_large(c, "the buffer");
    }
    return REFIT_OK;
}

static enum refit_status check_pieces(const struct check *c)
{
    const struct refit_entry *entry = c->entry;
    const struct refit_piece *pieces = &c->layout->pieces[entry->first_piece];
    struct refit_span first = {0}, span = {0};
    int64_t rows = 0;
    enum refit_status status;
    refit_piece_span(entry, first_tensor_piece(c->layout, entry), c->coords, &first);
    for (uint32_t p = 0; p < entry->piece_count; p++) {
        refit_piece_span(entry, &pieces[p], c->coords, &span);
        if ((status = check_units(c, &pieces[p])))
            return status;
        if (!pieces[p].fill && (status = check_alike(c, p, &first, &span)))
            return status;
        int64_t more = entry->groups > 1 ? pieces[p].group_rows : span.extent[entry->dim];
        if (__builtin_add_overflow(rows, entry->dims ? more : 1, &rows) || rows > REFIT_BYTES_MAX)
            return too_large(c, "the buffer");
    }
    if (__builtin_mul_overflow(rows, first.groups, &rows) || rows > REFIT_BYTES_MAX)
        return too_large(c, "the buffer");
    return check_size(c, &first, rows);
}

static enum refit_status check_count(const struct check *c, const struct refit_geometry *geometry)
{
    uint64_t cells = 1, bytes;
    for (uint32_t i = 0; i < c->entry->index_count; i++) {
        cells *= refit_index_count(&c->entry->indices[i], c->coords);
        if (cells > CELLS_MAX)
            return refit_fail(c->err, REFIT_INVALID, "%s: rank %u: more than %u members of a family", c->what, c->rank,
                              CELLS_MAX);
    }
    if (__builtin_mul_overflow(geometry->buffer_step, geometry->buffers, &bytes) || bytes > (uint64_t)REFIT_BYTES_MAX)
        return too_large(c, "the family");
    return REFIT_OK;
}

enum refit_status refit_entry_check_cell(const struct refit_layout *layout, const struct refit_entry *entry,
                                         uint32_t cell, struct refit_geometry *out, const char *what,
                                         struct refit_error *err)
{
    const struct refit_mesh *mesh = &layout->meshes[entry->mesh];
    struct check c = {.layout = layout, .entry = entry, .coords = mesh->coords + (size_t)cell * mesh->axes,
                      .rank = mesh->ranks[cell], .what = what, .err = err};
    enum refit_status status = entry->derived ? REFIT_OK : check_pieces(&c);
    if (status)
        return status;
    refit_entry_geometry(layout, entry, c.coords, 0, out);
    return check_count(&c, out);
}

uint64_t refit_entry_base(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank)
{
    return entry->bases ? entry->bases[layout->meshes[entry->mesh].cell_of[rank]] : entry->base;
}
