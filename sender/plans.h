/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's plans, by the destination layout's digest: made once, used for every publish and for every replica of
 * the same layout. Thread-safe; two threads that want the same plan make it once.
 */
#ifndef REFIT_SENDER_PLANS_H
#define REFIT_SENDER_PLANS_H

#include "layouts/plan.h"

#define REFIT_PLANS_MAX 64 /* destination layouts remembered */

struct refit_plans;

/* Retains `source`. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_plans_create(struct refit_layout *source, uint32_t rank,
                                                      struct refit_plans **out, struct refit_error *err);
void refit_plans_destroy(struct refit_plans *plans); /* NULL is fine */

/* A destination layout, before its first refit_plans_get. */
REFIT_MUST_CHECK enum refit_status refit_plans_offer(struct refit_plans *plans, const void *text, size_t len,
                                                     struct refit_error *err);
/* *out is retained for the caller. REFIT_NOT_FOUND: that layout was not offered. */
REFIT_MUST_CHECK enum refit_status refit_plans_get(struct refit_plans *plans, const char *digest,
                                                   struct refit_plan **out, struct refit_error *err);

#endif
