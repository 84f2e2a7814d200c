/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries that list one rank's regions: JSON to compiled form.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

struct listed_parser {
    struct refit_layout *layout;
    struct refit_entry *entry;
    const char *what;
    struct refit_error *err;
};

/* One region, in elements and as written. */
struct region_text {
    const char *what;
    const char *tensor;
    enum refit_dtype dtype;
    uint32_t dims;
    int64_t unit, unit_bytes;
    int64_t shape[REFIT_DIMS_MAX];
    int64_t start[REFIT_DIMS_MAX], extent[REFIT_DIMS_MAX], stride[REFIT_DIMS_MAX];
    bool flat;
    int64_t begin, end;
    int64_t offset;
};

static enum refit_status optional_numbers(struct listed_parser *p, const json_t *json, const char *key,
                                          struct region_text *text, int64_t lowest, int64_t *out)
{
    size_t count = 0;
    enum refit_status status;
    if (!json_object_get(json, key))
        return REFIT_OK;
    if ((status = refit_numbers_member(json, key, text->what, REFIT_DIMS_MAX, lowest, REFIT_BYTES_MAX, out, &count,
                                       p->err)))
        return status;
    if (count != text->dims)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"%s\" has %zu numbers, expected %u as \"shape\"", text->what,
                          key, count, text->dims);
    return REFIT_OK;
}

/* [start, start + extent) inside the shape; both become units. */
static enum refit_status check_box(struct listed_parser *p, struct region_text *text)
{
    for (uint32_t d = 0; d < text->dims; d++) {
        if (text->start[d] + text->extent[d] > text->shape[d])
            return refit_fail(p->err, REFIT_INVALID, "%s: [%" PRId64 ", %" PRId64 ") in dimension %u is outside its "
                              "shape's %" PRId64, text->what, text->start[d], text->start[d] + text->extent[d], d,
                              text->shape[d]);
    }
    if (text->dims == 0)
        return REFIT_OK;
    int64_t *start = &text->start[text->dims - 1], *extent = &text->extent[text->dims - 1];
    if (*start % text->unit || *extent % text->unit)
        return refit_fail(p->err, REFIT_INVALID, "%s: its box cuts inside a unit: %s packs %" PRId64 " elements",
                          text->what, refit_dtype_name(text->dtype), text->unit);
    *start /= text->unit;
    *extent /= text->unit;
    return REFIT_OK;
}

/* The default, dense strides of the box. */
static void set_dense(struct region_text *text)
{
    int64_t step = text->unit_bytes;
    for (uint32_t d = text->dims; d-- > 0;) {
        text->stride[d] = step;
        step *= text->extent[d] ? text->extent[d] : 1;
    }
}

static enum refit_status outside(struct listed_parser *p, const struct region_text *text)
{
    return refit_fail(p->err, REFIT_INVALID, "%s: its region at offset %" PRId64 " ends outside the buffer of %" PRIu64
                      " bytes", text->what, text->offset, p->entry->bytes);
}

/* The region's last byte is in the buffer. */
static enum refit_status check_reach(struct listed_parser *p, const struct region_text *text)
{
    int64_t end = text->offset, step;
    if (__builtin_add_overflow(end, text->unit_bytes, &end))
        return outside(p, text);
    for (uint32_t d = 0; d < text->dims; d++) {
        if (text->extent[d] == 0)
            return REFIT_OK;
        if (text->extent[d] > 1 && text->stride[d] < text->unit_bytes)
            return refit_fail(p->err, REFIT_INVALID, "%s: \"stride\" %" PRId64 " in dimension %u is less than a unit "
                              "of %" PRId64 " bytes", text->what, text->stride[d], d, text->unit_bytes);
        if (__builtin_mul_overflow(text->extent[d] - 1, text->stride[d], &step) ||
            __builtin_add_overflow(end, step, &end))
            return outside(p, text);
    }
    return (uint64_t)end <= p->entry->bytes ? REFIT_OK : outside(p, text);
}

static enum refit_status parse_box(struct listed_parser *p, const json_t *json, struct region_text *text)
{
    enum refit_status status;
    memcpy(text->extent, text->shape, sizeof text->extent);
    if ((status = optional_numbers(p, json, "start", text, 0, text->start)))
        return status;
    for (uint32_t d = 0; d < text->dims; d++)
        text->extent[d] -= text->start[d] < text->shape[d] ? text->start[d] : text->shape[d];
    if ((status = optional_numbers(p, json, "extent", text, 0, text->extent)) || (status = check_box(p, text)))
        return status;
    set_dense(text);
    if ((status = optional_numbers(p, json, "stride", text, 0, text->stride)))
        return status;
    return check_reach(p, text);
}

