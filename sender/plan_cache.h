/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's plans, by the destination layout's digest and the part of it that is planned for: made once, used for every
 * publish and for every replica of the same layout. Thread-safe; two threads that want the same plan make it once.
 */
#ifndef REFIT_SENDER_PLAN_CACHE_H
#define REFIT_SENDER_PLAN_CACHE_H

#include "base/json.h"
#include "layouts/plan.h"

#define REFIT_PLAN_CACHE_MAX 64   /* destination layouts remembered */
#define REFIT_PLAN_CACHE_PARTS 128 /* plans remembered */

struct refit_plan_cache;

/* Retains `source`. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_plan_cache_create(struct refit_layout *source, uint32_t rank,
                                                      struct refit_plan_cache **out, struct refit_error *err);
void refit_plan_cache_destroy(struct refit_plan_cache *plans); /* NULL is fine */
struct refit_layout *refit_plan_cache_source(const struct refit_plan_cache *plans); /* borrowed */

/* A destination layout, before its first refit_plan_cache_get. */
REFIT_MUST_CHECK enum refit_status refit_plan_cache_offer(struct refit_plan_cache *plans, const void *text, size_t len,
                                                     struct refit_error *err);
/* What is planned for: the ranks, all when count is 0, and the tensors that are not wanted, for their bytes are there. */
struct refit_plan_part {
    const char *layout; /* digest */
    uint32_t first_rank, rank_count;
    const json_t *unchanged; /* names (layouts/wanted.h); NULL: all are wanted */
};
/* *out is retained for the caller. REFIT_NOT_FOUND: that layout was not offered. */
REFIT_MUST_CHECK enum refit_status refit_plan_cache_get(struct refit_plan_cache *plans, const struct refit_plan_part *part,
                                                   struct refit_plan **out, struct refit_error *err);

#endif
