/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/plan_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct known {
    struct refit_layout *destination; /* NULL: free */
    struct refit_plan *plan;          /* NULL: not made yet */
    uint64_t used;                    /* the clock of the cache at its last use */
};

struct refit_plan_cache {
    pthread_mutex_t lock; /* also held while a plan is made */
    struct refit_layout *source;
    uint32_t rank;
    uint64_t clock;
    struct known known[REFIT_PLAN_CACHE_MAX];
};

enum refit_status refit_plan_cache_create(struct refit_layout *source, uint32_t rank, struct refit_plan_cache **out,
                                     struct refit_error *err)
{
    struct refit_plan_cache *plans = calloc(1, sizeof *plans);
    if (!plans)
        return refit_fail_alloc(err, "the plans", sizeof *plans);
    pthread_mutex_init(&plans->lock, NULL);
    plans->source = refit_layout_retain(source);
    plans->rank = rank;
    *out = plans;
    return REFIT_OK;
}

static void forget(struct known *known)
{
    refit_plan_release(known->plan);
    refit_layout_release(known->destination);
    *known = (struct known){0};
}

void refit_plan_cache_destroy(struct refit_plan_cache *plans)
{
    if (!plans)
        return;
    for (size_t i = 0; i < REFIT_PLAN_CACHE_MAX; i++)
        forget(&plans->known[i]);
    refit_layout_release(plans->source);
    pthread_mutex_destroy(&plans->lock);
    free(plans);
}

static struct known *find(struct refit_plan_cache *plans, const char *digest)
{
    for (size_t i = 0; i < REFIT_PLAN_CACHE_MAX; i++) {
        struct known *known = &plans->known[i];
        if (known->destination && strcmp(refit_layout_digest(known->destination), digest) == 0) {
            known->used = ++plans->clock;
            return known;
        }
    }
    return NULL;
}

/* A free place, or the one that was not used for the longest time. */
static struct known *make_room(struct refit_plan_cache *plans)
{
    struct known *oldest = &plans->known[0];
    for (size_t i = 1; i < REFIT_PLAN_CACHE_MAX; i++)
        if (plans->known[i].used < oldest->used)
            oldest = &plans->known[i];
    forget(oldest);
    return oldest;
}

enum refit_status refit_plan_cache_offer(struct refit_plan_cache *plans, const void *text, size_t len, struct refit_error *err)
{
    struct refit_layout *layout = NULL;
    enum refit_status status = refit_layout_parse(text, len, "a replica's layout", &layout, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&plans->lock);
    if (find(plans, refit_layout_digest(layout)))
        refit_layout_release(layout);
    else
        *make_room(plans) = (struct known){.destination = layout, .used = ++plans->clock};
    pthread_mutex_unlock(&plans->lock);
    return REFIT_OK;
}

enum refit_status refit_plan_cache_get(struct refit_plan_cache *plans, const char *digest, struct refit_plan **out,
                                  struct refit_error *err)
{
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = plans->rank};
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&plans->lock);
    struct known *known = find(plans, digest);
    if (!known)
        status = refit_fail(err, REFIT_NOT_FOUND, "layout %.12s of the replica was not sent to this rank", digest);
    else if (!known->plan)
        status = refit_plan_build(plans->source, known->destination, scope, &known->plan, err);
    if (status == REFIT_OK)
        *out = refit_plan_retain(known->plan);
    pthread_mutex_unlock(&plans->lock);
    return status;
}
