/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "layouts/layout.h"

static struct refit_credentials *default_credentials;

void refit_control_set_default(struct refit_credentials *credentials)
{
    default_credentials = credentials;
}

enum refit_status refit_control_init(struct refit_control *control, const char *url, struct refit_error *err)
{
    memset(control, 0, sizeof *control);
    control->credentials = default_credentials;
    return refit_http_url_parse(url, &control->url, err);
}

/* ---- errors of the peer ---- */

static enum refit_status status_of_http(int code)
{
    switch (code) {
    case 400: case 401: case 403: case 405: case 411: case 413: case 431: return REFIT_INVALID;
    case 404: return REFIT_NOT_FOUND;
    case 408: case 504: return REFIT_TIMEOUT;
    case 409: return REFIT_CONFLICT;
    case 412: return REFIT_STALE;
    case 422: return REFIT_MISMATCH;
    case 429: case 503: return REFIT_BUSY;
    case 501: return REFIT_UNSUPPORTED;
    case 507: return REFIT_NO_MEMORY;
    case 500: return REFIT_SYSTEM;
    default: return REFIT_PEER;
    }
}

static enum refit_status status_of_name(const char *name, enum refit_status otherwise)
{
    for (enum refit_status status = REFIT_INVALID; status <= REFIT_SYSTEM; status++)
        if (name && strcmp(name, refit_status_name(status)) == 0)
            return status;
    return otherwise;
}

static enum refit_status fail_with_problem(const struct refit_control *control, const struct refit_http_answer *answer,
                                           const char *path, struct refit_error *err)
{
    enum refit_status status = status_of_http(answer->status);
    const char *detail = NULL, *name = NULL;
    json_t *problem = NULL;
    if (refit_json_parse(answer->body, answer->body_bytes, "problem", &problem, NULL) == REFIT_OK) {
        detail = json_string_value(json_object_get(problem, "detail"));
        name = json_string_value(json_object_get(problem, "refit_status"));
    }
    status = status_of_name(name, status);
    if (detail)
        refit_fail(err, status, "%s: %s", control->url.text, detail);
    else
        refit_fail(err, status, "%s%s: HTTP status %d without a reason", control->url.text, path, answer->status);
    if (err)
        refit_text_blank_controls(err->text); /* it is shown on terminals */
    json_decref(problem);
    return status;
}

/* ---- calls ---- */

static enum refit_status call_text(struct refit_control *control, const struct refit_http_request *given,
                                   struct refit_http_answer *answer, struct refit_error *err)
{
    struct refit_http_request shown = *given, *request = &shown;
    shown.credentials = control->credentials;
    enum refit_status status = refit_http_call(&control->url, request, answer, err);
    if (status != REFIT_OK)
        return status;
    if (answer->instance[0])
        memcpy(control->instance, answer->instance, sizeof control->instance);
    if (answer->status >= 200 && answer->status <= 299)
        return REFIT_OK;
    status = fail_with_problem(control, answer, request->path, err);
    refit_http_answer_release(answer);
    return status;
}

static enum refit_status parse_answer(const struct refit_control *control, const struct refit_http_answer *answer,
                                      const char *path, json_t **out, struct refit_error *err)
{
    char what[3 * REFIT_URL_MAX];
    snprintf(what, sizeof what, "answer of %s%s", control->url.text, path);
    if (answer->body_bytes > 0)
        return refit_json_parse(answer->body, answer->body_bytes, what, out, err);
    *out = json_null();
    return REFIT_OK;
}

enum refit_status refit_control_call(struct refit_control *control, enum refit_http_method method, const char *path,
                                     const json_t *body, struct refit_deadline deadline, json_t **out,
                                     struct refit_error *err)
{
    struct refit_http_request request = {.method = method, .path = path, .deadline = deadline};
    struct refit_http_answer answer;
    char *text = NULL;
    if (body) {
        text = refit_json_canonical(body, &request.body_bytes);
        if (!text)
            return refit_fail(err, REFIT_NO_MEMORY, "out of memory for a request to %s", control->url.text);
        request.body = text;
    }
    enum refit_status status = call_text(control, &request, &answer, err);
    free(text);
    if (status != REFIT_OK)
        return status;
    if (out)
        status = parse_answer(control, &answer, path, out, err);
    refit_http_answer_release(&answer);
    return status;
}

