/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/plans.h"

#include <string.h>

static bool is_between(const struct refit_plan *plan, const char *source, const char *destination)
{
    return strcmp(refit_layout_digest(refit_plan_source(plan)), source) == 0 &&
           strcmp(refit_layout_digest(refit_plan_destination(plan)), destination) == 0;
}

static void move_to_front(struct refit_plans *plans, size_t index)
{
    struct refit_plan *plan = plans->items[index];
    memmove(&plans->items[1], &plans->items[0], index * sizeof plans->items[0]);
    plans->items[0] = plan;
}

struct refit_plan *refit_plans_find(struct refit_plans *plans, const char *source, const char *destination)
{
    for (size_t i = 0; i < plans->count; i++) {
        if (is_between(plans->items[i], source, destination)) {
            plans->hits++;
            move_to_front(plans, i);
            return refit_plan_retain(plans->items[0]);
        }
    }
    plans->misses++;
    return NULL;
}

static size_t total_memory(const struct refit_plans *plans)
{
    size_t sum = 0;
    for (size_t i = 0; i < plans->count; i++)
        sum += refit_plan_memory(plans->items[i]);
    return sum;
}

void refit_plans_put(struct refit_plans *plans, struct refit_plan *plan)
{
    size_t need = refit_plan_memory(plan);
    while (plans->count > 0 &&
           (plans->count == REFIT_PLANS_MAX || total_memory(plans) + need > REFIT_PLANS_MEMORY_MAX))
        refit_plan_release(plans->items[--plans->count]);
    plans->items[plans->count++] = refit_plan_retain(plan);
    move_to_front(plans, plans->count - 1);
}

void refit_plans_clear(struct refit_plans *plans)
{
    while (plans->count > 0)
        refit_plan_release(plans->items[--plans->count]);
}
