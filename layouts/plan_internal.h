/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's parts. (Internal to layouts/.)
 *
 * Members of a family have the same regions but for their offsets. So a plan is built from three kinds of thing that
 * are made once and shared: a *geometry* (the regions of a tensor on one side, without offsets; plan_side.c), a
 * *shape* (what a source and a destination geometry have in common, box by box: its *protos*; plan_shape.c) and a
 * *form* (the strips of a proto in one side's memory; plan_form.c). What is left per operation is 16 bytes: which
 * tensor, which form, and where in the arena space.
 */
#ifndef REFIT_LAYOUTS_PLAN_INTERNAL_H
#define REFIT_LAYOUTS_PLAN_INTERNAL_H

#include <stdatomic.h>

#include "layouts/names.h" /* refit_array_reserve */
#include "layouts/plan.h"
#include "layouts/plan_table.h"

#define REFIT_PLAN_NONE UINT32_MAX
/* Every so many batches of an edge, where its first byte is found is kept; between, the walk counts on. */
#define REFIT_PLAN_MARK_BATCHES 8u

struct refit_plan_op {
    uint32_t tensor; /* of the destination layout */
    uint32_t form;   /* where it begins in plan.forms */
    uint64_t offset; /* of the box's first unit in the scope side's arena space */
};

struct refit_plan_mark {
    uint64_t op_offset;
    uint32_t op;
};

struct refit_plan {
    atomic_uint references;
    struct refit_layout *source;
    struct refit_layout *destination;
    uint64_t bytes;

    struct refit_edge *edges;
    size_t edge_count;
    /* Empty when only totals were asked for. Ops and marks lie edge by edge; the edges begin at: */
    uint32_t *first_op;
    uint32_t *first_mark;
    struct refit_plan_op *ops;
    struct refit_plan_mark *marks;
    uint64_t *forms;
    size_t op_count, mark_count, form_words;
};

static inline uint64_t refit_plan_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- plan_form.c: the strips of one box in one memory ---- */

/* In words: bytes, tensor offset, run bytes, levels | counted << 8; then per level, innermost first, how many, bytes
 * apart in memory, bytes apart in the tensor. */
#define REFIT_FORM_WORDS_MAX (4 + 3 * REFIT_DIMS_MAX)

struct refit_form {
    uint64_t bytes;
    uint64_t tensor_offset;
    uint64_t run_bytes;
    uint32_t levels;
    bool counted;
    const uint64_t *level; /* 3 words each */
};

struct refit_form refit_form_at(const uint64_t *words);

/* Forms of all ops, each kept once. */
struct refit_forms {
    uint64_t *words;
    size_t len, capacity;
    struct refit_plan_table table; /* by position in `words` */
};

/* The form of `box` of a tensor of `shape` units in memory of these strides; REFIT_PLAN_NONE when out of memory. */
uint32_t refit_forms_add(struct refit_forms *forms, const struct refit_box *box, const int64_t *shape,
                         uint32_t unit_bytes, const int64_t *stride, bool counted);
void refit_forms_release(struct refit_forms *forms);

/* ---- plan_side.c: the regions of tensors, geometries shared ---- */

struct refit_plan_region {
    uint32_t rank;
    struct refit_box box;
    int64_t stride[REFIT_DIMS_MAX];
};

/* By rising rank, then in layout order. */
struct refit_plan_geometry {
    struct refit_plan_region *regions;
    uint32_t count;
};

struct refit_plan_side {
    struct refit_layout *layout;
    bool offsets_wanted;
    struct refit_plan_geometry *geometries;
    size_t geometry_count, geometry_capacity;
    struct refit_plan_table table;
    struct refit_plan_families *families; /* plan_family.c */
    /* The tensor looked at last: */
    struct refit_plan_region *regions;
    size_t region_capacity;
    uint64_t *offsets;
    size_t offset_capacity;
    uint32_t count;
    bool failed;
};

void refit_plan_side_init(struct refit_plan_side *side, struct refit_layout *layout, bool offsets_wanted);
void refit_plan_side_release(struct refit_plan_side *side);
/* The number of `tensor`'s geometry, and its regions' offsets in side->offsets, by asking the layout for every region.
 * REFIT_PLAN_NONE when out of memory. */
uint32_t refit_plan_side_enumerate(struct refit_plan_side *side, uint32_t tensor);

/* ---- plan_family.c: members of a family have one geometry ---- */

/* The same, with what is known of the family; offsets only if wanted. */
uint32_t refit_plan_side_look(struct refit_plan_side *side, uint32_t tensor);
void refit_plan_families_destroy(struct refit_plan_families *families);

/* ---- plan_index.c: boxes that meet a box ---- */

struct refit_box_index {
    const struct refit_box *boxes; /* borrowed, sorted by refit_box_order */
    uint32_t count;
    struct refit_box *bounds; /* of the tree's nodes; NULL for few boxes */
};

int refit_box_order(const struct refit_box *a, const struct refit_box *b);
bool refit_box_index_init(struct refit_box_index *index, const struct refit_box *boxes, uint32_t count);
void refit_box_index_release(struct refit_box_index *index);

struct refit_box_hits {
    uint32_t *box; /* rising */
    size_t count, capacity;
};

/* The boxes that share a unit with `box`; false when out of memory. */
bool refit_box_index_query(const struct refit_box_index *index, const struct refit_box *box,
                           struct refit_box_hits *hits);

/* ---- plan_shape.c: what two geometries have in common ---- */

/* One box that goes to one region, from one of its holders. */
struct refit_proto {
    uint64_t bytes;
    uint64_t hash; /* of the box */
    uint32_t destination_region;
    uint32_t source_box;
    bool counted;
    /* Filled when first used, REFIT_PLAN_NONE before: */
    uint32_t edge; /* when there is one holder */
    uint32_t form;
    uint32_t form_region; /* whose strides `form` has */
    int64_t lead;         /* from that region's first unit to the box's, bytes */
};

struct refit_source_box {
    struct refit_box box;
    uint32_t first_holder, holders; /* in shape.holders */
};

struct refit_holder {
    uint64_t load; /* of its rank when last looked at; see plan_share.c */
    uint32_t rank;
    uint32_t region;
};

struct refit_plan_shape {
    uint32_t source_geometry, destination_geometry;
    int64_t shape[REFIT_DIMS_MAX]; /* in units */
    uint32_t dims, unit_bytes;
    uint64_t counted_units;
    bool partial;          /* the destination doesn't hold all of it: */
    struct refit_box lacks; /* this, for one */
    struct refit_proto *protos; /* by destination region, then by source box */
    struct refit_box *boxes;    /* of the protos */
    size_t proto_count, proto_capacity, box_capacity;
    struct refit_source_box *source_boxes;
    struct refit_holder *holders; /* of each box, each rank once */
};

/* Why a shape can't be planned. */
struct refit_plan_hole {
    bool found;
    uint32_t destination_rank;
    struct refit_box box; /* that no source holds */
};

/* Of a shape whose geometries, shape, dims and unit_bytes are set. False when out of memory, or with hole->found. */
bool refit_plan_shape_build(struct refit_plan_shape *shape, const struct refit_plan_geometry *source,
                            const struct refit_plan_geometry *destination, struct refit_plan_hole *hole);
void refit_plan_shape_release(struct refit_plan_shape *shape);

/* ---- plan_share.c: replicated sources share the bytes ---- */

/* The holder with the least bytes so far, the lowest rank among equals. `load` is by source rank and never falls. */
const struct refit_holder *refit_plan_choose(const struct refit_source_box *box, struct refit_holder *holders,
                                             const uint64_t *load);

#endif
