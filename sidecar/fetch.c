/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "receiver/fleet.h"
#include "sidecar/audit.h"

#define SOURCES_MAX 2
#define CANDIDATES_MAX 16
#define LOOK_MS 200        /* at a refit that runs, beside being told that it changed */
#define STALL_NS 10000000000ll /* without a byte: others are asked */

struct try {
    struct refit_layout *own;
    char publish_id[REFIT_PUBLISH_ID_MAX];
    char token[2 * REFIT_TOKEN_BYTES + 1];
    struct refit_deadline deadline;
    struct refit_ticket ticket;
    struct refit_sibling *candidate[CANDIDATES_MAX];
    size_t candidates;
    struct refit_sibling *source[SOURCES_MAX];
    char serve[SOURCES_MAX][REFIT_REFIT_ID_MAX]; /* what they call it */
    size_t sources, asked;
    uint32_t source_ranks;
    uint64_t landed; /* bytes, when it was looked at last */
    int64_t landed_ns;
};

static enum refit_status open_control(const struct refit_fetch *fetch, const struct refit_sibling *sibling,
                                      struct refit_control *out, struct refit_error *err)
{
    enum refit_status status = refit_control_init(out, sibling->url, err);
    out->credentials = fetch->credentials;
    return status;
}

static void make_names(const struct refit_fetch *fetch, struct try *try)
{
    uint8_t token[REFIT_TOKEN_BYTES];
    uint64_t random;
    refit_io_random(&random, sizeof random);
    refit_io_random(token, sizeof token);
    snprintf(try->publish_id, sizeof try->publish_id, "catch-up-%" PRIu64 "-%016" PRIx64, fetch->version.version, random);
    for (size_t i = 0; i < sizeof token; i++)
        snprintf(try->token + 2 * i, 3, "%02x", token[i]);
}

/* The layout that the bytes come in, known to the receiver from now on. */
static enum refit_status take_source(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    struct refit_control control;
    struct refit_layout *layout = NULL;
    size_t len;
    enum refit_status status = REFIT_OK;
    if (strcmp(refit_layout_digest(try->own), try->candidate[0]->layout) == 0)
        layout = refit_layout_retain(try->own);
    else
        status = open_control(fetch, try->candidate[0], &control, err);
    if (status == REFIT_OK && !layout)
        status = refit_control_layout(&control, refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), &layout, err);
    if (status != REFIT_OK)
        return status;
    const char *text = refit_layout_text(layout, &len);
    try->source_ranks = refit_layout_ranks(layout);
    if (strcmp(refit_layout_digest(layout), try->candidate[0]->layout) == 0)
        status = refit_receiver_put_source(fetch->receiver, refit_layout_digest(layout), text, len, err);
    else
        status = refit_fail(err, REFIT_STALE, "%s serves another layout than a moment ago", try->candidate[0]->url);
    refit_layout_release(layout);
    return status;
}

static enum refit_status begin(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    struct refit_request request = {.version = fetch->version.version, .commit = REFIT_COMMIT_AUTO, .kv = "flush",
                                    .transport = "tcp", .catch_up = true};
    json_t *fleet = json_pack("{s:s, s:s, s:i, s:i, s:[{s:s, s:s}]}", "id", try->publish_id, "token", try->token, "self", 0,
                              "sources", SOURCES_MAX, "members", "name", "this replica", "domain",
                              fetch->domain[0] ? fetch->domain : "unknown");
    snprintf(request.label, sizeof request.label, "%s", fetch->version.label);
    snprintf(request.digest, sizeof request.digest, "%s", fetch->version.digest);
    snprintf(request.publish_id, sizeof request.publish_id, "%s", try->publish_id);
    snprintf(request.resume, sizeof request.resume, "%s", fetch->resume);
    snprintf(request.source, sizeof request.source, "%s", try->candidate[0]->layout);
    refit_sha256_hex(try->publish_id, strlen(try->publish_id), request.body_digest);
    request.deadline_ms = refit_deadline_left_ms(try->deadline);
    enum refit_status status = fleet ? refit_fleet_from_json(fleet, &request.fleet, err)
                                     : refit_fail_alloc(err, "a request", sizeof request);
    if (status == REFIT_OK)
        status = refit_receiver_begin(fetch->receiver, &request, &try->ticket, err);
    if (status == REFIT_OK) {
        refit_traffic_note(fetch->traffic, try->ticket.id, &request);
        refit_audit("--siblings", "begin", refit_log_text("refit", try->ticket.id),
                    refit_log_u64("version", request.version), refit_log_text("label", request.label),
                    refit_log_text("digest", request.digest), refit_log_text("from", try->candidate[0]->url));
    }
    refit_fleet_release(request.fleet);
    json_decref(fleet);
    return status;
}

