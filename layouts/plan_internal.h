/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's parts. (Internal to layouts/.)
 *
 * Members of a family have the same regions but for their offsets. So a plan is built from four kinds of thing that
 * are made once and shared: a *geometry* (the regions of a tensor on one side, without offsets; plan_side.c), its *cut*
 * (the boxes that exactly the same ranks have; plan_cut.c), a *shape* (what a source and a destination geometry have in
 * common, box by box: its *protos*; plan_shape.c) and a *form* (the strips of a proto in one rank's memory;
 * plan_form.c). What is left per operation and rank is 16 bytes: which tensor, which form, and where in the arena
 * space.
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
    uint32_t op; /* of its edge, the same in every rank's memory */
};

struct refit_plan_span {
    uint32_t first, count;
};

/* Sets of ranks, each kept once. */
struct refit_plan_groups {
    uint32_t *ranks;
    size_t rank_count, rank_capacity;
    struct refit_plan_span *spans; /* of `ranks`, by group number */
    size_t count, capacity;
    struct refit_plan_table table; /* while the plan is built */
};

struct refit_plan {
    atomic_uint references;
    struct refit_layout *source;
    struct refit_layout *destination;
    enum refit_side side;
    uint32_t rank; /* the scope's */
    uint32_t first_rank, rank_count;
    uint8_t *wanted; /* NULL: all */
    uint32_t batch_bytes;
    uint64_t bytes, written_bytes;
    struct refit_plan_groups groups[2]; /* by enum refit_side */

    struct refit_edge *edges;
    size_t edge_count;
    uint32_t *by_digest; /* edges by rising digest */
    size_t *first_place; /* by edge: */
    uint16_t *places;    /* in its destination group, where batches 0, 1, ... land; then from the first again */
    size_t place_count;
    /* Empty when only totals were asked for. Ops lie edge by edge; of each edge the ops in the first rank's memory,
     * then those in the second's, and so on. Marks lie edge by edge. */
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

/* ---- plan_group.c: sets of ranks ---- */

/* The number of the group, made when new; REFIT_PLAN_NONE when out of memory. */
uint32_t refit_plan_groups_add(struct refit_plan_groups *groups, const uint32_t *ranks, uint32_t count);
struct refit_group refit_plan_groups_at(const struct refit_plan_groups *groups, uint32_t number);
/* As lists of ranks, a prefix first. */
int refit_group_order(struct refit_group a, struct refit_group b);
/* The place of `rank`; REFIT_PLAN_NONE: not in the group. */
uint32_t refit_group_place(struct refit_group group, uint32_t rank);
void refit_plan_groups_release(struct refit_plan_groups *groups);

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

/* ---- plan_cut.c: the boxes that exactly the same ranks have ---- */

/* Boxes that overlap in part can be cut into very many; a tensor that gives more is refused. */
#define REFIT_PLAN_CUTS_MAX ((size_t)1 << 18)
#define REFIT_PLAN_CUT_MEMBERS_MAX ((size_t)1 << 22) /* holders of all of them together */

/* By the boxes of all ranks, so that it's the same whichever ranks are planned for. */
struct refit_plan_cut {
    struct refit_box *boxes; /* disjoint, by refit_box_order */
    uint32_t count;
    struct refit_plan_span *spans; /* by box, of `members` */
    uint32_t *members;             /* regions that hold the box, rising: so by rising rank */
    uint32_t *groups;              /* by box: of all ranks that hold it; REFIT_PLAN_NONE before it's asked for */
    uint64_t units;                /* of all boxes */
    struct refit_box_index index;
    bool tangled; /* not built, because of these limits */
};

struct refit_plan_region;

/* False: out of memory, or tangled. */
bool refit_plan_cut_build(struct refit_plan_cut *cut, const struct refit_plan_region *regions, uint32_t count);
void refit_plan_cut_release(struct refit_plan_cut *cut);
/* A part of `whole` that is in no box of the cut; false when out of memory. */
bool refit_plan_cut_lacks(const struct refit_plan_cut *cut, const struct refit_box *whole, struct refit_box *lacks);

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
    bool is_cut;
    struct refit_plan_cut cut; /* once needed */
};

