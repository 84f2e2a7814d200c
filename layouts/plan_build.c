/* SPDX-License-Identifier: Apache-2.0
 *
 * Building a plan: tensor by tensor in destination order, so that both sides, whatever their scope, make the same
 * choices. All ops are looked at, since the load of each source decides; only those of the scope are kept.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

struct build {
    struct refit_plan *plan;
    struct refit_plan_scope scope;
    struct refit_plan_side source;
    struct refit_plan_side destination;
    struct refit_plan_shape *shapes;
    size_t shape_count, shape_capacity;
    struct refit_plan_table shape_table;
    uint64_t *load; /* bytes per source rank so far */
    uint8_t *used;  /* per source tensor */
    struct refit_edge *edges;
    size_t edge_count, edge_capacity;
    struct refit_plan_table edge_table;
    struct refit_plan_op *ops;
    uint32_t *op_edges;
    size_t op_count, op_capacity, op_edge_capacity;
    struct refit_forms forms;
    struct refit_error *err;
};

static enum refit_status no_memory(struct build *b)
{
    return refit_fail_alloc(b->err, "a plan", b->op_count * sizeof(*b->ops));
}

/* ---- tensors ---- */

struct alias_search {
    const struct refit_layout *source;
    const char *target;
    uint32_t id;
    bool found;
};

static bool try_alias(void *ctx, const char *name, const char *target)
{
    struct alias_search *search = ctx;
    if (strcmp(target, search->target) == 0 && refit_layout_find(search->source, name, &search->id)) {
        search->found = true;
    }
    return !search->found;
}

/* By its name, which may be an alias in the source, or by one of its aliases in the destination. */
static bool find_source(const struct build *b, const char *name, uint32_t *id)
{
    struct alias_search search = {.source = b->plan->source, .target = name};
    if (refit_layout_find(b->plan->source, name, id)) {
        return true;
    }
    (void)refit_layout_aliases(b->plan->destination, try_alias, &search);
    *id = search.id;
    return search.found;
}

static char *shape_text(const struct refit_tensor *tensor, char text[static REFIT_BOX_TEXT_MAX])
{
    const struct refit_box box = refit_box_of_shape(tensor->dims, tensor->shape);
    return refit_box_format(&box, text, REFIT_BOX_TEXT_MAX);
}

static enum refit_status check_alike(struct build *b, const struct refit_tensor *source,
                                     const struct refit_tensor *destination)
{
    char found[REFIT_BOX_TEXT_MAX];
    char expected[REFIT_BOX_TEXT_MAX];
    if (source->dtype != destination->dtype) {
        return refit_fail(b->err, REFIT_MISMATCH,
                          "tensor \"%s\": the destination wants %s and the source has %s: nothing is cast on the way",
                          destination->name, refit_dtype_name(destination->dtype), refit_dtype_name(source->dtype));
    }
    if (source->dims != destination->dims
        || memcmp(source->shape, destination->shape, source->dims * sizeof(source->shape[0])) != 0) {
        return refit_fail(b->err, REFIT_MISMATCH, "tensor \"%s\": the destination wants shape %s and the source has %s",
                          destination->name, shape_text(destination, expected), shape_text(source, found));
    }
    return REFIT_OK;
}

static bool excused(const struct build *b, const char *name)
{
    return refit_layout_excuses(b->plan->source, name) || refit_layout_excuses(b->plan->destination, name);
}

/* ---- shapes ---- */

static uint64_t shape_hash(const struct refit_plan_shape *shape)
{
    uint64_t hash = refit_plan_mix((uint64_t)shape->source_geometry << 32 | shape->destination_geometry);
    for (uint32_t d = 0; d < shape->dims; d++) {
        hash = refit_plan_mix(hash ^ (uint64_t)shape->shape[d]) + shape->unit_bytes;
    }
    return hash;
}

