/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that wait to be taken, per peer, and the news that a peer is gone. Thread-safe. (Internal to ranks.c.)
 */
#ifndef REFIT_SENDER_SEATS_H
#define REFIT_SENDER_SEATS_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"

/* A peer that sends more than this ahead of its turn does not follow the protocol. */
#define REFIT_SEAT_MESSAGES 8

struct refit_seats;

/* NULL when out of memory. Seat i is rank i, in messages. */
struct refit_seats *refit_seats_create(size_t count);
void refit_seats_destroy(struct refit_seats *seats);
/* False: the seat is full or memory is out. Copies. */
bool refit_seats_put(struct refit_seats *seats, size_t seat, uint8_t type, uint64_t turn, const void *body, size_t len);
void refit_seats_lose(struct refit_seats *seats, size_t seat, const struct refit_error *why);
/* See refit_ranks_take. What is older than `turn` is dropped. */
REFIT_MUST_CHECK enum refit_status refit_seats_take(struct refit_seats *seats, uint8_t type, uint64_t turn,
                                                    struct refit_deadline deadline, struct refit_buf *bodies,
                                                    struct refit_error *err);

#endif
