/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries on a mesh: JSON to compiled form.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

struct entry_parser {
    struct refit_layout *layout;
    struct refit_entry *entry; /* not yet in the layout */
    const struct refit_mesh *mesh;
    const char *what;
    const char *names[REFIT_INDICES_MAX];
    struct refit_error *err;
};

/* What a piece says about itself, in elements, before it is compiled. */
struct piece_text {
    const char *what;
    uint32_t dims;
    int64_t shape[REFIT_DIMS_MAX];
    int64_t row_start, row_block, row_every;
    int64_t padded[REFIT_DIMS_MAX];
};

static enum refit_status find_mesh(struct entry_parser *p, const json_t *json)
{
    const char *name = NULL;
    enum refit_status status = refit_json_get_string(json, "mesh", p->what, &name, p->err);
    if (status)
        return status;
    for (uint32_t i = 0; i < p->layout->mesh_count; i++) {
        if (strcmp(p->layout->meshes[i].name, name) == 0) {
            p->entry->mesh = i;
            p->mesh = &p->layout->meshes[i];
            return REFIT_OK;
        }
    }
    return refit_fail(p->err, REFIT_INVALID, "%s: \"mesh\" \"%.64s\" is not in \"meshes\"", p->what, name);
}

/* The rows that a piece takes of its tensor: all, [start, count] or [start, count, every]. */
static enum refit_status parse_rows(struct entry_parser *p, const json_t *json, struct piece_text *text)
{
    uint32_t dim = p->entry->dim;
    int64_t rows[3] = {0, 0, 0}, all = text->dims ? text->shape[dim] : 1;
    size_t count = 0;
    text->row_start = 0;
    text->row_block = text->row_every = all;
    if (!json_object_get(json, "rows"))
        return REFIT_OK;
    enum refit_status status = refit_numbers_member(json, "rows", text->what, 3, 0, REFIT_BYTES_MAX, rows, &count,
                                                    p->err);
    if (status)
        return status;
    if (count < 2 || text->dims == 0)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"rows\" must be [start, count] or [start, count, every] of a "
                          "tensor with dimensions", text->what);
    int64_t every = count == 3 ? rows[2] : all;
    if (rows[0] + rows[1] > every || every > all || (every && all % every != 0))
        return refit_fail(p->err, REFIT_INVALID, "%s: \"rows\" [%" PRId64 ", %" PRId64 "] do not fit %s of %" PRId64
                          " (dimension %u has %" PRId64 ")", text->what, rows[0], rows[1],
                          count == 3 ? "blocks" : "the dimension", every, dim, all);
    text->row_start = rows[0];
    text->row_block = rows[1];
    text->row_every = every;
    return REFIT_OK;
}

static int64_t selected_rows(const struct piece_text *text, int64_t all)
{
    return text->row_every ? all / text->row_every * text->row_block : 0;
}

static enum refit_status parse_pad(struct entry_parser *p, const json_t *json, struct piece_text *text,
                                   struct refit_piece *piece)
{
    static const char *const known[] = {"dim", "to", "value", NULL};
    const json_t *pad = json_object_get(json, "pad");
    int64_t dim = 0, to = 0, value = 0;
    enum refit_status status;
    memcpy(text->padded, text->shape, sizeof text->padded);
    if (text->dims)
        text->padded[p->entry->dim] = selected_rows(text, text->shape[p->entry->dim]);
    if (!pad)
        return REFIT_OK;
    if (text->dims == 0)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"pad\": a scalar has no dimension to pad", text->what);
    if ((status = refit_json_known(pad, text->what, known, p->err)) ||
        (status = refit_json_get_int(pad, "dim", text->what, 0, text->dims - 1, &dim, p->err)) ||
        (status = refit_json_get_int(pad, "to", text->what, text->padded[dim], REFIT_BYTES_MAX, &to, p->err)) ||
        (status = refit_json_opt_int(pad, "value", text->what, 0, 255, &value, p->err)))
        return status;
    text->padded[dim] = to;
    piece->value = (uint8_t)value;
    return refit_shape_check(text->what, (enum refit_dtype)p->entry->dtype, text->dims, text->padded, p->err);
}

