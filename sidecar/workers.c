/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/workers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/thread.h"

struct queue {
    struct refit_job *first, **last;
};

struct refit_workers {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct queue queued, finished;
    bool stopping;
    unsigned count;
    void (*wake)(void *context);
    void *context;
    pthread_t thread[];
};

static void push(struct queue *queue, struct refit_job *job)
{
    job->next = NULL;
    *queue->last = job;
    queue->last = &job->next;
}

static struct refit_job *pop(struct queue *queue)
{
    struct refit_job *job = queue->first;
    if (!job)
        return NULL;
    queue->first = job->next;
    if (!queue->first)
        queue->last = &queue->first;
    return job;
}

static void *work(void *context)
{
    struct refit_workers *workers = context;
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        struct refit_job *job = pop(&workers->queued);
        if (!job && workers->stopping)
            break;
        if (!job) {
            pthread_cond_wait(&workers->filled, &workers->lock);
            continue;
        }
        pthread_mutex_unlock(&workers->lock);
        job->run(job);
        pthread_mutex_lock(&workers->lock);
        push(&workers->finished, job);
        workers->wake(workers->context);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

enum refit_status refit_workers_start(unsigned threads, void (*wake)(void *context), void *context,
                                      struct refit_workers **out, struct refit_error *err)
{
    struct refit_workers *workers = calloc(1, sizeof *workers + threads * sizeof workers->thread[0]);
    if (!workers)
        return refit_fail_alloc(err, "worker threads", sizeof *workers);
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->filled, NULL);
    workers->queued.last = &workers->queued.first;
    workers->finished.last = &workers->finished.first;
    workers->wake = wake;
    workers->context = context;
    for (; workers->count < threads; workers->count++) {
        enum refit_status status =
            refit_thread_start(&workers->thread[workers->count], work, workers, "a worker thread", err);
        if (status != REFIT_OK) {
            refit_workers_stop(workers);
            return status;
        }
    }
    *out = workers;
    return REFIT_OK;
}

void refit_workers_submit(struct refit_workers *workers, struct refit_job *job)
{
    pthread_mutex_lock(&workers->lock);
    push(&workers->queued, job);
    pthread_cond_signal(&workers->filled);
    pthread_mutex_unlock(&workers->lock);
}

void refit_workers_collect(struct refit_workers *workers)
{
    for (;;) {
        pthread_mutex_lock(&workers->lock);
        struct refit_job *job = pop(&workers->finished);
        pthread_mutex_unlock(&workers->lock);
        if (!job)
            return;
        job->done(job);
    }
}

void refit_workers_stop(struct refit_workers *workers)
{
    if (!workers)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    pthread_cond_broadcast(&workers->filled);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->count; i++)
        pthread_join(workers->thread[i], NULL);
    refit_workers_collect(workers);
    pthread_cond_destroy(&workers->filled);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}
