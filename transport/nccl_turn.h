/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose turn a GPU is, within this process: NCCL may be at work with one communicator at a time there, or operations of
 * two could wait for each other. A turn is only ever tried for, never waited for by who has another one, so there is no
 * cycle: who is refused gives back what he has, and comes again.
 *
 * Who was refused is told when the turn is left, and whoever left it pauses for as long as a question takes to come
 * over the network, and some chance more: two processes that each ask for the other's do not meet for ever.
 */
#ifndef REFIT_TRANSPORT_NCCL_TURN_H
#define REFIT_TRANSPORT_NCCL_TURN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct refit_turn_seat;

struct refit_turn {
    pthread_mutex_t lock;
    struct refit_turn_seat *seats;
    const struct refit_turn_seat *owner, *last; /* who has it; who had it before */
    int64_t pause_ns;  /* until then `last` lets others try */
    uint64_t chance;
};

/* One who tries for a turn from time to time. */
struct refit_turn_seat {
    struct refit_turn *turn; /* NULL: in none */
    bool wants, told;        /* was refused; and told since then that it was left */
    void (*notify)(void *context); /* with the turn's lock held: it was left; must not call back */
    void *context;
    struct refit_turn_seat *next;
};

void refit_turn_init(struct refit_turn *turn);
void refit_turn_destroy(struct refit_turn *turn); /* without seats */

void refit_turn_sit(struct refit_turn *turn, struct refit_turn_seat *seat);
void refit_turn_rise(struct refit_turn_seat *seat); /* leaves it first; nothing when in none */

bool refit_turn_try(struct refit_turn_seat *seat);
void refit_turn_leave(struct refit_turn_seat *seat);

#endif
