/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/box.h"

#include <inttypes.h>
#include <stdio.h>

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct refit_box refit_box_of_shape(uint32_t dims, const int64_t *shape)
{
    struct refit_box box = {.dims = dims};
    for (uint32_t d = 0; d < dims; d++)
        box.extent[d] = shape[d];
    return box;
}

bool refit_box_empty(const struct refit_box *box)
{
    for (uint32_t d = 0; d < box->dims; d++)
        if (box->extent[d] <= 0)
            return true;
    return false;
}

bool refit_box_equal(const struct refit_box *a, const struct refit_box *b)
{
    if (a->dims != b->dims)
        return false;
    for (uint32_t d = 0; d < a->dims; d++)
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])
            return false;
    return true;
}

bool refit_box_contains(const struct refit_box *outer, const struct refit_box *inner)
{
    if (outer->dims != inner->dims)
        return false;
    for (uint32_t d = 0; d < outer->dims; d++) {
        if (inner->start[d] < outer->start[d])
            return false;
        if (inner->start[d] + inner->extent[d] > outer->start[d] + outer->extent[d])
            return false;
    }
    return true;
}

uint64_t refit_box_volume(const struct refit_box *box)
{
    uint64_t volume = 1;
    for (uint32_t d = 0; d < box->dims; d++)
        volume *= (uint64_t)max_i64(box->extent[d], 0);
    return volume;
}

bool refit_box_intersect(const struct refit_box *a, const struct refit_box *b, struct refit_box *out)
{
    bool shared = true;
    out->dims = a->dims;
    for (uint32_t d = 0; d < a->dims; d++) {
        int64_t start = max_i64(a->start[d], b->start[d]);
        int64_t end = min_i64(a->start[d] + a->extent[d], b->start[d] + b->extent[d]);
        out->start[d] = start;
        out->extent[d] = max_i64(end - start, 0);
        shared &= end > start;
    }
    return shared;
}

size_t refit_box_subtract(const struct refit_box *a, const struct refit_box *b,
                          struct refit_box out[static 2 * REFIT_DIMS_MAX])
{
    struct refit_box common;
    size_t count = 0;
    if (refit_box_empty(a))
        return 0;
    if (!refit_box_intersect(a, b, &common)) {
        out[0] = *a;
        return 1;
    }
    /* Peel slabs off, dimension by dimension; `rest` shrinks to the common box. */
    struct refit_box rest = *a;
    for (uint32_t d = 0; d < a->dims; d++) {
        int64_t end = rest.start[d] + rest.extent[d];
        int64_t common_end = common.start[d] + common.extent[d];
        if (common.start[d] > rest.start[d]) {
            out[count] = rest;
            out[count++].extent[d] = common.start[d] - rest.start[d];
        }
        if (common_end < end) {
            out[count] = rest;
            out[count].start[d] = common_end;
            out[count++].extent[d] = end - common_end;
        }
        rest.start[d] = common.start[d];
        rest.extent[d] = common.extent[d];
    }
    return count;
}

/* The largest box that starts at flat index `at`, follows row-major order and ends by `end`: it grows outwards from
 * the last dimension while `at` is at the start of the inner dimensions and whole rows of them fit. */
static uint64_t largest_box_at(uint32_t dims, const int64_t *shape, uint64_t at, uint64_t end, struct refit_box *box)
{
    uint64_t inner = 1, rest = at;
    int64_t index[REFIT_DIMS_MAX];
    for (uint32_t d = dims; d-- > 0; rest /= (uint64_t)shape[d])
        index[d] = (int64_t)(rest % (uint64_t)shape[d]);
    uint32_t grow = dims - 1;
    while (grow > 0 && index[grow] == 0 && inner * (uint64_t)shape[grow] <= end - at) {
        inner *= (uint64_t)shape[grow];
        grow--;
    }
    *box = (struct refit_box){.dims = dims};
    for (uint32_t d = 0; d < dims; d++) {
        box->start[d] = index[d];
        box->extent[d] = d < grow ? 1 : shape[d];
    }
    box->extent[grow] = (int64_t)((end - at) / inner);
    box->extent[grow] = min_i64(box->extent[grow], shape[grow] - index[grow]);
    return inner * (uint64_t)box->extent[grow];
}

size_t refit_box_from_flat(uint32_t dims, const int64_t *shape, uint64_t begin, uint64_t end,
                           struct refit_box out[static 2 * REFIT_DIMS_MAX])
{
    size_t count = 0;
    if (begin >= end)
        return 0;
    if (dims == 0) {
        out[0] = (struct refit_box){.dims = 0};
        return 1;
    }
    while (begin < end)
        begin += largest_box_at(dims, shape, begin, end, &out[count++]);
    return count;
}

char *refit_box_format(const struct refit_box *box, char *text, size_t len)
{
    size_t used = 0;
    if (len == 0)
        return text;
    text[0] = '\0';
    for (uint32_t d = 0; d <= box->dims; d++) {
        int n = d == box->dims
                    ? snprintf(text + used, len - used, "%s]", d == 0 ? "[" : "")
                    : snprintf(text + used, len - used, "%s%" PRId64 ":%" PRId64, d == 0 ? "[" : ", ", box->start[d],
                               box->start[d] + box->extent[d]);
        if (n < 0 || (size_t)n >= len - used)
            break;
        used += (size_t)n;
    }
    return text;
}
