/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions and fills of one piece in one cell, made on the fly.
 *
 * Along the entry's `dim` a piece is a row of rows: tensor rows come in blocks (a window), buffer rows in groups.
 * A region ends where either does; everything else is one region.
 */
#include "layouts/layout_internal.h"

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Consecutive rows of a piece that one region can describe. */
struct row_run {
    int64_t tensor_row;
    int64_t buffer_row;
    int64_t count;
    int64_t step; /* buffer rows from one to the next */
};

static struct row_run tensor_run(const struct refit_piece *piece, int64_t row, int64_t left)
{
    if (piece->row_every == piece->row_block)
        return (struct row_run){.tensor_row = piece->row_start + row, .count = left, .step = 1};
    int64_t within = row % piece->row_block;
    return (struct row_run){.tensor_row = piece->row_start + row / piece->row_block * piece->row_every + within,
                            .count = min_i64(left, piece->row_block - within), .step = 1};
}

/* Binds a run to the buffer: `local` counts the piece's rows on this rank. */
static void bind_run(const struct refit_piece *piece, const struct refit_geometry *g, int64_t local,
                     struct row_run *run)
{
    if (g->groups == 1) {
        run->buffer_row = g->rows_before + local;
        return;
    }
    int64_t rows = piece->group_rows, within = local % rows;
    run->buffer_row = local / rows * g->group_rows + g->rows_before + within;
    if (rows == 1) /* one row per group: equidistant */
        run->step = g->group_rows;
    else
        run->count = min_i64(run->count, rows - within);
}

/* What the tensor has of the span, without padding; false when nothing. */
static bool clip(const struct refit_entry *entry, const struct refit_piece *piece, const struct refit_span *span,
                 int64_t *extent)
{
    for (uint32_t d = 0; d < entry->dims; d++) {
        extent[d] = min_i64(span->extent[d], piece->shape[d] - span->start[d]);
        if (extent[d] <= 0)
            return false;
    }
    return true;
}

bool refit_piece_regions(const struct refit_entry *entry, const struct refit_piece *piece,
                         const struct refit_geometry *g, uint64_t at, uint32_t tensor, uint32_t rank,
                         refit_region_sink sink, void *ctx)
{
    struct refit_region region = {.tensor = tensor, .rank = rank, .offset = at, .box.dims = entry->dims};
    uint32_t dim = entry->dim;
    if (!clip(entry, piece, &g->span, region.box.extent))
        return true;
    if (entry->dims == 0)
        return sink(ctx, &region);
    for (uint32_t d = 0; d < entry->dims; d++) {
        region.box.start[d] = g->span.start[d];
        region.stride[d] = g->stride[d];
    }
    int64_t rows = region.box.extent[dim];
    for (int64_t local = 0; local < rows;) {
        struct row_run run = tensor_run(piece, g->span.start[dim] + local, rows - local);
        bind_run(piece, g, local, &run);
        region.box.start[dim] = run.tensor_row;
        region.box.extent[dim] = run.count;
        region.stride[dim] = g->stride[dim] * run.step;
        region.offset = at + (uint64_t)(run.buffer_row * g->stride[dim]);
        local += run.count;
        /* The sink may not change the region, so it can be used again for the next one. */
        if (!sink(ctx, &region))
            return false;
    }
    return true;
}

/* A box of constant bytes as rectangles: inner dimensions that touch become one row. */
struct fill_box {
    uint32_t dims;
    uint64_t run_bytes;
    int64_t extent[REFIT_DIMS_MAX]; /* from the smallest stride to the largest */
    int64_t stride[REFIT_DIMS_MAX];
};

static struct fill_box collapse(uint32_t dims, const int64_t *extent, const int64_t *stride, uint32_t unit_bytes)
{
    struct fill_box box = {.run_bytes = unit_bytes};
    for (uint32_t d = 0; d < dims; d++) {
        uint32_t at = box.dims;
        if (extent[d] == 1)
            continue;
        for (; at > 0 && box.stride[at - 1] > stride[d]; at--) {
            box.stride[at] = box.stride[at - 1];
            box.extent[at] = box.extent[at - 1];
        }
        box.stride[at] = stride[d];
        box.extent[at] = extent[d];
        box.dims++;
    }
    uint32_t inner = 0;
    while (inner < box.dims && box.stride[inner] == (int64_t)box.run_bytes)
        box.run_bytes *= (uint64_t)box.extent[inner++];
    box.dims -= inner;
    for (uint32_t d = 0; d < box.dims; d++) {
        box.stride[d] = box.stride[d + inner];
        box.extent[d] = box.extent[d + inner];
    }
    return box;
}

