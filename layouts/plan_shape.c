/* SPDX-License-Identifier: Apache-2.0
 *
 * A shape: every destination region cut into boxes that one source box holds whole. Destination regions are first
 * cut into *cells*, so that of several copies of a unit exactly one is counted.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

struct boxes {
    struct refit_box *at;
    size_t count, capacity;
};

/* Distinct boxes of a geometry in order, and which of them each region is. */
struct distinct {
    struct refit_box *boxes;
    uint32_t count;
    uint32_t *of_region;
    uint32_t *order; /* regions sorted by box, then by number */
    bool disjoint;
    struct refit_box_index index;
};

struct builder {
    struct refit_plan_shape *shape;
    const struct refit_plan_geometry *source;
    const struct refit_plan_geometry *destination;
    struct distinct sources;
    struct distinct targets;
    struct refit_box_hits hits;
    struct boxes cells; /* of one region: the counted ones first */
    size_t counted_cells;
    struct boxes left, next; /* of one cell: what has no source yet */
    struct refit_plan_hole *hole;
};

static bool push(struct boxes *boxes, const struct refit_box *box)
{
    if (!refit_array_reserve(&boxes->at, &boxes->capacity, boxes->count + 1, sizeof(*box))) {
        return false;
    }
    boxes->at[boxes->count++] = *box;
    return true;
}

static int by_box_then_number(const void *a, const void *b, void *regions)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    const struct refit_plan_region *r = regions;
    const int order = refit_box_order(&r[x].box, &r[y].box);
    return order ? order : (x > y) - (x < y);
}

static void number_boxes(struct distinct *distinct, const struct refit_plan_geometry *geometry)
{
    for (uint32_t i = 0; i < geometry->count; i++) {
        const uint32_t region = distinct->order[i];
        const struct refit_box *box = &geometry->regions[region].box;
        if (i == 0 || !refit_box_equal(box, &distinct->boxes[distinct->count - 1])) {
            distinct->boxes[distinct->count++] = *box;
        }
        distinct->of_region[region] = distinct->count - 1;
    }
}

static bool check_disjoint(struct distinct *distinct, struct refit_box_hits *hits)
{
    distinct->disjoint = true;
    for (uint32_t i = 0; i < distinct->count && distinct->disjoint; i++) {
        if (!refit_box_index_query(&distinct->index, &distinct->boxes[i], hits)) {
            return false;
        }
        distinct->disjoint = hits->count == 1;
    }
    return true;
}

static bool distinct_init(struct distinct *distinct, const struct refit_plan_geometry *geometry,
                          struct refit_box_hits *hits)
{
    const size_t n = geometry->count ? geometry->count : 1;
    distinct->boxes = calloc(n, sizeof(*distinct->boxes));
    distinct->of_region = calloc(n, sizeof(*distinct->of_region));
    distinct->order = calloc(n, sizeof(*distinct->order));
    if (!distinct->boxes || !distinct->of_region || !distinct->order) {
        return false;
    }
    for (uint32_t i = 0; i < geometry->count; i++) {
        distinct->order[i] = i;
    }
    qsort_r(distinct->order, geometry->count, sizeof(*distinct->order), by_box_then_number, geometry->regions);
    number_boxes(distinct, geometry);
    return refit_box_index_init(&distinct->index, distinct->boxes, distinct->count) && check_disjoint(distinct, hits);
}

static void distinct_release(struct distinct *distinct)
{
    refit_box_index_release(&distinct->index);
    free(distinct->boxes);
    free(distinct->of_region);
    free(distinct->order);
}

/* order[] is by box, then by region number, and regions are by rank: so holders come out by rising rank. */
static bool list_holders(struct builder *b)
{
    const uint32_t regions = b->source->count;
    struct refit_plan_shape *shape = b->shape;
    shape->source_boxes = calloc(b->sources.count ? b->sources.count : 1, sizeof(*shape->source_boxes));
    shape->holders = calloc(regions ? regions : 1, sizeof(*shape->holders));
    if (!shape->source_boxes || !shape->holders) {
        return false;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < regions; i++) {
        const uint32_t region = b->sources.order[i];
        const uint32_t rank = b->source->regions[region].rank;
        struct refit_source_box *box = &shape->source_boxes[b->sources.of_region[region]];
        if (box->holders == 0) {
            box->box = b->source->regions[region].box;
            box->first_holder = count;
        } else if (shape->holders[count - 1].rank == rank) {
            continue; /* a second copy on the same rank is of no use */
        }
        shape->holders[count++] = (struct refit_holder){.rank = rank, .region = region};
        box->holders++;
    }
    return true;
}

