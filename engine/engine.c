/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/engine_internal.h"
#include "memory/ops.h"

/* --- the hot path ------------------------------------------------------------------------------------------ */

/* The pin may be the first sign of a mapping that changed since the page was looked up: what was written before refitd was told
 * of it is seen from here on. A load, and no more. */
static inline void see_tables(const struct refit_engine *engine)
{
    (void)atomic_load_explicit(&engine->claim, memory_order_acquire);
}

static __attribute__((noinline)) enum refit_status acquire_version(struct refit_engine *engine, uint64_t version,
                                                                   struct refit_pin *pin)
{
    struct refit_claim *claim = atomic_load_explicit(&engine->claim, memory_order_acquire);
    pin->version = version;
    enum refit_status status = refit_claim_acquire_version(claim, version, &pin->slot);
    see_tables(engine);
    return status;
}

/* After idle time neither the engine nor its page is in any cache, and to fetch one after the other would take twice as long. */
enum refit_status refit_engine_acquire(struct refit_engine *engine, uint64_t version, struct refit_pin *pin)
{
    refit_claim_expect(refit_engine_home_first(engine));
    struct refit_claim *claim = atomic_load_explicit(&engine->claim, memory_order_acquire);
    if (__builtin_expect(version != REFIT_LATEST, 0))
        return acquire_version(engine, version, pin);
    if (__builtin_expect(engine->rank != 0, 0))
        return REFIT_INVALID;
    uint32_t slot = refit_claim_acquire_latest(claim);
    if (__builtin_expect(slot >= REFIT_SLOTS_MAX, 0))
        return slot == REFIT_SLOT_BUSY ? REFIT_BUSY : slot == REFIT_SLOT_TORN ? REFIT_CORRUPT : REFIT_NOT_FOUND;
    pin->slot = slot;
    pin->version = atomic_load_explicit(&claim->slot[slot].version, memory_order_relaxed);
    see_tables(engine);
    return REFIT_OK;
}

void refit_engine_release(struct refit_engine *engine, const struct refit_pin *pin)
{
    refit_claim_release(atomic_load_explicit(&engine->claim, memory_order_relaxed), pin->slot);
}

const void *refit_engine_buffer(const struct refit_engine *engine, const struct refit_pin *pin, uint32_t id)
{
    return id < engine->buffer_count ? engine->table[pin->slot][id] : NULL;
}

const void *const *refit_engine_table(const struct refit_engine *engine, const struct refit_pin *pin)
{
    return (const void *const *)engine->table[pin->slot];
}

void refit_engine_version(const struct refit_engine *engine, const struct refit_pin *pin, struct refit_version *out)
{
    const struct refit_claim_slot *slot =
        &atomic_load_explicit(&engine->claim, memory_order_acquire)->slot[pin->slot];
    out->version = pin->version;
    memcpy(out->label, slot->label, sizeof out->label);
    memcpy(out->digest, slot->digest, sizeof out->digest);
    out->label[sizeof out->label - 1] = '\0';
    out->digest[sizeof out->digest - 1] = '\0';
}

/* --- waiting ----------------------------------------------------------------------------------------------- */

static bool serves(const struct refit_engine *engine)
{
    return refit_claim_gate_slot(atomic_load_explicit(&engine->claim, memory_order_acquire)) != REFIT_SLOT_NONE;
}

enum refit_status refit_engine_wait(struct refit_engine *engine, int64_t timeout_ms, struct refit_error *err)
{
    struct refit_deadline deadline = refit_deadline_in_ms(timeout_ms);
    pthread_mutex_lock(&engine->lock);
    while (!serves(engine) && !refit_deadline_passed(deadline)) {
        /* The page changes a moment before the message about it comes; it is looked at again soon in any case. */
        struct timespec until = refit_deadline_timespec(refit_deadline_earlier(deadline, refit_deadline_in_ms(20)));
        pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    }
    pthread_mutex_unlock(&engine->lock);
    if (serves(engine))
        return REFIT_OK;
    return refit_fail(err, REFIT_TIMEOUT, "rank %u: no version was served within %lld ms", engine->rank,
                      (long long)timeout_ms);
}

/* --- attach and detach ------------------------------------------------------------------------------------- */

