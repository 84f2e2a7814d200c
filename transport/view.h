/* SPDX-License-Identifier: Apache-2.0
 *
 * A holder's memory by what its plan describes: one source rank, all source ranks (any rank of an edge's source group
 * has the bytes), or the destination ranks of a relay (the rank at which a batch landed has them).
 */
#ifndef REFIT_TRANSPORT_VIEW_H
#define REFIT_TRANSPORT_VIEW_H

#include "transport/transport.h"

/* A config borrows its plan; counting references is the one thing that it can be changed by. */
static inline struct refit_plan *refit_plan_mutable(const struct refit_plan *plan)
{
    return (struct refit_plan *)(uintptr_t)plan;
}

struct refit_view {
    const struct refit_plan *plan;
    enum refit_side side;
    uint32_t rank; /* of REFIT_SOURCE: the one whose arena is arenas[0], or REFIT_ALL_RANKS */
    struct refit_arena *const *arenas;
    size_t arena_count;
};

/* A plan's own view of `arenas`, which have to be as many as it describes ranks. */
REFIT_MUST_CHECK enum refit_status refit_view_of(const struct refit_plan *plan, struct refit_arena *const *arenas,
                                                 size_t arena_count, struct refit_view *out, struct refit_error *err);
/* Where a batch is read, `edge` being one of the view's plan. False: no rank that has it has an arena. */
bool refit_view_window(const struct refit_view *view, const struct refit_edge *edge, uint32_t batch,
                       const struct refit_arena **arena, struct refit_walk *walk);

#endif
