/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of refitd: bind, reserve, serve, drain. The HTTP listeners come first and the capacity is reserved by a
 * worker, so that probes are answered from the start, however large the slots are.
 */
#include "sidecar/sidecar.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "sidecar/notify.h"
#include "sidecar/routes.h"

#define WORKERS 4
#define PROMPT_WORKERS 2
#define TICK_MS 1000
#define LAG_WINDOW_NS 60000000000ll
#define SETTLE_MS 20 /* progress is passed on at most this often; a change of phase at once */
#define BODIES_MAX (96u << 20)
#define LOG_MS 500 /* for the log's last lines to be taken */

/* --- waking ------------------------------------------------------------------------------------------------------ */

/* From any thread. */
void refit_sidecar_wake(void *context)
{
    struct refit_sidecar *sidecar = context;
    const uint64_t one = 1;
    /* It can only fail when it is full of wakes already. */
    ssize_t written = write(sidecar->wake_fd, &one, sizeof one);
    (void)written;
}

static void look_at_guard(const struct refit_guard *guard, struct refit_health_guard *out)
{
    struct refit_guard_status status;
    refit_guard_read(guard, &status);
    out->control_not_after_s = status.control.not_after_s;
    out->data_not_after_s = status.data.not_after_s;
    out->refused = status.refused;
    out->unauthenticated = status.unauthenticated;
    out->forbidden = status.forbidden;
}

static void look_at_http(const struct refit_httpd *server, const struct refit_routes *routes, struct refit_health_http *out)
{
    if (!server)
        return;
    out->connections = refit_httpd_connections(server);
    out->refused = refit_httpd_refused(server);
    out->handshakes_failed = refit_httpd_handshakes_failed(server);
    memcpy(out->answers, refit_routes_answers(routes), sizeof out->answers);
}

static void look_at_engine(struct refit_driver *driver, struct refit_snapshots *out)
{
    struct refit_driver_snapshot now;
    refit_driver_read(driver, &now);
    out->engine = (struct refit_health_engine){.whole = now.whole, .looked = now.looked, .version = now.version};
    memcpy(out->engine.kind, now.engine, sizeof out->engine.kind);
    memcpy(out->engine.found, now.found, sizeof out->engine.found);
    memcpy(out->engine.reason, now.reason, sizeof out->engine.reason);
    out->engine.installs = now.installs;
    out->engine.failures = now.failures;
    out->engine.restores = now.restores;
    out->engine.write_ns = now.write_ns;
    out->engine.load_ns = now.load_ns;
    out->engine.paused_ns = now.paused_ns;
    out->view.engine = &out->engine;
}

void refit_sidecar_look(struct refit_sidecar *sidecar, struct refit_snapshots *out)
{
    const struct refit_config *config = sidecar->config;
    out->view = (struct refit_health_view){
        .started = sidecar->receiver != NULL || sidecar->draining,
        .draining = sidecar->draining || sidecar->drain_asked,
        .failure = sidecar->failure.status ? sidecar->failure.text : NULL,
        .totals = &sidecar->totals,
        .ready_min_version = config->ready_min_version,
        .startup_needs_weights = config->startup_needs_weights,
        .loop_lag_ns = sidecar->lag_ns,
        .log_lines_lost = refit_log_lost(),
        .now_ms = refit_clock_wall_ms(),
        .software = REFIT_VERSION,
    };
    if (sidecar->guard)
        look_at_guard(sidecar->guard, &out->view.guard);
    look_at_http(sidecar->control, sidecar->control_routes, &out->view.control);
    look_at_http(sidecar->admin, sidecar->admin_routes, &out->view.admin);
    if (!sidecar->receiver)
        return;
    refit_receiver_read(sidecar->receiver, &out->receiver);
    out->view.receiver = &out->receiver;
    if (sidecar->driver)
        look_at_engine(sidecar->driver, out);
    if (sidecar->catch_up) {
        refit_catch_up_read(sidecar->catch_up, &out->siblings);
        out->view.siblings = &out->siblings;
    }
    if (refit_receiver_session(sidecar->receiver, NULL, &out->session, NULL) == REFIT_OK)
        out->view.session = &out->session;
}

/* --- what happens on a change ---------------------------------------------------------------------------------- */

