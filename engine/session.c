/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's thread: it connects, declares, answers refitd, and connects again when refitd went away. Readers never
 * wait for it; while it has no connection they go on with what is mapped.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "engine/engine_internal.h"

#define BACKOFF_MIN_MS 10
#define BACKOFF_MAX_MS 1000
#define FDS_MAX (REFIT_SLOTS_MAX + 2)

static bool stopping(struct refit_engine *engine)
{
    return atomic_load_explicit(&engine->stop, memory_order_acquire);
}

static void report(struct refit_engine *engine, enum refit_engine_state state, const struct refit_error *error)
{
    pthread_mutex_lock(&engine->lock);
    engine->state = state;
    if (error)
        engine->error = *error;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

/* False when the thread is told to stop, or the time is over. A negative time has no end: refitd answers or closes. */
static bool wait_socket(struct refit_engine *engine, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = engine->wake, .events = POLLIN}, {.fd = engine->sock, .events = POLLIN}};
    int n;
    do
        n = poll(fds, 2, timeout_ms);
    while (n < 0 && errno == EINTR);
    return !stopping(engine) && n > 0;
}

/* --- attaching --------------------------------------------------------------------------------------------- */

static enum refit_status connect_socket(struct refit_engine *engine, struct refit_error *err)
{
    struct sockaddr_un address;
    enum refit_status status = refit_socket_address(engine->socket_path, &address, err);
    if (status != REFIT_OK)
        return status;
    engine->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (engine->sock < 0)
        return refit_fail_errno(err, errno, "%s: socket", engine->socket_path);
    if (connect(engine->sock, (const struct sockaddr *)&address, sizeof address) != 0) {
        int saved = errno;
        refit_io_close(&engine->sock);
        return refit_fail(err, REFIT_PEER, "%s: connect: %s", engine->socket_path, strerror(saved));
    }
    return REFIT_OK;
}

static size_t returned_fds(const struct refit_engine *engine, int *fds)
{
    size_t count = 0;
    fds[count++] = engine->layout_fd;
    if (!engine->page)
        return count;
    fds[count++] = engine->page->fd;
    for (uint32_t slot = 0; slot < engine->slots; slot++) {
        struct refit_piece piece;
        refit_arena_piece_at(engine->arena[slot], 0, &piece);
        fds[count++] = piece.fd;
    }
    return count;
}

static enum refit_status declare(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_ATTACH, .abi = REFIT_CLAIM_ABI, .rank = engine->rank,
                                     .ranks = engine->ranks, .returning = engine->page != NULL,
                                     .stable = engine->stable, .swap = engine->swap, .window = engine->windowed};
    int fds[FDS_MAX];
    snprintf(m.label, sizeof m.label, "%s", engine->label);
    return refit_attach_send(engine->sock, &m, fds, returned_fds(engine, fds), err);
}

static void say_goodbye(struct refit_engine *engine)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_DETACH};
    if (engine->sock >= 0 && !engine->kept && refit_attach_send(engine->sock, &m, NULL, 0, NULL) != REFIT_OK)
        refit_io_close(&engine->sock); /* refitd sees the end of file instead */
}

static void close_fds(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        refit_io_close(&fds[i]);
}

static enum refit_status receive_answer(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_attach_message m;
    int fds[FDS_MAX];
    size_t count = 0;
    enum refit_status status;
    do {
        if (!wait_socket(engine, -1))
            return refit_fail(err, REFIT_ABORTED, "detached");
        status = refit_attach_receive(engine->sock, &m, fds, FDS_MAX, &count, err);
    } while (status == REFIT_BUSY);
    if (status != REFIT_OK)
        return status;
    if (m.type == REFIT_ATTACH_REFUSED)
        status = refit_fail(err, m.status, "%s", m.text);
    else if (m.type != REFIT_ATTACH_ATTACHED)
        status = refit_fail(err, REFIT_PEER, "refitd answered the attach with another message");
    else
        status = refit_engine_map_all(engine, &m, fds, count, err);
    close_fds(fds, count);
    if (status != REFIT_OK || !m.receive)
        return status;
    refit_engine_able(engine, &m);
    return refit_attach_send(engine->sock, &m, NULL, 0, err);
}

/* Whatever was received for a refitd that is gone has ended before slots are handed back. */
static enum refit_status attach_once(struct refit_engine *engine, struct refit_error *err)
{
    refit_engine_receive_stop(engine);
    enum refit_status status = connect_socket(engine, err);
    if (status == REFIT_OK)
        status = declare(engine, err);
    if (status == REFIT_OK)
        status = receive_answer(engine, err);
    if (status == REFIT_OK)
        return status;
    /* A page that refitd may have made is not read through, and would count for as long as this process lives. */
    if (!engine->page)
        say_goodbye(engine);
    refit_io_close(&engine->sock);
    return status;
}

