/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting the boxes of a geometry where they overlap in part, until exactly the same regions hold every unit of a
 * box. Each box is cut by those that meet it; what several boxes have is kept for the first of them in order.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

struct boxes {
    struct refit_box *at;
    size_t count, capacity;
    bool limited, full; /* to REFIT_PLAN_CUTS_MAX */
};

/* A box of the cut before they are in order. */
struct cell {
    struct refit_box box;
    struct refit_plan_span span;
};

struct cutter {
    const struct refit_plan_region *regions;
    uint32_t region_count;
    /* Distinct boxes in order, and the regions that are one: */
    struct refit_box *boxes;
    struct refit_plan_span *spans;
    uint32_t *order; /* regions sorted by box, then by number */
    uint32_t count;
    struct refit_box_index index;
    struct refit_box_hits hits;
    struct boxes left, next; /* of one box */
    struct cell *cells;
    size_t cell_count, cell_capacity;
    uint32_t *members;
    size_t member_count, member_capacity;
    bool tangled;
};

static bool push(struct boxes *boxes, const struct refit_box *box)
{
    boxes->full = boxes->limited && boxes->count == REFIT_PLAN_CUTS_MAX;
    if (boxes->full || !refit_array_reserve(&boxes->at, &boxes->capacity, boxes->count + 1, sizeof(*box))) {
        return false;
    }
    boxes->at[boxes->count++] = *box;
    return true;
}

/* Cuts `from` at `by`, leaving in *from what is outside of it, and what is inside as well if `inside`; `spare` is
 * room to work in. */
static bool split(struct boxes *from, struct boxes *spare, const struct refit_box *by, bool inside)
{
    struct refit_box parts[2 * REFIT_DIMS_MAX];
    spare->count = 0;
    for (size_t i = 0; i < from->count; i++) {
        struct refit_box common;
        if (inside && refit_box_intersect(&from->at[i], by, &common) && !push(spare, &common)) {
            return false;
        }
        const size_t n = refit_box_subtract(&from->at[i], by, parts);
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

static int by_box_then_number(const void *a, const void *b, void *cutter)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    const struct refit_plan_region *r = ((const struct cutter *)cutter)->regions;
    const int order = refit_box_order(&r[x].box, &r[y].box);
    return order ? order : (x > y) - (x < y);
}

static bool find_distinct(struct cutter *c)
{
    const size_t n = c->region_count ? c->region_count : 1;
    c->boxes = calloc(n, sizeof(*c->boxes));
    c->spans = calloc(n, sizeof(*c->spans));
    c->order = calloc(n, sizeof(*c->order));
    if (!c->boxes || !c->spans || !c->order) {
        return false;
    }
    for (uint32_t i = 0; i < c->region_count; i++) {
        c->order[i] = i;
    }
    qsort_r(c->order, c->region_count, sizeof(*c->order), by_box_then_number, c);
    for (uint32_t i = 0; i < c->region_count; i++) {
        const struct refit_box *box = &c->regions[c->order[i]].box;
        if (i == 0 || !refit_box_equal(box, &c->boxes[c->count - 1])) {
            c->boxes[c->count] = *box;
            c->spans[c->count++].first = i;
        }
        c->spans[c->count - 1].count++;
    }
    return refit_box_index_init(&c->index, c->boxes, c->count);
}

static bool are_disjoint(struct cutter *c, bool *disjoint)
{
    *disjoint = true;
    for (uint32_t i = 0; i < c->count && *disjoint; i++) {
        if (!refit_box_index_query(&c->index, &c->boxes[i], &c->hits)) {
            return false;
        }
        *disjoint = c->hits.count == 1;
    }
    return true;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* A cell of box i, one of the hits, which are cut so that each holds all of the cell or nothing. */
static bool add_cell(struct cutter *c, const struct refit_box *box)
{
    const size_t first = c->member_count;
    for (size_t h = 0; h < c->hits.count; h++) {
        const uint32_t j = c->hits.box[h];
        if (!refit_box_contains(&c->boxes[j], box)) {
            continue;
        }
        const struct refit_plan_span span = c->spans[j];
        const size_t count = c->member_count + span.count;
        c->tangled = count > REFIT_PLAN_CUT_MEMBERS_MAX;
        if (c->tangled || !refit_array_reserve(&c->members, &c->member_capacity, count, sizeof(*c->members))) {
            return false;
        }
        memcpy(c->members + c->member_count, c->order + span.first, span.count * sizeof(*c->members));
        c->member_count = count;
    }
    c->tangled = c->cell_count == REFIT_PLAN_CUTS_MAX;
    if (c->tangled || !refit_array_reserve(&c->cells, &c->cell_capacity, c->cell_count + 1, sizeof(*c->cells))) {
        return false;
    }
    qsort(c->members + first, c->member_count - first, sizeof(*c->members), by_number);
    c->cells[c->cell_count++] = (struct cell){
        .box = *box, .span = {.first = (uint32_t)first, .count = (uint32_t)(c->member_count - first)}};
    return true;
}

/* The cells of box i that no earlier box has. */
static bool cut_box(struct cutter *c, uint32_t i)
{
    c->left.count = 0;
    if (!refit_box_index_query(&c->index, &c->boxes[i], &c->hits) || !push(&c->left, &c->boxes[i])) {
        return false;
    }
    for (size_t h = 0; h < c->hits.count; h++) {
        const uint32_t j = c->hits.box[h];
        if (j != i && !split(&c->left, &c->next, &c->boxes[j], j > i)) {
            c->tangled = c->next.full;
            return false;
        }
    }
    for (size_t p = 0; p < c->left.count; p++) {
        if (!add_cell(c, &c->left.at[p])) {
            return false;
        }
    }
    return true;
}

static int by_box(const void *a, const void *b)
{
    return refit_box_order(&((const struct cell *)a)->box, &((const struct cell *)b)->box);
}

/* Replaces the distinct boxes by cells. */
static bool cut_overlaps(struct cutter *c, struct refit_plan_cut *cut)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (!cut_box(c, i)) {
            return false;
        }
    }
    qsort(c->cells, c->cell_count, sizeof(*c->cells), by_box);
    cut->boxes = calloc(c->cell_count, sizeof(*cut->boxes));
    cut->spans = calloc(c->cell_count, sizeof(*cut->spans));
    if (!cut->boxes || !cut->spans) {
        return false;
    }
    for (size_t i = 0; i < c->cell_count; i++) {
        cut->boxes[i] = c->cells[i].box;
        cut->spans[i] = c->cells[i].span;
    }
    cut->count = (uint32_t)c->cell_count;
    cut->members = c->members;
    c->members = NULL;
    return true;
}

