/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/plan_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/wanted.h"

struct known {
    struct refit_layout *destination; /* NULL: free */
    uint64_t used;                    /* the clock of the cache at its last use */
};

struct made {
    struct refit_plan *plan; /* NULL: free */
    uint8_t *wanted;         /* as in the plan's scope; NULL: all */
    uint64_t used;
};

struct refit_plan_cache {
    pthread_mutex_t lock; /* also held while a plan is made */
    struct refit_layout *source;
    uint32_t rank;
    uint64_t clock;
    struct known known[REFIT_PLAN_CACHE_MAX];
    struct made made[REFIT_PLAN_CACHE_PARTS];
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

static void forget_made(struct made *made)
{
    refit_plan_release(made->plan);
    free(made->wanted);
    *made = (struct made){0};
}

void refit_plan_cache_destroy(struct refit_plan_cache *plans)
{
    if (!plans)
        return;
    for (size_t i = 0; i < REFIT_PLAN_CACHE_PARTS; i++)
        forget_made(&plans->made[i]);
    for (size_t i = 0; i < REFIT_PLAN_CACHE_MAX; i++)
        refit_layout_release(plans->known[i].destination);
    refit_layout_release(plans->source);
    pthread_mutex_destroy(&plans->lock);
    free(plans);
}

struct refit_layout *refit_plan_cache_source(const struct refit_plan_cache *plans)
{
    return plans->source;
}

/* ---- layouts ---- */

static struct known *find_layout(struct refit_plan_cache *plans, const char *digest)
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
    refit_layout_release(oldest->destination);
    *oldest = (struct known){0};
    return oldest;
}

enum refit_status refit_plan_cache_offer(struct refit_plan_cache *plans, const void *text, size_t len, struct refit_error *err)
{
    struct refit_layout *layout = NULL;
    enum refit_status status = refit_layout_parse(text, len, "a replica's layout", &layout, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&plans->lock);
    if (find_layout(plans, refit_layout_digest(layout)))
        refit_layout_release(layout);
    else
        *make_room(plans) = (struct known){.destination = layout, .used = ++plans->clock};
    pthread_mutex_unlock(&plans->lock);
    return REFIT_OK;
}

/* ---- plans ---- */

/* By tensor; *out is new, NULL when all are wanted. */
static enum refit_status without_unchanged(const struct refit_layout *layout, const struct refit_plan_part *part,
                                           uint8_t **out, struct refit_error *err)
{
    *out = NULL;
    return part->unchanged ? refit_wanted_without(layout, part->unchanged, out, err) : REFIT_OK;
}

static bool is_same(const struct made *made, const struct refit_plan_part *part, const uint8_t *wanted)
{
    if (!made->plan || strcmp(refit_layout_digest(refit_plan_destination(made->plan)), part->layout) != 0)
        return false;
    struct refit_layout *layout = refit_plan_destination(made->plan);
    uint32_t count = part->rank_count ? part->rank_count : refit_layout_ranks(layout);
    if (refit_plan_first_rank(made->plan) != part->first_rank || refit_plan_rank_count(made->plan) != count)
        return false;
    if (!wanted || !made->wanted)
        return !wanted && !made->wanted;
    return memcmp(wanted, made->wanted, refit_layout_tensor_count(layout)) == 0;
}

static struct made *find_made(struct refit_plan_cache *plans, const struct refit_plan_part *part, const uint8_t *wanted)
{
    struct made *oldest = &plans->made[0];
    for (size_t i = 0; i < REFIT_PLAN_CACHE_PARTS; i++) {
        if (is_same(&plans->made[i], part, wanted))
            return &plans->made[i];
        if (plans->made[i].used < oldest->used)
            oldest = &plans->made[i];
    }
    forget_made(oldest);
    return oldest;
}

/* Steals `wanted`. */
static enum refit_status get(struct refit_plan_cache *plans, const struct refit_plan_part *part, struct known *known,
                             uint8_t *wanted, struct refit_plan **out, struct refit_error *err)
{
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = plans->rank, .first_rank = part->first_rank,
                                     .rank_count = part->rank_count, .wanted = wanted};
    struct made *made = find_made(plans, part, wanted);
    if (made->plan) {
        free(wanted);
    } else {
        enum refit_status status = refit_plan_build(plans->source, known->destination, scope, &made->plan, err);
        if (status != REFIT_OK) {
            free(wanted);
            return status;
        }
        made->wanted = wanted;
    }
    made->used = ++plans->clock;
    *out = refit_plan_retain(made->plan);
    return REFIT_OK;
}

enum refit_status refit_plan_cache_get(struct refit_plan_cache *plans, const struct refit_plan_part *part,
                                  struct refit_plan **out, struct refit_error *err)
{
    uint8_t *wanted = NULL;
    pthread_mutex_lock(&plans->lock);
    struct known *known = find_layout(plans, part->layout);
    enum refit_status status =
        known ? without_unchanged(known->destination, part, &wanted, err)
              : refit_fail(err, REFIT_NOT_FOUND, "layout %.12s of the replica was not sent to this rank", part->layout);
    if (status == REFIT_OK)
        status = get(plans, part, known, wanted, out, err);
    pthread_mutex_unlock(&plans->lock);
    return status;
}