/* --- the hooks --------------------------------------------------------------------------------------------- */

static bool run_prepare(struct refit_engine *engine, const struct refit_version *version, uint32_t slot, char *reason)
{
    struct refit_pin pin = {.version = version->version, .slot = slot};
    reason[0] = '\0';
    bool ok = !engine->prepare || engine->prepare(engine->context, engine, version, &pin, reason) == 0;
    if (!ok && !reason[0])
        snprintf(reason, 256, "the engine's prepare hook refused version %llu without a reason",
                 (unsigned long long)version->version);
    return ok;
}

/* A new process finds versions that others prepared long ago: its own hook has not seen them yet. */
static enum refit_status prepare_shown(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_claim *claim = engine->page->claim;
    for (uint32_t i = 0; i < engine->slots; i++) {
        char reason[256];
        struct refit_version version = {.version = refit_claim_shown(claim, i)};
        uint32_t slot;
        if (version.version == 0 || refit_claim_acquire_version(claim, version.version, &slot) != REFIT_OK)
            continue;
        struct refit_pin pin = {.version = version.version, .slot = slot};
        refit_engine_version(engine, &pin, &version);
        bool ok = run_prepare(engine, &version, slot, reason);
        refit_claim_release(claim, slot);
        if (!ok)
            return refit_fail(err, REFIT_CONFLICT, "%s", reason);
    }
    return REFIT_OK;
}

static enum refit_status answer(struct refit_engine *engine, enum refit_attach_type type, const char *refit, bool ok,
                                const char *reason, struct refit_error *err)
{
    struct refit_attach_message m = {.type = type, .ok = ok};
    snprintf(m.refit, sizeof m.refit, "%s", refit);
    snprintf(m.text, sizeof m.text, "%s", ok ? "" : reason);
    return refit_attach_send(engine->sock, &m, NULL, 0, err);
}

static enum refit_status on_prepare(struct refit_engine *engine, const struct refit_attach_message *m,
                                    struct refit_error *err)
{
    char reason[256] = "the version was withdrawn";
    if (m->slot >= engine->slots)
        return refit_fail(err, REFIT_PEER, "refitd named slot %u of %u", m->slot, engine->slots);
    struct refit_claim *claim = engine->page->claim;
    bool ok = refit_claim_acquire_staged(claim, m->version.version, m->slot) == REFIT_OK;
    if (ok) {
        ok = run_prepare(engine, &m->version, m->slot, reason);
        refit_claim_release(claim, m->slot);
    }
    return answer(engine, REFIT_ATTACH_PREPARED, m->refit, ok, reason, err);
}

static enum refit_status on_swapping(struct refit_engine *engine, const struct refit_attach_message *m,
                                     struct refit_error *err)
{
    bool ok = !engine->before_swap || engine->before_swap(engine->context, &m->version, m->kv) == 0;
    return answer(engine, REFIT_ATTACH_READY, m->refit, ok, "the engine's before_swap hook refused", err);
}

/* During the pause that before_swap began, so on this thread nothing is read. */
static enum refit_status on_move(struct refit_engine *engine, const struct refit_attach_message *m,
                                 struct refit_error *err)
{
    struct refit_error refusal = {.status = REFIT_OK};
    struct refit_attach_message answered = {.type = REFIT_ATTACH_MOVED};
    answered.ok = refit_engine_move(engine, m->slot, &refusal) == REFIT_OK;
    answered.window = engine->windowed;
    memcpy(answered.refit, m->refit, sizeof answered.refit);
    snprintf(answered.text, sizeof answered.text, "%.*s", (int)sizeof answered.text - 1, refusal.text);
    return refit_attach_send(engine->sock, &answered, NULL, 0, err);
}

