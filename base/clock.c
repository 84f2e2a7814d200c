/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <limits.h>

#define NS_PER_MS 1000000
#define NS_PER_S 1000000000

int64_t refit_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

struct refit_deadline refit_deadline_after(struct refit_deadline deadline, int64_t ms)
{
    int64_t at, span;
    if (__builtin_mul_overflow(ms, (int64_t)NS_PER_MS, &span) || __builtin_add_overflow(deadline.at_ns, span, &at))
        at = INT64_MAX;
    return (struct refit_deadline){.at_ns = at};
}

struct refit_deadline refit_deadline_in_ms(int64_t ms)
{
    return refit_deadline_after((struct refit_deadline){.at_ns = refit_clock_ns()}, ms);
}

struct refit_deadline refit_deadline_earlier(struct refit_deadline a, struct refit_deadline b)
{
    return a.at_ns < b.at_ns ? a : b;
}

bool refit_deadline_passed(struct refit_deadline deadline)
{
    return refit_clock_ns() >= deadline.at_ns;
}

int refit_deadline_left_ms(struct refit_deadline deadline)
{
    int64_t left_ns = deadline.at_ns - refit_clock_ns();
    if (left_ns <= 0)
        return 0;
    int64_t ms = left_ns / NS_PER_MS + (left_ns % NS_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

int refit_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int errnum = pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return errnum;
}

struct timespec refit_deadline_timespec(struct refit_deadline deadline)
{
    return (struct timespec){.tv_sec = deadline.at_ns / NS_PER_S, .tv_nsec = deadline.at_ns % NS_PER_S};
}

int64_t refit_clock_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
