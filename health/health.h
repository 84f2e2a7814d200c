/* SPDX-License-Identifier: Apache-2.0
 *
 * What a replica says about itself: probes, metrics, status. Pure readers: snapshots go in, JSON or text comes out;
 * nothing here changes the replica, blocks, or does I/O (but for /proc/self in the metrics).
 *
 * Three different truths:
 *   live     the event loop makes progress. Nothing else can fail it: not the engine, not peers, not draining.
 *   started  listeners and socket are bound, capacity is reserved (and, when told so, a first version is served).
 *   ready    every rank's engine is attached and serves a committed, verified version (at least ready_min_version); one
 *            that installs weights itself has that version, whole, and generates. It
 * stays ready while a newer one is staged: being behind is a metric, or one publish would take a whole fleet out.
 */
#ifndef REFIT_HEALTH_HEALTH_H
#define REFIT_HEALTH_HEALTH_H

#include "base/buf.h"
#include "receiver/receiver.h"

/* Times by upper bound: 1 ms to 5 minutes. */
#define REFIT_HEALTH_BUCKETS 13
extern const int64_t refit_health_bounds_ns[REFIT_HEALTH_BUCKETS];
struct refit_health_histogram {
    uint64_t bucket[REFIT_HEALTH_BUCKETS]; /* each by itself; beyond the last bound: only in count */
    uint64_t count;
    int64_t sum_ns;
};
void refit_health_histogram_add(struct refit_health_histogram *histogram, int64_t ns);

/* The ways bytes come, as labels: a fixed set, whatever a transport calls itself. */
enum refit_health_path {
    REFIT_HEALTH_PATH_TCP, REFIT_HEALTH_PATH_LOCAL, REFIT_HEALTH_PATH_FILE, REFIT_HEALTH_PATH_NCCL, REFIT_HEALTH_PATH_OTHER,
    REFIT_HEALTH_PATHS
};
const char *refit_health_path_name(enum refit_health_path path);

/* What refits that have ended add up to, over the life of the process. */
struct refit_health_totals {
    char seen[REFIT_REFIT_ID_MAX]; /* the last one counted */
    uint64_t bytes_needed, wire_bytes, copied_bytes;
    uint64_t payload_bytes[REFIT_HEALTH_PATHS], refits[REFIT_HEALTH_PATHS];
    struct refit_health_histogram phase[REFIT_PHASE_COUNT];
    struct refit_health_histogram duration[2]; /* committed, aborted */
    struct refit_health_histogram swap;
    uint64_t swaps_seen;
};
/* Adds a session that has ended, once. Call with every snapshot seen. */
void refit_health_observe(struct refit_health_totals *totals, const struct refit_session_snapshot *session);
/* Adds the last swap, once; of several between two looks the last one counts. */
void refit_health_observe_swap(struct refit_health_totals *totals, const struct refit_bank_snapshot *bank);

/* The last refits, newest first, for people who look. */
#define REFIT_HEALTH_HISTORY 20
struct refit_health_past {
    struct refit_session_snapshot session; /* as seen last */
    int64_t began_ms;                      /* wall clock, since the epoch */
};
struct refit_health_history {
    struct refit_health_past past[REFIT_HEALTH_HISTORY];
    uint32_t count;
};
/* Call with every snapshot seen. True when this refit is seen to have ended, once. */
bool refit_health_history_observe(struct refit_health_history *history, const struct refit_session_snapshot *session,
                                  int64_t now_ms);
/* The id of one that was replaced by `latest` and is not known to have ended: its snapshot is still to be taken. NULL:
 * none. Borrowed until the next call. */
const char *refit_health_history_unfinished(const struct refit_health_history *history, const char *latest);
void refit_health_history_forget(struct refit_health_history *history, const char *id);

/* Answers by class of status, one listener's. */
struct refit_health_http {
    unsigned connections;
    uint64_t answers[6]; /* [2]: 2xx */
    uint64_t refused;    /* connections closed at once, all others being answered */
    uint64_t handshakes_failed; /* of TLS */
};

/* The doors of the control listener and of the data port. */
struct refit_health_guard {
    int64_t control_not_after_s, data_not_after_s; /* of their certificates; 0: none */
    bool refused; /* certificate or access files as they are now were refused: older ones are in use */
    uint64_t unauthenticated, forbidden; /* requests turned away */
};