/* The audit line of a swap is written here, whatever caused it. */
static void note_active(struct refit_sidecar *sidecar, const struct refit_snapshots *now)
{
    const struct refit_bank_snapshot *bank = &now->receiver.bank;
    if (bank->active >= bank->slots)
        return;
    const struct refit_version *version = &bank->slot[bank->active].version;
    if (version->version == sidecar->active_version && strcmp(version->digest, sidecar->active_digest) == 0)
        return;
    refit_audit(now->receiver.lead[0] ? now->receiver.lead : "-", now->receiver.session[0] ? "swap" : "adopt",
                refit_log_u64("from", sidecar->active_version), refit_log_u64("to", version->version),
                refit_log_text("label", version->label), refit_log_text("digest", version->digest),
                refit_log_text("refit", now->receiver.session), refit_log_u64("version", version->version));
    sidecar->active_version = version->version;
    memcpy(sidecar->active_digest, version->digest, sizeof sidecar->active_digest);
}

static void note_session(struct refit_sidecar *sidecar, const struct refit_session_snapshot *session)
{
    if (!refit_health_history_observe(&sidecar->history, session, refit_clock_wall_ms()))
        return;
    refit_health_observe(&sidecar->totals, session);
    if (session->phase == REFIT_PHASE_ABORTED)
        refit_audit_as("failed", "-", "aborted", refit_log_text("refit", session->id), refit_log_u64("version", session->version),
                    refit_log_text("phase", refit_phase_name(session->failed_in)), REFIT_LOG_CAUSE(&session->error));
}

/* A refit that a newer one replaced ends unseen otherwise: only the latest is looked at. */
static void note_replaced(struct refit_sidecar *sidecar, const char *latest)
{
    struct refit_session_snapshot session;
    const char *id = refit_health_history_unfinished(&sidecar->history, latest);
    if (!id)
        return;
    if (refit_receiver_session(sidecar->receiver, id, &session, NULL) == REFIT_OK)
        note_session(sidecar, &session);
    else
        refit_health_history_forget(&sidecar->history, id);
}

/* Once draining was asked for, nothing is fetched any more. */
static void tell_catch_up(struct refit_sidecar *sidecar, const struct refit_snapshots *now)
{
    const struct refit_health_engine *engine = now->view.engine;
    if (!sidecar->catch_up)
        return;
    if (sidecar->drain_asked)
        refit_catch_up_halt(sidecar->catch_up);
    else
        refit_catch_up_look(sidecar->catch_up, refit_health_served_version(&now->view), !engine || engine->looked);
}

static void serve_change(struct refit_sidecar *sidecar, const struct refit_snapshots *now)
{
    note_active(sidecar, now);
    refit_health_observe_swap(&sidecar->totals, &now->receiver.bank);
    if (now->view.session) {
        note_session(sidecar, now->view.session);
        note_replaced(sidecar, now->session.id);
        sidecar->served_phase = now->session.phase;
    }
    sidecar->served_ns = refit_clock_ns();
    refit_initial_step(sidecar, now);
    tell_catch_up(sidecar, now);
    refit_watch_serve(sidecar);
}

/* Hundreds of steps of progress a second come in while bytes land; who waits for them is served fifty times a second.
 */
static void on_change(struct refit_sidecar *sidecar)
{
    struct refit_snapshots now;
    const struct timeval soon = {.tv_usec = SETTLE_MS * 1000};
    if (!sidecar->receiver)
        return;
    refit_sidecar_look(sidecar, &now);
    bool phase_changed = now.view.session && now.session.phase != sidecar->served_phase;
    bool fresh = refit_clock_ns() - sidecar->served_ns >= SETTLE_MS * 1000000;
    if (phase_changed || fresh)
        serve_change(sidecar, &now);
    else if (!evtimer_pending(sidecar->settle, NULL))
        evtimer_add(sidecar->settle, &soon);
}

static void on_settle(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    on_change(context);
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    struct refit_sidecar *sidecar = context;
    uint64_t count;
    (void)what;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got;
    refit_workers_collect(sidecar->workers);
    refit_workers_collect(sidecar->prompt);
    on_change(sidecar);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct refit_sidecar *sidecar = context;
    int64_t now = refit_clock_ns(), late = now - sidecar->tick_ns - TICK_MS * 1000000ll;
    (void)fd;
    (void)what;
    if (late > sidecar->lag_ns || now - sidecar->lag_since_ns > LAG_WINDOW_NS) {
        sidecar->lag_ns = late > 0 ? late : 0;
        sidecar->lag_since_ns = now;
    }
    sidecar->tick_ns = now;
    refit_guard_refresh(sidecar->guard);
    refit_watch_heartbeat(sidecar);
    refit_notify_alive();
    on_change(sidecar);
}