/* Steals `body`; NULL: out of memory, or a text that is not UTF-8. */
static enum refit_status post(struct refit_control *control, const char *path, json_t *body,
                              struct refit_deadline deadline, struct refit_error *err)
{
    if (!body)
        return refit_fail(err, REFIT_NO_MEMORY, "%s%s: no memory for the request, or a text in it is not UTF-8",
                          control->url.text, path);
    enum refit_status status = refit_control_call(control, REFIT_HTTP_POST, path, body, deadline, NULL, err);
    json_decref(body);
    return status;
}

/* Calls, reads the answer with `read`, and names the replica when a member is not what it should be. */
typedef enum refit_status (*read_answer)(const json_t *answer, void *out, struct refit_error *err);

static enum refit_status call_and_read(struct refit_control *control, enum refit_http_method method, const char *path,
                                       const json_t *body, struct refit_deadline deadline, read_answer read, void *out,
                                       struct refit_error *err)
{
    json_t *answer = NULL;
    enum refit_status status = refit_control_call(control, method, path, body, deadline, &answer, err);
    if (status != REFIT_OK)
        return status;
    status = read(answer, out, err);
    if (status != REFIT_OK)
        refit_error_prefix(err, status, "%s", control->url.text);
    json_decref(answer);
    return status;
}

static enum refit_status read_epoch(const json_t *answer, void *out, struct refit_error *err)
{
    return refit_json_get_u64(answer, "epoch", "answer of /v1/lead", out, err);
}

enum refit_status refit_control_lead(struct refit_control *control, const char *name, bool takeover,
                                     struct refit_deadline deadline, uint64_t *epoch, struct refit_error *err)
{
    json_t *body = json_pack("{s:s, s:b}", "name", name, "takeover", (int)takeover);
    if (!body)
        return refit_fail(err, REFIT_INVALID, "the sender's name must be UTF-8");
    enum refit_status status =
        call_and_read(control, REFIT_HTTP_POST, "/v1/lead", body, deadline, read_epoch, epoch, err);
    json_decref(body);
    return status;
}

enum refit_status refit_control_resign(struct refit_control *control, const char *name, uint64_t epoch,
                                       struct refit_deadline deadline, struct refit_error *err)
{
    return post(control, "/v1/resign", json_pack("{s:s, s:o}", "name", name, "epoch", refit_json_u64(epoch)), deadline,
                err);
}

enum refit_status refit_control_put_source(struct refit_control *control, const char *digest, const char *text,
                                           size_t len, struct refit_deadline deadline, struct refit_error *err)
{
    char path[REFIT_SHA256_HEX_MAX + 32];
    snprintf(path, sizeof path, "/v1/sources/%s", digest);
    struct refit_http_request request = {
        .method = REFIT_HTTP_PUT, .path = path, .body = text, .body_bytes = len, .deadline = deadline};
    struct refit_http_answer answer;
    enum refit_status status = call_text(control, &request, &answer, err);
    if (status == REFIT_OK)
        refit_http_answer_release(&answer);
    return status;
}

enum refit_status refit_control_layout(struct refit_control *control, struct refit_deadline deadline,
                                       struct refit_layout **out, struct refit_error *err)
{
    struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = "/v1/layout",
                                         .answer_max = REFIT_LAYOUT_TEXT_MAX, .deadline = deadline};
    struct refit_http_answer answer;
    enum refit_status status = call_text(control, &request, &answer, err);
    if (status != REFIT_OK)
        return status;
    char what[2 * REFIT_URL_MAX];
    snprintf(what, sizeof what, "layout of %s", control->url.text);
    status = refit_layout_parse(answer.body, answer.body_bytes, what, out, err);
    refit_http_answer_release(&answer);
    return status;
}

static void copy_text(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text ? text : "");
}