/* Takes `taken` out of `from`, leaving what remains in *from; `spare` is room to work in. */
static bool subtract(struct boxes *from, struct boxes *spare, const struct refit_box *taken)
{
    struct refit_box parts[2 * REFIT_DIMS_MAX];
    spare->count = 0;
    for (size_t i = 0; i < from->count; i++) {
        const size_t n = refit_box_subtract(&from->at[i], taken, parts);
        for (size_t p = 0; p < n; p++) {
            if (!push(spare, &parts[p])) {
                return false;
            }
        }
    }
    const struct boxes swap = *from;
    *from = *spare;
    *spare = swap;
    return true;
}

/* Whether an earlier region (in rank order) has the same box. */
static bool is_repeat(const struct builder *b, uint32_t region, const uint32_t *first_of_box)
{
    return first_of_box[b->targets.of_region[region]] != region;
}

/* A region that overlaps others counts only what no earlier one has: cells are what is left, then the rest. */
static bool cut_cells(struct builder *b, uint32_t region, const uint32_t *first_of_box)
{
    const struct refit_box *box = &b->destination->regions[region].box;
    b->cells.count = b->left.count = 0;
    if (!push(&b->left, box) || !refit_box_index_query(&b->targets.index, box, &b->hits)) {
        return false;
    }
    for (size_t i = 0; i < b->hits.count; i++) {
        if (first_of_box[b->hits.box[i]] < region
            && !subtract(&b->left, &b->next, &b->targets.boxes[b->hits.box[i]])) {
            return false;
        }
    }
    b->counted_cells = b->left.count;
    for (size_t i = 0; i < b->counted_cells; i++) {
        if (!push(&b->cells, &b->left.at[i])) {
            return false;
        }
    }
    b->left.count = 0;
    if (!push(&b->left, box)) {
        return false;
    }
    for (size_t i = 0; i < b->counted_cells; i++) {
        if (!subtract(&b->left, &b->next, &b->cells.at[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < b->left.count; i++) {
        if (!push(&b->cells, &b->left.at[i])) {
            return false;
        }
    }
    return true;
}

static bool find_cells(struct builder *b, uint32_t region, const uint32_t *first_of_box)
{
    const bool repeat = is_repeat(b, region, first_of_box);
    if (!repeat && !b->targets.disjoint) {
        return cut_cells(b, region, first_of_box);
    }
    b->cells.count = 0;
    b->counted_cells = repeat ? 0 : 1;
    return push(&b->cells, &b->destination->regions[region].box);
}

static uint64_t hash_box(const struct refit_box *box)
{
    uint64_t hash = box->dims;
    for (uint32_t d = 0; d < box->dims; d++) {
        hash = refit_plan_mix(hash ^ (uint64_t)box->start[d]) + 0x9e3779b97f4a7c15u;
        hash = refit_plan_mix(hash ^ (uint64_t)box->extent[d]) + 0x9e3779b97f4a7c15u;
    }
    return hash;
}

static bool add_proto(struct builder *b, uint32_t region, uint32_t source_box, const struct refit_box *box,
                      bool counted)
{
    struct refit_plan_shape *shape = b->shape;
    const size_t count = shape->proto_count + 1;
    if (!refit_array_reserve(&shape->protos, &shape->proto_capacity, count, sizeof(*shape->protos))
        || !refit_array_reserve(&shape->boxes, &shape->box_capacity, count, sizeof(*shape->boxes))) {
        return false;
    }
    const uint64_t units = refit_box_volume(box);
    shape->counted_units += counted ? units : 0;
    shape->boxes[shape->proto_count] = *box;
    shape->protos[shape->proto_count++] = (struct refit_proto){
        .bytes = units * shape->unit_bytes,
        .hash = hash_box(box),
        .destination_region = region,
        .source_box = source_box,
        .counted = counted,
        .edge = REFIT_PLAN_NONE,
        .form = REFIT_PLAN_NONE,
        .form_region = REFIT_PLAN_NONE,
    };
    return true;
}

/* Source boxes that don't overlap: each hit gives one proto. */
static bool cover_disjoint(struct builder *b, uint32_t region, const struct refit_box *cell, bool counted)
{
    uint64_t units = 0;
    for (size_t i = 0; i < b->hits.count; i++) {
        struct refit_box common;
        (void)refit_box_intersect(cell, &b->sources.boxes[b->hits.box[i]], &common);
        units += refit_box_volume(&common);
        if (!add_proto(b, region, b->hits.box[i], &common, counted)) {
            return false;
        }
    }
    b->left.count = 0;
    if (units == refit_box_volume(cell)) {
        return true;
    }
    if (!push(&b->left, cell)) {
        return false;
    }
    for (size_t i = 0; i < b->hits.count; i++) { /* only to name what is missing */
        if (!subtract(&b->left, &b->next, &b->sources.boxes[b->hits.box[i]])) {
            return false;
        }
    }
    return true;
}

/* Source boxes that overlap: the first in order gets what it holds, the next what is left. */
static bool cover_overlapping(struct builder *b, uint32_t region, const struct refit_box *cell, bool counted)
{
    b->left.count = 0;
    if (!push(&b->left, cell)) {
        return false;
    }
    for (size_t i = 0; i < b->hits.count && b->left.count > 0; i++) {
        const struct refit_box *holder = &b->sources.boxes[b->hits.box[i]];
        for (size_t p = 0; p < b->left.count; p++) {
            struct refit_box common;
            if (refit_box_intersect(&b->left.at[p], holder, &common)
                && !add_proto(b, region, b->hits.box[i], &common, counted)) {
                return false;
            }
        }
        if (!subtract(&b->left, &b->next, holder)) {
            return false;
        }
    }
    return true;
}

static bool cover_cell(struct builder *b, uint32_t region, const struct refit_box *cell, bool counted)
{
    if (!refit_box_index_query(&b->sources.index, cell, &b->hits)) {
        return false;
    }
    const bool done = b->sources.disjoint ? cover_disjoint(b, region, cell, counted)
                                          : cover_overlapping(b, region, cell, counted);
    if (!done) {
        return false;
    }
    if (b->left.count > 0) {
        b->hole->found = true;
        b->hole->destination_rank = b->destination->regions[region].rank;
        b->hole->box = b->left.at[0];
        return false;
    }
    return true;
}

static bool cover_regions(struct builder *b, const uint32_t *first_of_box)
{
    for (uint32_t region = 0; region < b->destination->count; region++) {
        if (!find_cells(b, region, first_of_box)) {
            return false;
        }
        for (size_t i = 0; i < b->cells.count; i++) {
            const struct refit_box cell = b->cells.at[i];
            if (!cover_cell(b, region, &cell, i < b->counted_cells)) {
                return false;
            }
        }
    }
    return true;
}

static bool cover(struct builder *b)
{
    uint32_t *first_of_box = malloc((b->targets.count ? b->targets.count : 1) * sizeof(*first_of_box));
    if (!first_of_box) {
        return false;
    }
    memset(first_of_box, 0xff, b->targets.count * sizeof(*first_of_box));
    for (uint32_t region = b->destination->count; region-- > 0;) {
        first_of_box[b->targets.of_region[region]] = region;
    }
    const bool done = cover_regions(b, first_of_box);
    free(first_of_box);
    return done;
}

/* What the destination lacks of the tensor: the first box of it, to name it. */
static bool find_lack(struct builder *b)
{
    struct refit_plan_shape *shape = b->shape;
    const struct refit_box whole = refit_box_of_shape(shape->dims, shape->shape);
    shape->partial = shape->counted_units < refit_box_volume(&whole);
    if (!shape->partial) {
        return true;
    }
    b->left.count = 0;
    if (!push(&b->left, &whole)) {
        return false;
    }
    for (uint32_t i = 0; i < b->targets.count; i++) {
        if (!subtract(&b->left, &b->next, &b->targets.boxes[i])) {
            return false;
        }
    }
    shape->lacks = b->left.at[0];
    return true;
}

bool refit_plan_shape_build(struct refit_plan_shape *shape, const struct refit_plan_geometry *source,
                            const struct refit_plan_geometry *destination, struct refit_plan_hole *hole)
{
    struct builder b = {.shape = shape, .source = source, .destination = destination, .hole = hole};
    const bool built = distinct_init(&b.sources, source, &b.hits) && distinct_init(&b.targets, destination, &b.hits)
                       && list_holders(&b) && cover(&b) && find_lack(&b);
    distinct_release(&b.sources);
    distinct_release(&b.targets);
    free(b.hits.box);
    free(b.cells.at);
    free(b.left.at);
    free(b.next.at);
    return built;
}

void refit_plan_shape_release(struct refit_plan_shape *shape)
{
    free(shape->protos);
    free(shape->boxes);
    free(shape->source_boxes);
    free(shape->holders);
}
