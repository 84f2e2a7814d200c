/* SPDX-License-Identifier: Apache-2.0
 *
 * Two arenas exchange their bytes in place, through a bounce buffer, chunk by chunk. Nothing is digested on the way: both
 * sides were, when they landed. An exchange is its own undoing.
 */
#ifndef REFIT_MEMORY_EXCHANGE_H
#define REFIT_MEMORY_EXCHANGE_H

#include "base/clock.h"
#include "memory/arena.h"

struct refit_exchange;

struct refit_exchanged {
    uint64_t bytes; /* that have changed places, from the start on; the rest is as it was, unless it is torn */
    bool torn;      /* some of the rest may be in both or in neither */
};

/* Takes what exchanges between two arenas of these kinds need, so that none fails for want of memory later.
 * REFIT_NO_MEMORY with the numbers. *out is new; one exchange at a time. */
REFIT_MUST_CHECK enum refit_status refit_exchange_create(const struct refit_arena *a, const struct refit_arena *b,
                                                         struct refit_exchange **out, struct refit_error *err);
/* The first `bytes` bytes of both; complete when it returns, whatever it returns. */
REFIT_MUST_CHECK enum refit_status refit_exchange_run(struct refit_exchange *exchange, struct refit_arena *a,
                                                      struct refit_arena *b, uint64_t bytes,
                                                      struct refit_deadline deadline, struct refit_exchanged *done,
                                                      struct refit_error *err);
void refit_exchange_destroy(struct refit_exchange *exchange); /* NULL is fine */

#endif
