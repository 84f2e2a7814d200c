/* SPDX-License-Identifier: Apache-2.0
 *
 * Building a plan: tensor by tensor in destination order. All tensors and ranks are checked; only the edges of the
 * scope are kept.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

/* A plan has about this many batches at least, while they stay within their bounds. */
#define BATCHES_WANTED 1024u

struct build {
    struct refit_plan *plan;
    struct refit_plan_draft draft;
    struct refit_plan_side source;
    struct refit_plan_side destination;
    struct refit_plan_shape *shapes;
    size_t shape_count, shape_capacity;
    struct refit_plan_table shape_table;
    uint8_t *used;          /* per source tensor */
    uint64_t planned_bytes; /* that the destination ranks planned for hold, each once, wanted or not */
    struct refit_plan_ops ops;
    struct refit_error *err;
};

static enum refit_status no_memory(struct build *b)
{
    return refit_fail_alloc(b->err, "a plan", b->ops.count * sizeof(*b->ops.ops));
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
    size_t used = (size_t)snprintf(text, REFIT_BOX_TEXT_MAX, "[");
    for (uint32_t d = 0; d < tensor->dims && used < REFIT_BOX_TEXT_MAX; d++)
        used += (size_t)snprintf(text + used, REFIT_BOX_TEXT_MAX - used, "%s%" PRId64, d ? ", " : "", tensor->shape[d]);
    if (used < REFIT_BOX_TEXT_MAX)
        snprintf(text + used, REFIT_BOX_TEXT_MAX - used, "]");
    return text;
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

static enum refit_status cut(struct build *b, const char *name, struct refit_plan_geometry *geometry)
{
    if (geometry->is_cut) {
        return REFIT_OK;
    }
    if (!refit_plan_cut_build(&geometry->cut, geometry->regions, geometry->count)) {
        const bool tangled = geometry->cut.tangled;
        refit_plan_cut_release(&geometry->cut);
        geometry->cut = (struct refit_plan_cut){.count = 0};
        if (!tangled) {
            return no_memory(b);
        }
        return refit_fail(b->err, REFIT_UNSUPPORTED,
                          "tensor \"%s\": the boxes of its ranks overlap so that they fall into too many parts", name);
    }
    geometry->is_cut = true;
    return REFIT_OK;
}

static enum refit_status add_shape(struct build *b, const struct refit_plan_shape *facts, const char *name,
                                   struct refit_plan_shape **out)
{
    struct refit_plan_geometry *source = &b->source.geometries[facts->source_geometry];
    struct refit_plan_geometry *destination = &b->destination.geometries[facts->destination_geometry];
    struct refit_plan_hole hole = {.found = false};
    enum refit_status status = cut(b, name, source);
    if (status == REFIT_OK) {
        status = cut(b, name, destination);
    }
    if (status != REFIT_OK) {
        return status;
    }
    if (!refit_array_reserve(&b->shapes, &b->shape_capacity, b->shape_count + 1, sizeof(*b->shapes))) {
        return no_memory(b);
    }
    struct refit_plan_shape *shape = &b->shapes[b->shape_count];
    *shape = *facts;
    if (!refit_plan_shape_build(&b->draft, shape, source, destination, &hole)) {
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

/* ---- ops ---- */

/* What a tensor's boxes are named by: whoever has a tensor of this name, type and shape has the same bytes in a box. */
static uint64_t tensor_hash(const struct refit_tensor *tensor)
{
    const size_t len = strlen(tensor->name);
    uint64_t hash = refit_plan_mix((uint64_t)tensor->dtype << 32 | tensor->dims) + len;
    for (size_t at = 0; at < len; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        for (size_t i = 0; i < sizeof(word) && at + i < len; i++) {
            word |= (uint64_t)(uint8_t)tensor->name[at + i] << 8 * i;
        }
        hash = refit_plan_mix(hash ^ word) + 0x9e3779b97f4a7c15u;
    }
    for (uint32_t d = 0; d < tensor->dims; d++) {
        hash = refit_plan_mix(hash ^ (uint64_t)tensor->shape[d]) + 0x9e3779b97f4a7c15u;
    }
    return hash;
}

/* The digest tells also where `counted` changes within a tensor, since segments are cut there (memory/ops.h). */
static void extend_edge(struct refit_draft_edge *to, const struct refit_proto *proto, uint32_t tensor, uint64_t hash)
{
    if (to->tensor != tensor) {
        to->tensor = tensor;
        to->counted = proto->counted;
    }
    to->edge.bytes += proto->bytes;
    to->edge.ops++;
    hash += proto->hash + (proto->counted != to->counted);
    to->edge.digest = refit_plan_mix(to->edge.digest ^ hash) + to->edge.ops;
}

static void add_ops(struct build *b, const struct refit_plan_shape *shape, const struct refit_proto *proto,
                    uint32_t tensor)
{
    const struct refit_plan_side *side = b->draft.scope.side == REFIT_SOURCE ? &b->source : &b->destination;
    const uint32_t column = b->draft.edges[proto->edge].first_column;
    for (uint32_t i = 0; i < proto->binds; i++) {
        const struct refit_bind *bind = &shape->binds[proto->first_bind + i];
        b->ops.ops[b->ops.count] = (struct refit_plan_op){
            .tensor = tensor,
            .form = bind->form,
            .offset = refit_plan_side_offset(side, bind->region) + (uint64_t)bind->lead};
        b->ops.columns[b->ops.count++] = column + i;
    }
}

static enum refit_status add_protos(struct build *b, const struct refit_plan_shape *shape, uint32_t id,
                                    const struct refit_tensor *tensor)
{
    const size_t count = b->ops.count + shape->bind_count;
    const uint64_t hash = shape->proto_count > 0 ? tensor_hash(tensor) : 0;
    if (count >= REFIT_PLAN_NONE) {
        return refit_fail(b->err, REFIT_UNSUPPORTED, "the plan has more than %u operations in one process",
                          REFIT_PLAN_NONE - 1);
    }
    if (!refit_array_reserve(&b->ops.ops, &b->ops.capacity, count, sizeof(*b->ops.ops))
        || !refit_array_reserve(&b->ops.columns, &b->ops.column_capacity, count, sizeof(*b->ops.columns))) {
        return no_memory(b);
    }
    for (size_t i = 0; i < shape->proto_count; i++) {
        const struct refit_proto *proto = &shape->protos[i];
        extend_edge(&b->draft.edges[proto->edge], proto, id, hash);
        add_ops(b, shape, proto, id);
    }
    return REFIT_OK;
}

static enum refit_status report_lack(struct build *b, const struct refit_tensor *tensor,
                                     const struct refit_plan_shape *shape)
{
    char text[REFIT_BOX_TEXT_MAX];
    const struct refit_box whole = refit_box_of_shape(shape->dims, shape->shape);
    struct refit_box lacks;
    if (!refit_plan_cut_lacks(&b->destination.geometries[shape->destination_geometry].cut, &whole, &lacks)) {
        return no_memory(b);
    }
    return refit_fail(b->err, REFIT_MISMATCH,
                      "tensor \"%s\": no destination rank holds box %s of it: hold all of it, or name it in "
                      "\"excused\" of either layout",
                      tensor->name, refit_box_format(&lacks, text, sizeof(text)));
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
        status = report_lack(b, &wanted, shape);
    }
    if (status != REFIT_OK) {
        return status;
    }
    b->planned_bytes += shape->planned_bytes;
    return b->draft.scope.wanted && !b->draft.scope.wanted[id] ? REFIT_OK : add_protos(b, shape, id, &wanted);
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

/* ---- the plan ---- */

static uint32_t batch_bytes_for(uint64_t held)
{
    uint32_t bytes = REFIT_BATCH_BYTES_MIN;
    while (bytes < REFIT_BATCH_BYTES_MAX && (uint64_t)bytes * 2 * BATCHES_WANTED <= held) {
        bytes *= 2;
    }
    return bytes;
}

static enum refit_status run(struct build *b)
{
    const uint32_t count = refit_layout_tensor_count(b->plan->destination);
    enum refit_status status = REFIT_OK;
    b->used = calloc(refit_layout_tensor_count(b->plan->source) + (size_t)1, sizeof(*b->used));
    if (!b->used) {
        return no_memory(b);
    }
    for (uint32_t id = 0; id < count && status == REFIT_OK; id++) {
        status = plan_tensor(b, id);
    }
    if (status == REFIT_OK) {
        status = check_used(b);
    }
    if (status != REFIT_OK) {
        return status;
    }
    b->plan->batch_bytes = batch_bytes_for(b->planned_bytes);
    return refit_plan_finish(b->plan, &b->draft, &b->ops, b->err);
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
    free(b->used);
    free(b->draft.edges);
    refit_plan_table_release(&b->draft.edge_table);
    refit_forms_release(&b->draft.forms);
    free(b->ops.ops);
    free(b->ops.columns);
}

static enum refit_status check_scope(const struct refit_layout *source, const struct refit_layout *destination,
                                     struct refit_plan_scope *scope, struct refit_error *err)
{
    const uint32_t senders = refit_layout_ranks(source);
    const uint32_t takers = refit_layout_ranks(destination);
    if (scope->rank_count == 0 && scope->first_rank == 0) {
        scope->rank_count = takers;
    }
    if (scope->rank_count == 0 || scope->first_rank >= takers || scope->rank_count > takers - scope->first_rank) {
        return refit_fail(err, REFIT_INVALID,
                          "a plan for %u destination ranks from %u on was asked for, and there are %u",
                          scope->rank_count, scope->first_rank, takers);
    }
    if (scope->rank == REFIT_ALL_RANKS) {
        return REFIT_OK;
    }
    if (scope->side == REFIT_DESTINATION) {
        return refit_fail(err, REFIT_INVALID,
                          "a plan for destination rank %u was asked for: a plan is of all ranks of a receiver, so say "
                          "it by first_rank and rank_count",
                          scope->rank);
    }
    if (scope->rank >= senders) {
        return refit_fail(err, REFIT_INVALID, "a plan for source rank %u was asked for, and there are %u", scope->rank,
                          senders);
    }
    return REFIT_OK;
}

static struct refit_plan *plan_create(struct refit_layout *source, struct refit_layout *destination,
                                      const struct refit_plan_scope *scope)
{
    struct refit_plan *plan = calloc(1, sizeof(*plan));
    if (plan) {
        atomic_init(&plan->references, 1);
        plan->source = refit_layout_retain(source);
        plan->destination = refit_layout_retain(destination);
        plan->side = scope->side;
        plan->rank = scope->rank;
        plan->first_rank = scope->first_rank;
        plan->rank_count = scope->rank_count;
    }
    return plan;
}

/* The mask is the caller's, and whoever serves the plan's edges from other memory needs it again. */
static bool keep_wanted(struct refit_plan *plan, const uint8_t *wanted)
{
    const size_t count = refit_layout_tensor_count(plan->destination);
    if (wanted) {
        plan->wanted = malloc(count + 1);
        if (plan->wanted) {
            memcpy(plan->wanted, wanted, count);
        }
    }
    return !wanted || plan->wanted;
}

enum refit_status refit_plan_build(struct refit_layout *source, struct refit_layout *destination,
                                   struct refit_plan_scope scope, struct refit_plan **out, struct refit_error *err)
{
    enum refit_status status = check_scope(source, destination, &scope, err);
    if (status != REFIT_OK) {
        return status;
    }
    struct refit_plan *plan = plan_create(source, destination, &scope);
    if (!plan || !keep_wanted(plan, scope.wanted)) {
        refit_plan_release(plan);
        return refit_fail_alloc(err, "a plan", sizeof(*plan));
    }
    struct build b = {.plan = plan, .draft = {.scope = scope, .groups = plan->groups}, .err = err};
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
