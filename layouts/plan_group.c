/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

struct refit_group refit_plan_groups_at(const struct refit_plan_groups *groups, uint32_t number)
{
    const struct refit_plan_span span = groups->spans[number];
    return (struct refit_group){.ranks = groups->ranks + span.first, .count = span.count};
}

static uint64_t hash_ranks(const uint32_t *ranks, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = refit_plan_mix(hash ^ ranks[i]) + 0x9e3779b97f4a7c15u;
    }
    return hash;
}

uint32_t refit_plan_groups_add(struct refit_plan_groups *groups, const uint32_t *ranks, uint32_t count)
{
    const uint64_t hash = hash_ranks(ranks, count);
    struct refit_probe probe = refit_plan_table_begin(hash);
    for (uint32_t number; (number = refit_plan_table_next(&groups->table, &probe)) != REFIT_PLAN_NONE;) {
        const struct refit_group known = refit_plan_groups_at(groups, number);
        if (known.count == count && memcmp(known.ranks, ranks, count * sizeof(*ranks)) == 0) {
            return number;
        }
    }
    const size_t first = groups->rank_count;
    if (first + count >= REFIT_PLAN_NONE
        || !refit_array_reserve(&groups->ranks, &groups->rank_capacity, first + count, sizeof(*ranks))
        || !refit_array_reserve(&groups->spans, &groups->capacity, groups->count + 1, sizeof(*groups->spans))
        || !refit_plan_table_add(&groups->table, hash, (uint32_t)groups->count)) {
        return REFIT_PLAN_NONE;
    }
    memcpy(groups->ranks + first, ranks, count * sizeof(*ranks));
    groups->rank_count += count;
    groups->spans[groups->count] = (struct refit_plan_span){.first = (uint32_t)first, .count = count};
    return (uint32_t)groups->count++;
}

int refit_group_order(struct refit_group a, struct refit_group b)
{
    for (uint32_t i = 0; i < a.count && i < b.count; i++) {
        if (a.ranks[i] != b.ranks[i]) {
            return a.ranks[i] < b.ranks[i] ? -1 : 1;
        }
    }
    return (a.count > b.count) - (a.count < b.count);
}

uint32_t refit_group_place(struct refit_group group, uint32_t rank)
{
    uint32_t low = 0;
    uint32_t high = group.count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (group.ranks[middle] < rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < group.count && group.ranks[low] == rank ? low : REFIT_PLAN_NONE;
}

bool refit_group_has(struct refit_group group, uint32_t rank)
{
    return refit_group_place(group, rank) != REFIT_PLAN_NONE;
}

void refit_plan_groups_release(struct refit_plan_groups *groups)
{
    free(groups->ranks);
    free(groups->spans);
    refit_plan_table_release(&groups->table);
}
