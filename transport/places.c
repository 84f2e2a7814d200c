/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/places.h"

#include <stdlib.h>

#include "transport/window.h"

void refit_places_init(struct refit_places *places)
{
    *places = (struct refit_places){.items = NULL};
    refit_segments_init(&places->spare, false);
}

void refit_places_release(struct refit_places *places)
{
    free(places->items);
    refit_segments_release(&places->spare);
}

static struct refit_arena *arena_of(const struct refit_endpoint_config *receiver, uint32_t rank)
{
    uint32_t index = rank - refit_plan_first_rank(receiver->plan);
    return index < receiver->arena_count ? receiver->arenas[index] : NULL;
}

bool refit_places_bound(const struct refit_endpoint_config *receiver, const struct refit_edge *edge)
{
    struct refit_group group = refit_plan_group(receiver->plan, REFIT_DESTINATION, edge->destination_group);
    uint32_t bound = 0;
    for (uint32_t i = 0; i < group.count; i++)
        bound += arena_of(receiver, group.ranks[i]) != NULL;
    return receiver->partial ? bound > 0 : bound == group.count;
}

enum refit_status refit_places_of(struct refit_places *places, const struct refit_endpoint_config *receiver,
                                  const struct refit_edge *edge, uint32_t batch, struct refit_error *err)
{
    struct refit_group group = refit_plan_group(receiver->plan, REFIT_DESTINATION, edge->destination_group);
    if (group.count > places->capacity) {
        struct refit_place *items = reallocarray(places->items, group.count, sizeof *items);
        if (!items)
            return refit_fail_alloc(err, "the places of a batch", group.count * sizeof *items);
        places->items = items;
        places->capacity = group.count;
    }
    uint32_t landing = refit_plan_landing_rank(receiver->plan, edge, batch);
    places->count = 1;
    for (uint32_t i = 0; i < group.count; i++) {
        uint32_t rank = group.ranks[i];
        if (receiver->partial && !arena_of(receiver, rank))
            continue;
        places->items[rank == landing ? 0 : places->count++] = (struct refit_place){
            .arena = arena_of(receiver, rank), .walk = refit_walk_batch(receiver->plan, edge, batch, rank)};
    }
    return REFIT_OK;
}

enum refit_status refit_places_scatter(struct refit_places *places, const void *staging, uint64_t bytes,
                                       struct refit_segments *segments, struct refit_error *err)
{
    for (size_t i = 0; i < places->count; i++) {
        struct refit_place *place = &places->items[i];
        struct refit_completion completion;
        enum refit_status status =
            refit_memory_scatter(place->arena, refit_window_cut(&place->walk, bytes), staging,
                                 i == 0 ? segments : &places->spare, &completion, err);
        status = refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

enum refit_status refit_places_spread(struct refit_places *places, struct refit_error *err)
{
    const struct refit_place *landed = &places->items[0];
    for (size_t i = 1; i < places->count; i++) {
        struct refit_place *place = &places->items[i];
        struct refit_completion completion;
        enum refit_status status = refit_memory_copy(place->arena, place->walk, landed->arena, landed->walk,
                                                     &places->spare, &completion, err);
        status = refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}
