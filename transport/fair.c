/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fair.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/clock.h"

#define MS INT64_C(1000000)
#define STILL_NS (200 * MS)  /* a connection that takes nothing for so long is not waited for, */
#define STILL_GAPS 4         /* or for so many times what it usually needs for a piece */
#define WINDOW_NS (250 * MS) /* over which it is seen whether waiting costs more than it gains */
#define APART_SHIFT_MAX 5

struct refit_fair {
    pthread_mutex_t lock;
    struct refit_fair_member *members;
    struct refit_fair_place *places;
    unsigned busy;
    bool waited;                      /* in this window */
    int64_t window_ns;                /* its begin */
    uint64_t window_bytes, usual;     /* bytes of all: in it; in windows before, on average */
};

enum refit_status refit_fair_create(struct refit_fair **out, struct refit_error *err)
{
    struct refit_fair *fair = calloc(1, sizeof *fair);
    if (!fair)
        return refit_fail_alloc(err, "the turns of a sender", sizeof *fair);
    pthread_mutex_init(&fair->lock, NULL);
    *out = fair;
    return REFIT_OK;
}

void refit_fair_destroy(struct refit_fair *fair)
{
    if (!fair)
        return;
    pthread_mutex_destroy(&fair->lock);
    free(fair);
}

/* ---- who is waited for (the lock is held) ---- */

static bool is_worth_it(const struct refit_fair_member *member, int64_t now)
{
    int64_t still = STILL_GAPS * member->gap_ns > STILL_NS ? STILL_GAPS * member->gap_ns : STILL_NS;
    return member->busy > 0 && now >= member->apart_until_ns && now - member->moved_ns < still;
}

/* The one that was sent least of those that are waited for; NULL: there is none. */
static struct refit_fair_member *last_of(const struct refit_fair *fair)
{
    struct refit_fair_member *last = NULL;
    for (struct refit_fair_member *member = fair->members; member; member = member->next)
        if (member->counted && (!last || member->sent < last->sent))
            last = member;
    return last;
}

static void recount(struct refit_fair *fair, int64_t now)
{
    for (struct refit_fair_member *member = fair->members; member; member = member->next)
        member->counted &= is_worth_it(member, now);
    const struct refit_fair_member *last = last_of(fair);
    uint64_t least = last ? last->sent : 0;
    for (struct refit_fair_member *member = fair->members; member; member = member->next) {
        if (member->counted || !is_worth_it(member, now))
            continue;
        if (least > member->lead && member->sent < least - member->lead)
            member->sent = least - member->lead;
        member->counted = true;
    }
}

static bool is_its_turn(const struct refit_fair_member *member, const struct refit_fair_member *last)
{
    return !last || member->sent <= last->sent || member->sent - last->sent <= member->lead;
}

static void wake(struct refit_fair *fair, int64_t now)
{
    const struct refit_fair_member *last = last_of(fair);
    for (struct refit_fair_place *place = fair->places; place; place = place->next) {
        if (!place->waiting || !is_its_turn(place->member, last))
            continue;
        place->waiting = false;
        place->member->moved_ns = now; /* it could not until now */
        eventfd_write(place->fd, 1);
    }
}

/* At the end of a window. */
static void judge(struct refit_fair *fair, int64_t now)
{
    if (now - fair->window_ns < WINDOW_NS)
        return;
    uint64_t bytes = (uint64_t)((double)fair->window_bytes * (double)WINDOW_NS / (double)(now - fair->window_ns));
    struct refit_fair_member *last = last_of(fair);
    if (fair->waited && last && bytes < fair->usual / 2) {
        last->apart_until_ns = now + (WINDOW_NS << last->times_apart);
        last->times_apart += last->times_apart < APART_SHIFT_MAX;
    }
    fair->usual = fair->usual ? fair->usual - fair->usual / 8 + bytes / 8 : bytes;
    fair->window_ns = now;
    fair->window_bytes = 0;
    fair->waited = false;
}

