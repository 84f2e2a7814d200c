/* SPDX-License-Identifier: Apache-2.0
 *
 * Completions of the receiver endpoints of one refit, in one queue. Endpoints put; one thread takes. An event (a holder
 * connected or was lost) wakes the taker without a completion. Thread-safe.
 */
#ifndef REFIT_TRANSPORT_INBOX_H
#define REFIT_TRANSPORT_INBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"

struct refit_transfer_completion;
struct refit_inbox;

/* `capacity` completions at most are owed at any time: what can be granted at once over all endpoints. */
REFIT_MUST_CHECK enum refit_status refit_inbox_create(size_t capacity, struct refit_inbox **out,
                                                      struct refit_error *err);
void refit_inbox_destroy(struct refit_inbox *inbox); /* after its endpoints are closed; NULL is fine */

/* Before a batch is granted: room for its completion. False: `capacity` are owed or wait to be taken. */
bool refit_inbox_reserve(struct refit_inbox *inbox);
/* Into what was reserved; without a reservation there must be room. */
void refit_inbox_put(struct refit_inbox *inbox, const struct refit_transfer_completion *completion);
void refit_inbox_wake(struct refit_inbox *inbox);
/* Up to `max` completions; waits until there is one, an event, or the deadline (0 for the last two). */
size_t refit_inbox_take(struct refit_inbox *inbox, struct refit_transfer_completion *out, size_t max,
                        struct refit_deadline deadline);

#endif
