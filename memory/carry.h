/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: a copy between two arenas of which neither is host memory: from a file to a GPU, or from one slot
 * there to another. Through a message in host memory, so the window should be a batch.
 */
#ifndef REFIT_MEMORY_CARRY_H
#define REFIT_MEMORY_CARRY_H

#include "memory/ops.h"

/* As refit_memory_copy(); complete when it returns. */
REFIT_MUST_CHECK enum refit_status refit_memory_carry(struct refit_arena *destination, struct refit_walk to,
                                                      const struct refit_arena *source, struct refit_walk from,
                                                      struct refit_segments *segments, struct refit_error *err);

#endif