/* --- what can't go on ------------------------------------------------------------------------------------------- */

void refit_sidecar_fail(struct refit_sidecar *sidecar, const struct refit_error *err)
{
    sidecar->failure = *err;
    sidecar->exit_code = 1;
    refit_log_event(REFIT_LOG_ERROR, "can't start", REFIT_LOG_CAUSE(err));
    event_base_loopbreak(sidecar->base);
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

/* At once, but for the log's last lines. */
_Noreturn static void leave(int code)
{
    refit_log_stop(LOG_MS);
    _exit(code);
}

/* Something does not end in time: leave it to the kernel. Slots stay mapped in the engines, as after any other end. */
static void on_drain_timeout(evutil_socket_t fd, short what, void *context)
{
    struct refit_sidecar *sidecar = context;
    (void)fd;
    (void)what;
    refit_log_event(REFIT_LOG_ERROR, "draining took too long: exiting now",
                    refit_log_u64("limit_ms", sidecar->config->drain_timeout_ms));
    leave(1);
}

static void drain(struct refit_sidecar *sidecar, int number)
{
    const struct timeval limit = {.tv_sec = (time_t)(sidecar->config->drain_timeout_ms / 1000),
                                  .tv_usec = (suseconds_t)(sidecar->config->drain_timeout_ms % 1000 * 1000)};
    struct refit_receiver *receiver = sidecar->receiver;
    refit_log_event(REFIT_LOG_INFO, "draining", refit_log_i64("signal", number));
    sidecar->draining = true;
    refit_notify("STOPPING=1");
    evtimer_add(sidecar->drain, &limit);
    sidecar->receiver = NULL;
    if (sidecar->catch_up)
        refit_catch_up_halt(sidecar->catch_up);
    if (receiver) {
        refit_watch_serve(sidecar); /* ends those who wait */
        sidecar->leaving = receiver;
        refit_sidecar_close_when_free(sidecar);
    } else if (sidecar->opening) {
        /* Reserving can't be interrupted, and nothing is served yet that could be lost. */
        refit_log_write(REFIT_LOG_INFO, "stopped before the capacity was reserved", NULL, 0);
        leave(0);
    } else {
        event_base_loopbreak(sidecar->base);
    }
}

static void on_signal(evutil_socket_t fd, short what, void *context)
{
    struct refit_sidecar *sidecar = context;
    struct signalfd_siginfo info;
    (void)what;
    if (read(fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (info.ssi_signo == SIGHUP) {
        refit_log_write(REFIT_LOG_INFO, "SIGHUP: looking at certificates, access lists and the audit log again", NULL, 0);
        refit_guard_refresh(sidecar->guard);
        refit_audit_reopen();
        return;
    }
    if (sidecar->draining) {
        refit_log_event(REFIT_LOG_WARN, "second signal: exiting now", refit_log_u64("signal", info.ssi_signo));
        leave(1);
    }
    drain(sidecar, (int)info.ssi_signo);
}

/* --- putting it together ----------------------------------------------------------------------------------------- */

static enum refit_status listen_http(struct refit_sidecar *sidecar, bool admin, struct refit_error *err)
{
    const struct refit_config *config = sidecar->config;
    struct refit_httpd_config http = {
        .name = admin ? "admin" : "control",
        .address = admin ? config->admin : config->control,
        .connections_max = (unsigned)(admin ? config->admin_connections : config->control_connections),
        .header_bytes_max = 16384,
        .socket_mode = (unsigned)config->control_mode,
        .tls = admin ? NULL : refit_guard_tls(sidecar->guard),
        .handshake_ms = 10000,
        .deadline_ms = 30000,
        .idle_ms = 75000,
        .answer_ms = 30000,
        .bodies_max = BODIES_MAX,
    };
    enum refit_status status = admin ? refit_routes_create(sidecar, refit_admin_table, refit_admin_table_len, true,
                                                           &http, &sidecar->admin_routes, err)
                                     : refit_routes_create(sidecar, refit_control_table, refit_control_table_len, false,
                                                           &http, &sidecar->control_routes, err);
    if (status)
        return status;
    return refit_httpd_start(sidecar->base, &http, admin ? &sidecar->admin : &sidecar->control, err);
}

static struct event *add(struct refit_sidecar *sidecar, int fd, short what, event_callback_fn callback, int64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    struct event *event = event_new(sidecar->base, fd, what, callback, sidecar);
    if (event && (fd >= 0 || ms))
        event_add(event, ms ? &tv : NULL);
    return event;
}

static enum refit_status make_events(struct refit_sidecar *sidecar, const sigset_t *signals, struct refit_error *err)
{
    sidecar->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sidecar->signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
    sidecar->base = event_base_new();
    if (sidecar->wake_fd < 0 || sidecar->signal_fd < 0 || !sidecar->base)
        return refit_fail_errno(err, errno, "can't make an event loop");
    sidecar->wake = add(sidecar, sidecar->wake_fd, EV_READ | EV_PERSIST, on_wake, 0);
    sidecar->signal = add(sidecar, sidecar->signal_fd, EV_READ | EV_PERSIST, on_signal, 0);
    sidecar->tick = add(sidecar, -1, EV_PERSIST, on_tick, TICK_MS);
    sidecar->settle = add(sidecar, -1, 0, on_settle, 0);
    sidecar->drain = add(sidecar, -1, 0, on_drain_timeout, 0);
    if (!sidecar->wake || !sidecar->signal || !sidecar->tick || !sidecar->settle || !sidecar->drain)
        return refit_fail_alloc(err, "events", 0);
    return REFIT_OK;
}

static void free_event(struct event *event)
{
    if (event)
        event_free(event);
}

static void destroy(struct refit_sidecar *sidecar)
{
    refit_workers_stop(sidecar->prompt);
    refit_workers_stop(sidecar->workers);
    refit_httpd_stop(sidecar->control);
    refit_httpd_stop(sidecar->admin);
    refit_routes_destroy(sidecar->control_routes);
    refit_routes_destroy(sidecar->admin_routes);
    refit_audit_close();
    refit_catch_up_stop(sidecar->catch_up);
    if (sidecar->driver)
        refit_driver_stop(sidecar->driver);
    refit_receiver_close(sidecar->receiver);
    refit_guard_close(sidecar->guard); /* its certificates were the receiver's too */
    refit_driver_destroy(sidecar->driver);
    refit_layout_release(sidecar->layout);
    refit_traffic_release(&sidecar->traffic);
    free_event(sidecar->wake);
    free_event(sidecar->signal);
    free_event(sidecar->tick);
    free_event(sidecar->settle);
    free_event(sidecar->drain);
    if (sidecar->base)
        event_base_free(sidecar->base);
    refit_io_close(&sidecar->wake_fd);
    refit_io_close(&sidecar->signal_fd);
}

/* As many descriptors as are allowed: each connection and each slot takes some. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static enum refit_status start(struct refit_sidecar *sidecar, const sigset_t *signals, struct refit_error *err)
{
    enum refit_status status = make_events(sidecar, signals, err);
    if (status == REFIT_OK)
        status = refit_audit_open(sidecar->config->audit_log, err);
    if (status == REFIT_OK)
        status = refit_guard_open(sidecar->config, &sidecar->guard, err);
    if (status == REFIT_OK)
        status = listen_http(sidecar, true, err);
    if (status == REFIT_OK)
        status = listen_http(sidecar, false, err);
    if (status == REFIT_OK)
        status = refit_workers_start(WORKERS, refit_sidecar_wake, sidecar, &sidecar->workers, err);
    if (status == REFIT_OK)
        status = refit_workers_start(PROMPT_WORKERS, refit_sidecar_wake, sidecar, &sidecar->prompt, err);
    return status == REFIT_OK ? refit_sidecar_open(sidecar, err) : status;
}

int refit_sidecar_run(const struct refit_config *config, const sigset_t *signals)
{
    struct refit_sidecar sidecar = {.config = config,
                                    .wake_fd = -1,
                                    .signal_fd = -1,
                                    .opening = true,
                                    .initial = {.done = !config->initial_checkpoint[0]}};
    struct refit_error err;
    raise_descriptor_limit();
    refit_traffic_init(&sidecar.traffic);
    sidecar.tick_ns = sidecar.lag_since_ns = refit_clock_ns();
    if (refit_log_start(&err) || start(&sidecar, signals, &err))
        refit_sidecar_fail(&sidecar, &err);
    else
        event_base_dispatch(sidecar.base);
    destroy(&sidecar);
    if (sidecar.exit_code == 0)
        refit_log_write(REFIT_LOG_INFO, "stopped", NULL, 0);
    refit_log_stop(LOG_MS);
    return sidecar.exit_code;
}
