/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of building a plan: edges in order, their ops one edge after the other, and what finds them.
 */
#include <stdlib.h>

#include "layouts/plan_internal.h"

struct finisher {
    struct refit_plan *plan;
    struct refit_plan_draft *draft;
    struct refit_plan_ops *ops;
    uint32_t *order;  /* draft edges by (destination ranks, source ranks) */
    uint32_t *next;   /* by column: where its next op belongs */
    uint64_t *landed; /* bytes by destination rank planned for, of the edges looked at so far */
    struct refit_group group; /* of the edge looked at */
    struct refit_error *err;
};

static enum refit_status no_memory(const struct finisher *f)
{
    return refit_fail_alloc(f->err, "a plan", f->ops->count * sizeof(*f->ops->ops));
}

static int by_ranks(const void *a, const void *b, void *draft_pointer)
{
    const struct refit_plan_draft *draft = draft_pointer;
    const struct refit_edge *x = &draft->edges[*(const uint32_t *)a].edge;
    const struct refit_edge *y = &draft->edges[*(const uint32_t *)b].edge;
    int order = 0;
    if (x->destination_group != y->destination_group) {
        order = refit_group_order(refit_plan_groups_at(&draft->groups[REFIT_DESTINATION], x->destination_group),
                                  refit_plan_groups_at(&draft->groups[REFIT_DESTINATION], y->destination_group));
    }
    if (order == 0) {
        order = refit_group_order(refit_plan_groups_at(&draft->groups[REFIT_SOURCE], x->source_group),
                                  refit_plan_groups_at(&draft->groups[REFIT_SOURCE], y->source_group));
    }
    return order;
}

/* Edges that a mask of wanted tensors left without bytes are no edges. */
static void order_edges(struct finisher *f)
{
    size_t count = 0;
    for (uint32_t i = 0; i < f->draft->edge_count; i++) {
        if (f->draft->edges[i].edge.bytes > 0) {
            f->order[count++] = i;
        }
    }
    qsort_r(f->order, count, sizeof(*f->order), by_ranks, f->draft);
    f->plan->edge_count = count;
}

static enum refit_status finish_edge(const struct finisher *f, struct refit_edge *edge)
{
    const uint32_t batch_bytes = f->plan->batch_bytes;
    const uint64_t batches = (edge->bytes + batch_bytes - 1) / batch_bytes;
    if (batches > UINT32_MAX) {
        return refit_fail(f->err, REFIT_UNSUPPORTED, "source rank %u sends %llu bytes to destination rank %u: too many",
                          refit_plan_group(f->plan, REFIT_SOURCE, edge->source_group).ranks[0],
                          (unsigned long long)edge->bytes,
                          refit_plan_group(f->plan, REFIT_DESTINATION, edge->destination_group).ranks[0]);
    }
    edge->batches = (uint32_t)batches;
    edge->digest = refit_plan_mix(edge->digest ^ batch_bytes);
    return REFIT_OK;
}

/* ---- where batches land ---- */

static int by_landed(const void *a, const void *b, void *finisher)
{
    const struct finisher *f = finisher;
    const uint32_t x = *(const uint16_t *)a;
    const uint32_t y = *(const uint16_t *)b;
    const uint64_t at_x = f->landed[f->group.ranks[x] - f->plan->first_rank];
    const uint64_t at_y = f->landed[f->group.ranks[y] - f->plan->first_rank];
    return at_x != at_y ? (at_x < at_y ? -1 : 1) : (x > y) - (x < y);
}

/* Batches go round the group, beginning with whom least has landed at so far. Then ranks that were within one batch
 * of each other still are, since only the last round adds to some and not to others. */
