/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "layouts/plan_table.h"

static void insert(struct refit_plan_table *table, struct refit_plan_table_slot slot)
{
    size_t at = slot.hash & (table->size - 1);
    while (table->slots[at].number) {
        at = (at + 1) & (table->size - 1);
    }
    table->slots[at] = slot;
}

static bool grow(struct refit_plan_table *table)
{
    struct refit_plan_table grown = {.size = table->size ? 2 * table->size : 64, .count = table->count};
    grown.slots = calloc(grown.size, sizeof(*grown.slots));
    if (!grown.slots) {
        return false;
    }
    for (size_t i = 0; i < table->size; i++) {
        if (table->slots[i].number) {
            insert(&grown, table->slots[i]);
        }
    }
    free(table->slots);
    *table = grown;
    return true;
}

bool refit_plan_table_add(struct refit_plan_table *table, uint64_t hash, uint32_t number)
{
    if (2 * (table->count + 1) > table->size && !grow(table)) {
        return false;
    }
    insert(table, (struct refit_plan_table_slot){.hash = refit_plan_table_begin(hash).hash, .number = number + 1});
    table->count++;
    return true;
}

void refit_plan_table_release(struct refit_plan_table *table)
{
    free(table->slots);
}
