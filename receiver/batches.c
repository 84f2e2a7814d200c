/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/batches.h"

#include <stdlib.h>

static enum refit_status count_batches(struct refit_batches *b, struct refit_error *err)
{
    uint32_t total = 0;
    for (size_t i = 0; i < b->edge_count; i++) {
        b->first[i] = total;
        if (__builtin_add_overflow(total, b->edges[i].batches, &total) || total >= REFIT_BATCH_NONE - 1)
            return refit_fail(err, REFIT_UNSUPPORTED, "the plan has more than 2^32 batches");
    }
    b->first[b->edge_count] = b->total = b->left = total;
    return REFIT_OK;
}

/* How far along its edge a batch is, in units that all edges share. */
struct place {
    uint32_t number;
    double along;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->along != y->along)
        return x->along < y->along ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static enum refit_status make_order(struct refit_batches *b, struct refit_error *err)
{
    struct place *places = calloc((size_t)b->total + 1, sizeof *places);
    if (!places)
        return refit_fail_alloc(err, "the order of a transfer's batches", b->total * sizeof *places);
    for (size_t i = 0; i < b->edge_count; i++)
        for (uint32_t k = 0; k < b->edges[i].batches; k++)
            places[b->first[i] + k] = (struct place){b->first[i] + k, (k + 0.5) / b->edges[i].batches};
    qsort(places, b->total, sizeof *places, by_place);
    for (uint32_t i = 0; i < b->total; i++)
        b->order[i] = places[i].number;
    free(places);
    return REFIT_OK;
}

enum refit_status refit_batches_init(struct refit_batches *batches, const struct refit_plan *plan, uint32_t targets,
                                     struct refit_error *err)
{
    struct refit_batches *b = batches;
    *b = (struct refit_batches){.plan = plan, .targets = targets};
    b->edges = refit_plan_edges(plan, &b->edge_count);
    b->first = calloc(b->edge_count + 1, sizeof *b->first);
    b->lists = calloc((size_t)targets + 1, sizeof *b->lists);
    if (!b->first || !b->lists)
        return refit_fail_alloc(err, "the state of a transfer's edges", b->edge_count * sizeof *b->first);
    enum refit_status status = count_batches(b, err);
    if (status != REFIT_OK)
        return status;
    b->items = calloc((size_t)b->total + 1, sizeof *b->items);
    b->order = calloc((size_t)b->total + 1, sizeof *b->order);
    if (!b->items || !b->order)
        return refit_fail_alloc(err, "the state of a transfer's batches", b->total * sizeof *b->items);
    refit_batches_clear(b);
    return make_order(b, err);
}

void refit_batches_release(struct refit_batches *batches)
{
    free(batches->first);
    free(batches->lists);
    free(batches->items);
    free(batches->order);
}

const struct refit_edge *refit_batches_edge(const struct refit_batches *batches, uint32_t number, uint32_t *within)
{
    size_t low = 0, high = batches->edge_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (batches->first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    *within = number - batches->first[low];
    return &batches->edges[low];
}

uint32_t refit_batches_number(const struct refit_batches *batches, uint64_t edge, uint32_t within)
{
    const struct refit_edge *found = refit_plan_edge(batches->plan, edge);
    if (!found || within >= found->batches)
        return REFIT_BATCH_NONE;
    return batches->first[found - batches->edges] + within;
}

uint64_t refit_batches_bytes(const struct refit_batches *batches, uint32_t number)
{
    uint32_t within;
    const struct refit_edge *edge = refit_batches_edge(batches, number, &within);
    return refit_batch_bytes(batches->plan, edge, within);
}

void refit_batches_clear(struct refit_batches *batches)
{
    for (uint32_t i = 0; i < batches->targets; i++)
        batches->lists[i] = (struct refit_batch_list){REFIT_BATCH_NONE, REFIT_BATCH_NONE, 0};
}

void refit_batches_append(struct refit_batches *batches, uint32_t target, uint32_t number)
{
    struct refit_batch_list *list = &batches->lists[target];
    batches->items[number].next = REFIT_BATCH_NONE;
    if (list->count++ == 0)
        list->head = number;
    else
        batches->items[list->tail].next = number;
    list->tail = number;
}

void refit_batches_prepend(struct refit_batches *batches, uint32_t target, uint32_t number)
{
    struct refit_batch_list *list = &batches->lists[target];
    batches->items[number].next = list->head;
    if (list->count++ == 0)
        list->tail = number;
    list->head = number;
}

uint32_t refit_batches_pop(struct refit_batches *batches, uint32_t target)
{
    struct refit_batch_list *list = &batches->lists[target];
    uint32_t number = list->head;
    list->head = batches->items[number].next;
    list->count--;
    return number;
}
