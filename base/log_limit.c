/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines that others can provoke: a burst of each message per window, then only a count.
 */
#include <pthread.h>

#include "base/clock.h"
#include "base/log.h"

#define WINDOW_NS 10000000000ll
#define BURST 20
#define MESSAGES 64

static struct {
    const char *message; /* literals, so the address will do */
    int64_t since_ns;
    unsigned passed;
    uint64_t suppressed;
} table[MESSAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The entry of `message`, or a free one; -1 when the table is full. */
static int find(const char *message)
{
    for (int i = 0; i < MESSAGES; i++)
        if (!table[i].message || table[i].message == message)
            return i;
    return -1;
}

static bool passes(const char *message)
{
    int i = find(message);
    int64_t now = refit_clock_ns();
    if (i < 0)
        return true;
    if (!table[i].message || now - table[i].since_ns > WINDOW_NS) {
        table[i].message = message;
        table[i].since_ns = now;
        table[i].passed = 0;
    }
    if (table[i].passed < BURST) {
        table[i].passed++;
        return true;
    }
    table[i].suppressed++;
    return false;
}

bool refit_log_passes(enum refit_log_level level, const char *message)
{
    /* Never waits: in a process that forked while this was held, it stays held. */
    if (level > refit_log_level() || pthread_mutex_trylock(&lock) != 0)
        return level <= refit_log_level();
    bool out = passes(message);
    pthread_mutex_unlock(&lock);
    return out;
}

uint64_t refit_log_suppressed(const char *message)
{
    uint64_t out = 0;
    if (pthread_mutex_trylock(&lock) != 0)
        return 0;
    int i = find(message);
    if (i >= 0) {
        out = table[i].suppressed;
        table[i].suppressed = 0;
    }
    pthread_mutex_unlock(&lock);
    return out;
}
