/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_turn.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/io.h"

#define PAUSE_NS INT64_C(500000)
#define CHANCE_NS UINT64_C(3000000)

void refit_turn_init(struct refit_turn *turn)
{
    *turn = (struct refit_turn){.seats = NULL};
    pthread_mutex_init(&turn->lock, NULL);
    refit_io_random(&turn->chance, sizeof turn->chance);
}

void refit_turn_destroy(struct refit_turn *turn)
{
    pthread_mutex_destroy(&turn->lock);
}

void refit_turn_sit(struct refit_turn *turn, struct refit_turn_seat *seat)
{
    pthread_mutex_lock(&turn->lock);
    seat->turn = turn;
    seat->wants = false;
    seat->next = turn->seats;
    turn->seats = seat;
    pthread_mutex_unlock(&turn->lock);
}

/* The lock is held. */
static void leave(struct refit_turn *turn)
{
    turn->chance = turn->chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    turn->pause_ns = refit_clock_ns() + PAUSE_NS + (int64_t)((turn->chance >> 33) % CHANCE_NS);
    turn->last = turn->owner;
    turn->owner = NULL;
    for (struct refit_turn_seat *seat = turn->seats; seat; seat = seat->next) {
        if (!seat->wants || seat == turn->last)
            continue;
        seat->wants = !seat->told; /* who did not come when told has no more use for it */
        seat->told = true;
        if (seat->wants)
            seat->notify(seat->context);
    }
}

void refit_turn_rise(struct refit_turn_seat *seat)
{
    struct refit_turn *turn = seat->turn;
    if (!turn)
        return;
    pthread_mutex_lock(&turn->lock);
    if (turn->owner == seat)
        leave(turn);
    if (turn->last == seat)
        turn->last = NULL;
    for (struct refit_turn_seat **at = &turn->seats; *at; at = &(*at)->next) {
        if (*at == seat) {
            *at = seat->next;
            break;
        }
    }
    seat->turn = NULL;
    pthread_mutex_unlock(&turn->lock);
}

/* The lock is held. */
static bool others_want(const struct refit_turn *turn, const struct refit_turn_seat *except)
{
    for (const struct refit_turn_seat *seat = turn->seats; seat; seat = seat->next)
        if (seat->wants && seat != except)
            return true;
    return false;
}

bool refit_turn_try(struct refit_turn_seat *seat)
{
    struct refit_turn *turn = seat->turn;
    pthread_mutex_lock(&turn->lock);
    bool pausing = turn->last == seat && refit_clock_ns() < turn->pause_ns && others_want(turn, seat);
    bool taken = !turn->owner && !pausing;
    if (taken)
        turn->owner = seat;
    seat->wants = !taken;
    seat->told = false;
    pthread_mutex_unlock(&turn->lock);
    return taken;
}

void refit_turn_leave(struct refit_turn_seat *seat)
{
    pthread_mutex_lock(&seat->turn->lock);
    leave(seat->turn);
    pthread_mutex_unlock(&seat->turn->lock);
}
