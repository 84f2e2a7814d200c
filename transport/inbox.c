/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/inbox.h"

#include <pthread.h>
#include <stdlib.h>

#include "transport/transport.h"

struct refit_inbox {
    pthread_mutex_t lock;
    pthread_cond_t event;
    struct refit_transfer_completion *ring; /* owned */
    size_t capacity, first, count, reserved;
    bool woken;
};

enum refit_status refit_inbox_create(size_t capacity, struct refit_inbox **out, struct refit_error *err)
{
    struct refit_inbox *inbox = calloc(1, sizeof *inbox);
    if (inbox)
        inbox->ring = calloc(capacity ? capacity : 1, sizeof *inbox->ring);
    if (!inbox || !inbox->ring) {
        free(inbox);
        return refit_fail_alloc(err, "an inbox", capacity * sizeof *inbox->ring);
    }
    inbox->capacity = capacity ? capacity : 1;
    pthread_mutex_init(&inbox->lock, NULL);
    refit_cond_init(&inbox->event);
    *out = inbox;
    return REFIT_OK;
}

void refit_inbox_destroy(struct refit_inbox *inbox)
{
    if (!inbox)
        return;
    pthread_cond_destroy(&inbox->event);
    pthread_mutex_destroy(&inbox->lock);
    free(inbox->ring);
    free(inbox);
}

bool refit_inbox_reserve(struct refit_inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    bool room = inbox->count + inbox->reserved < inbox->capacity;
    inbox->reserved += room;
    pthread_mutex_unlock(&inbox->lock);
    return room;
}

void refit_inbox_put(struct refit_inbox *inbox, const struct refit_transfer_completion *completion)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->reserved > 0)
        inbox->reserved--;
    if (inbox->count == inbox->capacity)
        abort(); /* nobody reserved it: a completion would be lost */
    inbox->ring[(inbox->first + inbox->count++) % inbox->capacity] = *completion;
    pthread_cond_signal(&inbox->event);
    pthread_mutex_unlock(&inbox->lock);
}

void refit_inbox_wake(struct refit_inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->woken = true;
    pthread_cond_signal(&inbox->event);
    pthread_mutex_unlock(&inbox->lock);
}

size_t refit_inbox_take(struct refit_inbox *inbox, struct refit_transfer_completion *out, size_t max,
                        struct refit_deadline deadline)
{
    struct timespec until = refit_deadline_timespec(deadline);
    pthread_mutex_lock(&inbox->lock);
    while (inbox->count == 0 && !inbox->woken)
        if (pthread_cond_timedwait(&inbox->event, &inbox->lock, &until) != 0)
            break;
    size_t count = inbox->count < max ? inbox->count : max;
    for (size_t i = 0; i < count; i++)
        out[i] = inbox->ring[(inbox->first + i) % inbox->capacity];
    inbox->first = (inbox->first + count) % inbox->capacity;
    inbox->count -= count;
    inbox->woken = false;
    pthread_mutex_unlock(&inbox->lock);
    return count;
}
