/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/batch_set.h"

#include <stdatomic.h>
#include <stdlib.h>

struct refit_batch_set {
    const struct refit_edge *edges;
    uint64_t *first; /* per edge: its first bit */
    _Atomic uint64_t *bits;
};

struct refit_batch_set *refit_batch_set_create(const struct refit_plan *plan)
{
    size_t count;
    struct refit_batch_set *set = calloc(1, sizeof *set);
    if (!set)
        return NULL;
    set->edges = refit_plan_edges(plan, &count);
    set->first = calloc(count + 1, sizeof *set->first);
    if (!set->first)
        goto fail;
    uint64_t bits = 0;
    for (size_t i = 0; i < count; i++) {
        set->first[i] = bits;
        bits += set->edges[i].batches;
    }
    set->bits = calloc(bits / 64 + 1, sizeof *set->bits);
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

bool refit_batch_set_add(struct refit_batch_set *set, const struct refit_edge *edge, uint32_t batch)
{
    uint64_t bit = set->first[edge - set->edges] + batch;
    uint64_t mask = UINT64_C(1) << (bit % 64);
    return (atomic_fetch_or_explicit(&set->bits[bit / 64], mask, memory_order_relaxed) & mask) == 0;
}