struct refit_plan_side {
    struct refit_layout *layout;
    bool offsets_wanted;
    struct refit_plan_geometry *geometries;
    size_t geometry_count, geometry_capacity;
    struct refit_plan_table table;
    struct refit_plan_families *families; /* plan_family.c */
    /* The tensor looked at last: its regions' offsets are base[i] plus what each of `terms` has for i. */
    const uint64_t *base;
    struct refit_plan_term {
        const int64_t *steps;
        int64_t distance;
    } terms[REFIT_NAME_FIELDS];
    uint32_t term_count;
    /* The tensor enumerated last: */
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

static inline uint64_t refit_plan_side_offset(const struct refit_plan_side *side, uint32_t region)
{
    uint64_t offset = side->base[region];
    for (uint32_t i = 0; i < side->term_count; i++) {
        offset += (uint64_t)(side->terms[i].distance * side->terms[i].steps[region]);
    }
    return offset;
}

/* ---- plan_family.c: members of a family have one geometry ---- */

/* The number of `tensor`'s geometry, with what is known of its family; if wanted, refit_plan_side_offset() is of this
 * tensor from now on. REFIT_PLAN_NONE when out of memory. */
uint32_t refit_plan_side_look(struct refit_plan_side *side, uint32_t tensor);
void refit_plan_families_destroy(struct refit_plan_families *families);

/* ---- plan_shape.c: what two geometries have in common ---- */

/* What all shapes add to. */
struct refit_plan_draft {
    struct refit_plan_scope scope; /* rank_count is never 0 */
    struct refit_plan_groups *groups; /* 2 */
    struct refit_draft_edge {
        struct refit_edge edge;
        uint32_t first_column; /* one column of ops per rank of the group on the scope's side */
        uint32_t columns;
        uint32_t tensor; /* of the last op */
        bool counted;    /* of that tensor's first op */
    } *edges;
    size_t edge_count, edge_capacity;
    struct refit_plan_table edge_table;
    uint32_t column_count;
    struct refit_forms forms;
};

/* One box of one edge. */
struct refit_proto {
    uint64_t bytes;
    uint64_t hash; /* of the box, and which copy it is */
    uint32_t edge;
    uint32_t first_bind, binds;
    bool counted;
};

/* A proto in one rank's memory. */
struct refit_bind {
    int64_t lead; /* from the region's first unit to the box's, bytes */
    uint32_t region;
    uint32_t form;
};

/* Of the scope; of all ranks for the checks. */
struct refit_plan_shape {
    uint32_t source_geometry, destination_geometry;
    int64_t shape[REFIT_DIMS_MAX]; /* in units */
    uint32_t dims, unit_bytes;
    uint64_t planned_bytes; /* that the destination ranks planned for hold, each once */
    bool partial;           /* the destination doesn't hold all of it */
    struct refit_proto *protos; /* by destination box, copy, source box */
    size_t proto_count, proto_capacity;
    struct refit_bind *binds;
    size_t bind_count, bind_capacity;
};

/* Why a shape can't be planned. */
struct refit_plan_hole {
    bool found;
    uint32_t destination_rank;
    struct refit_box box; /* that no source holds */
};

/* Of a shape whose geometries, shape, dims and unit_bytes are set, from geometries that are cut. False when out of
 * memory, or with hole->found. */
bool refit_plan_shape_build(struct refit_plan_draft *draft, struct refit_plan_shape *shape,
                            const struct refit_plan_geometry *source, const struct refit_plan_geometry *destination,
                            struct refit_plan_hole *hole);
void refit_plan_shape_release(struct refit_plan_shape *shape);

/* ---- plan_finish.c: the end: edges in order, ops edge by edge ---- */

struct refit_plan_ops {
    struct refit_plan_op *ops;
    uint32_t *columns;
    size_t count, capacity, column_capacity;
};

REFIT_MUST_CHECK enum refit_status refit_plan_finish(struct refit_plan *plan, struct refit_plan_draft *draft,
                                                     struct refit_plan_ops *ops, struct refit_error *err);

#endif