static enum refit_status compile_groups(struct entry_parser *p, const struct piece_text *text,
                                        struct refit_piece *piece)
{
    const struct refit_entry *entry = p->entry;
    int64_t rows = text->dims ? text->padded[entry->dim] : 1;
    int64_t unit = entry->dim + 1 == entry->dims ? (int64_t)1 << entry->unit_shift : 1;
    if (entry->groups <= 1)
        return REFIT_OK;
    if (text->dims == 0 || rows % entry->groups != 0 || rows / entry->groups % unit != 0)
        return refit_fail(p->err, REFIT_INVALID, "%s: %" PRId64 " rows do not make %" PRId64 " groups of whole units",
                          text->what, rows, entry->groups);
    piece->group_rows = rows / entry->groups / unit;
    return REFIT_OK;
}

/* From elements to units; refuses what cuts inside one. */
static enum refit_status compile_units(struct entry_parser *p, const struct piece_text *text, struct refit_piece *piece)
{
    const struct refit_entry *entry = p->entry;
    uint32_t last = entry->dims - 1u, shift = entry->unit_shift;
    int64_t inside = ((int64_t)1 << shift) - 1;
    memcpy(piece->shape, text->shape, sizeof piece->shape);
    memcpy(piece->padded, text->padded, sizeof piece->padded);
    piece->row_start = text->row_start;
    piece->row_block = text->row_block;
    piece->row_every = text->row_every;
    if (entry->dims == 0)
        return REFIT_OK;
    piece->shape[entry->dim] = selected_rows(text, text->shape[entry->dim]);
    if (entry->dim == last) {
        if ((text->row_start | text->row_block | text->row_every) & inside)
            return refit_fail(p->err, REFIT_INVALID, "%s: \"rows\" cut inside a unit: %s packs %d elements",
                              text->what, refit_dtype_name((enum refit_dtype)entry->dtype), 1 << shift);
        piece->row_start >>= shift;
        piece->row_block >>= shift;
        piece->row_every >>= shift;
    }
    piece->shape[last] >>= shift;
    return compile_groups(p, text, piece);
}

static enum refit_status check_placed(struct entry_parser *p, const struct refit_piece *piece, const char *what)
{
    for (uint32_t i = 0; i < p->entry->index_count; i++) {
        const struct refit_index *index = &p->entry->indices[i];
        if (index->axis >= 0 && refit_placement_cuts_axis(&piece->placement, (uint32_t)index->axis))
            return refit_fail(p->err, REFIT_INVALID, "%s: mesh axis \"%s\" cuts index \"%s\", so it must be Replicate "
                              "in \"placements\"", what, p->mesh->axis_name[index->axis], index->name);
    }
    return REFIT_OK;
}

static enum refit_status set_dims(struct entry_parser *p, const char *what, uint32_t dims)
{
    struct refit_entry *entry = p->entry;
    if (entry->dims == UINT8_MAX) {
        entry->dims = (uint8_t)dims;
        if (dims ? entry->dim >= dims : entry->dim > 0)
            return refit_fail(p->err, REFIT_INVALID, "%s: \"dim\" is %u, but the tensor has %u dimensions", what,
                              entry->dim, dims);
    }
    if (dims != entry->dims)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"shape\" has %u dimensions, expected %u as the pieces before",
                          what, dims, entry->dims);
    return REFIT_OK;
}