static void plan_landing(struct finisher *f, const struct refit_edge *edge, uint16_t *places)
{
    const uint32_t batch_bytes = f->plan->batch_bytes;
    const uint64_t last = edge->bytes - (uint64_t)(edge->batches - 1) * batch_bytes;
    f->group = refit_plan_group(f->plan, REFIT_DESTINATION, edge->destination_group);
    const uint32_t whole = (edge->batches - 1) % f->group.count; /* of the last round */
    const uint64_t rounds = (edge->batches - 1) / f->group.count;
    for (uint32_t i = 0; i < f->group.count; i++) {
        places[i] = (uint16_t)i;
    }
    if (f->group.count > 1) {
        qsort_r(places, f->group.count, sizeof(*places), by_landed, f);
    }
    for (uint32_t i = 0; i < f->group.count; i++) {
        f->landed[f->group.ranks[places[i]] - f->plan->first_rank] +=
            (rounds + (i < whole)) * batch_bytes + (i == whole ? last : 0);
    }
}

static bool plan_landings(struct finisher *f)
{
    struct refit_plan *plan = f->plan;
    size_t count = 0;
    for (size_t i = 0; i < plan->edge_count; i++) {
        plan->first_place[i] = count;
        count += refit_plan_group(plan, REFIT_DESTINATION, plan->edges[i].destination_group).count;
    }
    plan->place_count = count;
    plan->places = calloc(count + 1, sizeof(*plan->places));
    f->landed = calloc(plan->rank_count, sizeof(*f->landed));
    if (!plan->places || !f->landed) {
        return false;
    }
    for (size_t i = 0; i < plan->edge_count; i++) {
        plan_landing(f, &plan->edges[i], plan->places + plan->first_place[i]);
    }
    return true;
}

/* ---- ops ---- */

/* Moves each op to where its column's next one belongs; op columns become scratch. */
static void sort_ops(struct finisher *f)
{
    uint32_t *to_of = f->ops->columns;
    struct refit_plan_op *ops = f->ops->ops;
    for (size_t i = 0; i < f->ops->count; i++) {
        to_of[i] = f->next[to_of[i]]++;
    }
    for (uint32_t i = 0; i < f->ops->count; i++) {
        while (to_of[i] != i) {
            const uint32_t to = to_of[i];
            const struct refit_plan_op op = ops[to];
            ops[to] = ops[i];
            ops[i] = op;
            to_of[i] = to_of[to];
            to_of[to] = to;
        }
    }
}

/* Edges in order, their ops and marks one edge after the other. */
static enum refit_status settle(struct finisher *f)
{
    struct refit_plan *plan = f->plan;
    const bool totals_only = f->draft->scope.totals_only;
    uint32_t op = 0;
    for (size_t i = 0; i < plan->edge_count; i++) {
        const struct refit_draft_edge *from = &f->draft->edges[f->order[i]];
        struct refit_edge *edge = &plan->edges[i];
        *edge = from->edge;
        enum refit_status status = finish_edge(f, edge);
        if (status != REFIT_OK) {
            return status;
        }
        plan->bytes += edge->bytes;
        plan->written_bytes += edge->bytes * plan->groups[REFIT_DESTINATION].spans[edge->destination_group].count;
        plan->first_op[i] = op;
        plan->first_mark[i] = (uint32_t)plan->mark_count;
        for (uint32_t c = 0; c < from->columns && !totals_only; c++) {
            f->next[from->first_column + c] = op;
            op += (uint32_t)edge->ops;
        }
        plan->mark_count += (edge->batches + REFIT_PLAN_MARK_BATCHES - 1) / REFIT_PLAN_MARK_BATCHES;
    }
    plan->first_op[plan->edge_count] = op;
    sort_ops(f);
    return REFIT_OK;
}