static bool same_shape(const struct refit_plan_shape *a, const struct refit_plan_shape *b)
{
    return a->source_geometry == b->source_geometry && a->destination_geometry == b->destination_geometry
           && a->unit_bytes == b->unit_bytes && a->dims == b->dims
           && memcmp(a->shape, b->shape, a->dims * sizeof(a->shape[0])) == 0;
}

static enum refit_status report_hole(struct build *b, const char *name, const struct refit_plan_hole *hole)
{
    char box[REFIT_BOX_TEXT_MAX];
    return refit_fail(b->err, REFIT_MISMATCH,
                      "tensor \"%s\": destination rank %u wants box %s, which no source rank holds", name,
                      hole->destination_rank, refit_box_format(&hole->box, box, sizeof(box)));
}

static enum refit_status add_shape(struct build *b, const struct refit_plan_shape *facts, const char *name,
                                   struct refit_plan_shape **out)
{
    struct refit_plan_hole hole = {.found = false};
    if (!refit_array_reserve(&b->shapes, &b->shape_capacity, b->shape_count + 1, sizeof(*b->shapes))) {
        return no_memory(b);
    }
    struct refit_plan_shape *shape = &b->shapes[b->shape_count];
    *shape = *facts;
    if (!refit_plan_shape_build(shape, &b->source.geometries[facts->source_geometry],
                                &b->destination.geometries[facts->destination_geometry], &hole)) {
        refit_plan_shape_release(shape);
        return hole.found ? report_hole(b, name, &hole) : no_memory(b);
    }
    *out = shape;
    if (!refit_plan_table_add(&b->shape_table, shape_hash(facts), (uint32_t)b->shape_count++)) {
        return no_memory(b);
    }
    return REFIT_OK;
}

static enum refit_status find_shape(struct build *b, const struct refit_plan_shape *facts, const char *name,
                                    struct refit_plan_shape **out)
{
    struct refit_probe probe = refit_plan_table_begin(shape_hash(facts));
    for (uint32_t number; (number = refit_plan_table_next(&b->shape_table, &probe)) != REFIT_PLAN_NONE;) {
        if (same_shape(&b->shapes[number], facts)) {
            *out = &b->shapes[number];
            return REFIT_OK;
        }
    }
    return add_shape(b, facts, name, out);
}

/* ---- edges ---- */

static uint64_t edge_hash(uint32_t source_rank, uint32_t destination_rank)
{
    return refit_plan_mix((uint64_t)destination_rank << 32 | source_rank);
}

/* The number of the edge, made when new; REFIT_PLAN_NONE when out of memory. */
static uint32_t find_edge(struct build *b, uint32_t source_rank, uint32_t destination_rank)
{
    const uint64_t hash = edge_hash(source_rank, destination_rank);
    struct refit_probe probe = refit_plan_table_begin(hash);
    for (uint32_t number; (number = refit_plan_table_next(&b->edge_table, &probe)) != REFIT_PLAN_NONE;) {
        if (b->edges[number].source_rank == source_rank && b->edges[number].destination_rank == destination_rank) {
            return number;
        }
    }
    if (!refit_array_reserve(&b->edges, &b->edge_capacity, b->edge_count + 1, sizeof(*b->edges))
        || !refit_plan_table_add(&b->edge_table, hash, (uint32_t)b->edge_count)) {
        return REFIT_PLAN_NONE;
    }
    b->edges[b->edge_count] = (struct refit_edge){
        .source_rank = source_rank, .destination_rank = destination_rank, .digest = REFIT_PLANNER_VERSION};
    return (uint32_t)b->edge_count++;
}

/* ---- ops ---- */

/* The form of a proto in `region`'s memory. Holders of one box differ in strides at most, mostly not even in those, so
 * the last form is kept. */
