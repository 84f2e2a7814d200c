/* SPDX-License-Identifier: Apache-2.0
 *
 * All cells of a family have the same geometry on a rank, and cells tile their buffer, so one cell per entry and
 * rank is proved. Boxes are inside their shapes by construction (placements) or were checked when parsed (listed).
 */
#include "layouts/coverage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/footprint.h"
#include "layouts/layout_internal.h"

#define FILL_ITEM 0x80000000u /* the rest of the item is the fill's number */

struct prover {
    const struct refit_layout *layout;
    const struct refit_entry *entry;
    uint32_t rank;
    uint64_t base; /* of the bytes to be proved */
    uint32_t item;
    uint32_t unit_bytes;
    struct refit_footprints prints;
    enum refit_status status;
    struct refit_error *err;
};

static bool take_region(void *ctx, const struct refit_region *region)
{
    struct prover *p = ctx;
    p->status = refit_footprints_add(&p->prints, region->offset - p->base, p->unit_bytes, region->box.dims,
                                     region->box.extent, region->stride, p->item, p->err);
    return p->status == REFIT_OK;
}

static bool take_fill(void *ctx, const struct refit_fill *fill)
{
    struct prover *p = ctx;
    int64_t count = (int64_t)fill->count, stride = (int64_t)fill->stride;
    struct refit_footprint row = {.extent = {(int64_t)fill->row_bytes, count}, .stride = {1, stride}};
    p->status = refit_footprints_add(&p->prints, fill->offset - p->base, 1, 2, row.extent, row.stride,
                                     p->item | FILL_ITEM, p->err);
    return p->status == REFIT_OK;
}

/* The tensor (or fill) behind an item, for messages: of a family, the first member on the rank. */
static void item_name(const struct prover *p, uint32_t item, char *text, size_t len)
{
    const struct refit_layout *layout = p->layout;
    struct refit_tensor tensor;
    char name[REFIT_NAME_MAX];
    uint32_t values[REFIT_NAME_FIELDS];
    if (item & FILL_ITEM) {
        snprintf(text, len, "%s %u", p->entry->listed ? "fill" : "the fill of piece", item & ~FILL_ITEM);
        return;
    }
    if (p->entry->listed) {
        refit_layout_tensor(layout, layout->listed[p->entry->first_piece + item].tensor, &tensor);
        memcpy(name, tensor.name, sizeof name);
    } else {
        const struct refit_pattern *pattern = &layout->pieces[p->entry->first_piece + item].tensor;
        refit_pattern_first(layout, p->entry, pattern, p->rank, values);
        refit_names_render(&layout->tensor_names, pattern->skeleton, values, name);
    }
    snprintf(text, len, "tensor \"%s\"", name);
}

static enum refit_status report(const struct prover *p, const struct refit_cover_fault *fault)
{
    char buffer[REFIT_NAME_MAX], item[REFIT_NAME_MAX + 32], before[REFIT_NAME_MAX + 32];
    uint32_t values[REFIT_NAME_FIELDS];
    refit_pattern_first(p->layout, p->entry, &p->entry->buffer, p->rank, values);
    refit_names_render(&p->layout->buffer_names, p->entry->buffer.skeleton, values, buffer);
    if (fault->at_end)
        return refit_fail(p->err, REFIT_INVALID, "buffer \"%s\" of rank %u: bytes %" PRIu64 " to %" PRIu64 ", its end, "
                          "are in no region; add the tensor, a fill, or make it smaller", buffer, p->rank, fault->byte,
                          fault->end);
    item_name(p, fault->item, item, sizeof item);
    if (!fault->twice)
        return refit_fail(p->err, REFIT_INVALID, "buffer \"%s\" of rank %u: bytes %" PRIu64 " to %" PRIu64 ", before %s"
                          ", are in no region; add the tensor or a fill", buffer, p->rank, fault->byte, fault->end,
                          item);
    item_name(p, fault->before, before, sizeof before);
    return refit_fail(p->err, REFIT_INVALID, "buffer \"%s\" of rank %u: byte %" PRIu64 " is written twice, by %s and "
                      "by %s", buffer, p->rank, fault->byte, before, item);
}

static enum refit_status conclude(struct prover *p, uint64_t bytes)
{
    struct refit_cover_fault fault;
    if (p->status)
        return p->status;
    enum refit_status status = refit_footprints_check(&p->prints, bytes, &fault, p->err);
    return status || !fault.found ? status : report(p, &fault);
}

static enum refit_status prove_listed(struct prover *p)
{
    const struct refit_layout *layout = p->layout;
    p->rank = p->entry->rank;
    p->base = p->entry->base;
    for (p->item = 0; !p->status && p->item < p->entry->piece_count; p->item++) {
        const struct refit_listed *listed = &layout->listed[p->entry->first_piece + p->item];
        p->unit_bytes = refit_dtype_unit_bytes((enum refit_dtype)listed->dtype);
        (void)refit_listed_regions(layout, listed, 0, take_region, p);
    }
    for (p->item = 0; !p->status && p->item < p->entry->fill_count; p->item++) {
        const struct refit_listed_fill *listed = &layout->fills[p->entry->first_fill + p->item];
        struct refit_fill fill = {.offset = p->base + listed->offset, .row_bytes = listed->bytes, .count = 1};
        if (fill.row_bytes)
            (void)take_fill(p, &fill);
    }
    return conclude(p, p->entry->bytes);
}

static enum refit_status prove_cell(struct prover *p, uint32_t cell)
{
    const struct refit_mesh *mesh = &p->layout->meshes[p->entry->mesh];
    const uint32_t *coords = mesh->coords + (size_t)cell * mesh->axes;
    struct refit_geometry geometry = {0};
    p->rank = mesh->ranks[cell];
    p->prints.count = 0;
    p->unit_bytes = p->entry->unit_bytes;
    for (p->item = 0; !p->status && p->item < p->entry->piece_count; p->item++) {
        const struct refit_piece *piece = &p->layout->pieces[p->entry->first_piece + p->item];
        refit_entry_geometry(p->layout, p->entry, coords, p->item, &geometry);
        if (geometry.buffers == 0 || geometry.stacked == 0)
            return REFIT_OK;
        if (!piece->fill)
            (void)refit_piece_regions(p->entry, piece, &geometry, 0, 0, p->rank, take_region, p);
        if (!p->status)
            (void)refit_piece_fills(p->entry, piece, &geometry, 0, p->rank, take_fill, p);
    }
    return conclude(p, geometry.cell_bytes);
}

static enum refit_status prove_entry(struct prover *p)
{
    enum refit_status status = REFIT_OK;
    p->prints.count = 0;
    p->base = 0;
    if (p->entry->derived)
        return REFIT_OK;
    if (p->entry->listed)
        return prove_listed(p);
    for (uint32_t cell = 0; !status && cell < p->layout->meshes[p->entry->mesh].cells; cell++)
        status = prove_cell(p, cell);
    return status;
}

enum refit_status refit_coverage_check(const struct refit_layout *destination, struct refit_error *err)
{
    struct prover p = {.layout = destination, .err = err};
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; !status && i < destination->entry_count; i++) {
        p.entry = &destination->entries[i];
        status = prove_entry(&p);
    }
    free(p.prints.list);
    return status;
}
