/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into a process: the wall clock leaps to and fro by years at each look. Only the monotonic clock tells time.
 */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define YEAR_S 31536000

static time_t leap(void)
{
    static atomic_uint looks;
    unsigned look = atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
    return (look % 2 ? -1 : 1) * (time_t)(1 + look % 7) * YEAR_S;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, now);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += leap();
    return rc;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
    return 0;
}