static enum refit_status parse_flat(struct listed_parser *p, const json_t *json, struct region_text *text)
{
    int64_t range[2] = {0, 0}, elements = 1, end;
    size_t count = 0;
    enum refit_status status = refit_numbers_member(json, "flat", text->what, 2, 0, REFIT_BYTES_MAX, range, &count,
                                                    p->err);
    if (status)
        return status;
    for (uint32_t d = 0; d < text->dims; d++)
        elements *= text->shape[d];
    if (count != 2 || range[0] > range[1] || range[1] > elements)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"flat\" must be [begin, end) within its %" PRId64 " elements",
                          text->what, elements);
    if (range[0] % text->unit || range[1] % text->unit)
        return refit_fail(p->err, REFIT_INVALID, "%s: \"flat\" cuts inside a unit: %s packs %" PRId64 " elements",
                          text->what, refit_dtype_name(text->dtype), text->unit);
    text->begin = range[0] / text->unit;
    text->end = range[1] / text->unit;
    if (__builtin_add_overflow(text->offset, (text->end - text->begin) * text->unit_bytes, &end) ||
        (uint64_t)end > p->entry->bytes)
        return outside(p, text);
    return REFIT_OK;
}

static enum refit_status store(struct listed_parser *p, const struct region_text *text, uint32_t tensor)
{
    struct refit_layout *layout = p->layout;
    size_t need = text->flat ? text->dims + 2u : 3u * text->dims;
    /* One more than needed: a scalar's numbers are none, but somewhere. */
    if (!refit_array_reserve(&layout->listed, &layout->listed_capacity, layout->listed_count + 1,
                             sizeof *layout->listed) ||
        !refit_array_reserve(&layout->numbers, &layout->numbers_capacity, layout->numbers_len + need + 1,
                             sizeof *layout->numbers))
        return refit_fail_alloc(p->err, "regions", layout->listed_count * sizeof *layout->listed);
    int64_t *numbers = layout->numbers + layout->numbers_len;
    layout->listed[layout->listed_count++] = (struct refit_listed){
        .entry = (uint32_t)layout->entry_count, .tensor = tensor, .dtype = (uint8_t)text->dtype, .flat = text->flat,
        .dims = (uint8_t)text->dims, .offset = (uint64_t)text->offset, .numbers = layout->numbers_len};
    layout->numbers_len += need;
    p->entry->piece_count++;
    for (uint32_t d = 0; d < text->dims; d++) {
        if (text->flat) {
            *numbers++ = d + 1 == text->dims ? text->shape[d] / text->unit : text->shape[d];
            continue;
        }
        numbers[d] = text->start[d];
        numbers[text->dims + d] = text->extent[d];
        numbers[2 * text->dims + d] = text->stride[d];
    }
    if (text->flat) {
        numbers[0] = text->begin;
        numbers[1] = text->end;
    }
    return REFIT_OK;
}

static enum refit_status claim(struct listed_parser *p, const struct region_text *text, uint32_t *tensor)
{
    struct refit_pattern pattern;
    enum refit_status status = refit_names_pattern(&p->layout->tensor_names, text->tensor, NULL, 0, false, &pattern,
                                                   p->err);
    if (status) {
        refit_error_prefix(p->err, status, "%.200s", p->what);
        return status;
    }
    struct refit_box box = refit_pattern_box(&pattern, NULL, NULL);
    status = refit_tensor_claim(p->layout, &pattern, &box, text->dtype, text->dims, text->shape,
                                (uint32_t)p->layout->listed_count | REFIT_LINK_LISTED, text->what, p->err);
    if (!status)
        (void)refit_layout_find(p->layout, text->tensor, tensor);
    return status;
}

static enum refit_status parse_region(struct listed_parser *p, const json_t *json, size_t number)
{
    static const char *const known[] = {"tensor", "shape",  "dtype",  "flat", "start",
                                        "extent", "offset", "stride", NULL};
    char what[384];
    uint32_t tensor = 0;
    struct region_text text = {.what = what, .dtype = (enum refit_dtype)p->entry->dtype};
    enum refit_status status;
    snprintf(what, sizeof what, "%.200s: region %zu", p->what, number);
    if ((status = refit_json_known(json, what, known, p->err)) ||
        (status = refit_json_get_string(json, "tensor", what, &text.tensor, p->err)))
        return status;
    snprintf(what, sizeof what, "%.200s: region %zu, tensor \"%.128s\"", p->what, number, text.tensor);
    if (json_object_get(json, "dtype") && (status = refit_dtype_member(json, what, &text.dtype, p->err)))
        return status;
    text.unit = refit_dtype_unit_elements(text.dtype);
    text.unit_bytes = refit_dtype_unit_bytes(text.dtype);
    text.flat = json_object_get(json, "flat") != NULL;
    if (text.flat && (json_object_get(json, "start") || json_object_get(json, "extent") ||
                      json_object_get(json, "stride")))
        return refit_fail(p->err, REFIT_INVALID, "%s: \"flat\" goes without \"start\", \"extent\" and \"stride\"",
                          what);
    if ((status = refit_shape_parse(json, what, text.dtype, &text.dims, text.shape, p->err)) ||
        (status = refit_json_get_int(json, "offset", what, 0, REFIT_BYTES_MAX, &text.offset, p->err)) ||
        (status = text.flat ? parse_flat(p, json, &text) : parse_box(p, json, &text)) ||
        (status = claim(p, &text, &tensor)))
        return status;
    return store(p, &text, tensor);
}