static bool bind(struct build *b, struct refit_plan_shape *shape, size_t number,
                 const struct refit_plan_region *regions, uint32_t region)
{
    struct refit_proto *proto = &shape->protos[number];
    const struct refit_box *box = &shape->boxes[number];
    const struct refit_plan_region *to = &regions[region];
    if (proto->form_region != REFIT_PLAN_NONE) {
        const int64_t *was = regions[proto->form_region].stride;
        if (memcmp(was, to->stride, box->dims * sizeof(*was)) == 0) {
            return true;
        }
    }
    proto->form = refit_forms_add(&b->forms, box, shape->shape, shape->unit_bytes, to->stride, proto->counted);
    proto->form_region = region;
    proto->lead = 0;
    for (uint32_t d = 0; d < box->dims; d++) {
        proto->lead += (box->start[d] - to->box.start[d]) * to->stride[d];
    }
    return proto->form != REFIT_PLAN_NONE;
}

static bool add_op(struct build *b, struct refit_plan_shape *shape, size_t number, uint32_t source_region,
                   uint32_t tensor, uint32_t edge)
{
    struct refit_proto *proto = &shape->protos[number];
    const bool at_source = b->scope.side == REFIT_SOURCE;
    const struct refit_plan_side *side = at_source ? &b->source : &b->destination;
    const uint32_t region = at_source ? source_region : proto->destination_region;
    if (proto->form_region != region) {
        const uint32_t geometry = at_source ? shape->source_geometry : shape->destination_geometry;
        if (!bind(b, shape, number, side->geometries[geometry].regions, region)) {
            return false;
        }
    }
    b->ops[b->op_count] = (struct refit_plan_op){
        .tensor = tensor, .form = proto->form, .offset = side->offsets[region] + (uint64_t)proto->lead};
    b->op_edges[b->op_count++] = edge;
    return true;
}

static bool reserve_ops(struct build *b, size_t more)
{
    const size_t count = b->op_count + more;
    return b->scope.totals_only
           || (refit_array_reserve(&b->ops, &b->op_capacity, count, sizeof(*b->ops))
               && refit_array_reserve(&b->op_edges, &b->op_edge_capacity, count, sizeof(*b->op_edges)));
}

static bool in_scope(const struct build *b, uint32_t source_rank, uint32_t destination_rank)
{
    return b->scope.rank == REFIT_ALL_RANKS
           || b->scope.rank == (b->scope.side == REFIT_SOURCE ? source_rank : destination_rank);
}

static bool add_proto(struct build *b, struct refit_plan_shape *shape, size_t number,
                      const struct refit_plan_region *regions, uint32_t tensor)
{
    struct refit_proto *proto = &shape->protos[number];
    const struct refit_source_box *box = &shape->source_boxes[proto->source_box];
    const struct refit_holder *holder = refit_plan_choose(box, shape->holders, b->load);
    const uint32_t destination_rank = regions[proto->destination_region].rank;
    uint32_t edge = proto->edge;
    b->load[holder->rank] += proto->bytes;
    if (!in_scope(b, holder->rank, destination_rank)) {
        return true;
    }
    if (edge == REFIT_PLAN_NONE) {
        edge = find_edge(b, holder->rank, destination_rank);
        if (edge == REFIT_PLAN_NONE) {
            return false;
        }
        proto->edge = box->holders == 1 ? edge : REFIT_PLAN_NONE;
    }
    struct refit_edge *to = &b->edges[edge];
    to->bytes += proto->bytes;
    to->ops++;
    to->digest = refit_plan_mix(to->digest ^ (proto->hash + tensor * 0x9e3779b97f4a7c15u)) + to->ops;
    return b->scope.totals_only || add_op(b, shape, number, holder->region, tensor, edge);
}

static enum refit_status add_protos(struct build *b, struct refit_plan_shape *shape, uint32_t tensor)
{
    const struct refit_plan_region *regions = b->destination.geometries[shape->destination_geometry].regions;
    if (b->op_count + shape->proto_count >= REFIT_PLAN_NONE) {
        return refit_fail(b->err, REFIT_UNSUPPORTED, "the plan has more than %u operations in one process",
                          REFIT_PLAN_NONE - 1);
    }
    bool added = reserve_ops(b, shape->proto_count);
    for (size_t i = 0; added && i < shape->proto_count; i++) {
        added = add_proto(b, shape, i, regions, tensor);
    }
    return added ? REFIT_OK : no_memory(b);
}

