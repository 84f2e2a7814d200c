/* SPDX-License-Identifier: Apache-2.0
 *
 * Pins that end when work on a device has ended: an event is recorded behind that work, and a thread of the library asks
 * for it. A callback on the stream would make what is queued behind it wait for the host. The thread is there from the first
 * such release on, and sleeps while none is pending.
 */
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "engine/engine_internal.h"
#include "memory/cuda_stream.h"

#define POLL_US 300

struct refit_engine_ending {
    struct refit_engine_ending *next;
    struct refit_cuda_event *event;
    struct refit_pin pin;
};

static void wait_changed(struct refit_engine_releases *releases, struct refit_deadline deadline)
{
    struct timespec until = refit_deadline_timespec(deadline);
    pthread_cond_timedwait(&releases->changed, &releases->lock, &until);
}

/* An error does not say that the work has ended: such a pin stays, and a process whose device is lost has to end anyway. */
static bool has_ended(const struct refit_engine_ending *ending)
{
    struct refit_error error;
    enum refit_status status = refit_cuda_event_poll(ending->event, &error);
    if (status != REFIT_OK && status != REFIT_BUSY)
        refit_log_limited(REFIT_LOG_WARN, "pin not released, its device does not answer",
                          refit_log_u64("version", ending->pin.version), REFIT_LOG_CAUSE(&error));
    return status == REFIT_OK;
}

/* Streams end their work in any order. */
static void release_ended(struct refit_engine *engine)
{
    struct refit_engine_releases *releases = &engine->releases;
    for (struct refit_engine_ending **at = &releases->first; *at;) {
        struct refit_engine_ending *ending = *at;
        if (!has_ended(ending)) {
            at = &ending->next;
            continue;
        }
        refit_engine_release(engine, &ending->pin);
        *at = ending->next;
        ending->next = releases->spare;
        releases->spare = ending;
    }
    if (!releases->first)
        pthread_cond_broadcast(&releases->changed);
}

static void *run(void *argument)
{
    struct refit_engine *engine = argument;
    struct refit_engine_releases *releases = &engine->releases;
    pthread_mutex_lock(&releases->lock);
    while (!releases->stop) {
        if (!releases->first) {
            pthread_cond_wait(&releases->changed, &releases->lock);
            continue;
        }
        release_ended(engine);
        struct refit_deadline next = {.at_ns = refit_clock_ns() + POLL_US * 1000};
        if (releases->first && !releases->stop)
            wait_changed(releases, next);
    }
    pthread_mutex_unlock(&releases->lock);
    return NULL;
}

/* --- the caller's side ------------------------------------------------------------------------------------- */

/* One spare event at least: they are used again, for making one takes a lock of the driver's. The lock is held. */
static enum refit_status make_spare(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_engine_releases *releases = &engine->releases;
    if (releases->spare)
        return REFIT_OK;
    struct refit_engine_ending *ending = calloc(1, sizeof *ending);
    if (!ending)
        return refit_fail_alloc(err, "the release of a pin", sizeof *ending);
    enum refit_status status = refit_cuda_event_create(engine->ordinal, &ending->event, err);
    if (status == REFIT_OK)
        releases->spare = ending;
    else
        free(ending);
    return status;
}

static enum refit_status start_thread(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_engine_releases *releases = &engine->releases;
    if (releases->runs)
        return REFIT_OK;
    enum refit_status status = refit_thread_start(&releases->thread, run, engine, "the thread that releases pins", err);
    releases->runs = status == REFIT_OK;
    return status;
}

static enum refit_status queue(struct refit_engine *engine, const struct refit_pin *pin, void *stream,
                               struct refit_error *err)
{
    struct refit_engine_releases *releases = &engine->releases;
    enum refit_status status = start_thread(engine, err);
    if (status == REFIT_OK)
        status = make_spare(engine, err);
    struct refit_engine_ending *ending = releases->spare;
    if (status == REFIT_OK)
        status = refit_cuda_event_record_on(ending->event, stream, err);
    if (status != REFIT_OK)
        return status;
    ending->pin = *pin;
    releases->spare = ending->next;
    ending->next = releases->first;
    releases->first = ending;
    pthread_cond_broadcast(&releases->changed);
    return REFIT_OK;
}

enum refit_status refit_engine_release_on_stream(struct refit_engine *engine, const struct refit_pin *pin, void *stream,
                                                 struct refit_error *err)
{
    if (engine->ordinal < 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "release on a stream: slots are in host memory; release the pin when the "
                          "work that reads it has ended");
    pthread_mutex_lock(&engine->releases.lock);
    enum refit_status status = queue(engine, pin, stream, err);
    pthread_mutex_unlock(&engine->releases.lock);
    return status;
}

/* --- the end ----------------------------------------------------------------------------------------------- */

void refit_engine_releases_init(struct refit_engine_releases *releases)
{
    refit_cond_init(&releases->changed);
    pthread_mutex_init(&releases->lock, NULL);
}

bool refit_engine_releases_drain(struct refit_engine *engine, struct refit_deadline deadline)
{
    struct refit_engine_releases *releases = &engine->releases;
    pthread_mutex_lock(&releases->lock);
    while (releases->first && !refit_deadline_passed(deadline))
        wait_changed(releases, deadline);
    bool done = !releases->first;
    releases->stop = true;
    pthread_cond_broadcast(&releases->changed);
    pthread_mutex_unlock(&releases->lock);
    if (releases->runs)
        pthread_join(releases->thread, NULL);
    return done;
}

void refit_engine_releases_destroy(struct refit_engine_releases *releases)
{
    struct refit_engine_ending *lists[] = {releases->first, releases->spare};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        while (lists[i]) {
            struct refit_engine_ending *ending = lists[i];
            lists[i] = ending->next;
            refit_cuda_event_destroy(ending->event);
            free(ending);
        }
    }
    pthread_cond_destroy(&releases->changed);
    pthread_mutex_destroy(&releases->lock);
}