static json_t *order_for(const struct refit_fetch *fetch, const struct try *try)
{
    return json_pack("{s:o, s:s, s:s, s:I, s:s, s:O, s:s, s:I}", "version", refit_json_u64(fetch->version.version), "refit",
                     try->publish_id, "token", try->token, "holder", (json_int_t)(try->source_ranks + 1 + try->sources),
                     "transport", "tcp", "card", try->ticket.card, "layout", refit_layout_digest(try->own), "deadline_ms",
                     (json_int_t)refit_deadline_left_ms(try->deadline));
}

static enum refit_status post_order(struct refit_control *control, const json_t *order, char id[static REFIT_REFIT_ID_MAX],
                                    struct refit_error *err)
{
    json_t *answer = NULL;
    const char *name = "";
    enum refit_status status = refit_control_call(control, REFIT_HTTP_POST, "/v1/serve", order,
                                                  refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), &answer, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(answer, "id", "serve", &name, err);
    snprintf(id, REFIT_REFIT_ID_MAX, "%s", name);
    json_decref(answer);
    return status;
}

/* One that does not know our layout says so, and is given it. */
static enum refit_status ask_to_serve(const struct refit_fetch *fetch, struct try *try,
                                      const struct refit_sibling *sibling, struct refit_error *err)
{
    struct refit_control control;
    size_t len;
    char *id = try->serve[try->sources];
    const char *digest = refit_layout_digest(try->own), *text = refit_layout_text(try->own, &len);
    json_t *order = order_for(fetch, try);
    if (!order)
        return refit_fail_alloc(err, "an order", 0);
    enum refit_status status = open_control(fetch, sibling, &control, err);
    if (status == REFIT_OK)
        status = post_order(&control, order, id, err);
    if (status == REFIT_NOT_FOUND && strstr(err->text, digest)) {
        status = refit_control_put_source(&control, digest, text, len, refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), err);
        if (status == REFIT_OK)
            status = post_order(&control, order, id, err);
    }
    json_decref(order);
    return status;
}

/* It would go on dialling otherwise, if it has not been heard of yet, and keep the version for it. */
static void end_serving(const struct refit_fetch *fetch, const struct try *try)
{
    struct refit_control control;
    struct refit_error ignored;
    char path[REFIT_REFIT_ID_MAX + 32];
    for (size_t i = 0; i < try->sources; i++) {
        snprintf(path, sizeof path, "/v1/serve/%s/end", try->serve[i]);
        if (open_control(fetch, try->source[i], &control, &ignored) == REFIT_OK)
            (void)!refit_control_call(&control, REFIT_HTTP_POST, path, NULL, refit_deadline_in_ms(REFIT_FETCH_CALL_MS), NULL,
                                      &ignored); /* it ends by itself, too, if later */
    }
}

static bool is_near(const struct refit_fetch *fetch, const struct refit_sibling *sibling)
{
    return fetch->domain[0] && strcmp(sibling->domain, fetch->domain) == 0;
}

/* As many as there is room for, one after the other; whoever does not want to is passed over. With one in this domain, those
 * elsewhere are left alone. */
static enum refit_status find_sources(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (try->asked < try->candidates && try->sources < SOURCES_MAX && fetch->go_on(fetch->context)) {
        struct refit_sibling *sibling = try->candidate[try->asked++];
        if (try->sources > 0 && is_near(fetch, try->source[0]) && !is_near(fetch, sibling))
            break;
        status = ask_to_serve(fetch, try, sibling, err);
        if (status == REFIT_OK) {
            try->source[try->sources++] = sibling;
            continue;
        }
        refit_sibling_failed(sibling, refit_clock_ns());
        refit_log_event(REFIT_LOG_INFO, "sibling does not serve what is missing here", refit_log_text("refit", try->ticket.id),
                        refit_log_u64("version", fetch->version.version), refit_log_text("sibling", sibling->url),
                        REFIT_LOG_CAUSE(err));
    }
    if (try->sources > 0)
        return REFIT_OK;
    return status != REFIT_OK ? status : refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
}

