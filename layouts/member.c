/* SPDX-License-Identifier: Apache-2.0
 *
 * Members of a layout document that several kinds of entries share.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

enum refit_status refit_numbers_member(const json_t *json, const char *key, const char *what, size_t max,
                                       int64_t lowest, int64_t highest, int64_t *out, size_t *count,
                                       struct refit_error *err)
{
    const json_t *array = json_object_get(json, key), *item;
    size_t i;
    if (!json_is_array(array) || json_array_size(array) > max)
        return refit_fail(err, REFIT_INVALID, "%s: \"%s\" must be an array of at most %zu integers", what, key, max);
    json_array_foreach(array, i, item) {
        json_int_t number = json_integer_value(item);
        if (!json_is_integer(item) || number < lowest || number > highest)
            return refit_fail(err, REFIT_INVALID, "%s: \"%s\"[%zu] must be an integer between %" PRId64 " and %" PRId64
                              ", found %lld", what, key, i, lowest, highest, (long long)number);
        out[i] = number;
    }
    *count = json_array_size(array);
    return REFIT_OK;
}

enum refit_status refit_dtype_member(const json_t *json, const char *what, enum refit_dtype *dtype,
                                     struct refit_error *err)
{
    const char *name = NULL;
    enum refit_status status = refit_json_get_string(json, "dtype", what, &name, err);
    if (status)
        return status;
    if (!refit_dtype_parse(name, dtype))
        return refit_fail(err, REFIT_INVALID, "%s: unknown dtype \"%.32s\"; expected a safetensors name such as BF16",
                          what, name);
    return REFIT_OK;
}

enum refit_status refit_shape_check(const char *what, enum refit_dtype dtype, uint32_t dims, const int64_t *shape,
                                    struct refit_error *err)
{
    int64_t unit = refit_dtype_unit_elements(dtype), bytes = refit_dtype_unit_bytes(dtype);
    if (unit > 1 && (dims == 0 || shape[dims - 1] % unit != 0))
        return refit_fail(err, REFIT_INVALID, "%s: the last dimension must be a multiple of %" PRId64 ": %s packs that "
                          "many elements, found %" PRId64, what, unit, refit_dtype_name(dtype),
                          dims ? shape[dims - 1] : 1);
    for (uint32_t d = 0; d < dims; d++) {
        int64_t extent = d + 1 == dims ? shape[d] / unit : shape[d];
        if (__builtin_mul_overflow(bytes, extent ? extent : 1, &bytes) || bytes > REFIT_BYTES_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: \"shape\" is larger than 2^60 bytes", what);
    }
    return REFIT_OK;
}

enum refit_status refit_shape_parse(const json_t *json, const char *what, enum refit_dtype dtype, uint32_t *dims,
                                    int64_t shape[static REFIT_DIMS_MAX], struct refit_error *err)
{
    size_t count = 0;
    enum refit_status status = refit_numbers_member(json, "shape", what, REFIT_DIMS_MAX, 0, REFIT_BYTES_MAX, shape,
                                                    &count, err);
    *dims = (uint32_t)count;
    return status ? status : refit_shape_check(what, dtype, *dims, shape, err);
}

/* ---- claims ---- */

struct tensor_claim {
    struct refit_layout *layout;
    enum refit_dtype dtype;
    uint32_t dims;
    const int64_t *shape;
    uint32_t item;
};

static void format_shape(char *text, size_t len, enum refit_dtype dtype, uint32_t dims, const int64_t *shape)
{
    int used = snprintf(text, len, "%s [", refit_dtype_name(dtype));
    for (uint32_t d = 0; d < dims; d++)
        used += snprintf(text + used, len - (size_t)used, "%s%" PRId64, d ? ", " : "", shape[d]);
    snprintf(text + used, len - (size_t)used, "]");
}

static enum refit_status differs(const struct tensor_claim *claim, uint32_t group, struct refit_error *err)
{
    const struct refit_layout *layout = claim->layout;
    const struct refit_tensor_group *tensor = &layout->tensors[group];
    uint32_t values[REFIT_NAME_FIELDS];
    char name[REFIT_NAME_MAX], here[256], before[256];
    refit_names_member(&layout->tensor_names, group, 0, values);
    refit_names_render(&layout->tensor_names, layout->tensor_names.groups[group].skeleton, values, name);
    format_shape(here, sizeof here, claim->dtype, claim->dims, claim->shape);
    format_shape(before, sizeof before, (enum refit_dtype)tensor->dtype, tensor->dims, layout->numbers + tensor->shape);
    return refit_fail(err, REFIT_INVALID, "tensor \"%s\" is %s here and %s in an earlier entry", name, here, before);
}

