/* SPDX-License-Identifier: Apache-2.0
 *
 * What a replica says about itself: probes, metrics, status. Pure readers: snapshots go in, JSON or text comes out;
 * nothing here changes the replica, blocks, or does I/O (but for /proc/self in the metrics).
 *
 * Three different truths:
 *   live     the event loop makes progress. Nothing else can fail it: not the engine, not peers, not draining.
 *   started  listeners and socket are bound, capacity is reserved (and, when told so, a first version is served).
 *   ready    every rank's engine is attached and serves a committed, verified version (at least ready_min_version). It
 * stays ready while a newer one is staged: being behind is a metric, or one publish would take a whole fleet out.
 */
#ifndef REFIT_HEALTH_HEALTH_H
#define REFIT_HEALTH_HEALTH_H

#include "base/buf.h"
#include "receiver/receiver.h"

/* What refits that have ended add up to, over the life of the process. */
struct refit_health_totals {
    char seen[REFIT_REFIT_ID_MAX]; /* the last one counted */
    uint64_t bytes_needed, payload_bytes, wire_bytes, copied_bytes;
    int64_t phase_ns[REFIT_PHASE_COUNT];
};
/* Adds a session that has ended, once. Call with every snapshot seen. */
void refit_health_observe(struct refit_health_totals *totals, const struct refit_session_snapshot *session);

/* All that is known now; pointers are borrowed. */
struct refit_health_view {
    bool started; /* bound and reserved */
    bool draining;
    const char *failure;                            /* why it can't start; NULL: no failure */
    const struct refit_receiver_snapshot *receiver; /* NULL: not open yet */
    const struct refit_session_snapshot *session;   /* running or latest; NULL: none */
    const struct refit_health_totals *totals;
    uint64_t ready_min_version;
    bool startup_needs_weights;
    int64_t loop_lag_ns; /* how late the event loop's tick was, the worst of the last minute */
    unsigned control_connections, admin_connections;
    const char *software; /* "0.1.0" */
};

struct refit_health_verdict {
    bool ok;
    uint64_t version; /* served now; 0: none */
    json_t *body;     /* new; NULL when out of memory */
};
struct refit_health_verdict refit_health_live(const struct refit_health_view *view);
struct refit_health_verdict refit_health_started(const struct refit_health_view *view);
struct refit_health_verdict refit_health_ready(const struct refit_health_view *view);

/* Prometheus text format 0.0.4. False when the buffer's ceiling or memory forbids. */
bool refit_health_metrics(const struct refit_health_view *view, struct refit_buf *out);

/* The objects of docs/api.md; new, NULL when out of memory. */
json_t *refit_health_session_json(const struct refit_session_snapshot *session);
json_t *refit_health_weights_json(const struct refit_receiver_snapshot *receiver);
json_t *refit_health_version_json(const struct refit_version *version);

bool refit_health_is_terminal(enum refit_phase phase);
bool refit_health_is_retryable(enum refit_status status); /* the same request may succeed later */

struct refit_health_process {
    uint64_t resident_bytes;
    double cpu_seconds;
    uint64_t open_fds, max_fds;
    double start_time_seconds; /* since the epoch */
};
/* Of this process; zeros where /proc does not tell. */
void refit_health_read_process(struct refit_health_process *out);

#endif
