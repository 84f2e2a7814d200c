/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/seats.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waiting {
    uint8_t type;
    uint64_t turn;
    struct refit_buf body;
};

struct seat {
    struct waiting waiting[REFIT_SEAT_MESSAGES]; /* in order of arrival */
    size_t count;
    struct refit_error lost; /* REFIT_OK: still there */
};

struct refit_seats {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t count;
    struct seat seat[];
};

struct refit_seats *refit_seats_create(size_t count)
{
    struct refit_seats *seats = calloc(1, sizeof *seats + count * sizeof seats->seat[0]);
    if (!seats)
        return NULL;
    seats->count = count;
    pthread_mutex_init(&seats->lock, NULL);
    refit_cond_init(&seats->changed);
    return seats;
}

void refit_seats_destroy(struct refit_seats *seats)
{
    if (!seats)
        return;
    for (size_t i = 0; i < seats->count; i++)
        for (size_t k = 0; k < seats->seat[i].count; k++)
            refit_buf_release(&seats->seat[i].waiting[k].body);
    pthread_cond_destroy(&seats->changed);
    pthread_mutex_destroy(&seats->lock);
    free(seats);
}

static struct refit_buf remove_at(struct seat *seat, size_t k)
{
    struct refit_buf body = seat->waiting[k].body;
    memmove(&seat->waiting[k], &seat->waiting[k + 1], (seat->count - k - 1) * sizeof seat->waiting[0]);
    seat->count--;
    return body;
}

/* What came too late for the turn it belongs to, or whose sender has gone on to another. */
static void drop_older(struct seat *seat, uint64_t turn)
{
    for (size_t k = seat->count; k-- > 0;) {
        if (seat->waiting[k].turn >= turn)
            continue;
        struct refit_buf body = remove_at(seat, k);
        refit_buf_release(&body);
    }
}

bool refit_seats_put(struct refit_seats *seats, size_t seat, uint8_t type, uint64_t turn, const void *body, size_t len)
{
    struct refit_buf copy;
    refit_buf_init(&copy, len);
    if (!refit_buf_append(&copy, body, len))
        return false;
    pthread_mutex_lock(&seats->lock);
    struct seat *at = &seats->seat[seat];
    drop_older(at, turn);
    bool room = at->count < REFIT_SEAT_MESSAGES;
    if (room)
        at->waiting[at->count++] = (struct waiting){.type = type, .turn = turn, .body = copy};
    else
        refit_buf_release(&copy);
    pthread_cond_broadcast(&seats->changed);
    pthread_mutex_unlock(&seats->lock);
    return room;
}

void refit_seats_lose(struct refit_seats *seats, size_t seat, const struct refit_error *why)
{
    pthread_mutex_lock(&seats->lock);
    if (seats->seat[seat].lost.status == REFIT_OK)
        seats->seat[seat].lost = *why;
    pthread_cond_broadcast(&seats->changed);
    pthread_mutex_unlock(&seats->lock);
}

static size_t position(const struct seat *seat, uint8_t type, uint64_t turn)
{
    size_t k = 0;
    while (k < seat->count && (seat->waiting[k].type != type || seat->waiting[k].turn != turn))
        k++;
    return k;
}

static bool has(const struct seat *seat, uint8_t type, uint64_t turn)
{
    return position(seat, type, turn) < seat->count;
}

/* A peer that sent its message and then left has done its part. */
static const struct seat *first_lost(const struct refit_seats *seats, uint8_t type, uint64_t turn, size_t *rank)
{
    for (size_t i = 0; i < seats->count; i++) {
        *rank = i;
        if (seats->seat[i].lost.status != REFIT_OK && !has(&seats->seat[i], type, turn))
            return &seats->seat[i];
    }
    return NULL;
}

static bool all_have(const struct refit_seats *seats, uint8_t type, uint64_t turn)
{
    for (size_t i = 0; i < seats->count; i++)
        if (!has(&seats->seat[i], type, turn))
            return false;
    return true;
}

static enum refit_status name_missing(const struct refit_seats *seats, uint8_t type, uint64_t turn,
                                      struct refit_error *err)
{
    char list[256] = "";
    size_t used = 0, missing = 0, first = 0;
    for (size_t i = 0; i < seats->count; i++) {
        if (has(&seats->seat[i], type, turn))
            continue;
        if (missing++ == 0)
            first = i;
        if (used + 16 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%zu", missing > 1 ? ", " : "", i);
    }
    return missing == 1 ? refit_fail(err, REFIT_TIMEOUT, "nothing from rank %zu before the deadline", first)
                        : refit_fail(err, REFIT_TIMEOUT, "nothing from %zu of %zu ranks before the deadline: ranks %s",
                                     missing, seats->count, list);
}

enum refit_status refit_seats_take(struct refit_seats *seats, uint8_t type, uint64_t turn,
                                   struct refit_deadline deadline, struct refit_buf *bodies, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    struct timespec until = refit_deadline_timespec(deadline);
    const struct seat *lost;
    size_t rank;
    bool late = false;
    pthread_mutex_lock(&seats->lock);
    for (size_t i = 0; i < seats->count; i++)
        drop_older(&seats->seat[i], turn);
    while (!(lost = first_lost(seats, type, turn, &rank)) && !all_have(seats, type, turn) && !late)
        late = pthread_cond_timedwait(&seats->changed, &seats->lock, &until) != 0;
    if (lost)
        status = refit_fail(err, lost->lost.status, "rank %zu: %s", rank, lost->lost.text);
    else if (!all_have(seats, type, turn))
        status = name_missing(seats, type, turn, err);
    for (size_t i = 0; i < seats->count; i++) {
        refit_buf_init(&bodies[i], 0);
        if (status == REFIT_OK)
            bodies[i] = remove_at(&seats->seat[i], position(&seats->seat[i], type, turn));
    }
    pthread_mutex_unlock(&seats->lock);
    return status;
}
