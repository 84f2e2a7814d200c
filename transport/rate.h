/* SPDX-License-Identifier: Apache-2.0
 *
 * A token bucket shared by the threads of an endpoint.
 */
#ifndef REFIT_TRANSPORT_RATE_H
#define REFIT_TRANSPORT_RATE_H

#include <pthread.h>
#include <stdint.h>

#include "base/error.h"

struct refit_rate {
    pthread_mutex_t lock;
    uint64_t bytes_per_s; /* 0: unlimited */
    int64_t due_ns;       /* when all that was taken so far has been earned */
};

void refit_rate_init(struct refit_rate *rate, uint64_t bytes_per_s);
void refit_rate_release(struct refit_rate *rate);
/* Takes `bytes` and returns how long to wait for them, in ns; 0: not at all. `now_ns` is refit_clock_ns(). */
int64_t refit_rate_take(struct refit_rate *rate, uint64_t bytes, int64_t now_ns);
/* The same, and waits; REFIT_ABORTED as soon as `wake` is readable, REFIT_PEER as soon as `fd` has hung up (-1:
 * none). */
REFIT_MUST_CHECK enum refit_status refit_rate_wait(struct refit_rate *rate, uint64_t bytes, int wake, int fd,
                                                   struct refit_error *err);

#endif