static enum refit_status report_lack(struct build *b, const char *name, const struct refit_plan_shape *shape)
{
    char box[REFIT_BOX_TEXT_MAX];
    return refit_fail(b->err, REFIT_MISMATCH,
                      "tensor \"%s\": no destination rank holds box %s of it: hold all of it, or name it in \"excused\" of either layout",
                      name,
                      refit_box_format(&shape->lacks, box, sizeof(box)));
}

static enum refit_status plan_tensor(struct build *b, uint32_t id)
{
    struct refit_tensor wanted;
    struct refit_tensor found;
    struct refit_plan_shape *shape = NULL;
    uint32_t source_id;
    refit_layout_tensor(b->plan->destination, id, &wanted);
    if (!find_source(b, wanted.name, &source_id)) {
        return refit_fail(b->err, REFIT_MISMATCH, "tensor \"%s\" is wanted by the destination and not in the source",
                          wanted.name);
    }
    refit_layout_tensor(b->plan->source, source_id, &found);
    enum refit_status status = check_alike(b, &found, &wanted);
    if (status != REFIT_OK) {
        return status;
    }
    b->used[source_id] = 1;
    struct refit_plan_shape facts = {.dims = wanted.dims, .unit_bytes = wanted.unit_bytes};
    memcpy(facts.shape, wanted.shape_units, sizeof(facts.shape));
    facts.source_geometry = refit_plan_side_look(&b->source, source_id);
    facts.destination_geometry = refit_plan_side_look(&b->destination, id);
    if (facts.source_geometry == REFIT_PLAN_NONE || facts.destination_geometry == REFIT_PLAN_NONE) {
        return no_memory(b);
    }
    status = find_shape(b, &facts, wanted.name, &shape);
    if (status == REFIT_OK && shape->partial && !excused(b, wanted.name)) {
        status = report_lack(b, wanted.name, shape);
    }
    return status == REFIT_OK ? add_protos(b, shape, id) : status;
}

/* A name that the destination has as an alias is served by the tensor it stands for. */
static enum refit_status check_used(struct build *b)
{
    const uint32_t count = refit_layout_tensor_count(b->plan->source);
    for (uint32_t id = 0; id < count; id++) {
        struct refit_tensor tensor;
        uint32_t alias;
        if (b->used[id]) {
            continue;
        }
        refit_layout_tensor(b->plan->source, id, &tensor);
        if (!excused(b, tensor.name) && !refit_layout_find(b->plan->destination, tensor.name, &alias)) {
            return refit_fail(b->err, REFIT_MISMATCH,
                              "tensor \"%s\" of the source is used by no destination tensor: serve it, or name it in \"excused\" of "
                              "either layout",
                              tensor.name);
        }
    }
    return REFIT_OK;
}

/* ---- the end: ops edge by edge ---- */

static int by_ranks(const void *a, const void *b, void *edges)
{
    const struct refit_edge *x = (const struct refit_edge *)edges + *(const uint32_t *)a;
    const struct refit_edge *y = (const struct refit_edge *)edges + *(const uint32_t *)b;
    if (x->destination_rank != y->destination_rank) {
        return x->destination_rank < y->destination_rank ? -1 : 1;
    }
    return (x->source_rank > y->source_rank) - (x->source_rank < y->source_rank);
}

