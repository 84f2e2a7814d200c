/* SPDX-License-Identifier: Apache-2.0
 *
 * A shape: every box that exactly the same destination ranks want, cut into boxes that exactly the same source ranks
 * hold; each goes to the edge of these two groups. A rank that has a unit twice wants it twice: the second copy is
 * planned as one more box, for those ranks that have one.
 */
#include <stdlib.h>

#include "layouts/plan_internal.h"

struct builder {
    struct refit_plan_draft *draft;
    struct refit_plan_shape *shape;
    const struct refit_plan_geometry *source;
    const struct refit_plan_geometry *destination;
    struct refit_box_hits hits; /* source boxes that meet one destination box */
    struct picked {
        uint32_t *regions; /* of one group, one per rank */
        uint32_t *ranks;   /* of these */
        size_t region_capacity, rank_capacity;
        uint32_t count;
    } senders, takers;
    struct refit_plan_hole *hole;
};

static uint64_t hash_box(const struct refit_box *box, uint32_t copy)
{
    uint64_t hash = box->dims + ((uint64_t)copy << 8);
    for (uint32_t d = 0; d < box->dims; d++) {
        hash = refit_plan_mix(hash ^ (uint64_t)box->start[d]) + 0x9e3779b97f4a7c15u;
        hash = refit_plan_mix(hash ^ (uint64_t)box->extent[d]) + 0x9e3779b97f4a7c15u;
    }
    return hash;
}

/* The regions of a box of the cut that are copy number `copy` on their rank, of rank_count ranks from first_rank on. */
static bool pick(struct picked *picked, const struct refit_plan_geometry *geometry, struct refit_plan_span span,
                 uint32_t copy, uint32_t first_rank, uint32_t rank_count)
{
    uint32_t before = REFIT_PLAN_NONE; /* rank */
    uint32_t nth = 0;
    picked->count = 0;
    if (!refit_array_reserve(&picked->regions, &picked->region_capacity, span.count, sizeof(*picked->regions))
        || !refit_array_reserve(&picked->ranks, &picked->rank_capacity, span.count, sizeof(*picked->ranks))) {
        return false;
    }
    for (uint32_t i = 0; i < span.count; i++) {
        const uint32_t region = geometry->cut.members[span.first + i];
        const uint32_t rank = geometry->regions[region].rank;
        nth = rank == before ? nth + 1 : 0;
        before = rank;
        if (nth == copy && rank - first_rank < rank_count) { /* wraps when below */
            picked->ranks[picked->count] = rank;
            picked->regions[picked->count++] = region;
        }
    }
    return true;
}

/* ---- edges ---- */

static uint64_t edge_hash(uint32_t source_group, uint32_t destination_group)
{
    return refit_plan_mix((uint64_t)destination_group << 32 | source_group);
}

/* The number of the edge, made when new; REFIT_PLAN_NONE when out of memory. */
static uint32_t find_edge(struct refit_plan_draft *draft, uint32_t source_group, uint32_t destination_group)
{
    const uint64_t hash = edge_hash(source_group, destination_group);
    struct refit_probe probe = refit_plan_table_begin(hash);
    for (uint32_t number; (number = refit_plan_table_next(&draft->edge_table, &probe)) != REFIT_PLAN_NONE;) {
        const struct refit_edge *edge = &draft->edges[number].edge;
        if (edge->source_group == source_group && edge->destination_group == destination_group) {
            return number;
        }
    }
    const enum refit_side side = draft->scope.side;
    const uint32_t group = side == REFIT_SOURCE ? source_group : destination_group;
    const uint32_t columns = draft->scope.rank == REFIT_ALL_RANKS ? draft->groups[side].spans[group].count : 1;
    uint32_t end;
    if (__builtin_add_overflow(draft->column_count, columns, &end)
        || !refit_array_reserve(&draft->edges, &draft->edge_capacity, draft->edge_count + 1, sizeof(*draft->edges))
        || !refit_plan_table_add(&draft->edge_table, hash, (uint32_t)draft->edge_count)) {
        return REFIT_PLAN_NONE;
    }
    draft->edges[draft->edge_count] = (struct refit_draft_edge){
        .edge = {.source_group = source_group, .destination_group = destination_group, .digest = REFIT_PLANNER_VERSION},
        .first_column = draft->column_count,
        .columns = columns,
        .tensor = REFIT_PLAN_NONE};
    draft->column_count = end;
    return (uint32_t)draft->edge_count++;
}

