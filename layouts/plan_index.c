/* SPDX-License-Identifier: Apache-2.0
 *
 * An implicit tree over sorted boxes: a node is a run of 2^level neighbours and knows the box around them. Boxes of a
 * grid sorted row by row make tight nodes, so a query costs about its hits times the depth.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

#define FEW 8u /* boxes tested one by one */

int refit_box_order(const struct refit_box *a, const struct refit_box *b)
{
    for (uint32_t d = 0; d < a->dims; d++) {
        if (a->start[d] != b->start[d]) {
            return a->start[d] < b->start[d] ? -1 : 1;
        }
    }
    for (uint32_t d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d]) {
            return a->extent[d] < b->extent[d] ? -1 : 1;
        }
    }
    return 0;
}

static void widen(struct refit_box *around, const struct refit_box *box)
{
    for (uint32_t d = 0; d < box->dims; d++) {
        const int64_t end = around->start[d] + around->extent[d];
        const int64_t other = box->start[d] + box->extent[d];
        around->start[d] = around->start[d] < box->start[d] ? around->start[d] : box->start[d];
        around->extent[d] = (end > other ? end : other) - around->start[d];
    }
}

static bool meet(const struct refit_box *a, const struct refit_box *b)
{
    for (uint32_t d = 0; d < a->dims; d++) {
        if (a->start[d] >= b->start[d] + b->extent[d] || b->start[d] >= a->start[d] + a->extent[d]) {
            return false;
        }
    }
    return true;
}

/* Nodes are in heap order, the root is 1; leaf i is around boxes i * FEW and on. Those past the end have no dims. */
static uint32_t leaves_for(uint32_t count)
{
    uint32_t leaves = 1;
    while ((uint64_t)leaves * FEW < count) {
        leaves *= 2;
    }
    return leaves;
}

bool refit_box_index_init(struct refit_box_index *index, const struct refit_box *boxes, uint32_t count)
{
    *index = (struct refit_box_index){.boxes = boxes, .count = count};
    if (count <= FEW) {
        return true;
    }
    const uint32_t leaves = leaves_for(count);
    index->bounds = calloc(2 * (size_t)leaves, sizeof(*index->bounds));
    if (!index->bounds) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct refit_box *bound = &index->bounds[leaves + i / FEW];
        if (i % FEW == 0) {
            *bound = boxes[i];
        } else {
            widen(bound, &boxes[i]);
        }
    }
    for (uint32_t node = leaves - 1; node > 0; node--) {
        index->bounds[node] = index->bounds[2 * node];
        if (index->bounds[2 * node + 1].dims) {
            widen(&index->bounds[node], &index->bounds[2 * node + 1]);
        }
    }
    return true;
}

void refit_box_index_release(struct refit_box_index *index)
{
    free(index->bounds);
}

static bool query_leaf(const struct refit_box_index *index, uint32_t first, const struct refit_box *box,
                       struct refit_box_hits *hits)
{
    const uint32_t end = first + FEW < index->count ? first + FEW : index->count;
    for (uint32_t i = first; i < end; i++) {
        if (meet(&index->boxes[i], box)) {
            if (!refit_array_reserve(&hits->box, &hits->capacity, hits->count + 1, sizeof(*hits->box))) {
                return false;
            }
            hits->box[hits->count++] = i;
        }
    }
    return true;
}

bool refit_box_index_query(const struct refit_box_index *index, const struct refit_box *box,
                           struct refit_box_hits *hits)
{
    hits->count = 0;
    if (!index->bounds) {
        return query_leaf(index, 0, box, hits);
    }
    const uint32_t leaves = leaves_for(index->count);
    /* Down to the left while it meets, else on to the next node to the right that isn't below this one. */
    for (uint32_t node = 1; node > 0;) {
        if (index->bounds[node].dims && meet(&index->bounds[node], box)) {
            if (node < leaves) {
                node *= 2;
                continue;
            }
            if (!query_leaf(index, (node - leaves) * FEW, box, hits)) {
                return false;
            }
        }
        while (node & 1) {
            node /= 2;
        }
        node = node ? node + 1 : 0;
    }
    return true;
}