/* Moves each op to where its edge's next one belongs; op_edges becomes scratch. `next` has one number per edge. */
static void sort_ops(struct build *b, uint32_t *next)
{
    for (size_t i = 0; i < b->op_count; i++) {
        b->op_edges[i] = next[b->op_edges[i]]++;
    }
    for (uint32_t i = 0; i < b->op_count; i++) {
        while (b->op_edges[i] != i) {
            const uint32_t to = b->op_edges[i];
            const struct refit_plan_op op = b->ops[to];
            b->ops[to] = b->ops[i];
            b->ops[i] = op;
            b->op_edges[i] = b->op_edges[to];
            b->op_edges[to] = to;
        }
    }
}

static bool finish_edge(struct refit_edge *edge, struct refit_error *err, enum refit_status *status)
{
    const uint64_t batches = (edge->bytes + REFIT_BATCH_BYTES - 1) / REFIT_BATCH_BYTES;
    edge->batches = (uint32_t)batches;
    if (batches > UINT32_MAX) {
        *status = refit_fail(err, REFIT_UNSUPPORTED, "source rank %u sends %llu bytes to destination rank %u: too many",
                             edge->source_rank, (unsigned long long)edge->bytes, edge->destination_rank);
        return false;
    }
    return true;
}

/* Edges in order, their ops and marks one edge after the other. `order` and `next` have one number per edge. */
static enum refit_status settle(struct build *b, uint32_t *order, uint32_t *next)
{
    struct refit_plan *plan = b->plan;
    enum refit_status status = REFIT_OK;
    uint32_t op = 0;
    for (uint32_t i = 0; i < b->edge_count; i++) {
        order[i] = i;
    }
    qsort_r(order, b->edge_count, sizeof(*order), by_ranks, b->edges);
    for (size_t i = 0; i < b->edge_count; i++) {
        struct refit_edge *edge = &plan->edges[i];
        *edge = b->edges[order[i]];
        if (!finish_edge(edge, b->err, &status)) {
            return status;
        }
        plan->bytes += edge->bytes;
        next[order[i]] = op;
        plan->first_op[i] = op;
        plan->first_mark[i] = (uint32_t)plan->mark_count;
        op += b->scope.totals_only ? 0 : (uint32_t)edge->ops;
        plan->mark_count += (edge->batches + REFIT_PLAN_MARK_BATCHES - 1) / REFIT_PLAN_MARK_BATCHES;
    }
    plan->first_op[b->edge_count] = op;
    plan->edge_count = b->edge_count;
    sort_ops(b, next);
    return REFIT_OK;
}

static void mark_edge(struct refit_plan *plan, size_t number)
{
    struct refit_plan_mark *mark = &plan->marks[plan->first_mark[number]];
    uint64_t begin = 0; /* of the op, in the edge stream */
    uint64_t at = 0;    /* of the mark */
    for (uint32_t op = plan->first_op[number]; op < plan->first_op[number + 1]; op++) {
        const uint64_t end = begin + plan->forms[plan->ops[op].form];
        for (; at < end; at += (uint64_t)REFIT_PLAN_MARK_BATCHES * REFIT_BATCH_BYTES) {
            *mark++ = (struct refit_plan_mark){.op = op, .op_offset = at - begin};
        }
        begin = end;
    }
}

/* Gives an array its final size. */
static void *trim(void *array, size_t bytes)
{
    void *trimmed = bytes ? realloc(array, bytes) : NULL;
    return trimmed ? trimmed : array;
}

static enum refit_status keep_ops(struct build *b)
{
    struct refit_plan *plan = b->plan;
    if (b->scope.totals_only) {
        plan->mark_count = 0;
        return REFIT_OK;
    }
    plan->ops = trim(b->ops, b->op_count * sizeof(*b->ops));
    plan->op_count = b->op_count;
    plan->forms = trim(b->forms.words, b->forms.len * sizeof(*b->forms.words));
    plan->form_words = b->forms.len;
    b->ops = NULL;
    b->forms.words = NULL;
    plan->marks = calloc(plan->mark_count ? plan->mark_count : 1, sizeof(*plan->marks));
    if (!plan->marks) {
        return no_memory(b);
    }
    for (size_t i = 0; i < plan->edge_count; i++) {
        mark_edge(plan, i);
    }
    return REFIT_OK;
}

