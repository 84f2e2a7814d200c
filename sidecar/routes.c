/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/document.h"

#define SMALL (64u << 10)
#define FLEET_BYTES (4u << 20) /* a refit names members with their cards, and tensors that are unchanged */
#define SOURCE_BYTES (64u << 20)
#define COPIES 3 /* of a document that a handler has at once: what is kept of it, what is digested */
#define REQUEST_MS 30000
#define SOURCE_MS 60000

const struct refit_route refit_control_table[] = {
    {"POST", "/v1/lead", REFIT_ROUTE_PROMPT, refit_handle_lead, SMALL, REQUEST_MS, false},
    {"POST", "/v1/resign", REFIT_ROUTE_PROMPT, refit_handle_resign, SMALL, REQUEST_MS, false},
    {"PUT", "/v1/sources/{}", REFIT_ROUTE_WORKER, refit_handle_put_source, SOURCE_BYTES, SOURCE_MS, true},
    {"GET", "/v1/layout", REFIT_ROUTE_WORKER, refit_handle_layout, 0, REQUEST_MS, false},
    {"GET", "/v1/host", REFIT_ROUTE_LOOP, refit_handle_host, 0, REQUEST_MS, false},
    {"POST", "/v1/plan", REFIT_ROUTE_WORKER, refit_handle_plan, SMALL, REQUEST_MS, false},
    {"POST", "/refit", REFIT_ROUTE_WORKER, refit_handle_begin, FLEET_BYTES, REQUEST_MS, false},
    {"GET", "/refit", REFIT_ROUTE_LOOP, refit_handle_latest, 0, REQUEST_MS, false},
    {"GET", "/refit/{}", REFIT_ROUTE_WATCH, NULL, 0, REQUEST_MS, false},
    {"GET", "/refit/{}/holders", REFIT_ROUTE_LOOP, refit_handle_holders, 0, REQUEST_MS, false},
    {"GET", "/refit/{}/events", REFIT_ROUTE_EVENTS, NULL, 0, REQUEST_MS, false},
    {"POST", "/refit/{}/commit", REFIT_ROUTE_PROMPT, refit_handle_commit, SMALL, REQUEST_MS, false},
    {"POST", "/refit/{}/abort", REFIT_ROUTE_PROMPT, refit_handle_abort, SMALL, REQUEST_MS, false},
    {"POST", "/v1/serve", REFIT_ROUTE_WORKER, refit_handle_serve, SMALL, REQUEST_MS, false},
    {"GET", "/v1/serve", REFIT_ROUTE_LOOP, refit_handle_serves, 0, REQUEST_MS, false},
    {"POST", "/v1/serve/{}/end", REFIT_ROUTE_WORKER, refit_handle_serve_end, SMALL, REQUEST_MS, false},
    {"GET", "/v1/weights", REFIT_ROUTE_LOOP, refit_handle_weights, 0, REQUEST_MS, false},
    {"GET", "/v1/digests/{}", REFIT_ROUTE_WORKER, refit_handle_digests, 0, REQUEST_MS, false},
    {"POST", "/rollback", REFIT_ROUTE_WORKER, refit_handle_rollback, SMALL, REQUEST_MS, false},
    {"POST", "/v1/hold", REFIT_ROUTE_WORKER, refit_handle_hold, SMALL, REQUEST_MS, false},
    {"POST", "/v1/release", REFIT_ROUTE_WORKER, refit_handle_release, SMALL, REQUEST_MS, false},
    {"POST", "/v1/quarantine", REFIT_ROUTE_WORKER, refit_handle_quarantine, SMALL, REQUEST_MS, false},
    {"GET", "/", REFIT_ROUTE_LOOP, refit_handle_page, 0, REQUEST_MS, false},
    {"GET", "/status", REFIT_ROUTE_LOOP, refit_handle_status, 0, REQUEST_MS, false},
    {"GET", "/traffic", REFIT_ROUTE_WORKER, refit_handle_traffic, 0, REQUEST_MS, false},
};
const size_t refit_control_table_len = sizeof refit_control_table / sizeof *refit_control_table;

const struct refit_route refit_admin_table[] = {
    {"GET", "/livez", REFIT_ROUTE_LOOP, refit_handle_livez, 0, REQUEST_MS, false},
    {"GET", "/readyz", REFIT_ROUTE_LOOP, refit_handle_readyz, 0, REQUEST_MS, false},
    {"GET", "/startupz", REFIT_ROUTE_LOOP, refit_handle_startupz, 0, REQUEST_MS, false},
    {"GET", "/metrics", REFIT_ROUTE_LOOP, refit_handle_metrics, 0, REQUEST_MS, false},
    {"POST", "/drain", REFIT_ROUTE_LOOP, refit_handle_drain, 0, REQUEST_MS, false},
    {"GET", "/", REFIT_ROUTE_LOOP, refit_handle_page, 0, REQUEST_MS, false},
    {"GET", "/status", REFIT_ROUTE_LOOP, refit_handle_status, 0, REQUEST_MS, false},
    {"GET", "/traffic", REFIT_ROUTE_WORKER, refit_handle_traffic, 0, REQUEST_MS, false},
    {"GET", "/refit/{}/holders", REFIT_ROUTE_WORKER, refit_handle_holders, 0, REQUEST_MS, false},
};
const size_t refit_admin_table_len = sizeof refit_admin_table / sizeof *refit_admin_table;