static bool emit_fill_box(const struct fill_box *box, uint64_t at, uint32_t rank, uint8_t value, refit_fill_sink sink,
                          void *ctx)
{
    int64_t index[REFIT_DIMS_MAX] = {0};
    struct refit_fill fill = {.rank = rank, .row_bytes = box->run_bytes, .count = 1, .stride = box->run_bytes,
                              .value = value};
    if (box->dims > 0) {
        fill.count = (uint64_t)box->extent[0];
        fill.stride = (uint64_t)box->stride[0];
    }
    for (;;) {
        uint32_t d = 1;
        fill.offset = at;
        for (uint32_t k = 1; k < box->dims; k++)
            fill.offset += (uint64_t)(index[k] * box->stride[k]);
        if (!sink(ctx, &fill))
            return false;
        while (d < box->dims && ++index[d] == box->extent[d])
            index[d++] = 0;
        if (d >= box->dims)
            return true;
    }
}

/* The box of a piece that is not the tensor's: all of a fill piece, or what lies beyond the tensor in the padded
 * dimension; false when there is none. Only one dimension is padded. */
static bool fill_part(const struct refit_entry *entry, const struct refit_piece *piece, const struct refit_span *span,
                      int64_t *start, int64_t *extent)
{
    bool any = piece->fill;
    for (uint32_t d = 0; d < entry->dims; d++) {
        start[d] = 0;
        extent[d] = span->extent[d];
        if (extent[d] == 0)
            return false;
        int64_t own = piece->shape[d] - span->start[d];
        if (piece->fill || own >= extent[d])
            continue;
        start[d] = own > 0 ? own : 0;
        extent[d] -= start[d];
        any = true;
    }
    return any;
}

bool refit_piece_has_fill(const struct refit_entry *entry, const struct refit_piece *piece)
{
    for (uint32_t d = 0; d < entry->dims; d++)
        if (piece->padded[d] > piece->shape[d] << (d + 1 == entry->dims ? entry->unit_shift : 0))
            return true;
    return piece->fill;
}

bool refit_piece_fills(const struct refit_entry *entry, const struct refit_piece *piece,
                       const struct refit_geometry *g, uint64_t at, uint32_t rank, refit_fill_sink sink, void *ctx)
{
    int64_t start[REFIT_DIMS_MAX] = {0}, extent[REFIT_DIMS_MAX] = {0}, stride[REFIT_DIMS_MAX] = {0};
    uint32_t dim = entry->dim;
    if (!fill_part(entry, piece, &g->span, start, extent))
        return true;
    int64_t rows = extent[dim];
    for (uint32_t d = 0; d < entry->dims; d++) {
        stride[d] = g->stride[d];
        if (d != dim)
            at += (uint64_t)(start[d] * stride[d]);
    }
    for (int64_t done = 0; done < rows;) {
        struct row_run run = {.count = rows - done, .step = 1};
        bind_run(piece, g, start[dim] + done, &run);
        extent[dim] = run.count;
        stride[dim] = g->stride[dim] * run.step;
        struct fill_box box = collapse(entry->dims, extent, stride, entry->unit_bytes);
        if (!emit_fill_box(&box, at + (uint64_t)(run.buffer_row * g->stride[dim]), rank, piece->value, sink, ctx))
            return false;
        done += run.count;
    }
    return true;
}

static bool flat_regions(const struct refit_listed *listed, const int64_t *numbers, uint32_t unit_bytes,
                         struct refit_region *region, refit_region_sink sink, void *ctx)
{
    struct refit_box boxes[2 * REFIT_DIMS_MAX];
    uint32_t dims = listed->dims;
    int64_t step = unit_bytes;
    size_t count = refit_box_from_flat(dims, numbers, (uint64_t)numbers[dims], (uint64_t)numbers[dims + 1], boxes);
    for (uint32_t d = dims; d-- > 0; step *= numbers[d])
        region->stride[d] = step;
    for (size_t i = 0; i < count; i++) {
        region->box = boxes[i];
        if (!sink(ctx, region))
            return false;
        region->offset += refit_box_volume(&boxes[i]) * unit_bytes;
    }
    return true;
}

bool refit_listed_regions(const struct refit_layout *layout, const struct refit_listed *listed, uint32_t tensor,
                          refit_region_sink sink, void *ctx)
{
    const struct refit_entry *entry = &layout->entries[listed->entry];
    const int64_t *numbers = layout->numbers + listed->numbers;
    uint32_t dims = listed->dims;
    struct refit_region region = {.tensor = tensor, .rank = entry->rank, .offset = entry->base + listed->offset,
                                  .box.dims = dims};
    if (listed->flat)
        return flat_regions(listed, numbers, refit_dtype_unit_bytes((enum refit_dtype)listed->dtype), &region, sink,
                            ctx);
    for (uint32_t d = 0; d < dims; d++) {
        region.box.start[d] = numbers[d];
        region.box.extent[d] = numbers[dims + d];
        region.stride[d] = numbers[2 * dims + d];
    }
    return refit_box_empty(&region.box) ? true : sink(ctx, &region);
}