static enum refit_status add_tensor_group(const struct tensor_claim *claim, uint32_t group, struct refit_error *err)
{
    struct refit_layout *layout = claim->layout;
    if (!refit_array_reserve(&layout->tensors, &layout->tensor_capacity, group + 1u, sizeof *layout->tensors) ||
        !refit_array_reserve(&layout->numbers, &layout->numbers_capacity, layout->numbers_len + claim->dims + 1,
                             sizeof *layout->numbers))
        return refit_fail_alloc(err, "tensors", group * sizeof *layout->tensors);
    layout->tensors[group] = (struct refit_tensor_group){.dtype = (uint8_t)claim->dtype, .dims = (uint8_t)claim->dims,
                                                         .shape = layout->numbers_len, .mesh = -1};
    if (claim->dims)
        memcpy(layout->numbers + layout->numbers_len, claim->shape, claim->dims * sizeof *claim->shape);
    layout->numbers_len += claim->dims;
    return REFIT_OK;
}

static enum refit_status claimed_tensor(void *ctx, uint32_t group, bool fresh, struct refit_error *err)
{
    const struct tensor_claim *claim = ctx;
    struct refit_layout *layout = claim->layout;
    enum refit_status status = fresh ? add_tensor_group(claim, group, err) : REFIT_OK;
    if (status)
        return status;
    const struct refit_tensor_group *tensor = &layout->tensors[group];
    if (tensor->dtype != claim->dtype || tensor->dims != claim->dims ||
        (claim->dims && memcmp(layout->numbers + tensor->shape, claim->shape, claim->dims * sizeof *claim->shape) != 0))
        return differs(claim, group, err);
    if (!refit_array_reserve(&layout->tensor_links, &layout->tensor_link_capacity, layout->tensor_link_count + 1,
                             sizeof *layout->tensor_links))
        return refit_fail_alloc(err, "tensors", layout->tensor_link_count * sizeof *layout->tensor_links);
    layout->tensor_links[layout->tensor_link_count++] = (struct refit_link){.group = group, .item = claim->item};
    return REFIT_OK;
}

enum refit_status refit_tensor_claim(struct refit_layout *layout, const struct refit_pattern *pattern,
                                     const struct refit_box *box, enum refit_dtype dtype, uint32_t dims,
                                     const int64_t *shape, uint32_t item, const char *what, struct refit_error *err)
{
    struct tensor_claim claim = {.layout = layout, .dtype = dtype, .dims = dims, .shape = shape, .item = item};
    enum refit_status status = refit_names_claim(&layout->tensor_names, pattern->skeleton, box, claimed_tensor, &claim,
                                                 err);
    if (status)
        refit_error_prefix(err, status, "%.200s", what);
    return status;
}

struct buffer_claim {
    struct refit_layout *layout;
    uint32_t entry;
};

static enum refit_status claimed_buffer(void *ctx, uint32_t group, bool fresh, struct refit_error *err)
{
    const struct buffer_claim *claim = ctx;
    struct refit_layout *layout = claim->layout;
    (void)fresh; /* whether two entries clash on a rank is known at the end only */
    if (!refit_array_reserve(&layout->buffer_links, &layout->buffer_link_capacity, layout->buffer_link_count + 1,
                             sizeof *layout->buffer_links))
        return refit_fail_alloc(err, "buffers", layout->buffer_link_count * sizeof *layout->buffer_links);
    layout->buffer_links[layout->buffer_link_count++] = (struct refit_link){.group = group, .item = claim->entry};
    return REFIT_OK;
}

enum refit_status refit_buffer_claim(struct refit_layout *layout, const struct refit_box *box,
                                     const struct refit_pattern *pattern, uint32_t entry, const char *what,
                                     struct refit_error *err)
{
    struct buffer_claim claim = {.layout = layout, .entry = entry};
    enum refit_status status = refit_names_claim(&layout->buffer_names, pattern->skeleton, box, claimed_buffer, &claim,
                                                 err);
    if (status)
        refit_error_prefix(err, status, "%.200s", what);
    return status;
}

struct refit_box refit_pattern_box(const struct refit_pattern *pattern, const struct refit_index *indices,
                                   const struct refit_mesh *mesh)
{
    struct refit_box box = {.dims = pattern->fields};
    for (uint32_t i = 0; i < pattern->fields; i++) {
        int v = pattern->var[i];
        bool local = v >= 0 && pattern->local >> v & 1;
        box.start[i] = v < 0 ? pattern->literal[i] : local ? 0 : indices[v].lo;
        box.extent[i] = 1;
        if (local)
            box.extent[i] = refit_index_longest(&indices[v], indices[v].axis < 0 ? 1 : mesh->size[indices[v].axis]);
        else if (v >= 0)
            box.extent[i] = indices[v].hi - indices[v].lo;
    }
    return box;
}
