/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait: GET /refit/{id}?after=&wait_ms= and GET /refit/{id}/events. Both are watchers: they are served
 * again whenever the receiver says that something changed. A client that is slow to read misses steps, never the end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sidecar/routes.h"

#define WAIT_MS_MAX 30000
#define HEARTBEAT_NS 10000000000ll

struct refit_watcher {
    struct refit_watcher *previous, *next;
    struct refit_sidecar *sidecar;
    struct refit_exchange *exchange;
    char id[128];
    bool events;
    bool sent;           /* events: something was sent */
    uint64_t sequence;   /* what the client has */
    struct event *timer; /* long poll: its end */
    int64_t written_ns;  /* events: last byte */
};

static void unlink_watcher(struct refit_watcher *w)
{
    if (w->previous)
        w->previous->next = w->next;
    else
        w->sidecar->watchers = w->next;
    if (w->next)
        w->next->previous = w->previous;
    if (w->timer)
        event_free(w->timer);
    free(w);
}

static void on_gone(struct refit_exchange *exchange)
{
    unlink_watcher(exchange->user);
}

static void answer_and_forget(struct refit_watcher *w, struct refit_reply *reply)
{
    struct refit_exchange *exchange = w->exchange;
    unlink_watcher(w);
    exchange->on_gone = NULL;
    refit_exchange_reply(exchange, reply);
}

static void answer_state(struct refit_watcher *w, const struct refit_session_snapshot *session)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    refit_reply_json(&reply, 200, refit_health_session_json(session));
    answer_and_forget(w, &reply);
}

static void answer_error(struct refit_watcher *w, const struct refit_error *err)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    refit_reply_error(&reply, err, NULL, 0);
    answer_and_forget(w, &reply);
}

static bool write_event(struct refit_watcher *w, const struct refit_session_snapshot *session)
{
    char event[8192];
    json_t *state = refit_health_session_json(session);
    char *text = state ? refit_json_canonical(state, NULL) : NULL;
    int len = text ? snprintf(event, sizeof event, "id: %" PRIu64 "\nevent: state\ndata: %s\n\n", session->sequence,
                              text)
                   : -1;
    free(text);
    json_decref(state);
    if (len < 0 || len >= (int)sizeof event || !refit_exchange_write(w->exchange, event, (size_t)len))
        return false;
    w->sent = true;
    w->sequence = session->sequence;
    w->written_ns = refit_clock_ns();
    return true;
}

static void end_events(struct refit_watcher *w)
{
    struct refit_exchange *exchange = w->exchange;
    unlink_watcher(w);
    exchange->on_gone = NULL;
    refit_exchange_end(exchange);
}

static void serve_events(struct refit_watcher *w, const struct refit_session_snapshot *session)
{
    bool news = session->sequence != w->sequence;
    if (news && !write_event(w, session))
        return; /* the client is slow: the next change, or the heartbeat, tries again */
    if (refit_health_is_terminal(session->phase))
        end_events(w);
}

static void serve(struct refit_watcher *w, bool time_is_over)
{
    struct refit_session_snapshot session;
    struct refit_error err;
    enum refit_status status = w->sidecar->receiver
                                   ? refit_receiver_session(w->sidecar->receiver, w->id, &session, &err)
                                   : refit_fail(&err, REFIT_ABORTED, "refitd is shutting down");
    if (w->events) {
        if (status)
            end_events(w);
        else
            serve_events(w, &session);
        return;
    }
    if (status)
        answer_error(w, &err);
    else if (time_is_over || session.sequence != w->sequence || refit_health_is_terminal(session.phase))
        answer_state(w, &session);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    serve(context, true);
}

void refit_watch_serve(struct refit_sidecar *sidecar)
{
    struct refit_watcher *next;
    for (struct refit_watcher *w = sidecar->watchers; w; w = next) {
        next = w->next;
        serve(w, false);
    }
}