static enum refit_status parse_tensor_piece(struct entry_parser *p, const json_t *json, const char *what,
                                            struct refit_piece *piece)
{
    struct refit_layout *layout = p->layout;
    const char *name = NULL;
    char named[384];
    struct piece_text text = {.what = named};
    enum refit_dtype dtype = (enum refit_dtype)p->entry->dtype;
    enum refit_status status = refit_json_get_string(json, "tensor", what, &name, p->err);
    if (status)
        return status;
    snprintf(named, sizeof named, "%.220s: tensor \"%.128s\"", what, name);
    if ((status = refit_names_pattern(&layout->tensor_names, name, p->names, p->entry->index_count, false,
                                      &piece->tensor, p->err))) {
        refit_error_prefix(p->err, status, "%.200s", what);
        return status;
    }
    if ((status = refit_shape_parse(json, named, dtype, &text.dims, text.shape, p->err)) ||
        (status = set_dims(p, named, text.dims)) || (status = parse_rows(p, json, &text)) ||
        (status = parse_pad(p, json, &text, piece)) ||
        (status = refit_placement_parse(json_object_get(json, "placements"), p->mesh, text.dims, named,
                                        &piece->placement, p->err)) ||
        (status = check_placed(p, piece, named)) || (status = compile_units(p, &text, piece)))
        return status;
    struct refit_box box = refit_pattern_box(&piece->tensor, p->entry->indices, p->mesh);
    return refit_tensor_claim(layout, &piece->tensor, &box, dtype, text.dims, text.shape,
                              (uint32_t)layout->piece_count, named, p->err);
}

static enum refit_status parse_fill_piece(struct entry_parser *p, const json_t *json, const char *what,
                                          struct refit_piece *piece)
{
    static const char *const known[] = {"fill", "rows", NULL};
    int64_t value = 0, rows = 0;
    enum refit_status status;
    if ((status = refit_json_known(json, what, known, p->err)) ||
        (status = refit_json_get_int(json, "fill", what, 0, 255, &value, p->err)) ||
        (status = refit_json_get_int(json, "rows", what, 1, REFIT_BYTES_MAX, &rows, p->err)))
        return status;
    piece->fill = true;
    piece->value = (uint8_t)value;
    piece->row_block = piece->row_every = rows;
    return REFIT_OK;
}

static enum refit_status add_piece(struct entry_parser *p, const json_t *json, const char *what)
{
    struct refit_layout *layout = p->layout;
    struct refit_piece piece = {0};
    enum refit_status status = json_object_get(json, "fill") ? parse_fill_piece(p, json, what, &piece)
                                                             : parse_tensor_piece(p, json, what, &piece);
    if (status)
        return status;
    piece.entry = (uint32_t)layout->entry_count;
    if (!refit_array_reserve(&layout->pieces, &layout->piece_capacity, layout->piece_count + 1, sizeof piece))
        return refit_fail_alloc(p->err, "pieces", layout->piece_count * sizeof piece);
    layout->pieces[layout->piece_count++] = piece;
    p->entry->piece_count++;
    return REFIT_OK;
}

/* Fill pieces count rows in the unit of the dimension, which is known once the tensors are. */
static enum refit_status finish_fills(struct entry_parser *p)
{
    struct refit_entry *entry = p->entry;
    if (entry->dims == UINT8_MAX)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"pieces\" need at least one with a tensor", p->what);
    if (entry->dims == 0 && entry->piece_count > 1)
        return refit_fail(p->err, REFIT_INVALID, "%s: scalars can't be concatenated", p->what);
    uint32_t shift = entry->dim + 1 == entry->dims ? entry->unit_shift : 0;
    for (uint32_t i = 0; i < entry->piece_count; i++) {
        struct refit_piece *piece = &p->layout->pieces[entry->first_piece + i];
        if (!piece->fill)
            continue;
        if (piece->row_block & (((int64_t)1 << shift) - 1))
            return refit_fail(p->err, REFIT_INVALID, "%s: a fill of %" PRId64 " elements ends inside a unit of %s",
                              p->what, piece->row_block, refit_dtype_name((enum refit_dtype)entry->dtype));
        piece->group_rows = piece->padded[entry->dim] = piece->row_block >> shift;
    }
    return REFIT_OK;
}

