/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

void refit_plan_side_init(struct refit_plan_side *side, struct refit_layout *layout, bool offsets_wanted)
{
    *side = (struct refit_plan_side){.layout = layout, .offsets_wanted = offsets_wanted};
}

void refit_plan_side_release(struct refit_plan_side *side)
{
    for (size_t i = 0; i < side->geometry_count; i++) {
        free(side->geometries[i].regions);
        refit_plan_cut_release(&side->geometries[i].cut);
    }
    free(side->geometries);
    refit_plan_table_release(&side->table);
    free(side->regions);
    free(side->offsets);
    refit_plan_families_destroy(side->families);
}

static bool collect(void *ctx, const struct refit_region *region)
{
    struct refit_plan_side *side = ctx;
    const size_t count = (size_t)side->count + 1;
    if (!refit_array_reserve(&side->regions, &side->region_capacity, count, sizeof(*side->regions))
        || !refit_array_reserve(&side->offsets, &side->offset_capacity, count, sizeof(*side->offsets))) {
        side->failed = true;
        return false;
    }
    struct refit_plan_region *out = &side->regions[side->count];
    out->rank = region->rank;
    out->box = region->box;
    memcpy(out->stride, region->stride, sizeof(out->stride));
    side->offsets[side->count++] = region->offset;
    return true;
}

static uint64_t hash_regions(const struct refit_plan_region *regions, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct refit_plan_region *r = &regions[i];
        hash = refit_plan_mix(hash + r->rank * 0x9e3779b97f4a7c15u + r->box.dims);
        for (uint32_t d = 0; d < r->box.dims; d++) {
            hash = refit_plan_mix(hash + (uint64_t)r->box.start[d]) + (uint64_t)r->box.extent[d];
            hash = refit_plan_mix(hash ^ (uint64_t)r->stride[d]);
        }
    }
    return hash;
}

static bool same_regions(const struct refit_plan_region *a, const struct refit_plan_region *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (a[i].rank != b[i].rank || !refit_box_equal(&a[i].box, &b[i].box)
            || memcmp(a[i].stride, b[i].stride, a[i].box.dims * sizeof(a[i].stride[0])) != 0) {
            return false;
        }
    }
    return true;
}

static uint32_t add_geometry(struct refit_plan_side *side, uint64_t hash)
{
    const size_t bytes = side->count * sizeof(*side->regions);
    struct refit_plan_region *regions = malloc(bytes ? bytes : 1);
    if (!regions
        || !refit_array_reserve(&side->geometries, &side->geometry_capacity, side->geometry_count + 1,
                                sizeof(*side->geometries))
        || !refit_plan_table_add(&side->table, hash, (uint32_t)side->geometry_count)) {
        free(regions);
        return REFIT_PLAN_NONE;
    }
    if (bytes) {
        memcpy(regions, side->regions, bytes);
    }
    side->geometries[side->geometry_count] = (struct refit_plan_geometry){.regions = regions, .count = side->count};
    return (uint32_t)side->geometry_count++;
}

uint32_t refit_plan_side_enumerate(struct refit_plan_side *side, uint32_t tensor)
{
    side->count = 0;
    side->failed = false;
    (void)refit_layout_regions(side->layout, tensor, REFIT_ALL_RANKS, collect, side);
    if (side->failed) {
        return REFIT_PLAN_NONE;
    }
    side->base = side->offsets;
    side->term_count = 0;
    const uint64_t hash = hash_regions(side->regions, side->count);
    struct refit_probe probe = refit_plan_table_begin(hash);
    for (uint32_t number; (number = refit_plan_table_next(&side->table, &probe)) != REFIT_PLAN_NONE;) {
        const struct refit_plan_geometry *known = &side->geometries[number];
        if (known->count == side->count && same_regions(known->regions, side->regions, side->count)) {
            return number;
        }
    }
    return add_geometry(side, hash);
}
