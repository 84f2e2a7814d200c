/* SPDX-License-Identifier: Apache-2.0
 *
 * Two arenas exchange their bytes in place: host memory chunk by chunk through a bounce buffer that stays in cache, a GPU's
 * through its registers, all parts queued at once. One may be on a GPU and the other in host memory. Nothing is digested
 * on the way: both sides were, when they landed. An exchange is its own undoing.
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

/* Takes what exchanges of `a` with arenas like `b` need, so that none fails for want of memory later. *out is new; one
 * exchange at a time. Both arenas outlive it. */
REFIT_MUST_CHECK enum refit_status refit_exchange_create(const struct refit_arena *a, const struct refit_arena *b,
                                                         struct refit_exchange **out, struct refit_error *err);
/* The same for another `b`, as the run itself would do it: host memory is pinned for a GPU, which takes its time. */
REFIT_MUST_CHECK enum refit_status refit_exchange_prepare(struct refit_exchange *exchange, const struct refit_arena *b,
                                                          struct refit_error *err);
/* The first `bytes` bytes of both; complete when it returns, whatever it returns. */
REFIT_MUST_CHECK enum refit_status refit_exchange_run(struct refit_exchange *exchange, struct refit_arena *a,
                                                      struct refit_arena *b, uint64_t bytes,
                                                      struct refit_deadline deadline, struct refit_exchanged *done,
                                                      struct refit_error *err);
void refit_exchange_destroy(struct refit_exchange *exchange); /* NULL is fine */

#endif