static enum refit_status parse_pieces(struct entry_parser *p, const json_t *pieces)
{
    static const char *const known[] = {"tensor", "shape", "placements", "rows", "pad", "fill", NULL};
    const json_t *json;
    size_t i;
    if (!json_is_array(pieces) || json_array_size(pieces) < 1 || json_array_size(pieces) > REFIT_PIECES_MAX)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"pieces\" must be an array of 1 to %d", p->what,
                          REFIT_PIECES_MAX);
    json_array_foreach(pieces, i, json) {
        char what[256];
        snprintf(what, sizeof what, "%.200s: piece %zu", p->what, i);
        enum refit_status status = refit_json_known(json, what, known, p->err);
        if (status || (status = add_piece(p, json, what)))
            return status;
    }
    return REFIT_OK;
}

/* [0, 1, ...] unless "order" says otherwise. */
static enum refit_status parse_order(struct entry_parser *p, const json_t *json)
{
    int64_t order[REFIT_DIMS_MAX];
    size_t count = 0;
    uint32_t seen = 0;
    struct refit_entry *entry = p->entry;
    for (uint32_t d = 0; d < REFIT_DIMS_MAX; d++)
        entry->order[d] = (uint8_t)d;
    if (!json_object_get(json, "order"))
        return REFIT_OK;
    enum refit_status status = refit_numbers_member(json, "order", p->what, REFIT_DIMS_MAX, 0, REFIT_DIMS_MAX - 1,
                                                    order, &count, p->err);
    if (status)
        return status;
    for (size_t i = 0; i < count; i++) {
        seen |= 1u << order[i];
        entry->order[i] = (uint8_t)order[i];
    }
    if (count != entry->dims || seen != (1u << count) - 1)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"order\" must hold each of the %u dimensions once", p->what,
                          entry->dims);
    return REFIT_OK;
}

static enum refit_status parse_buffer_name(struct entry_parser *p, const json_t *json)
{
    struct refit_entry *entry = p->entry;
    const char *name = NULL;
    enum refit_status status = refit_json_opt_string(json, "buffer", p->what, &name, p->err);
    if (!status && !name)
        status = refit_json_get_string(json, "tensor", p->what, &name, p->err);
    if (status)
        return status;
    status = refit_names_pattern(&p->layout->buffer_names, name, p->names, entry->index_count, true, &entry->buffer,
                                 p->err);
    if (status)
        refit_error_prefix(p->err, status, "%.200s: buffer", p->what);
    return status;
}

static void order_by(struct refit_entry *entry, const struct refit_pattern *pattern, uint32_t wanted, uint32_t *taken,
                     uint32_t *count)
{
    for (uint32_t i = 0; i < pattern->fields; i++) {
        int v = pattern->var[i];
        if (v < 0 || !(wanted >> v & 1) || *taken >> v & 1)
            continue;
        *taken |= 1u << v;
        entry->index_order[(*count)++] = (uint8_t)v;
    }
}

/* Indices that tell buffers apart, then stacked ones; each in the order of the names, whatever JSON's was. */
static enum refit_status order_indices(struct entry_parser *p)
{
    struct refit_entry *entry = p->entry;
    uint32_t taken = 0, count = 0, named = entry->buffer.vars_used;
    order_by(entry, &entry->buffer, named, &taken, &count);
    entry->named_count = (uint8_t)count;
    for (uint32_t i = 0; i < entry->piece_count; i++) {
        const struct refit_piece *piece = &p->layout->pieces[entry->first_piece + i];
        if (!piece->fill)
            order_by(entry, &piece->tensor, ~named, &taken, &count);
    }
    for (uint32_t v = 0; v < entry->index_count; v++)
        if (!(taken >> v & 1))
            return refit_fail(p->err, REFIT_INVALID, "%s: index \"%s\" of \"for\" is in no name", p->what,
                              entry->indices[v].name);
    return REFIT_OK;
}

static enum refit_status check_named(struct entry_parser *p)
{
    const struct refit_entry *entry = p->entry;
    for (uint32_t v = 0; v < entry->index_count; v++) {
        uint32_t repeated = 0;
        bool by_id = (entry->buffer.vars_used & ~entry->buffer.local) >> v & 1;
        if (by_id && refit_index_repeats(&entry->indices[v], p->mesh, &repeated))
            return refit_fail(p->err, REFIT_INVALID, "%s: index \"%s\": %u stands twice in one list, so two buffers "
                              "would have one name; use {%s:local}", p->what, entry->indices[v].name, repeated,
                              entry->indices[v].name);
    }
    return REFIT_OK;
}

