/* SPDX-License-Identifier: Apache-2.0
 *
 * refitd as an object: one event loop, two HTTP listeners, a receiver, a few worker threads.
 *
 * The loop's thread owns everything here. Handlers that may block run on workers and touch the receiver only, which is
 * thread-safe. The receiver's notify callback, workers and signals wake the loop through one eventfd and one signalfd.
 */
#ifndef REFIT_SIDECAR_SIDECAR_H
#define REFIT_SIDECAR_SIDECAR_H

#include <signal.h>

#include "base/log.h"
#include "drivers/driver.h"
#include "health/health.h"
#include "sidecar/audit.h"
#include "sidecar/catch_up.h"
#include "sidecar/config.h"
#include "sidecar/guard.h"
#include "sidecar/http_server.h"
#include "sidecar/traffic.h"
#include "sidecar/workers.h"

struct refit_watcher;
struct refit_routes;

struct refit_initial {
    bool done; /* loaded, or not asked for */
    bool starting; /* a worker begins it */
    bool running;
    char id[REFIT_REFIT_ID_MAX];
    int64_t next_ns; /* not before; after a failure */
    int64_t pause_ms;
};

struct refit_sidecar {
    const struct refit_config *config;
    struct event_base *base;
    struct refit_httpd *control, *admin;
    struct refit_routes *control_routes, *admin_routes;
    struct refit_guard *guard; /* of the control listener */
    struct refit_workers *workers;
    struct refit_workers *prompt;    /* for what a lead must not wait for: REFIT_ROUTE_PROMPT */
    struct refit_receiver *receiver; /* NULL until it is open and again while it closes */
    struct refit_layout *layout;     /* of --layout */
    struct refit_driver *driver;     /* NULL: the engine attaches */
    uint16_t data_port;
    unsigned in_flight;             /* jobs on workers that use the receiver */
    struct refit_receiver *leaving; /* to be closed when those have ended */

    int wake_fd, signal_fd;
    struct event *wake, *signal, *tick, *settle, *drain;
    struct refit_watcher *watchers; /* long polls and event streams */
    int64_t served_ns;              /* when watchers were last served */
    enum refit_phase served_phase;

    int64_t tick_ns, lag_ns, lag_since_ns;
    struct refit_health_totals totals;
    struct refit_health_history history;
    struct refit_traffic traffic;
    uint64_t active_version; /* as last seen, for the audit line */
    char active_digest[REFIT_SHA256_HEX_MAX];
    struct refit_initial initial;
    struct refit_catch_up *catch_up; /* NULL: no siblings */
    bool opening, draining;
    bool drain_asked; /* POST /drain: nothing new begins, what runs goes on */
    struct refit_error failure; /* status 0: none */
    int exit_code;
};

/* Runs until SIGTERM or SIGINT, or until it can't start; returns the exit code. `signals` are blocked already. */
int refit_sidecar_run(const struct refit_config *config, const sigset_t *signals);

/* --- between the files of this module -------------------------------------------------------------------------- */

struct refit_snapshots {
    struct refit_receiver_snapshot receiver;
    struct refit_session_snapshot session;
    struct refit_health_engine engine;
    struct refit_health_siblings siblings;
    struct refit_health_view view; /* points at those above */
};
/* The loop looks at everything again. Any thread. */
void refit_sidecar_wake(void *sidecar);
/* Ends the loop with an error. */
void refit_sidecar_fail(struct refit_sidecar *sidecar, const struct refit_error *err);
/* The receiver, on a worker; what comes of it is the loop's. */
REFIT_MUST_CHECK enum refit_status refit_sidecar_open(struct refit_sidecar *sidecar, struct refit_error *err);
/* Closes what is `leaving`, and ends the loop, once no worker uses it any more. */
void refit_sidecar_close_when_free(struct refit_sidecar *sidecar);
/* Such a job has left its worker. */
void refit_sidecar_landed(struct refit_sidecar *sidecar);
void refit_sidecar_look(struct refit_sidecar *sidecar, struct refit_snapshots *out);

/* The first weights, from --initial-checkpoint. Called whenever something changed. */
void refit_initial_step(struct refit_sidecar *sidecar, const struct refit_snapshots *now);

#endif
