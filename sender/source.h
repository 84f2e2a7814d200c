/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's memory as a source: named buffers bound to the arena space that the layout gives them, and memory that a
 * receiver on the same host can be handed by descriptor.
 */
#ifndef REFIT_SENDER_SOURCE_H
#define REFIT_SENDER_SOURCE_H

#include <refit/sender.h>

#include "layouts/layout.h"
#include "memory/arena.h"

/* What refit_sender_alloc gave out. */
struct refit_shared {
    struct refit_shared *next;
    void *data;
    size_t bytes; /* whole pages */
    int fd;       /* read-only */
};

REFIT_MUST_CHECK enum refit_status refit_shared_alloc(struct refit_shared **list, size_t bytes, void **out,
                                                      struct refit_error *err);
void refit_shared_free_all(struct refit_shared **list);

/* Binds every buffer of `rank` in the layout. Errors name the buffer: one that is missing, has another size, is given
 * twice, or is not in the layout. `shared` tells which memory has a descriptor. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_source_bind(const struct refit_layout *layout, uint32_t rank,
                                                     const struct refit_sender_buffer *buffers, size_t count,
                                                     const struct refit_shared *shared, struct refit_arena **out,
                                                     struct refit_error *err);

#endif
