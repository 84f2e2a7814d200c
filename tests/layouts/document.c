/* SPDX-License-Identifier: Apache-2.0 */
#include "document.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/io.h"

char *document_read(const char *name, size_t *len)
{
    char path[512], *text = NULL;
    struct refit_error err;
    snprintf(path, sizeof path, "%s/%s", REFIT_LAYOUT_TEST_DIR, name);
    if (refit_io_read_file(path, 1u << 24, &text, len, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return text;
}

struct refit_layout *document_layout(const char *name)
{
    struct refit_layout *layout = NULL;
    struct refit_error err;
    size_t len;
    char *text = document_read(name, &len);
    enum refit_status status = refit_layout_parse(text, len, name, &layout, &err);
    free(text);
    if (status != REFIT_OK)
        fail_msg("%s", err.text);
    return layout;
}

struct writer {
    const struct refit_layout *layout;
    struct unit_at *memory;
};

static void put(struct unit_at *at, int64_t tensor, int64_t flat)
{
    at->tensor = at->tensor == UNIT_UNWRITTEN ? tensor : UNIT_TWICE;
    at->flat = flat;
}

static bool write_region(void *ctx, const struct refit_region *region)
{
    struct writer *writer = ctx;
    struct refit_tensor tensor;
    uint64_t volume = refit_box_volume(&region->box);
    refit_layout_tensor(writer->layout, region->tensor, &tensor);
    for (uint64_t n = 0; n < volume; n++) {
        int64_t flat = 0, offset = (int64_t)region->offset, place = 1;
        uint64_t rest = n;
        for (uint32_t d = tensor.dims; d-- > 0;) {
            int64_t index = (int64_t)(rest % (uint64_t)region->box.extent[d]);
            rest /= (uint64_t)region->box.extent[d];
            offset += index * region->stride[d];
            flat += (region->box.start[d] + index) * place;
            place *= tensor.shape_units[d];
        }
        put(&writer->memory[offset], region->tensor, flat);
    }
    return true;
}

static bool write_fill(void *ctx, const struct refit_fill *fill)
{
    struct writer *writer = ctx;
    for (uint64_t row = 0; row < fill->count; row++)
        for (uint64_t i = 0; i < fill->row_bytes; i++)
            put(&writer->memory[fill->offset + row * fill->stride + i], UNIT_FILL, fill->value);
    return true;
}

struct unit_at *document_memory(const struct refit_layout *layout, uint32_t rank)
{
    uint64_t bytes = refit_layout_arena_bytes(layout, rank);
    struct writer writer = {.layout = layout, .memory = calloc(bytes + 1, sizeof *writer.memory)};
    assert_non_null(writer.memory);
    for (uint64_t i = 0; i < bytes; i++)
        writer.memory[i].tensor = UNIT_UNWRITTEN;
    for (uint32_t t = 0; t < refit_layout_tensor_count(layout); t++)
        refit_layout_regions(layout, t, rank, write_region, &writer);
    refit_layout_fills(layout, rank, write_fill, &writer);
    return writer.memory;
}
