/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions on windows of an edge stream (layouts/plan.h) that are moved piece by piece.
 */
#ifndef REFIT_TRANSPORT_WINDOW_H
#define REFIT_TRANSPORT_WINDOW_H

#include "memory/ops.h"

/* Runs shorter than this on average are packed or scattered; longer ones go to the socket as iovecs. */
#define REFIT_DIRECT_RUN 512

/* The mean length of the window's runs, bytes; 0 for an empty window. */
uint64_t refit_window_run_bytes(struct refit_walk walk);
/* The next `bytes` of *walk as a window of its own; *walk moves past them. */
struct refit_walk refit_window_cut(struct refit_walk *walk, uint64_t bytes);
/* Every run of the window is bound in the arena. */
bool refit_window_bound(const struct refit_arena *arena, struct refit_walk walk);
/* The segments of a piece go behind those of the pieces before it. False when out of memory. */
bool refit_segments_join(struct refit_segments *into, const struct refit_segments *piece);

#endif
