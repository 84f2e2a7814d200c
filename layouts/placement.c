/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

/* One axis's placement as written. */
struct written {
    bool shard;
    bool strided;
    uint32_t dim;
    uint32_t parts;        /* 0: one for each rank of the axis */
    int64_t split_factor;  /* strided */
};

void refit_chunk(int64_t n, uint32_t parts, uint32_t part, int64_t *start, int64_t *extent)
{
    int64_t chunk = n / parts + (n % parts != 0);
    int64_t begin = chunk * part < n ? chunk * part : n;
    *start = begin;
    *extent = n - begin < chunk ? n - begin : chunk;
}

void refit_placement_cut(const struct refit_placement *placement, uint32_t d, const uint32_t *coords, int64_t n,
                         int64_t *start, int64_t *extent)
{
    int64_t begin = 0, offset;
    for (uint32_t i = placement->first[d]; i < placement->first[d + 1]; i++) {
        const struct refit_cut *cut = &placement->cut[i];
        uint32_t part = cut->width == 1 ? coords[cut->axis] : coords[cut->axis] / cut->width;
        refit_chunk(n, cut->parts, part, &offset, &n);
        begin += offset;
    }
    *start = begin;
    *extent = n;
}

bool refit_placement_cuts_axis(const struct refit_placement *placement, uint32_t axis)
{
    for (uint32_t i = 0; i < placement->first[REFIT_DIMS_MAX]; i++)
        if (placement->cut[i].axis == axis)
            return true;
    return false;
}

/* A whole decimal number at *at; moves past it. */
static bool take_number(const char **at, int64_t *value)
{
    size_t len = strspn(*at, "0123456789");
    if (len == 0 || len > 9)
        return false;
    *value = strtoll(*at, NULL, 10);
    *at += len;
    return true;
}

static bool take(const char **at, const char *text)
{
    size_t len = strlen(text);
    if (strncmp(*at, text, len) != 0)
        return false;
    *at += len;
    return true;
}

/* ", key=NUMBER" with any number of blanks after the comma. */
static bool take_option(const char **at, const char *key, int64_t *value)
{
    const char *start = *at;
    if (!take(at, ","))
        return false;
    while (take(at, " "))
        ;
    if (take(at, key) && take(at, "=") && take_number(at, value))
        return true;
    *at = start;
    return false;
}

static bool scan_written(const char *text, struct written *out)
{
    int64_t dim = 0, parts = 0;
    *out = (struct written){0};
    if (strcmp(text, "Replicate") == 0)
        return true;
    out->shard = true;
    out->strided = take(&text, "_Strided");
    if (!take(&text, "Shard(") || !take_number(&text, &dim))
        return false;
    if (out->strided && !take_option(&text, "split_factor", &out->split_factor))
        return false;
    if (!out->strided && take_option(&text, "parts", &parts) && parts < 1)
        return false;
    out->dim = (uint32_t)dim;
    out->parts = (uint32_t)parts;
    return strcmp(text, ")") == 0;
}

static enum refit_status parse_written(const char *text, const struct refit_mesh *mesh, uint32_t axis, uint32_t dims,
                                       const char *what, struct written *out, struct refit_error *err)
{
    const char *name = mesh->axis_name[axis];
    uint32_t size = mesh->size[axis];
    if (strncmp(text, "Partial", 7) == 0 || strncmp(text, "_Partial", 8) == 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "%s: placement \"%.64s\" on mesh axis \"%s\": partial sums are no "
                          "weights; reduce them first", what, text, name);
    if (!scan_written(text, out))
        return refit_fail(err, REFIT_INVALID, "%s: placement \"%.64s\" on mesh axis \"%s\": expected Replicate, "
                          "Shard(d), Shard(d, parts=p) or _StridedShard(d, split_factor=n)", what, text, name);
    if (!out->shard)
        return REFIT_OK;
    if (out->dim >= dims)
        return refit_fail(err, REFIT_INVALID, "%s: placement \"%.64s\" on mesh axis \"%s\": the tensor has %u "
                          "dimensions", what, text, name, dims);
    if (out->parts == 0)
        out->parts = size;
    if (size % out->parts != 0)
        return refit_fail(err, REFIT_INVALID, "%s: placement \"%.64s\" on mesh axis \"%s\": parts must divide the "
                          "axis's size %u", what, text, name, size);
    return REFIT_OK;
}

/* Orders the cuts of one dimension, from the last axis to the first: a plain cut goes in front of the later axes',
 * a strided one behind those whose parts multiply to its split_factor. */
static enum refit_status order_cuts(const struct written *written, const struct refit_mesh *mesh, uint32_t dim,
                                    const char *what, struct refit_cut *cuts, uint32_t *count, struct refit_error *err)
{
    *count = 0;
    for (uint32_t axis = mesh->axes; axis-- > 0;) {
        const struct written *w = &written[axis];
        uint32_t at = 0;
        int64_t product = 1;
        if (!w->shard || w->dim != dim)
            continue;
        while (w->strided && product != w->split_factor && at < *count)
            product *= cuts[at++].parts;
        if (w->strided && product != w->split_factor)
            return refit_fail(err, REFIT_INVALID, "%s: _StridedShard on mesh axis \"%s\": split_factor %" PRId64
                              " is not the size of the axes to its right that cut dimension %u first (they make %"
                              PRId64 ")", what, mesh->axis_name[axis], w->split_factor, dim, product);
        memmove(cuts + at + 1, cuts + at, (*count - at) * sizeof *cuts);
        cuts[at] = (struct refit_cut){.axis = axis, .parts = w->parts, .width = mesh->size[axis] / w->parts};
        ++*count;
    }
    return REFIT_OK;
}

enum refit_status refit_placement_parse(const json_t *placements, const struct refit_mesh *mesh, uint32_t dims,
                                        const char *what, struct refit_placement *out, struct refit_error *err)
{
    struct written written[REFIT_AXES_MAX] = {0};
    enum refit_status status;
    *out = (struct refit_placement){0};
    if (!placements)
        return REFIT_OK;
    if (!json_is_array(placements) || json_array_size(placements) != mesh->axes)
        return refit_fail(err, REFIT_INVALID, "%s: \"placements\" must be an array of %u, one for each axis of mesh "
                          "\"%s\", found %zu", what, mesh->axes, mesh->name, json_array_size(placements));
    for (uint32_t axis = 0; axis < mesh->axes; axis++) {
        const char *text = json_string_value(json_array_get(placements, axis));
        if (!text)
            return refit_fail(err, REFIT_INVALID, "%s: \"placements\" must hold strings", what);
        if ((status = parse_written(text, mesh, axis, dims, what, &written[axis], err)))
            return status;
    }
    for (uint32_t d = 0; d < REFIT_DIMS_MAX; d++) {
        uint32_t count = 0;
        if (d < dims && (status = order_cuts(written, mesh, d, what, out->cut + out->first[d], &count, err)))
            return status;
        out->first[d + 1] = (uint8_t)(out->first[d] + count);
    }
    return REFIT_OK;
}
