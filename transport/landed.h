/* SPDX-License-Identifier: Apache-2.0
 *
 * Which batches of a plan have landed: one bit each, set once and never cleared. What a relay may serve. Whoever
 * waits for a batch subscribes with an eventfd, which is written whenever batches landed. Thread-safe; has() takes no
 * lock.
 */
#ifndef REFIT_TRANSPORT_LANDED_H
#define REFIT_TRANSPORT_LANDED_H

#include "layouts/plan.h"

struct refit_landed;

/* Retains the plan. *out is new, with one reference. */
REFIT_MUST_CHECK enum refit_status refit_landed_create(struct refit_plan *plan, struct refit_landed **out,
                                                       struct refit_error *err);
struct refit_landed *refit_landed_retain(struct refit_landed *landed);
void refit_landed_release(struct refit_landed *landed); /* NULL is fine */

/* True when it is the first time. Release order: who sees the bit sees the bytes. */
bool refit_landed_mark(struct refit_landed *landed, const struct refit_edge *edge, uint32_t batch);
bool refit_landed_has(const struct refit_landed *landed, const struct refit_edge *edge, uint32_t batch);
void refit_landed_mark_all(struct refit_landed *landed);

/* `fd` (borrowed, an eventfd) is written after every mark until it is unsubscribed. */
REFIT_MUST_CHECK enum refit_status refit_landed_subscribe(struct refit_landed *landed, int fd, struct refit_error *err);
void refit_landed_unsubscribe(struct refit_landed *landed, int fd);

#endif
