/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rate.h"

#include <poll.h>
#include <time.h>

#include "base/clock.h"

#define NS_PER_S INT64_C(1000000000)
#define BURST_NS (20 * 1000 * 1000) /* what may be saved up while nothing moves */

void refit_rate_init(struct refit_rate *rate, uint64_t bytes_per_s)
{
    pthread_mutex_init(&rate->lock, NULL);
    rate->bytes_per_s = bytes_per_s;
    rate->due_ns = 0;
}

void refit_rate_release(struct refit_rate *rate)
{
    pthread_mutex_destroy(&rate->lock);
}

int64_t refit_rate_take(struct refit_rate *rate, uint64_t bytes, int64_t now_ns)
{
    if (rate->bytes_per_s == 0)
        return 0;
    /* Pieces are far below 2^33 bytes, so that the product fits. */
    int64_t span = (int64_t)(bytes * (uint64_t)NS_PER_S / rate->bytes_per_s);
    pthread_mutex_lock(&rate->lock);
    if (rate->due_ns < now_ns - BURST_NS)
        rate->due_ns = now_ns - BURST_NS;
    rate->due_ns += span;
    int64_t wait = rate->due_ns - now_ns;
    pthread_mutex_unlock(&rate->lock);
    return wait > 0 ? wait : 0;
}

enum refit_status refit_rate_wait(struct refit_rate *rate, uint64_t bytes, int wake, int fd,
                                  struct refit_error *err)
{
    if (rate->bytes_per_s == 0)
        return REFIT_OK;
    int64_t due = refit_clock_ns();
    due += refit_rate_take(rate, bytes, due);
    for (int64_t left; (left = due - refit_clock_ns()) > 0;) {
        struct timespec span = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
        struct pollfd p[] = {{.fd = wake, .events = POLLIN}, {.fd = fd, .events = 0}};
        if (ppoll(p, 2, &span, NULL) <= 0)
            continue;
        return p[0].revents ? refit_fail(err, REFIT_ABORTED, "aborted while waiting for the rate limit")
                            : refit_fail(err, REFIT_PEER, "the connection ended while waiting for the rate limit");
    }
    return REFIT_OK;
}
