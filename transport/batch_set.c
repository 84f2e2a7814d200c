/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/batch_set.h"

#include <stdatomic.h>
#include <stdlib.h>

struct refit_batch_set {
    const struct refit_plan *plan;
    const struct refit_edge *edges;
    size_t edge_count;
    uint64_t *first; /* per edge: its first bit */
    uint64_t words;
    _Atomic uint64_t *bits;
};

struct refit_batch_set *refit_batch_set_create(const struct refit_plan *plan)
{
    struct refit_batch_set *set = calloc(1, sizeof *set);
    if (!set)
        return NULL;
    set->plan = plan;
    set->edges = refit_plan_edges(plan, &set->edge_count);
    set->first = calloc(set->edge_count + 1, sizeof *set->first);
    if (!set->first)
        goto fail;
    uint64_t bits = 0;
    for (size_t i = 0; i < set->edge_count; i++) {
        set->first[i] = bits;
        bits += set->edges[i].batches;
    }
    set->words = bits / 64 + 1;
    set->bits = calloc(set->words, sizeof *set->bits);
    if (!set->bits)
        goto fail;
    return set;
fail:
    refit_batch_set_destroy(set);
    return NULL;
}

void refit_batch_set_destroy(struct refit_batch_set *set)
{
    if (!set)
        return;
    free(set->first);
    free(set->bits);
    free(set);
}

/* The batch's word and its bit in it; NULL: not of this plan. */
static _Atomic uint64_t *find(const struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch,
                              uint64_t *mask)
{
    const struct refit_edge *own = edge;
    if ((uintptr_t)edge < (uintptr_t)set->edges || (uintptr_t)edge >= (uintptr_t)(set->edges + set->edge_count))
        own = refit_plan_edge(set->plan, edge->digest);
    if (!own || batch >= own->batches)
        return NULL;
    uint64_t bit = set->first[own - set->edges] + batch;
    *mask = UINT64_C(1) << (bit % 64);
    return &set->bits[bit / 64];
}

bool refit_batch_set_add(struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch)
{
    uint64_t mask;
    _Atomic uint64_t *word = find(set, edge, batch, &mask);
    return word && (atomic_fetch_or_explicit(word, mask, memory_order_acq_rel) & mask) == 0;
}

bool refit_batch_set_has(const struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch)
{
    uint64_t mask;
    _Atomic uint64_t *word = find(set, edge, batch, &mask);
    return word && (atomic_load_explicit(word, memory_order_acquire) & mask) != 0;
}

void refit_batch_set_fill(struct refit_batch_set *set)
{
    for (uint64_t i = 0; i < set->words; i++)
        atomic_store_explicit(&set->bits[i], UINT64_MAX, memory_order_release);
}