/* ---- protos ---- */

static bool add_bind(struct builder *b, const struct refit_plan_region *regions, uint32_t region,
                     const struct refit_box *box, bool counted)
{
    struct refit_plan_shape *shape = b->shape;
    const struct refit_plan_region *in = &regions[region];
    if (!refit_array_reserve(&shape->binds, &shape->bind_capacity, shape->bind_count + 1, sizeof(*shape->binds))) {
        return false;
    }
    struct refit_bind *bind = &shape->binds[shape->bind_count];
    *bind = (struct refit_bind){.region = region};
    for (uint32_t d = 0; d < box->dims; d++) {
        bind->lead += (box->start[d] - in->box.start[d]) * in->stride[d];
    }
    bind->form = refit_forms_add(&b->draft->forms, box, shape->shape, shape->unit_bytes, in->stride, counted);
    shape->bind_count++;
    return bind->form != REFIT_PLAN_NONE;
}

/* In the memory of every rank of the group on the scope's side, or of the one rank of the scope. */
static bool add_binds(struct builder *b, const struct refit_plan_geometry *geometry, const struct picked *picked,
                      const struct refit_box *box, bool counted)
{
    const uint32_t rank = b->draft->scope.rank;
    for (uint32_t i = 0; i < picked->count; i++) {
        if ((rank == REFIT_ALL_RANKS || picked->ranks[i] == rank)
            && !add_bind(b, geometry->regions, picked->regions[i], box, counted)) {
            return false;
        }
    }
    return true;
}

static bool add_proto(struct builder *b, const struct refit_proto *facts, uint32_t source_box,
                      const struct refit_box *box)
{
    struct refit_plan_shape *shape = b->shape;
    const size_t count = shape->proto_count + 1;
    if (!refit_array_reserve(&shape->protos, &shape->proto_capacity, count, sizeof(*shape->protos))) {
        return false;
    }
    struct refit_proto *proto = &shape->protos[shape->proto_count++];
    *proto = *facts;
    proto->first_bind = (uint32_t)shape->bind_count;
    if (b->draft->scope.totals_only) {
        return true;
    }
    bool bound;
    if (b->draft->scope.side == REFIT_DESTINATION) {
        bound = add_binds(b, b->destination, &b->takers, box, proto->counted);
    } else {
        bound = pick(&b->senders, b->source, b->source->cut.spans[source_box], 0, 0, UINT32_MAX)
                && add_binds(b, b->source, &b->senders, box, proto->counted);
    }
    proto->binds = (uint32_t)shape->bind_count - proto->first_bind;
    return bound;
}

static bool sends_in_scope(const struct builder *b, uint32_t source_box)
{
    const struct refit_plan_span span = b->source->cut.spans[source_box];
    if (b->draft->scope.side == REFIT_DESTINATION || b->draft->scope.rank == REFIT_ALL_RANKS) {
        return true;
    }
    for (uint32_t i = 0; i < span.count; i++) {
        if (b->source->regions[b->source->cut.members[span.first + i]].rank == b->draft->scope.rank) {
            return true;
        }
    }
    return false;
}

static uint32_t source_group(struct builder *b, uint32_t source_box)
{
    uint32_t *group = &b->source->cut.groups[source_box];
    if (*group == REFIT_PLAN_NONE && pick(&b->senders, b->source, b->source->cut.spans[source_box], 0, 0, UINT32_MAX)) {
        *group = refit_plan_groups_add(&b->draft->groups[REFIT_SOURCE], b->senders.ranks, b->senders.count);
    }
    return *group;
}