static void on_swapped(struct refit_engine *engine, const struct refit_attach_message *m)
{
    if (engine->after_swap)
        engine->after_swap(engine->context, &m->version, m->kv);
    pthread_mutex_lock(&engine->lock);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

static enum refit_status on_slot(struct refit_engine *engine, const struct refit_attach_message *m, const int *fds,
                                 size_t count, struct refit_error *err)
{
    if (m->slot >= engine->slots || count != 1)
        return refit_fail(err, REFIT_PEER, "refitd replaced slot %u of %u with %zu descriptors", m->slot,
                          engine->slots, count);
    return refit_engine_map_slot(engine, m, fds[0], err);
}

static enum refit_status on_receive(struct refit_engine *engine, int *fds, size_t count, struct refit_error *err)
{
    if (count != 1)
        return refit_fail(err, REFIT_PEER, "refitd asked to receive with %zu descriptors", count);
    refit_engine_receive(engine, fds[0]);
    fds[0] = -1;
    return REFIT_OK;
}

/* --- the loop ---------------------------------------------------------------------------------------------- */

static enum refit_status dispatch(struct refit_engine *engine, const struct refit_attach_message *m, int *fds,
                                  size_t count, struct refit_error *err)
{
    switch (m->type) {
    case REFIT_ATTACH_PREPARE: return on_prepare(engine, m, err);
    case REFIT_ATTACH_SWAPPING: return on_swapping(engine, m, err);
    case REFIT_ATTACH_MOVE: return on_move(engine, m, err);
    case REFIT_ATTACH_RECEIVE: return on_receive(engine, fds, count, err);
    case REFIT_ATTACH_SLOT: return on_slot(engine, m, fds, count, err);
    case REFIT_ATTACH_SWAPPED: on_swapped(engine, m); return REFIT_OK;
    case REFIT_ATTACH_REFUSED: return refit_fail(err, m->status, "%s", m->text);
    default: return refit_fail(err, REFIT_PEER, "refitd sent a message that only engines send");
    }
}

static enum refit_status serve_one(struct refit_engine *engine, struct refit_error *err)
{
    struct refit_attach_message m;
    int fds[FDS_MAX];
    size_t count = 0;
    enum refit_status status = refit_attach_receive(engine->sock, &m, fds, FDS_MAX, &count, err);
    if (status == REFIT_BUSY)
        return REFIT_OK;
    if (status != REFIT_OK)
        return status;
    status = dispatch(engine, &m, fds, count, err);
    close_fds(fds, count);
    return status;
}

static void serve(struct refit_engine *engine)
{
    struct refit_error error;
    while (!stopping(engine)) {
        if (!wait_socket(engine, -1) || serve_one(engine, &error) == REFIT_OK)
            continue;
        refit_log_limited(REFIT_LOG_WARN, "connection to refitd lost", refit_log_u64("rank", engine->rank),
                          REFIT_LOG_CAUSE(&error));
        refit_io_close(&engine->sock);
        return;
    }
}

/* What no second attempt can change. */
static bool is_final(enum refit_status status)
{
    return status == REFIT_INVALID || status == REFIT_MISMATCH || status == REFIT_UNSUPPORTED;
}

/* False: the thread ends. */
static bool first_attach(struct refit_engine *engine, enum refit_status status, const struct refit_error *error)
{
    struct refit_error refusal;
    if (status == REFIT_OK) {
        status = prepare_shown(engine, &refusal);
        report(engine, status == REFIT_OK ? REFIT_ENGINE_ATTACHED : REFIT_ENGINE_FAILED,
               status == REFIT_OK ? NULL : &refusal);
        return status == REFIT_OK;
    }
    report(engine, is_final(status) ? REFIT_ENGINE_FAILED : REFIT_ENGINE_STARTING, error);
    return !is_final(status);
}

static void log_refusal(struct refit_engine *engine, enum refit_status status, const struct refit_error *error)
{
    if (status == REFIT_PEER || !engine->page || engine->refused_logged)
        return;
    engine->refused_logged = true;
    refit_log_event(REFIT_LOG_WARN, "refitd does not take this rank back, it goes on as it is",
                    refit_log_u64("rank", engine->rank), REFIT_LOG_CAUSE(error));
}

void *refit_engine_session(void *argument)
{
    struct refit_engine *engine = argument;
    int backoff_ms = 0;
    while (!stopping(engine)) {
        struct refit_error error = {0};
        bool first = engine->state == REFIT_ENGINE_STARTING;
        enum refit_status status = attach_once(engine, &error);
        if (first && !first_attach(engine, status, &error))
            break;
        if (status == REFIT_OK) {
            engine->refused_logged = false;
            backoff_ms = 0;
            serve(engine);
            continue; /* the first attempt to come back is made at once */
        }
        log_refusal(engine, status, &error);
        backoff_ms = backoff_ms == 0 ? BACKOFF_MIN_MS : backoff_ms * 2;
        backoff_ms = backoff_ms < BACKOFF_MAX_MS ? backoff_ms : BACKOFF_MAX_MS;
        (void)wait_socket(engine, backoff_ms);
    }
    refit_engine_receive_end(engine);
    say_goodbye(engine);
    return NULL;
}
