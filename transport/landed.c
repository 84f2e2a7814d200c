/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/landed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "transport/batch_set.h"

struct refit_landed {
    atomic_uint references;
    struct refit_plan *plan;
    struct refit_batch_set *batches;
    pthread_mutex_t lock; /* the subscribers */
    int *fds;             /* owned; the descriptors are not */
    size_t fd_count, fd_capacity;
};

enum refit_status refit_landed_create(struct refit_plan *plan, struct refit_landed **out, struct refit_error *err)
{
    struct refit_landed *landed = calloc(1, sizeof *landed);
    if (landed)
        landed->batches = refit_batch_set_create(plan);
    if (!landed || !landed->batches) {
        free(landed);
        return refit_fail_alloc(err, "the list of landed batches", sizeof *landed);
    }
    atomic_init(&landed->references, 1);
    landed->plan = refit_plan_retain(plan);
    pthread_mutex_init(&landed->lock, NULL);
    *out = landed;
    return REFIT_OK;
}

struct refit_landed *refit_landed_retain(struct refit_landed *landed)
{
    atomic_fetch_add_explicit(&landed->references, 1, memory_order_relaxed);
    return landed;
}

void refit_landed_release(struct refit_landed *landed)
{
    if (!landed || atomic_fetch_sub_explicit(&landed->references, 1, memory_order_acq_rel) != 1)
        return;
    refit_batch_set_destroy(landed->batches);
    refit_plan_release(landed->plan);
    pthread_mutex_destroy(&landed->lock);
    free(landed->fds);
    free(landed);
}

static void tell(struct refit_landed *landed)
{
    pthread_mutex_lock(&landed->lock);
    for (size_t i = 0; i < landed->fd_count; i++)
        eventfd_write(landed->fds[i], 1);
    pthread_mutex_unlock(&landed->lock);
}

bool refit_landed_mark(struct refit_landed *landed, const struct refit_edge *edge, uint32_t batch)
{
    bool first = refit_batch_set_add(landed->batches, edge, batch);
    if (first)
        tell(landed);
    return first;
}

bool refit_landed_has(const struct refit_landed *landed, const struct refit_edge *edge, uint32_t batch)
{
    return refit_batch_set_has(landed->batches, edge, batch);
}

void refit_landed_mark_all(struct refit_landed *landed)
{
    refit_batch_set_fill(landed->batches);
    tell(landed);
}

enum refit_status refit_landed_subscribe(struct refit_landed *landed, int fd, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&landed->lock);
    if (landed->fd_count == landed->fd_capacity) {
        size_t capacity = landed->fd_capacity ? 2 * landed->fd_capacity : 8;
        int *fds = reallocarray(landed->fds, capacity, sizeof *fds);
        if (fds) {
            landed->fds = fds;
            landed->fd_capacity = capacity;
        } else {
            status = refit_fail_alloc(err, "subscribers of landed batches", capacity * sizeof *fds);
        }
    }
    if (status == REFIT_OK)
        landed->fds[landed->fd_count++] = fd;
    pthread_mutex_unlock(&landed->lock);
    return status;
}

void refit_landed_unsubscribe(struct refit_landed *landed, int fd)
{
    pthread_mutex_lock(&landed->lock);
    for (size_t i = 0; i < landed->fd_count; i++) {
        if (landed->fds[i] == fd) {
            landed->fds[i] = landed->fds[--landed->fd_count];
            break;
        }
    }
    pthread_mutex_unlock(&landed->lock);
}