static bool keep_distinct(struct cutter *c, struct refit_plan_cut *cut)
{
    cut->boxes = c->boxes;
    cut->spans = c->spans;
    cut->members = c->order;
    cut->count = c->count;
    c->boxes = NULL;
    c->spans = NULL;
    c->order = NULL;
    return true;
}

static bool finish(struct refit_plan_cut *cut)
{
    cut->groups = malloc((cut->count ? cut->count : 1) * sizeof(*cut->groups));
    if (!cut->groups) {
        return false;
    }
    for (uint32_t i = 0; i < cut->count; i++) {
        cut->groups[i] = REFIT_PLAN_NONE;
        cut->units += refit_box_volume(&cut->boxes[i]);
    }
    return refit_box_index_init(&cut->index, cut->boxes, cut->count);
}

bool refit_plan_cut_build(struct refit_plan_cut *cut, const struct refit_plan_region *regions, uint32_t count)
{
    struct cutter c = {
        .regions = regions, .region_count = count, .left = {.limited = true}, .next = {.limited = true}};
    bool disjoint = false;
    *cut = (struct refit_plan_cut){.count = 0};
    const bool built = find_distinct(&c) && are_disjoint(&c, &disjoint)
                       && (disjoint ? keep_distinct(&c, cut) : cut_overlaps(&c, cut)) && finish(cut);
    cut->tangled = c.tangled;
    refit_box_index_release(&c.index);
    free(c.boxes);
    free(c.spans);
    free(c.order);
    free(c.hits.box);
    free(c.left.at);
    free(c.next.at);
    free(c.cells);
    free(c.members);
    return built;
}

void refit_plan_cut_release(struct refit_plan_cut *cut)
{
    refit_box_index_release(&cut->index);
    free(cut->boxes);
    free(cut->spans);
    free(cut->members);
    free(cut->groups);
}

bool refit_plan_cut_lacks(const struct refit_plan_cut *cut, const struct refit_box *whole, struct refit_box *lacks)
{
    struct boxes left = {.at = NULL};
    struct boxes next = {.at = NULL};
    bool done = push(&left, whole);
    for (uint32_t i = 0; done && i < cut->count; i++) {
        done = split(&left, &next, &cut->boxes[i], false);
    }
    if (done) {
        *lacks = left.at[0];
    }
    free(left.at);
    free(next.at);
    return done;
}
