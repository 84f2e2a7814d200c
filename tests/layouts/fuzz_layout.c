/* SPDX-License-Identifier: Apache-2.0
 *
 * A layout document as bytes. What is accepted must keep its word: names are found again, every region lies inside its
 * tensor's shape and its rank's arena, every buffer inside the arena, and the canonical text means the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/coverage.h"

#define TENSORS_TRIED 64
#define RANKS_TRIED 16
#define CALLS_MAX 20000 /* a short document can describe millions of regions */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct walk {
    const struct refit_layout *layout;
    struct refit_tensor tensor;
    uint32_t rank;
    uint32_t calls;
};

static void must(bool condition)
{
    if (!condition)
        abort();
}

static bool try_region(void *ctx, const struct refit_region *region)
{
    struct walk *walk = ctx;
    struct refit_box shape = refit_box_of_shape(walk->tensor.dims, walk->tensor.shape_units);
    uint64_t end = region->offset + walk->tensor.unit_bytes;
    must(!refit_box_empty(&region->box) && refit_box_contains(&shape, &region->box));
    must(region->rank < refit_layout_ranks(walk->layout));
    for (uint32_t d = 0; d < region->box.dims; d++)
        end += (uint64_t)((region->box.extent[d] - 1) * region->stride[d]);
    must(end <= refit_layout_arena_bytes(walk->layout, region->rank));
    return ++walk->calls < CALLS_MAX;
}

static bool try_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct walk *walk = ctx;
    struct refit_buffer found;
    must(buffer->offset + buffer->bytes <= refit_layout_arena_bytes(walk->layout, walk->rank));
    must(refit_layout_buffer_find(walk->layout, walk->rank, buffer->name, &found));
    must(found.offset == buffer->offset && found.bytes == buffer->bytes && found.derived == buffer->derived);
    return ++walk->calls < CALLS_MAX;
}

static bool try_fill(void *ctx, const struct refit_fill *fill)
{
    struct walk *walk = ctx;
    must(fill->count > 0 && fill->row_bytes > 0);
    must(fill->offset + (fill->count - 1) * fill->stride + fill->row_bytes <=
         refit_layout_arena_bytes(walk->layout, walk->rank));
    return ++walk->calls < CALLS_MAX;
}

static void try_tensors(const struct refit_layout *layout)
{
    uint32_t count = refit_layout_tensor_count(layout);
    for (uint32_t id = 0; id < count && id < TENSORS_TRIED; id++) {
        struct walk walk = {.layout = layout};
        uint32_t found;
        refit_layout_tensor(layout, id, &walk.tensor);
        must(refit_layout_find(layout, walk.tensor.name, &found) && found == id);
        refit_layout_regions(layout, id, REFIT_ALL_RANKS, try_region, &walk);
    }
}

static void try_ranks(const struct refit_layout *layout)
{
    for (uint32_t rank = 0; rank < refit_layout_ranks(layout) && rank < RANKS_TRIED; rank++) {
        struct walk walk = {.layout = layout, .rank = rank};
        refit_layout_buffers(layout, rank, try_buffer, &walk);
        walk.calls = 0;
        refit_layout_fills(layout, rank, try_fill, &walk);
    }
}

static bool is_small(const struct refit_layout *layout)
{
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < refit_layout_ranks(layout); rank++)
        bytes += refit_layout_arena_bytes(layout, rank);
    return bytes < 1u << 16 && refit_layout_ranks(layout) < 64;
}

static void try_again(const struct refit_layout *layout)
{
    struct refit_layout *again = NULL;
    size_t len;
    const char *text = refit_layout_text(layout, &len);
    must(refit_layout_parse(text, len, "canonical", &again, NULL) == REFIT_OK);
    must(strcmp(refit_layout_digest(again), refit_layout_digest(layout)) == 0);
    must(refit_layout_tensor_count(again) == refit_layout_tensor_count(layout));
    refit_layout_release(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.status = REFIT_OK};
    if (refit_layout_parse(data, size, "input", &layout, &err) != REFIT_OK) {
        must(err.status != REFIT_OK && err.text[0] != '\0');
        return 0;
    }
    try_tensors(layout);
    try_ranks(layout);
    try_again(layout);
    if (is_small(layout))
        must(refit_coverage_check(layout, &err) == REFIT_OK || err.text[0] != '\0');
    refit_layout_release(layout);
    return 0;
}