static void look(struct refit_fair *fair, int64_t now)
{
    judge(fair, now);
    recount(fair, now);
    wake(fair, now);
}

static void start(struct refit_fair_place *place, int64_t now)
{
    struct refit_fair *fair = place->member->fair;
    place->busy = true;
    if (place->member->busy++ == 0)
        place->member->moved_ns = now;
    if (fair->busy++ > 0)
        return;
    fair->window_ns = now;
    fair->window_bytes = 0;
    fair->waited = false;
}

static void stop(struct refit_fair_place *place)
{
    place->waiting = false;
    if (!place->busy)
        return;
    place->busy = false;
    place->member->busy--;
    place->member->fair->busy--;
}

/* ---- members and connections ---- */

void refit_fair_join(struct refit_fair_member *member, struct refit_fair *fair, uint64_t lead)
{
    *member = (struct refit_fair_member){.fair = fair, .lead = lead};
    if (!fair)
        return;
    pthread_mutex_lock(&fair->lock);
    if (!fair->members)
        fair->usual = 0;
    member->next = fair->members;
    fair->members = member;
    pthread_mutex_unlock(&fair->lock);
}

void refit_fair_leave(struct refit_fair_member *member)
{
    struct refit_fair *fair = member->fair;
    if (!fair)
        return;
    pthread_mutex_lock(&fair->lock);
    for (struct refit_fair_member **at = &fair->members; *at; at = &(*at)->next) {
        if (*at == member) {
            *at = member->next;
            break;
        }
    }
    wake(fair, refit_clock_ns());
    pthread_mutex_unlock(&fair->lock);
}

void refit_fair_open(struct refit_fair_place *place, struct refit_fair_member *member, int fd)
{
    struct refit_fair *fair = member->fair;
    *place = (struct refit_fair_place){.member = member, .fd = fd};
    if (!fair)
        return;
    pthread_mutex_lock(&fair->lock);
    place->next = fair->places;
    fair->places = place;
    pthread_mutex_unlock(&fair->lock);
}

void refit_fair_close(struct refit_fair_place *place)
{
    struct refit_fair *fair = place->member->fair;
    if (!fair)
        return;
    pthread_mutex_lock(&fair->lock);
    stop(place);
    for (struct refit_fair_place **at = &fair->places; *at; at = &(*at)->next) {
        if (*at == place) {
            *at = place->next;
            break;
        }
    }
    if (place->member->busy == 0)
        place->member->counted = false;
    wake(fair, refit_clock_ns());
    pthread_mutex_unlock(&fair->lock);
}

/* ---- sending ---- */

bool refit_fair_may_send(struct refit_fair_place *place, int64_t now_ns)
{
    struct refit_fair *fair = place->member->fair;
    if (!fair)
        return true;
    pthread_mutex_lock(&fair->lock);
    if (!place->busy)
        start(place, now_ns);
    look(fair, now_ns);
    bool may = is_its_turn(place->member, last_of(fair));
    place->waiting = !may;
    fair->waited |= !may;
    pthread_mutex_unlock(&fair->lock);
    return may;
}

void refit_fair_sent(struct refit_fair_place *place, uint64_t bytes, int64_t now_ns)
{
    struct refit_fair_member *member = place->member;
    struct refit_fair *fair = member->fair;
    if (!fair)
        return;
    pthread_mutex_lock(&fair->lock);
    member->sent += bytes;
    member->gap_ns += (now_ns - member->moved_ns - member->gap_ns) / 8;
    member->moved_ns = now_ns;
    fair->window_bytes += bytes;
    look(fair, now_ns);
    pthread_mutex_unlock(&fair->lock);
}

void refit_fair_rest(struct refit_fair_place *place, int64_t now_ns)
{
    struct refit_fair *fair = place->member->fair;
    if (!fair || !place->busy)
        return;
    pthread_mutex_lock(&fair->lock);
    stop(place);
    look(fair, now_ns);
    pthread_mutex_unlock(&fair->lock);
}