static enum refit_status finish(struct build *b)
{
    struct refit_plan *plan = b->plan;
    uint32_t *order = calloc(b->edge_count + 1, sizeof(*order));
    uint32_t *next = calloc(b->edge_count + 1, sizeof(*next));
    plan->edges = calloc(b->edge_count + 1, sizeof(*plan->edges));
    plan->first_op = calloc(b->edge_count + 1, sizeof(*plan->first_op));
    plan->first_mark = calloc(b->edge_count + 1, sizeof(*plan->first_mark));
    enum refit_status status = REFIT_OK;
    if (!order || !next || !plan->edges || !plan->first_op || !plan->first_mark) {
        status = no_memory(b);
    }
    if (status == REFIT_OK) {
        status = settle(b, order, next);
    }
    if (status == REFIT_OK) {
        status = keep_ops(b);
    }
    free(order);
    free(next);
    return status;
}

static enum refit_status run(struct build *b)
{
    const uint32_t count = refit_layout_tensor_count(b->plan->destination);
    enum refit_status status = REFIT_OK;
    b->load = calloc(refit_layout_ranks(b->plan->source) + (size_t)1, sizeof(*b->load));
    b->used = calloc(refit_layout_tensor_count(b->plan->source) + (size_t)1, sizeof(*b->used));
    if (!b->load || !b->used) {
        return no_memory(b);
    }
    for (uint32_t id = 0; id < count && status == REFIT_OK; id++) {
        status = plan_tensor(b, id);
    }
    if (status == REFIT_OK) {
        status = check_used(b);
    }
    return status == REFIT_OK ? finish(b) : status;
}

static void build_release(struct build *b)
{
    refit_plan_side_release(&b->source);
    refit_plan_side_release(&b->destination);
    for (size_t i = 0; i < b->shape_count; i++) {
        refit_plan_shape_release(&b->shapes[i]);
    }
    free(b->shapes);
    refit_plan_table_release(&b->shape_table);
    free(b->load);
    free(b->used);
    free(b->edges);
    refit_plan_table_release(&b->edge_table);
    free(b->ops);
    free(b->op_edges);
    refit_forms_release(&b->forms);
}

static enum refit_status check_scope(const struct refit_layout *source, const struct refit_layout *destination,
                                     struct refit_plan_scope scope, struct refit_error *err)
{
    const uint32_t ranks = refit_layout_ranks(scope.side == REFIT_SOURCE ? source : destination);
    if (scope.rank != REFIT_ALL_RANKS && scope.rank >= ranks) {
        return refit_fail(err, REFIT_INVALID, "a plan for %s rank %u was asked for, and there are %u",
                          scope.side == REFIT_SOURCE ? "source" : "destination", scope.rank, ranks);
    }
    return REFIT_OK;
}

enum refit_status refit_plan_build(struct refit_layout *source, struct refit_layout *destination,
                                   struct refit_plan_scope scope, struct refit_plan **out, struct refit_error *err)
{
    enum refit_status status = check_scope(source, destination, scope, err);
    if (status != REFIT_OK) {
        return status;
    }
    struct refit_plan *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        return refit_fail_alloc(err, "a plan", sizeof(*plan));
    }
    atomic_init(&plan->references, 1);
    plan->source = refit_layout_retain(source);
    plan->destination = refit_layout_retain(destination);
    struct build b = {.plan = plan, .scope = scope, .err = err};
    refit_plan_side_init(&b.source, source, scope.side == REFIT_SOURCE && !scope.totals_only);
    refit_plan_side_init(&b.destination, destination, scope.side == REFIT_DESTINATION && !scope.totals_only);
    status = run(&b);
    build_release(&b);
    if (status != REFIT_OK) {
        refit_plan_release(plan);
        return status;
    }
    *out = plan;
    return REFIT_OK;
}