static enum refit_status parse_derived(struct entry_parser *p, const json_t *json)
{
    static const char *const known[] = {"buffer", "for", "mesh", "bytes", "derived", NULL};
    int64_t bytes = 0;
    enum refit_status status;
    p->entry->dims = 0;
    if ((status = refit_json_known(json, p->what, known, p->err)) ||
        (status = refit_json_get_int(json, "bytes", p->what, 0, REFIT_BYTES_MAX, &bytes, p->err)))
        return status;
    p->entry->bytes = (uint64_t)bytes;
    return REFIT_OK;
}

static enum refit_status parse_body(struct entry_parser *p, const json_t *json)
{
    static const char *const known_short[] = {"tensor", "for",   "dtype", "shape", "mesh", "placements", "buffer",
                                              "order",  "pad",   "rows",  "dim",   "groups", NULL};
    static const char *const known_long[] = {"buffer", "for",    "dtype", "mesh", "dim",
                                             "groups", "pieces", "order", NULL};
    struct refit_entry *entry = p->entry;
    const json_t *pieces = json_object_get(json, "pieces");
    enum refit_dtype dtype = REFIT_DTYPE_U8;
    int64_t dim = 0, groups = 1;
    enum refit_status status;
    if (entry->derived)
        return parse_derived(p, json);
    if ((status = refit_json_known(json, p->what, pieces ? known_long : known_short, p->err)) ||
        (status = refit_dtype_member(json, p->what, &dtype, p->err)) ||
        (status = refit_json_opt_int(json, "dim", p->what, 0, REFIT_DIMS_MAX - 1, &dim, p->err)) ||
        (status = refit_json_opt_int(json, "groups", p->what, 1, REFIT_BYTES_MAX, &groups, p->err)))
        return status;
    entry->dtype = (uint8_t)dtype;
    entry->unit_bytes = (uint8_t)refit_dtype_unit_bytes(dtype);
    entry->unit_shift = (uint8_t)__builtin_ctz(refit_dtype_unit_elements(dtype));
    entry->dim = (uint8_t)dim;
    entry->groups = groups;
    if ((status = pieces ? parse_pieces(p, pieces) : add_piece(p, json, p->what)) || (status = finish_fills(p)))
        return status;
    return parse_order(p, json);
}

static enum refit_status parse(struct entry_parser *p, const json_t *json)
{
    struct refit_entry *entry = p->entry;
    enum refit_status status;
    if ((status = find_mesh(p, json)) ||
        (status = refit_layout_count_cells(p->layout, p->mesh->cells, p->what, p->err)) ||
        (status = refit_indices_parse(entry, json_object_get(json, "for"), p->mesh, p->what, p->err)))
        return status;
    for (uint32_t i = 0; i < entry->index_count; i++)
        p->names[i] = entry->indices[i].name;
    if ((status = parse_body(p, json)) || (status = parse_buffer_name(p, json)) || (status = order_indices(p)) ||
        (status = check_named(p)))
        return status;
    struct refit_box box = refit_pattern_box(&entry->buffer, entry->indices, p->mesh);
    return refit_buffer_claim(p->layout, &box, &entry->buffer, (uint32_t)p->layout->entry_count, p->what,
                              p->err);
}

enum refit_status refit_entry_parse(struct refit_layout *layout, const json_t *json, const char *what,
                                    struct refit_error *err)
{
    struct refit_entry entry = {.dims = UINT8_MAX, .first_piece = (uint32_t)layout->piece_count, .groups = 1};
    struct entry_parser p = {.layout = layout, .entry = &entry, .what = what, .err = err};
    enum refit_status status = refit_json_opt_bool(json, "derived", what, &entry.derived, err);
    if (!status)
        status = parse(&p, json);
    /* In the layout also when it failed, which then releases it. */
    layout->entries[layout->entry_count++] = entry;
    return status;
}