static enum refit_status parse_fill(struct listed_parser *p, const json_t *json, size_t number)
{
    static const char *const known[] = {"offset", "bytes", "value", NULL};
    struct refit_layout *layout = p->layout;
    int64_t offset = 0, bytes = 0, value = 0;
    char what[320];
    enum refit_status status;
    snprintf(what, sizeof what, "%.200s: fill %zu", p->what, number);
    if ((status = refit_json_known(json, what, known, p->err)) ||
        (status = refit_json_get_int(json, "offset", what, 0, REFIT_BYTES_MAX, &offset, p->err)) ||
        (status = refit_json_get_int(json, "bytes", what, 0, REFIT_BYTES_MAX, &bytes, p->err)) ||
        (status = refit_json_opt_int(json, "value", what, 0, 255, &value, p->err)))
        return status;
    if ((uint64_t)offset + (uint64_t)bytes > p->entry->bytes)
        return refit_fail(p->err, REFIT_INVALID, "%s: [%" PRId64 ", %" PRId64 ") is outside the buffer of %" PRIu64
                          " bytes", what, offset, offset + bytes, p->entry->bytes);
    if (!refit_array_reserve(&layout->fills, &layout->fill_capacity, layout->fill_count + 1, sizeof *layout->fills))
        return refit_fail_alloc(p->err, "fills", layout->fill_count * sizeof *layout->fills);
    layout->fills[layout->fill_count++] = (struct refit_listed_fill){
        .offset = (uint64_t)offset, .bytes = (uint64_t)bytes, .value = (uint8_t)value};
    p->entry->fill_count++;
    return REFIT_OK;
}

static enum refit_status parse_lists(struct listed_parser *p, const json_t *json)
{
    const json_t *regions = json_object_get(json, "regions"), *fills = json_object_get(json, "fills"), *item;
    enum refit_dtype dtype = REFIT_DTYPE_U8;
    enum refit_status status;
    size_t i;
    if (!json_is_array(regions) || (fills && !json_is_array(fills)))
        return refit_fail(p->err, REFIT_INVALID, "%s: \"regions\" (and \"fills\") must be arrays", p->what);
    /* Only regions without a dtype of their own need the entry's. */
    if (json_object_get(json, "dtype") && (status = refit_dtype_member(json, p->what, &dtype, p->err)))
        return status;
    p->entry->dtype = (uint8_t)dtype;
    json_array_foreach(regions, i, item) {
        if (!json_object_get(json, "dtype") && !json_object_get(item, "dtype"))
            return refit_fail(p->err, REFIT_INVALID, "%s: region %zu: \"dtype\" is missing, here and in the entry",
                              p->what, i);
        if ((status = parse_region(p, item, i)))
            return status;
    }
    json_array_foreach(fills, i, item)
        if ((status = parse_fill(p, item, i)))
            return status;
    return REFIT_OK;
}

static enum refit_status parse(struct listed_parser *p, const json_t *json)
{
    static const char *const known[] = {"rank", "buffer", "bytes", "dtype", "regions", "fills", NULL};
    static const char *const known_derived[] = {"rank", "buffer", "bytes", "derived", NULL};
    struct refit_entry *entry = p->entry;
    const char *buffer = NULL;
    int64_t rank = 0, bytes = 0;
    enum refit_status status;
    if ((status = refit_json_opt_bool(json, "derived", p->what, &entry->derived, p->err)) ||
        (status = refit_json_known(json, p->what, entry->derived ? known_derived : known, p->err)) ||
        (status = refit_json_get_int(json, "rank", p->what, 0, p->layout->ranks - 1, &rank, p->err)) ||
        (status = refit_json_get_string(json, "buffer", p->what, &buffer, p->err)) ||
        (status = refit_json_get_int(json, "bytes", p->what, 0, REFIT_BYTES_MAX, &bytes, p->err)))
        return status;
    entry->rank = (uint32_t)rank;
    entry->bytes = (uint64_t)bytes;
    status = refit_names_pattern(&p->layout->buffer_names, buffer, NULL, 0, false, &entry->buffer, p->err);
    if (status) {
        refit_error_prefix(p->err, status, "%.200s: buffer", p->what);
        return status;
    }
    struct refit_box box = refit_pattern_box(&entry->buffer, NULL, NULL);
    status = refit_buffer_claim(p->layout, &box, &entry->buffer, (uint32_t)p->layout->entry_count, p->what,
                                p->err);
    return status || entry->derived ? status : parse_lists(p, json);
}

enum refit_status refit_listed_parse(struct refit_layout *layout, const json_t *json, const char *what,
                                     struct refit_error *err)
{
    struct refit_entry entry = {.listed = true, .first_piece = (uint32_t)layout->listed_count,
                                .first_fill = (uint32_t)layout->fill_count};
    struct listed_parser p = {.layout = layout, .entry = &entry, .what = what, .err = err};
    enum refit_status status = parse(&p, json);
    layout->entries[layout->entry_count++] = entry;
    return status;
}