void refit_watch_heartbeat(struct refit_sidecar *sidecar)
{
    struct refit_watcher *next;
    int64_t now = refit_clock_ns();
    for (struct refit_watcher *w = sidecar->watchers; w; w = next) {
        next = w->next;
        if (!w->events)
            continue;
        if (now - w->written_ns >= HEARTBEAT_NS && refit_exchange_write(w->exchange, ": still here\n\n", 14))
            w->written_ns = now;
        serve(w, false);
    }
}

static struct refit_watcher *create(struct refit_sidecar *sidecar, struct refit_exchange *exchange, const char *id,
                                    bool events)
{
    struct refit_watcher *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->sidecar = sidecar;
    w->exchange = exchange;
    w->events = events;
    w->written_ns = refit_clock_ns();
    snprintf(w->id, sizeof w->id, "%s", id);
    w->next = sidecar->watchers;
    if (w->next)
        w->next->previous = w;
    sidecar->watchers = w;
    exchange->user = w;
    exchange->on_gone = on_gone;
    return w;
}

/* The refit must exist now, and a poll's parameters must be numbers; `reply` is answered otherwise. */
static bool check(struct refit_sidecar *sidecar, const struct refit_exchange *exchange, const char *id, uint64_t *after,
                  uint64_t *wait_ms, struct refit_session_snapshot *session, struct refit_reply *reply)
{
    struct refit_error err;
    enum refit_status status = refit_receiver_session(sidecar->receiver, id, session, &err);
    if (status == REFIT_OK && !refit_http_query_u64(exchange->head.query, "after", UINT64_MAX, after))
        status = refit_fail(&err, REFIT_INVALID, "after: expected a whole number, the sequence last seen");
    if (status == REFIT_OK && !refit_http_query_u64(exchange->head.query, "wait_ms", WAIT_MS_MAX, wait_ms))
        status = refit_fail(&err, REFIT_INVALID, "wait_ms: expected a whole number from 0 to %d", WAIT_MS_MAX);
    if (status)
        refit_reply_error(reply, &err, NULL, 0);
    return status == REFIT_OK;
}

static void begin_events(struct refit_watcher *w, const struct refit_session_snapshot *session)
{
    w->sequence = w->exchange->head.last_event_id;
    refit_exchange_stream(w->exchange, "text/event-stream");
    serve_events(w, session);
}

static void begin_poll(struct refit_watcher *w, const struct refit_session_snapshot *session, uint64_t after,
                       uint64_t wait_ms)
{
    struct timeval tv = {.tv_sec = (time_t)(wait_ms / 1000), .tv_usec = (suseconds_t)(wait_ms % 1000 * 1000)};
    w->sequence = after;
    if (wait_ms == 0 || session->sequence != after || refit_health_is_terminal(session->phase)) {
        answer_state(w, session);
        return;
    }
    w->timer = evtimer_new(w->sidecar->base, on_timer, w);
    if (!w->timer || evtimer_add(w->timer, &tv) != 0)
        answer_state(w, session);
}

void refit_watch_begin(struct refit_sidecar *sidecar, struct refit_exchange *exchange, const char *id, bool events)
{
    struct refit_session_snapshot session;
    struct refit_reply reply;
    uint64_t after = 0, wait_ms = 0;
    refit_reply_init(&reply);
    struct refit_watcher *w = NULL;
    if (!check(sidecar, exchange, id, &after, &wait_ms, &session, &reply)) {
        refit_exchange_reply(exchange, &reply);
    } else if (events && refit_health_is_terminal(session.phase) && exchange->head.last_event_id == session.sequence) {
        reply.status = 204; /* tells an EventSource that there is nothing more */
        refit_exchange_reply(exchange, &reply);
    } else if (events && strcmp(exchange->head.method, "HEAD") == 0) {
        refit_reply_bytes(&reply, 200, "text/event-stream", "", 0);
        refit_exchange_reply(exchange, &reply);
    } else if (!(w = create(sidecar, exchange, id, events))) {
        refit_reply_problem(&reply, 507, "no-memory", "no memory for this request");
        refit_exchange_reply(exchange, &reply);
    } else if (events) {
        begin_events(w, &session);
    } else {
        begin_poll(w, &session, after, wait_ms);
    }
}