static void mark_edge(struct refit_plan *plan, size_t number)
{
    const uint64_t every = (uint64_t)REFIT_PLAN_MARK_BATCHES * plan->batch_bytes;
    const struct refit_plan_op *ops = plan->ops + plan->first_op[number];
    struct refit_plan_mark *mark = &plan->marks[plan->first_mark[number]];
    uint64_t begin = 0; /* of the op, in the edge stream */
    uint64_t at = 0;    /* of the mark */
    for (uint32_t op = 0; op < plan->edges[number].ops; op++) {
        const uint64_t end = begin + plan->forms[ops[op].form];
        for (; at < end; at += every) {
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

static void trim_groups(struct refit_plan_groups *groups)
{
    refit_plan_table_release(&groups->table);
    groups->table = (struct refit_plan_table){.size = 0};
    groups->ranks = trim(groups->ranks, groups->rank_count * sizeof(*groups->ranks));
    groups->spans = trim(groups->spans, groups->count * sizeof(*groups->spans));
}

static enum refit_status keep_ops(struct finisher *f)
{
    struct refit_plan *plan = f->plan;
    struct refit_forms *forms = &f->draft->forms;
    if (f->draft->scope.totals_only) {
        plan->mark_count = 0;
        return REFIT_OK;
    }
    plan->ops = trim(f->ops->ops, f->ops->count * sizeof(*f->ops->ops));
    plan->op_count = f->ops->count;
    plan->forms = trim(forms->words, forms->len * sizeof(*forms->words));
    plan->form_words = forms->len;
    f->ops->ops = NULL;
    forms->words = NULL;
    plan->marks = calloc(plan->mark_count ? plan->mark_count : 1, sizeof(*plan->marks));
    if (!plan->marks) {
        return no_memory(f);
    }
    for (size_t i = 0; i < plan->edge_count; i++) {
        mark_edge(plan, i);
    }
    return REFIT_OK;
}

static int by_digest(const void *a, const void *b, void *edges)
{
    const uint64_t x = ((const struct refit_edge *)edges)[*(const uint32_t *)a].digest;
    const uint64_t y = ((const struct refit_edge *)edges)[*(const uint32_t *)b].digest;
    return (x > y) - (x < y);
}

static void index_edges(struct refit_plan *plan)
{
    for (uint32_t i = 0; i < plan->edge_count; i++) {
        plan->by_digest[i] = i;
    }
    qsort_r(plan->by_digest, plan->edge_count, sizeof(*plan->by_digest), by_digest, plan->edges);
}

static bool allocate(struct finisher *f)
{
    struct refit_plan *plan = f->plan;
    const size_t edges = f->draft->edge_count + 1;
    f->order = calloc(edges, sizeof(*f->order));
    f->next = calloc(f->draft->column_count + (size_t)1, sizeof(*f->next));
    if (!f->order || !f->next) {
        return false;
    }
    order_edges(f);
    plan->edges = calloc(plan->edge_count + 1, sizeof(*plan->edges));
    plan->by_digest = calloc(plan->edge_count + 1, sizeof(*plan->by_digest));
    plan->first_place = calloc(plan->edge_count + 1, sizeof(*plan->first_place));
    plan->first_op = calloc(plan->edge_count + 1, sizeof(*plan->first_op));
    plan->first_mark = calloc(plan->edge_count + 1, sizeof(*plan->first_mark));
    return plan->edges && plan->by_digest && plan->first_place && plan->first_op && plan->first_mark;
}

enum refit_status refit_plan_finish(struct refit_plan *plan, struct refit_plan_draft *draft,
                                    struct refit_plan_ops *ops, struct refit_error *err)
{
    struct finisher f = {.plan = plan, .draft = draft, .ops = ops, .err = err};
    enum refit_status status = allocate(&f) ? settle(&f) : no_memory(&f);
    if (status == REFIT_OK && !plan_landings(&f)) {
        status = no_memory(&f);
    }
    if (status == REFIT_OK) {
        status = keep_ops(&f);
    }
    if (status == REFIT_OK) {
        index_edges(plan);
        trim_groups(&plan->groups[REFIT_SOURCE]);
        trim_groups(&plan->groups[REFIT_DESTINATION]);
    }
    free(f.order);
    free(f.next);
    free(f.landed);
    return status;
}