/* An engine that installs weights itself (drivers/driver.h). */
struct refit_health_engine {
    char kind[16];                /* "vllm" */
    bool whole, looked;
    struct refit_version version; /* installed last; 0: none */
    char found[128];              /* what the engine says it has */
    char reason[REFIT_ERROR_TEXT_MAX];
    uint64_t installs, failures, restores;
    int64_t write_ns, load_ns, paused_ns; /* of the last install */
};

/* What is fetched from siblings when a version was missed (sidecar/catch_up.h). */
enum refit_health_catch_up {
    REFIT_HEALTH_CAUGHT_UP, REFIT_HEALTH_CATCH_UP_SUPERSEDED, REFIT_HEALTH_CATCH_UP_FAILED, REFIT_HEALTH_CATCH_UPS
};
const char *refit_health_memory_name(const struct refit_bank_snapshot *bank); /* "host", "cuda" */
const char *refit_health_catch_up_name(enum refit_health_catch_up result); /* "caught-up", "superseded", "failed" */
struct refit_health_siblings {
    uint32_t known, heard; /* members, and those of them that have answered lately; without this replica */
    uint64_t newest;       /* version that one of them serves; 0: none */
    uint64_t disputed;     /* version that they serve with different digests; 0: none */
    uint64_t fetching;     /* version that is being fetched; 0: none */
    uint64_t results[REFIT_HEALTH_CATCH_UPS];
    char waiting[REFIT_ERROR_TEXT_MAX]; /* for what; empty: for nothing */
    bool part;                          /* of a replica that spans pods which know each other */
    char apart[256];                    /* why not all of it serves a version; empty: all does */
};

/* All that is known now; pointers are borrowed. */
struct refit_health_view {
    bool started; /* bound and reserved */
    bool draining;
    const char *failure;                            /* why it can't start; NULL: no failure */
    const struct refit_receiver_snapshot *receiver; /* NULL: not open yet */
    const struct refit_session_snapshot *session;   /* running or latest; NULL: none */
    const struct refit_health_engine *engine;       /* NULL: engines attach */
    const struct refit_health_siblings *siblings;   /* NULL: it has none */
    const struct refit_health_totals *totals;
    uint64_t ready_min_version;
    bool startup_needs_weights;
    int64_t loop_lag_ns; /* how late the event loop's tick was, the worst of the last minute */
    struct refit_health_http control, admin;
    struct refit_health_guard guard;
    uint64_t log_lines_lost;
    int64_t now_ms;       /* wall clock, since the epoch */
    const char *software; /* "0.1.0" */
};

struct refit_health_verdict {
    bool ok;
    uint64_t version; /* served now; 0: none */
    json_t *body;     /* new; NULL when out of memory. "checks" says what was looked at, passed or not. */
};
struct refit_health_verdict refit_health_live(const struct refit_health_view *view);
struct refit_health_verdict refit_health_started(const struct refit_health_view *view);
struct refit_health_verdict refit_health_ready(const struct refit_health_view *view);

/* docs/metrics.md, as Prometheus text 0.0.4 or OpenMetrics 1.0. False when the buffer's ceiling or memory forbids. */
bool refit_health_metrics(const struct refit_health_view *view, bool openmetrics, struct refit_buf *out);

/* The objects of docs/api.md; new, NULL when out of memory. */
json_t *refit_health_session_json(const struct refit_session_snapshot *session);
json_t *refit_health_weights_json(const struct refit_receiver_snapshot *receiver);
/* {"version": 9, "behind": 2, ...}: siblings serve a newer version than this replica, or it serves none; else JSON null. */
json_t *refit_health_stale_json(const struct refit_health_view *view);
json_t *refit_health_version_json(const struct refit_version *version);
json_t *refit_health_history_json(const struct refit_health_history *history);
/* GET /status: all that the page shows. */
json_t *refit_health_status_json(const struct refit_health_view *view, const struct refit_health_history *history);

/* What answers requests now; borrowed, NULL: nothing does. An engine that installs weights itself may have a version that no
 * slot holds: after a restart of refitd. */
const struct refit_version *refit_health_served(const struct refit_health_view *view);
uint64_t refit_health_served_version(const struct refit_health_view *view); /* 0: nothing */
bool refit_health_is_terminal(enum refit_phase phase);
bool refit_health_is_retryable(enum refit_status status); /* the same request may succeed later */

struct refit_health_process {
    uint64_t resident_bytes, virtual_bytes, threads;
    double cpu_seconds;
    uint64_t open_fds, max_fds;
    double start_time_seconds; /* since the epoch */
};
/* Of this process; zeros where /proc does not tell. */
void refit_health_read_process(struct refit_health_process *out);

#endif
