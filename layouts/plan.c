/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "layouts/plan_internal.h"

struct refit_plan *refit_plan_retain(struct refit_plan *plan)
{
    atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
    return plan;
}

void refit_plan_release(struct refit_plan *plan)
{
    if (!plan || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    refit_layout_release(plan->source);
    refit_layout_release(plan->destination);
    free(plan->edges);
    free(plan->first_op);
    free(plan->first_mark);
    free(plan->ops);
    free(plan->marks);
    free(plan->forms);
    free(plan);
}

struct refit_layout *refit_plan_source(const struct refit_plan *plan)
{
    return plan->source;
}

struct refit_layout *refit_plan_destination(const struct refit_plan *plan)
{
    return plan->destination;
}

const struct refit_edge *refit_plan_edges(const struct refit_plan *plan, size_t *count)
{
    *count = plan->edge_count;
    return plan->edges;
}

static int by_ranks(const void *key, const void *element)
{
    const struct refit_edge *a = key;
    const struct refit_edge *b = element;
    if (a->destination_rank != b->destination_rank) {
        return a->destination_rank < b->destination_rank ? -1 : 1;
    }
    return (a->source_rank > b->source_rank) - (a->source_rank < b->source_rank);
}

const struct refit_edge *refit_plan_edge(const struct refit_plan *plan, uint32_t source_rank, uint32_t destination_rank)
{
    const struct refit_edge key = {.source_rank = source_rank, .destination_rank = destination_rank};
    return bsearch(&key, plan->edges, plan->edge_count, sizeof(key), by_ranks);
}

uint64_t refit_plan_bytes(const struct refit_plan *plan)
{
    return plan->bytes;
}

size_t refit_plan_memory(const struct refit_plan *plan)
{
    const size_t per_edge = sizeof(*plan->edges) + sizeof(*plan->first_op) + sizeof(*plan->first_mark);
    return sizeof(*plan) + (plan->edge_count + 1) * per_edge + plan->op_count * sizeof(*plan->ops)
           + plan->mark_count * sizeof(*plan->marks) + plan->form_words * sizeof(*plan->forms);
}