/* What the ranks in b->takers want of one destination box. */
static bool add_hits(struct builder *b, const struct refit_box *box, uint32_t copy, bool counted)
{
    uint32_t takers = REFIT_PLAN_NONE;
    for (size_t i = 0; i < b->hits.count; i++) {
        const uint32_t sent = b->hits.box[i];
        struct refit_box common;
        if (!sends_in_scope(b, sent)) {
            continue;
        }
        if (takers == REFIT_PLAN_NONE) {
            takers = refit_plan_groups_add(&b->draft->groups[REFIT_DESTINATION], b->takers.ranks, b->takers.count);
        }
        const uint32_t senders = source_group(b, sent);
        if (takers == REFIT_PLAN_NONE || senders == REFIT_PLAN_NONE) {
            return false;
        }
        (void)refit_box_intersect(box, &b->source->cut.boxes[sent], &common);
        const struct refit_proto proto = {
            .bytes = refit_box_volume(&common) * b->shape->unit_bytes,
            .hash = hash_box(&common, copy),
            .edge = find_edge(b->draft, senders, takers),
            .counted = counted && copy == 0,
        };
        if (proto.edge == REFIT_PLAN_NONE || !add_proto(b, &proto, sent, &common)) {
            return false;
        }
    }
    return true;
}

/* Finds the source boxes that meet destination box i; they must have all of it. */
static bool find_sources(struct builder *b, uint32_t i)
{
    const struct refit_plan_cut *wanted = &b->destination->cut;
    uint64_t units = 0;
    if (!refit_box_index_query(&b->source->cut.index, &wanted->boxes[i], &b->hits)) {
        return false;
    }
    for (size_t h = 0; h < b->hits.count; h++) {
        struct refit_box common;
        (void)refit_box_intersect(&wanted->boxes[i], &b->source->cut.boxes[b->hits.box[h]], &common);
        units += refit_box_volume(&common);
    }
    if (units == refit_box_volume(&wanted->boxes[i])) {
        return true;
    }
    b->hole->found = refit_plan_cut_lacks(&b->source->cut, &wanted->boxes[i], &b->hole->box);
    b->hole->destination_rank = b->destination->regions[wanted->members[wanted->spans[i].first]].rank;
    return false;
}

/* A box counts in the plan of the lowest rank that wants it, so once in all plans that are parts of one replica. */
static bool cover_box(struct builder *b, uint32_t i)
{
    const struct refit_plan_scope *scope = &b->draft->scope;
    const struct refit_plan_cut *wanted = &b->destination->cut;
    const struct refit_plan_span span = wanted->spans[i];
    const uint32_t lowest = b->destination->regions[wanted->members[span.first]].rank;
    if (!find_sources(b, i)) {
        return false;
    }
    for (uint32_t copy = 0;; copy++) {
        if (!pick(&b->takers, b->destination, span, copy, scope->first_rank, scope->rank_count)) {
            return false;
        }
        if (b->takers.count == 0) {
            return true;
        }
        b->shape->planned_bytes += copy == 0 ? refit_box_volume(&wanted->boxes[i]) * b->shape->unit_bytes : 0;
        if (!add_hits(b, &wanted->boxes[i], copy, lowest >= scope->first_rank)) {
            return false;
        }
    }
}

bool refit_plan_shape_build(struct refit_plan_draft *draft, struct refit_plan_shape *shape,
                            const struct refit_plan_geometry *source, const struct refit_plan_geometry *destination,
                            struct refit_plan_hole *hole)
{
    struct builder b = {
        .draft = draft, .shape = shape, .source = source, .destination = destination, .hole = hole};
    const struct refit_box whole = refit_box_of_shape(shape->dims, shape->shape);
    bool built = true;
    for (uint32_t i = 0; built && i < destination->cut.count; i++) {
        built = cover_box(&b, i);
    }
    shape->partial = destination->cut.units < refit_box_volume(&whole);
    free(b.hits.box);
    free(b.senders.regions);
    free(b.senders.ranks);
    free(b.takers.regions);
    free(b.takers.ranks);
    return built;
}

void refit_plan_shape_release(struct refit_plan_shape *shape)
{
    free(shape->protos);
    free(shape->binds);
}