static enum refit_status seal_layout(struct refit_engine *engine, struct refit_error *err)
{
    size_t len = 0;
    const char *text = refit_layout_text(engine->layout, &len);
    engine->layout_fd = refit_io_memfd("refit-layout");
    if (engine->layout_fd < 0)
        return refit_fail_errno(err, errno, "layout: memfd_create");
    for (size_t at = 0; at < len;) {
        ssize_t n = write(engine->layout_fd, text + at, len - at);
        if (n < 0 && errno != EINTR)
            return refit_fail_errno(err, errno, "layout: write %zu bytes", len);
        at += n > 0 ? (size_t)n : 0;
    }
    if (fcntl(engine->layout_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
        return refit_fail_errno(err, errno, "layout: seal");
    return REFIT_OK;
}

static enum refit_status load_layout(struct refit_engine *engine, const struct refit_engine_config *config,
                                     struct refit_error *err)
{
    enum refit_status status = refit_layout_parse(config->layout, config->layout_len, "the engine's layout",
                                                  &engine->layout, err);
    if (status != REFIT_OK)
        return status;
    if (refit_layout_ranks(engine->layout) != config->ranks)
        return refit_fail(err, REFIT_MISMATCH, "the layout describes %u ranks, this replica has %u",
                          refit_layout_ranks(engine->layout), config->ranks);
    status = refit_engine_buffers_load(engine, err);
    return status == REFIT_OK ? seal_layout(engine, err) : status;
}

static void destroy(struct refit_engine *engine)
{
    refit_engine_unmap(engine);
    refit_engine_releases_destroy(&engine->releases);
    refit_engine_buffers_release(engine);
    refit_layout_release(engine->layout);
    refit_io_close(&engine->layout_fd);
    refit_io_close(&engine->sock);
    refit_io_close(&engine->wake);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->lock);
    free(engine->socket_path);
    refit_engine_home_destroy(engine);
}

static enum refit_status create(const struct refit_engine_config *config, struct refit_engine **out,
                                struct refit_error *err)
{
    struct refit_engine *engine = refit_engine_home_create(err);
    if (!engine)
        return REFIT_NO_MEMORY;
    engine->rank = config->rank;
    engine->ranks = config->ranks;
    engine->prepare = config->prepare;
    engine->before_swap = config->before_swap;
    engine->after_swap = config->after_swap;
    engine->context = config->context;
    engine->stable = config->stable_addresses != 0;
    engine->windowed = REFIT_SLOT_NONE;
    engine->sock = engine->layout_fd = engine->ordinal = -1;
    engine->wanted = config->memory;
    snprintf(engine->label, sizeof engine->label, "%s", config->label ? config->label : program_invocation_short_name);
    refit_cond_init(&engine->changed);
    refit_engine_releases_init(&engine->releases);
    pthread_mutex_init(&engine->lock, NULL);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine->socket_path = strdup(config->socket_path);
    if (engine->wake < 0 || !engine->socket_path) {
        destroy(engine);
        return refit_fail(err, REFIT_NO_MEMORY, "an engine: no descriptor or no memory left");
    }
    *out = engine;
    return REFIT_OK;
}

static enum refit_status check_config(const struct refit_engine_config *config, struct refit_error *err)
{
    if (!config->socket_path || !config->layout)
        return refit_fail(err, REFIT_INVALID, "attach: socket_path and layout are required");
    if (config->ranks == 0 || config->ranks > REFIT_RANKS_MAX || config->rank >= config->ranks)
        return refit_fail(err, REFIT_INVALID, "attach: rank %u of %u ranks", config->rank, config->ranks);
    if (config->memory > REFIT_MEMORY_ANY)
        return refit_fail(err, REFIT_INVALID, "attach: memory %d is of no kind", (int)config->memory);
    return REFIT_OK;
}

/* The thread's last error tells why nothing came of it. */
static enum refit_status await_attached(struct refit_engine *engine, int64_t timeout_ms, struct refit_error *err)
{
    struct refit_deadline deadline = refit_deadline_in_ms(timeout_ms);
    struct timespec until = refit_deadline_timespec(deadline);
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&engine->lock);
    while (engine->state == REFIT_ENGINE_STARTING && !refit_deadline_passed(deadline))
        pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    if (engine->state == REFIT_ENGINE_FAILED)
        status = refit_fail(err, engine->error.status, "%s", engine->error.text);
    else if (engine->state == REFIT_ENGINE_STARTING)
        status = refit_fail(err, REFIT_TIMEOUT, "attach to %s: not done within %lld ms (%s)", engine->socket_path,
                            (long long)timeout_ms,
                            engine->error.text[0] ? engine->error.text : "no answer");
    pthread_mutex_unlock(&engine->lock);
    return status;
}

static void stop_thread(struct refit_engine *engine)
{
    uint64_t one = 1;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    (void)!write(engine->wake, &one, sizeof one);
    pthread_join(engine->thread, NULL);
}

enum refit_status refit_engine_attach(const struct refit_engine_config *config, int64_t timeout_ms,
                                      struct refit_engine **out, struct refit_error *err)
{
    struct refit_engine *engine = NULL;
    enum refit_status status = check_config(config, err);
    if (status == REFIT_OK)
        status = create(config, &engine, err);
    if (status != REFIT_OK)
        return status;
    status = load_layout(engine, config, err);
    if (status != REFIT_OK)
        goto destroy_engine;
    status = refit_thread_start(&engine->thread, refit_engine_session, engine, "the library's thread", err);
    if (status != REFIT_OK)
        goto destroy_engine;
    status = await_attached(engine, timeout_ms, err);
    if (status != REFIT_OK)
        goto stop;
    *out = engine;
    return REFIT_OK;

stop:
    stop_thread(engine);
destroy_engine:
    destroy(engine);
    return status;
}

/* Its page goes on counting for refitd, and its slots stay mapped. */
static void keep(struct refit_engine *engine)
{
    static _Atomic(struct refit_engine *) kept; /* reachable, though nobody asks any more */
    refit_log_event(REFIT_LOG_WARN, "detached while a device still reads: its slots stay pinned until the process ends",
                    refit_log_u64("rank", engine->rank));
    refit_io_close(&engine->sock);
    engine->next_kept = atomic_exchange_explicit(&kept, engine, memory_order_relaxed);
}

void refit_engine_detach(struct refit_engine *engine)
{
    if (!engine)
        return;
    /* Before the goodbye: what a device reads must not be given to anybody. */
    engine->kept = !refit_engine_releases_drain(engine, refit_memory_patience());
    stop_thread(engine);
    if (engine->kept)
        keep(engine);
    else
        destroy(engine);
}
