/* SPDX-License-Identifier: Apache-2.0
 *
 * Monotonic time and deadlines. A deadline is a point in time, so that passing it down never extends a wait.
 */
#ifndef REFIT_BASE_CLOCK_H
#define REFIT_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds on CLOCK_MONOTONIC. */
int64_t refit_clock_ns(void);

/* Milliseconds since the epoch: for people to read, never to measure with. */
int64_t refit_clock_wall_ms(void);

struct refit_deadline {
    int64_t at_ns; /* on refit_clock_ns(); 0 has passed already, so a zeroed deadline never waits */
};

struct refit_deadline refit_deadline_in_ms(int64_t ms);
struct refit_deadline refit_deadline_earlier(struct refit_deadline a, struct refit_deadline b);
/* `ms` behind another; never past INT64_MAX. */
struct refit_deadline refit_deadline_after(struct refit_deadline deadline, int64_t ms);
bool refit_deadline_passed(struct refit_deadline deadline);

/* What is left, rounded up, for poll(2) and its kin: 0 once passed, at most INT_MAX. */
int refit_deadline_left_ms(struct refit_deadline deadline);

/* A condition whose clock is CLOCK_MONOTONIC. As pthread_cond_init: 0, or an errno. */
int refit_cond_init(pthread_cond_t *cond);
/* For pthread_cond_timedwait on such a condition. */
struct timespec refit_deadline_timespec(struct refit_deadline deadline);

#endif