/* REFIT_PEER: nothing has come for too long. Whoever was asked is to blame: the receiver has passed by those of them that fail
 * one by one. */
static enum refit_status watch_progress(struct try *try, const struct refit_session_snapshot *now, struct refit_error *err)
{
    int64_t now_ns = refit_clock_ns();
    if (now->phase != REFIT_PHASE_TRANSFER || now->bytes_done != try->landed || try->landed_ns == 0) {
        try->landed = now->bytes_done;
        try->landed_ns = now_ns;
    }
    if (now_ns - try->landed_ns < STALL_NS)
        return REFIT_OK;
    return refit_fail(err, REFIT_PEER, "nothing came from %s%s for %lld s", try->source[0]->url,
                      try->sources > 1 ? " and others" : "", STALL_NS / 1000000000);
}

static enum refit_status await(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    struct refit_session_snapshot now, latest;
    for (;;) {
        enum refit_status status = refit_receiver_session(fetch->receiver, try->ticket.id, &now, err);
        if (status == REFIT_OK && now.phase == REFIT_PHASE_COMMITTED)
            return REFIT_OK;
        if (status == REFIT_OK && now.phase == REFIT_PHASE_ABORTED)
            break;
        if (status == REFIT_OK && !fetch->go_on(fetch->context))
            status = refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
        if (status == REFIT_OK)
            status = watch_progress(try, &now, err);
        if (status != REFIT_OK)
            return status;
        fetch->rest(fetch->context, LOOK_MS);
    }
    fetch->superseded = refit_receiver_session(fetch->receiver, NULL, &latest, NULL) == REFIT_OK &&
                        strcmp(latest.id, now.id) != 0;
    *err = now.error;
    return err->status;
}

/* Those who were asked and did not deliver are not the first to be asked again. */
static void blame(struct try *try, enum refit_status status)
{
    if (status != REFIT_PEER && status != REFIT_CORRUPT && status != REFIT_TIMEOUT)
        return;
    for (size_t i = 0; i < try->sources; i++)
        refit_sibling_failed(try->source[i], refit_clock_ns());
}

/* What has landed may be of use to the next try, unless it is wrong. */
static void leave(struct refit_fetch *fetch, const struct try *try, enum refit_status status, const struct refit_error *err)
{
    struct refit_error ignored;
    if (status != REFIT_OK)
        (void)!refit_receiver_abort(fetch->receiver, try->ticket.id, err->text, &ignored); /* it may have ended by itself */
    memcpy(fetch->resume, try->ticket.id, sizeof fetch->resume);
    if (status == REFIT_OK || status == REFIT_CORRUPT)
        fetch->resume[0] = '\0';
}

static enum refit_status run_begun(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    fetch->begun(fetch->context, try->candidate[0]->url);
    enum refit_status status = find_sources(fetch, try, err);
    if (status == REFIT_OK) {
        fetch->sources = try->sources;
        memcpy(fetch->source, try->source[0]->url, sizeof fetch->source);
        status = await(fetch, try, err);
    }
    blame(try, status);
    end_serving(fetch, try);
    leave(fetch, try, status, err);
    json_decref(try->ticket.card);
    return status;
}

static enum refit_status run(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    enum refit_status status = take_source(fetch, try, err);
    if (status != REFIT_OK) {
        refit_sibling_failed(try->candidate[0], refit_clock_ns());
        return status;
    }
    make_names(fetch, try);
    status = begin(fetch, try, err);
    return status == REFIT_OK ? run_begun(fetch, try, err) : status;
}

enum refit_status refit_fetch_run(struct refit_fetch *fetch, struct refit_error *err)
{
    struct try try = {.deadline = refit_deadline_in_ms(fetch->deadline_ms)};
    enum refit_status status;
    try.own = refit_bank_layout(refit_receiver_bank(fetch->receiver));
    try.candidates = refit_siblings_sources(fetch->siblings, &fetch->version, fetch->domain, refit_clock_ns(), try.candidate,
                                            CANDIDATES_MAX);
    if (try.own && try.candidates > 0)
        status = run(fetch, &try, err);
    else
        status = refit_fail(err, REFIT_BUSY, "nobody serves version %" PRIu64 " any more", fetch->version.version);
    refit_layout_release(try.own);
    return status;
}
