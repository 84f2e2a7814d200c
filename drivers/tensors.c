/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tensors.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_MAX 100000000u /* as readers accept */

static int by_unit_and_name(const void *a, const void *b, void *layout)
{
    const struct refit_tensor_place *x = a, *y = b;
    struct refit_tensor one, two;
    if (x->unit_bytes != y->unit_bytes)
        return x->unit_bytes > y->unit_bytes ? -1 : 1;
    refit_layout_tensor(layout, x->id, &one);
    refit_layout_tensor(layout, y->id, &two);
    return strcmp(one.name, two.name);
}

/* Units whose size is no power of two (6-bit types) come last: nothing needs to be aligned to them, nothing follows. */
static uint32_t sort_unit(uint32_t unit_bytes)
{
    return (unit_bytes & (unit_bytes - 1)) == 0 ? unit_bytes : 0;
}

enum refit_status refit_tensors_order(const struct refit_layout *layout, struct refit_tensors *out,
                                      struct refit_error *err)
{
    *out = (struct refit_tensors){.layout = layout, .count = refit_layout_tensor_count(layout)};
    out->items = calloc(out->count ? out->count : 1, sizeof *out->items);
    if (!out->items)
        return refit_fail_alloc(err, "a table of tensors", out->count * sizeof *out->items);
    for (uint32_t id = 0; id < out->count; id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, id, &tensor);
        out->items[id] = (struct refit_tensor_place){.id = id, .unit_bytes = sort_unit(tensor.unit_bytes),
                                                     .bytes = tensor.bytes};
    }
    qsort_r(out->items, out->count, sizeof *out->items, by_unit_and_name, (void *)(uintptr_t)layout);
    for (uint32_t i = 0; i < out->count; i++) {
        out->items[i].begin = out->bytes;
        if (__builtin_add_overflow(out->bytes, out->items[i].bytes, &out->bytes))
            return refit_fail(err, REFIT_INVALID, "the model's size passes 2^64 bytes");
    }
    return REFIT_OK;
}

void refit_tensors_release(struct refit_tensors *tensors)
{
    free(tensors->items);
    tensors->items = NULL;
}

static json_t *shape_of(const struct refit_tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->dims; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    return shape;
}

static json_t *header_json(const struct refit_tensors *tensors)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (uint32_t i = 0; header && i < tensors->count; i++) {
        const struct refit_tensor_place *place = &tensors->items[i];
        struct refit_tensor tensor;
        refit_layout_tensor(tensors->layout, place->id, &tensor);
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", refit_dtype_name(tensor.dtype), "shape",
                                  shape_of(&tensor), "data_offsets", (json_int_t)place->begin,
                                  (json_int_t)(place->begin + place->bytes));
        if (json_object_set_new(header, tensor.name, entry) != 0) {
            json_decref(header);
            return NULL;
        }
    }
    return header;
}

enum refit_status refit_tensors_header(const struct refit_tensors *tensors, struct refit_buf *out,
                                       struct refit_error *err)
{
    size_t len = 0;
    json_t *header = header_json(tensors);
    char *text = header ? refit_json_canonical(header, &len) : NULL;
    json_decref(header);
    if (!text)
        return refit_fail_alloc(err, "a safetensors header", tensors->count * 128ull);
    size_t padded = (len + 7) / 8 * 8;
    refit_buf_init(out, HEADER_MAX + 8);
    refit_buf_append_u64(out, padded);
    refit_buf_append(out, text, len);
    free(text);
    while (!out->failed && out->len < padded + 8)
        refit_buf_append_u8(out, ' ');
    return out->failed ? refit_fail(err, REFIT_INVALID, "a safetensors header of %zu bytes is more than readers take",
                                    padded)
                       : REFIT_OK;
}