struct refit_routes {
    struct refit_sidecar *sidecar;
    const struct refit_route *table;
    size_t len;
    bool admin;
    uint64_t answers[6]; /* by class of status */
};

/* A request on its way through a worker. */
struct work {
    struct refit_job job;
    struct refit_sidecar *sidecar;
    struct refit_exchange *exchange;
    const struct refit_route *route;
    struct refit_call call;
    struct refit_reply reply;
};

/* --- finding ---------------------------------------------------------------------------------------------------- */

/* "{}" stands for one non-empty segment. */
static bool path_matches(const char *pattern, const char *path, char param[static 128])
{
    const char *mark = strstr(pattern, "{}");
    if (!mark)
        return strcmp(pattern, path) == 0;
    size_t before = (size_t)(mark - pattern);
    if (strncmp(pattern, path, before) != 0)
        return false;
    size_t len = strcspn(path + before, "/");
    if (len == 0 || len >= 128 || strcmp(mark + 2, path + before + len) != 0)
        return false;
    memcpy(param, path + before, len);
    param[len] = '\0';
    return true;
}

/* NULL with *status 404 or 405, and then the methods there are in `allow`. */
static const struct refit_route *find_route(const struct refit_routes *routes, const struct refit_http_head *head,
                                            char param[static 128], int *status, char allow[static 64])
{
    const char *wanted = strcmp(head->method, "HEAD") == 0 ? "GET" : head->method;
    size_t used = 0;
    *status = 404;
    allow[0] = '\0';
    for (size_t i = 0; i < routes->len; i++) {
        const struct refit_route *route = &routes->table[i];
        if (!path_matches(route->path, head->path, param))
            continue;
        if (strcmp(route->method, wanted) == 0)
            return route;
        *status = 405;
        used += (size_t)snprintf(allow + used, 64 - used, "%s%s%s", used ? ", " : "", route->method,
                                 strcmp(route->method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}

static void on_head(void *context, struct refit_exchange *exchange, struct refit_http_limits *limits,
                    struct refit_reply *reply)
{
    struct refit_routes *routes = context;
    const struct refit_http_head *head = &exchange->head;
    char param[128], allow[64];
    int status;
    const struct refit_route *route = find_route(routes, head, param, &status, allow);
    if (!routes->admin && !refit_guard_admits(routes->sidecar->guard, exchange, route ? route->method : NULL,
                                              route ? route->path : NULL, reply))
        return;
    if (!route && status == 404) {
        refit_reply_problem(reply, 404, "no-such-path", "%.200s: no such path here", head->path);
    } else if (!route) {
        refit_reply_header(reply, "Allow", "%s", allow);
        refit_reply_problem(reply, 405, "method-not-allowed", "%s %.200s: allowed are %s", head->method, head->path,
                            allow);
    } else if (head->cross_site && strcmp(route->method, "GET") != 0) {
        /* A web page must not reach a loopback API through its reader's browser. */
        refit_reply_problem(reply, 403, "cross-site", "requests with an Origin header may only read");
    } else {
        *limits = (struct refit_http_limits){route->body_bytes, route->deadline_ms};
    }
}

/* --- running ---------------------------------------------------------------------------------------------------- */

enum refit_status refit_call_text(const struct refit_call *call, const char *key, const char *what, char *out,
                                  size_t size, struct refit_error *err)
{
    const char *text = NULL;
    enum refit_status status = refit_json_opt_string(call->json, key, what, &text, err);
    if (status || !text)
        return status;
    if (strlen(text) >= size)
        return refit_fail(err, REFIT_INVALID, "%s: \"%s\" must have at most %zu bytes, found %zu", what, key, size - 1,
                          strlen(text));
    memcpy(out, text, strlen(text) + 1);
    return REFIT_OK;
}

static void run_parsed(const struct refit_route *route, struct refit_call *call, struct refit_reply *reply)
{
    struct refit_error err;
    json_t *json = NULL;
    uint64_t room = 0;
    enum refit_status status = REFIT_OK;
    if (!route->raw) {
        status = refit_document_enter(call->body, call->body_len, COPIES, "request body", &room, &err);
        /* Nothing at all counts as {}: every member of some requests may be left out. */
        if (status == REFIT_OK && call->body_len)
            status = refit_json_parse(call->body, call->body_len, "request body", &json, &err);
        else if (status == REFIT_OK)
            json = json_object();
        if (status == REFIT_OK && !json_is_object(json))
            status = refit_fail(&err, REFIT_INVALID, "request body: must be a JSON object");
        call->json = json;
    }
    if (status == REFIT_OK)
        route->handler(call, reply);
    else
        refit_reply_error(reply, &err, NULL, 0);
    json_decref(json);
    refit_document_leave(room);
}

static void run_work(struct refit_job *job)
{
    struct work *work = (struct work *)job;
    run_parsed(work->route, &work->call, &work->reply);
}

static void finish_work(struct refit_job *job)
{
    struct work *work = (struct work *)job;
    struct refit_sidecar *sidecar = work->sidecar;
    if (work->reply.status >= 400 && strcmp(work->route->method, "GET") != 0)
        refit_audit_as("refused", work->exchange->by, work->exchange->head.path,
                       refit_log_i64("http_status", work->reply.status));
    refit_exchange_reply(work->exchange, &work->reply);
    free(work);
    refit_sidecar_landed(sidecar);
}

static void submit(struct refit_sidecar *sidecar, const struct refit_route *route, const struct refit_call *call,
                   struct refit_exchange *exchange)
{
    struct work *work = calloc(1, sizeof *work);
    struct refit_reply reply;
    if (!work) {
        refit_reply_init(&reply);
        refit_reply_problem(&reply, 507, "no-memory", "no memory for this request");
        refit_exchange_reply(exchange, &reply);
        return;
    }
    work->job = (struct refit_job){.run = run_work, .done = finish_work};
    work->sidecar = sidecar;
    work->exchange = exchange;
    work->route = route;
    work->call = *call;
    work->call.sidecar = NULL;
    refit_reply_init(&work->reply);
    sidecar->in_flight++;
    refit_workers_submit(route->kind == REFIT_ROUTE_PROMPT ? sidecar->prompt : sidecar->workers, &work->job);
}

static void answer_unavailable(struct refit_exchange *exchange, const struct refit_sidecar *sidecar)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    if (sidecar->draining || (sidecar->drain_asked && sidecar->receiver))
        refit_reply_problem(&reply, 503, "draining", "refitd is shutting down");
    else
        refit_reply_problem(&reply, 503, "starting", "refitd is reserving its capacity; retry");
    refit_exchange_reply(exchange, &reply);
}

static void on_request(void *context, struct refit_exchange *exchange)
{
    struct refit_routes *routes = context;
    struct refit_sidecar *sidecar = routes->sidecar;
    struct refit_call call = {.sidecar = sidecar,
                              .receiver = sidecar->receiver,
                              .traffic = &sidecar->traffic,
                              .head = &exchange->head,
                              .client = routes->admin ? exchange->client : exchange->by,
                              .role = (enum refit_access_role)exchange->role,
                              .body = exchange->body,
                              .body_len = exchange->body_len};
    char allow[64];
    int status;
    const struct refit_route *route = find_route(routes, &exchange->head, call.param, &status, allow);
    bool needs_receiver = !routes->admin || route->kind == REFIT_ROUTE_WORKER;
    if (needs_receiver && (!sidecar->receiver || sidecar->draining || refit_drain_refuses(sidecar, route))) {
        answer_unavailable(exchange, sidecar);
    } else if (route->kind == REFIT_ROUTE_WORKER || route->kind == REFIT_ROUTE_PROMPT) {
        submit(sidecar, route, &call, exchange);
    } else if (route->kind == REFIT_ROUTE_LOOP) {
        struct refit_reply reply;
        refit_reply_init(&reply);
        route->handler(&call, &reply);
        refit_exchange_reply(exchange, &reply);
    } else {
        refit_watch_begin(sidecar, exchange, call.param, route->kind == REFIT_ROUTE_EVENTS);
    }
}

static void on_reply(void *context, struct refit_reply *reply)
{
    struct refit_routes *routes = context;
    routes->answers[reply->status / 100 % 6]++;
    if (routes->sidecar->receiver)
        refit_reply_header(reply, "Refit-Instance", "%s", refit_receiver_instance(routes->sidecar->receiver));
}

enum refit_status refit_routes_create(struct refit_sidecar *sidecar, const struct refit_route *table, size_t len,
                                      bool admin, struct refit_httpd_config *config, struct refit_routes **out,
                                      struct refit_error *err)
{
    struct refit_routes *routes = calloc(1, sizeof *routes);
    if (!routes)
        return refit_fail_alloc(err, "routes", sizeof *routes);
    *routes = (struct refit_routes){.sidecar = sidecar, .table = table, .len = len, .admin = admin};
    config->on_head = on_head;
    config->on_request = on_request;
    config->on_reply = on_reply;
    config->context = routes;
    *out = routes;
    return REFIT_OK;
}

void refit_routes_destroy(struct refit_routes *routes)
{
    free(routes);
}

const uint64_t *refit_routes_answers(const struct refit_routes *routes)
{
    return routes->answers;
}