static enum refit_status read_version(const json_t *object, struct refit_control_version *out, struct refit_error *err)
{
    const char *label = "", *digest = "";
    if (!object || json_is_null(object))
        return REFIT_OK;
    enum refit_status status = refit_json_get_u64(object, "version", "version", &out->version, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(object, "label", "version", &label, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(object, "digest", "version", &digest, err);
    copy_text(out->label, sizeof out->label, label);
    copy_text(out->digest, sizeof out->digest, digest);
    return status;
}

static enum refit_status read_weights(const json_t *answer, void *context, struct refit_error *err)
{
    struct refit_control_weights *out = context;
    const char *layout = "";
    memset(out, 0, sizeof *out);
    enum refit_status status = refit_json_opt_string(answer, "layout", "answer of /v1/weights", &layout, err);
    copy_text(out->layout, sizeof out->layout, layout);
    if (status == REFIT_OK)
        status = read_version(json_object_get(answer, "active"), &out->active, err);
    out->held = json_is_true(json_object_get(answer, "held"));
    if (status == REFIT_OK && json_is_true(json_object_get(answer, "rollback_available")))
        status = refit_json_get_u64(answer, "rollback_version", "answer of /v1/weights", &out->rollback_version, err);
    return status;
}

enum refit_status refit_control_weights(struct refit_control *control, struct refit_deadline deadline,
                                        struct refit_control_weights *out, struct refit_error *err)
{
    return call_and_read(control, REFIT_HTTP_GET, "/v1/weights", NULL, deadline, read_weights, out, err);
}

enum refit_status refit_control_host(struct refit_control *control, struct refit_deadline deadline, json_t **out,
                                     struct refit_error *err)
{
    return refit_control_call(control, REFIT_HTTP_GET, "/v1/host", NULL, deadline, out, err);
}

/* ---- refits ---- */

static enum refit_status read_ticket(const json_t *answer, void *context, struct refit_error *err)
{
    static const char *what = "answer of POST /refit";
    struct refit_control_ticket *out = context;
    const char *id = NULL, *token = NULL;
    json_t *card = json_object_get(answer, "card");
    enum refit_status status = refit_json_get_string(answer, "id", what, &id, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(answer, "token", what, &token, err);
    if (status != REFIT_OK)
        return status;
    if (strlen(id) >= sizeof out->id || strlen(token) != sizeof out->token - 1 || !json_is_object(card))
        return refit_fail(err, REFIT_INVALID, "%s: id, token or card is not well formed", what);
    memset(out, 0, sizeof *out);
    copy_text(out->id, sizeof out->id, id);
    copy_text(out->token, sizeof out->token, token);
    out->unchanged = json_is_true(json_object_get(answer, "unchanged"));
    out->card = json_incref(card);
    return REFIT_OK;
}

enum refit_status refit_control_begin(struct refit_control *control, const json_t *request,
                                      struct refit_deadline deadline, struct refit_control_ticket *out,
                                      struct refit_error *err)
{
    return call_and_read(control, REFIT_HTTP_POST, "/refit", request, deadline, read_ticket, out, err);
}

static const char *const phase_names[REFIT_CONTROL_PHASES] = {
    [REFIT_CONTROL_REQUESTED] = "requested",
    [REFIT_CONTROL_PREFLIGHT] = "preflight",
    [REFIT_CONTROL_WAITING_FOR_READERS] = "waiting-for-readers",
    [REFIT_CONTROL_TRANSFER] = "transfer",
    [REFIT_CONTROL_VERIFY] = "verify",
    [REFIT_CONTROL_PREPARE] = "prepare",
    [REFIT_CONTROL_STAGED] = "staged",
    [REFIT_CONTROL_COMMITTING] = "committing",
    [REFIT_CONTROL_COMMITTED] = "committed",
    [REFIT_CONTROL_ABORTED] = "aborted",
};

const char *refit_control_phase_name(enum refit_control_phase phase)
{
    return (unsigned)phase < REFIT_CONTROL_PHASES ? phase_names[phase] : "unknown";
}

static bool find_phase(const char *name, enum refit_control_phase *phase)
{
    for (int i = 0; i < REFIT_CONTROL_PHASES; i++) {
        *phase = (enum refit_control_phase)i;
        if (strcmp(name, phase_names[i]) == 0)
            return true;
    }
    return false;
}

static void read_phase_times(const json_t *times, struct refit_control_state *out)
{
    for (int i = 0; i < REFIT_CONTROL_PHASES; i++)
        out->phase_us[i] = json_integer_value(json_object_get(times, phase_names[i]));
}

static void read_waiting(const json_t *waiting, struct refit_control_state *out)
{
    if (!json_is_object(waiting))
        return;
    const char *label = json_string_value(json_object_get(waiting, "label"));
    uint64_t version = 0;
    if (refit_json_get_u64(waiting, "version", "waiting", &version, NULL) != REFIT_OK)
        return;
    snprintf(out->waiting, sizeof out->waiting, "%" JSON_INTEGER_FORMAT " pins of %s (rank %" JSON_INTEGER_FORMAT
             ") on version %" PRIu64, json_integer_value(json_object_get(waiting, "pins")), label ? label : "an engine",
             json_integer_value(json_object_get(waiting, "rank")), version);
}

static void read_error(const json_t *error, struct refit_control_state *out)
{
    if (!json_is_object(error))
        return;
    const char *text = json_string_value(json_object_get(error, "text"));
    const char *phase = json_string_value(json_object_get(error, "phase"));
    enum refit_status status = status_of_name(json_string_value(json_object_get(error, "status")), REFIT_ABORTED);
    refit_fail(&out->error, status, "%s%s%s", phase && *phase ? phase : "", phase && *phase ? ": " : "",
               text ? text : "no reason given");
    refit_text_blank_controls(out->error.text);
}

static enum refit_status read_counters(const json_t *answer, struct refit_control_state *out, struct refit_error *err)
{
    const struct {
        const char *key;
        uint64_t *value;
    } counters[] = {{"bytes_due", &out->bytes_due},         {"bytes_done", &out->bytes_done},
                    {"sequence", &out->sequence},           {"payload_bytes", &out->payload_bytes},
                    {"wire_bytes", &out->wire_bytes}};
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        int64_t value = 0;
        enum refit_status status = refit_json_opt_int(answer, counters[i].key, "refit", 0, INT64_MAX, &value, err);
        if (status != REFIT_OK)
            return status;
        *counters[i].value = (uint64_t)value;
    }
    return REFIT_OK;
}

static enum refit_status read_state(const json_t *answer, void *context, struct refit_error *err)
{
    struct refit_control_state *out = context;
    const char *id = NULL, *phase = NULL, *digest = "", *transport = "", *publish_id = "";
    memset(out, 0, sizeof *out);
    enum refit_status status = refit_json_get_string(answer, "id", "refit", &id, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(answer, "version", "refit", &out->version, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(answer, "phase", "refit", &phase, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(answer, "digest", "refit", &digest, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(answer, "transport", "refit", &transport, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(answer, "publish_id", "refit", &publish_id, err);
    if (status == REFIT_OK)
        status = read_counters(answer, out, err);
    if (status != REFIT_OK)
        return status;
    if (!find_phase(phase, &out->phase))
        return refit_fail(err, REFIT_INVALID, "refit %s: phase \"%s\" is not known to this version", id, phase);
    copy_text(out->id, sizeof out->id, id);
    copy_text(out->digest, sizeof out->digest, digest);
    copy_text(out->transport, sizeof out->transport, transport);
    copy_text(out->publish_id, sizeof out->publish_id, publish_id);
    out->terminal = out->phase >= REFIT_CONTROL_COMMITTED;
    read_phase_times(json_object_get(answer, "phase_us"), out);
    read_waiting(json_object_get(answer, "waiting"), out);
    read_error(json_object_get(answer, "error"), out);
    return REFIT_OK;
}

enum refit_status refit_control_state(struct refit_control *control, const char *id, int64_t after, int64_t wait_ms,
                                      struct refit_deadline deadline, struct refit_control_state *out,
                                      struct refit_error *err)
{
    char path[256];
    int used = snprintf(path, sizeof path, "/refit%s%s", id && *id ? "/" : "", id ? id : "");
    if (after >= 0)
        snprintf(path + used, sizeof path - (size_t)used, "?after=%" PRId64 "&wait_ms=%" PRId64, after, wait_ms);
    return call_and_read(control, REFIT_HTTP_GET, path, NULL, deadline, read_state, out, err);
}

static enum refit_status read_supply(const json_t *answer, void *context, struct refit_error *err)
{
    struct refit_control_supply *out = context;
    enum refit_status status = refit_json_get_u64(answer, "kept_bytes", "holders", &out->kept_bytes, err);
    return status == REFIT_OK ? refit_json_get_u64(answer, "excess_bytes", "holders", &out->excess_bytes, err) : status;
}

enum refit_status refit_control_supply(struct refit_control *control, const char *id, struct refit_deadline deadline,
                                       struct refit_control_supply *out, struct refit_error *err)
{
    char path[256];
    *out = (struct refit_control_supply){0};
    snprintf(path, sizeof path, "/refit/%s/holders", id);
    return call_and_read(control, REFIT_HTTP_GET, path, NULL, deadline, read_supply, out, err);
}

static enum refit_status post_to_refit(struct refit_control *control, const char *id, const char *verb, json_t *body,
                                       struct refit_deadline deadline, struct refit_error *err)
{
    char path[256];
    snprintf(path, sizeof path, "/refit/%s/%s", id, verb);
    return post(control, path, body, deadline, err);
}

enum refit_status refit_control_commit(struct refit_control *control, const char *id, uint64_t version,
                                       const char *digest, const char *model, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    json_t *body = json_pack("{s:o, s:s}", "version", refit_json_u64(version), "digest", digest);
    if (body && model && *model)
        json_object_set_new(body, "model", json_string(model));
    return post_to_refit(control, id, "commit", body, deadline, err);
}

static enum refit_status add_digests(const json_t *answer, const struct refit_layout *layout, struct refit_tally *sum,
                                     struct refit_error *err)
{
    static const char *what = "answer of /v1/digests";
    const char *of = "", *digests = "";
    enum refit_status status = refit_json_get_string(answer, "layout", what, &of, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(answer, "digests", what, &digests, err);
    if (status != REFIT_OK)
        return status;
    if (strcmp(of, refit_layout_digest(layout)) != 0)
        return refit_fail(err, REFIT_MISMATCH, "%s: of layout %.16s..., expected %.16s...", what, of,
                          refit_layout_digest(layout));
    return refit_tally_add_hex(sum, digests, strlen(digests))
               ? REFIT_OK
               : refit_fail(err, REFIT_INVALID,
                            "%s: \"digests\" must be 32 hex digits for each of %" PRIu32 " tensors", what,
                            refit_tally_count(sum));
}

enum refit_status refit_control_digests(struct refit_control *control, uint64_t version,
                                        const struct refit_layout *layout,
                                        struct refit_tally *sum, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    char path[64];
    json_t *json = NULL;
    struct refit_http_answer answer;
    snprintf(path, sizeof path, "/v1/digests/%" PRIu64, version);
    struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = path, .answer_max = REFIT_LAYOUT_TEXT_MAX,
                                         .deadline = deadline};
    enum refit_status status = call_text(control, &request, &answer, err);
    if (status != REFIT_OK)
        return status;
    status = parse_answer(control, &answer, path, &json, err);
    refit_http_answer_release(&answer);
    if (status != REFIT_OK)
        return status;
    status = add_digests(json, layout, sum, err);
    json_decref(json);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "%s", control->url.text);
}

enum refit_status refit_control_take_back(struct refit_control *control, uint64_t version,
                                          struct refit_deadline deadline, struct refit_error *err)
{
    json_t *body = json_pack("{s:o, s:b}", "version", refit_json_u64(version), "hold", 0);
    return post(control, "/rollback", body, deadline, err);
}

enum refit_status refit_control_serve(struct refit_control *control, const json_t *order, struct refit_deadline deadline,
                                      struct refit_error *err)
{
    return refit_control_call(control, REFIT_HTTP_POST, "/v1/serve", order, deadline, NULL, err);
}

enum refit_status refit_control_abort(struct refit_control *control, const char *id, const char *reason,
                                      struct refit_deadline deadline, struct refit_error *err)
{
    return post_to_refit(control, id, "abort", json_pack("{s:s}", "reason", reason), deadline, err);
}
