/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash index over things that are numbered 0, 1, 2 ... and kept elsewhere. (Internal to layouts/.)
 */
#ifndef REFIT_LAYOUTS_PLAN_TABLE_H
#define REFIT_LAYOUTS_PLAN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct refit_plan_table_slot {
    uint32_t hash;   /* kept, so that growing needs no other look at the things */
    uint32_t number; /* + 1; 0 is empty */
};

struct refit_plan_table {
    struct refit_plan_table_slot *slots;
    size_t size; /* a power of two, or 0 */
    size_t count;
};

/* Where a look-up is; begin it with refit_plan_table_begin(). */
struct refit_probe {
    uint32_t hash;
    size_t at;
};

/* False when out of memory. */
bool refit_plan_table_add(struct refit_plan_table *table, uint64_t hash, uint32_t number);
void refit_plan_table_release(struct refit_plan_table *table);

static inline struct refit_probe refit_plan_table_begin(uint64_t hash)
{
    const uint32_t kept = (uint32_t)(hash ^ hash >> 32);
    return (struct refit_probe){.hash = kept, .at = kept};
}

/* The next thing that may be the one looked for; UINT32_MAX when there is none left. */
static inline uint32_t refit_plan_table_next(const struct refit_plan_table *table, struct refit_probe *probe)
{
    for (; table->size > 0; probe->at++) {
        const struct refit_plan_table_slot slot = table->slots[probe->at & (table->size - 1)];
        if (slot.number == 0) {
            break;
        }
        if (slot.hash == probe->hash) {
            probe->at++;
            return slot.number - 1;
        }
    }
    return UINT32_MAX;
}

#endif
