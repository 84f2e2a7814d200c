/* SPDX-License-Identifier: Apache-2.0
 *
 * Which handler answers which request. One table per listener says method, path, limits and how the handler runs.
 */
#ifndef REFIT_SIDECAR_ROUTES_H
#define REFIT_SIDECAR_ROUTES_H

#include "sidecar/access.h"
#include "sidecar/sidecar.h"

/* One request as a handler sees it. Borrowed for the call. */
struct refit_call {
    struct refit_sidecar *sidecar;   /* on the loop's thread only; NULL on a worker */
    struct refit_receiver *receiver; /* never NULL, but for admin routes */
    char param[128];                 /* what stood for {} in the path */
    const struct refit_http_head *head;
    const char *client;
    enum refit_access_role role; /* of who asks; on the control listener */
    struct refit_traffic *traffic; /* any thread */
    const json_t *json; /* the body of a JSON route: an object */
    const uint8_t *body;
    size_t body_len;
};
typedef void (*refit_handler)(const struct refit_call *call, struct refit_reply *reply);

enum refit_route_kind {
    REFIT_ROUTE_LOOP,   /* answers at once, on the loop */
    REFIT_ROUTE_WORKER, /* may block, and for long: a rollback waits for readers, a checkpoint's file system may hang */
    REFIT_ROUTE_PROMPT, /* may block, shortly: on workers of its own, so that the ones above don't hold it up */
    REFIT_ROUTE_WATCH,  /* waits for a refit to change (?after=&wait_ms=) */
    REFIT_ROUTE_EVENTS, /* server-sent events of a refit */
};

struct refit_route {
    const char *method;
    const char *path; /* "/refit/{}/commit" */
    enum refit_route_kind kind;
    refit_handler handler; /* LOOP and WORKER */
    uint64_t body_bytes;
    int64_t deadline_ms;
    bool raw; /* the body is not parsed here */
};

extern const struct refit_route refit_control_table[], refit_admin_table[];
extern const size_t refit_control_table_len, refit_admin_table_len;

/* Sets the callbacks of a listener that serves `table`. *out is new and lives as long as the listener. */
REFIT_MUST_CHECK enum refit_status refit_routes_create(struct refit_sidecar *sidecar, const struct refit_route *table,
                                                       size_t len, bool admin, struct refit_httpd_config *config,
                                                       struct refit_routes **out, struct refit_error *err);
void refit_routes_destroy(struct refit_routes *routes);
/* Answers sent so far by class of status: [2] counts 2xx. */
const uint64_t *refit_routes_answers(const struct refit_routes *routes);

/* events.c: requests that wait for a refit to change. */
void refit_watch_begin(struct refit_sidecar *sidecar, struct refit_exchange *exchange, const char *id, bool events);
void refit_watch_serve(struct refit_sidecar *sidecar);     /* something changed */
void refit_watch_heartbeat(struct refit_sidecar *sidecar); /* about once a second */

/* Handlers, by noun. */
void refit_handle_lead(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_resign(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_put_source(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_layout(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_host(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_plan(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_begin(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_holders(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_serve(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_serves(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_serve_end(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_latest(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_commit(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_abort(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_weights(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_digests(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_rollback(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_hold(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_release(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_quarantine(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_livez(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_readyz(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_startupz(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_page(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_status(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_traffic(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_metrics(const struct refit_call *call, struct refit_reply *reply);
void refit_handle_drain(const struct refit_call *call, struct refit_reply *reply);
/* Whether a route that begins something is closed since /drain was asked for. */
bool refit_drain_refuses(const struct refit_sidecar *sidecar, const struct refit_route *route);

/* Text of a JSON member into a fixed array; REFIT_INVALID when it is too long. */
REFIT_MUST_CHECK enum refit_status refit_call_text(const struct refit_call *call, const char *key, const char *what,
                                                   char *out, size_t size, struct refit_error *err);

#endif
