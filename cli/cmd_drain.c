/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands for hooks and probes beside refitd, which talk to its admin listener: drain, probe.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "sender/http_client.h"

#define PAUSE_MS 100
#define CALL_MS 5000

static void pause_between(void)
{
    struct timespec left = {.tv_nsec = PAUSE_MS * 1000000l};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static enum refit_status call(const struct refit_http_url *url, enum refit_http_method method, const char *path,
                              struct refit_deadline deadline, struct refit_http_answer *answer, struct refit_error *err)
{
    const struct refit_http_request request = {
        .method = method, .path = path, .deadline = refit_deadline_earlier(deadline, refit_deadline_in_ms(CALL_MS))};
    return refit_http_call(url, &request, answer, err);
}

/* --- drain ------------------------------------------------------------------------------------------------------- */

struct drain_state {
    bool drained;
    long long attached;
    char refit[64]; /* the one that runs; empty: none */
};

static enum refit_status read_drain(const struct refit_http_answer *answer, struct drain_state *out, struct refit_error *err)
{
    json_t *json;
    const char *refit = "";
    int64_t attached = 0;
    enum refit_status status = refit_json_parse(answer->body, answer->body_bytes, "/drain", &json, err);
    if (status != REFIT_OK)
        return status;
    status = refit_json_get_int(json, "ranks_attached", "/drain", 0, INT32_MAX, &attached, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(json, "drained", "/drain", &out->drained, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(json, "refit", "/drain", &refit, err);
    snprintf(out->refit, sizeof out->refit, "%.63s", refit);
    out->attached = attached;
    json_decref(json);
    return status;
}

static enum refit_status ask_drain(const struct refit_http_url *url, struct refit_deadline deadline, struct drain_state *out,
                                   struct refit_error *err)
{
    struct refit_http_answer answer;
    enum refit_status status = call(url, REFIT_HTTP_POST, "/drain", deadline, &answer, err);
    if (status != REFIT_OK)
        return status;
    if (answer.status == 200)
        status = read_drain(&answer, out, err);
    else
        status = refit_fail(err, REFIT_PEER, "%s: answered %d to POST /drain: %.200s", url->text, answer.status, answer.body);
    refit_http_answer_release(&answer);
    return status;
}

/* Text, or one document; what went wrong is on standard error already. */
static int end_drain(const struct drain_state *now, bool drained, const char *why, bool json)
{
    if (json)
        refit_cli_print_json(json_pack("{s:b, s:I, s:s}", "drained", (int)drained, "ranks_attached",
                                       (json_int_t)(now->attached < 0 ? 0 : now->attached), "refit", now->refit));
    else if (drained)
        printf("drained: %s\n", why);
    return drained ? REFIT_EXIT_OK : REFIT_EXIT_FAILED;
}

static int drain(const struct refit_http_url *url, struct refit_deadline deadline, bool json)
{
    struct refit_error err;
    struct drain_state now = {.attached = -1};
    bool asked = false;
    for (;;) {
        enum refit_status status = ask_drain(url, deadline, &now, &err);
        if (status == REFIT_OK && now.drained)
            return end_drain(&now, true, "no engine is attached and no refit runs", json);
        /* Gone while it drained: nothing is left to wait for. Never there: say so. */
        if (status == REFIT_PEER && asked)
            return end_drain(&now, true, "refitd has ended", json);
        if (status != REFIT_OK && status != REFIT_TIMEOUT) {
            fprintf(stderr, "refit drain: %s\n", err.text);
            return end_drain(&now, false, NULL, json);
        }
        asked = asked || status == REFIT_OK;
        if (refit_deadline_passed(deadline))
            break;
        pause_between();
    }
    if (asked)
        fprintf(stderr, "refit drain: not drained in time: %lld engine ranks attached%s%s; SIGTERM ends it anyway\n", now.attached,
                now.refit[0] ? ", running refit " : "", now.refit);
    else
        fprintf(stderr, "refit drain: %s\n", err.text);
    return end_drain(&now, false, NULL, json);
}

static int run_drain(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list none = {0};
    const char *admin = "127.0.0.1:7071";
    int64_t timeout_ms = 30000;
    bool json = false;
    const struct refit_cli_option options[] = {
        {"admin", REFIT_CLI_TEXT, "HOST:PORT", "admin listener of refitd (default: 127.0.0.1:7071)", &admin, false},
        {"timeout", REFIT_CLI_DURATION, "TIME", "longest wait for engines and the running refit (default: 30s)", &timeout_ms, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &none, 0, 0);
    if (rc == REFIT_EXIT_PARSED) {
        struct refit_error err;
        struct refit_http_url url;
        if (refit_http_url_parse(admin, &url, &err) == REFIT_OK) {
            rc = drain(&url, refit_deadline_in_ms(timeout_ms), json);
        } else {
            fprintf(stderr, "refit drain: %s\n", err.text);
            rc = REFIT_EXIT_USAGE;
        }
    }
    refit_cli_list_release(&none);
    return rc;
}

const struct refit_cli_command refit_cli_drain = {
    .name = "drain", .arguments = "[--admin HOST:PORT] [--timeout TIME]",
    .summary = "keep new refits away and wait until engine and running refit have ended (preStop)",
    .examples = "  refit drain --timeout 25s\n", .run = run_drain};

/* --- probe --------------------------------------------------------------------------------------------------------- */

/* The last answer (NULL: none came). */
static int end_probe(const char *text, const struct refit_http_answer *answer, const struct refit_error *err, bool json)
{
    bool good = answer && answer->status >= 200 && answer->status < 300;
    json_t *body = answer ? json_loads(answer->body, 0, NULL) : NULL;
    if (json)
        refit_cli_print_json(json_pack("{s:s, s:b, s:i, s:o}", "url", text, "ok", (int)good, "status",
                                       answer ? answer->status : 0, "answer", body ? json_incref(body) : json_null()));
    else if (good)
        printf("%s: %d %s\n", text, answer->status, answer->body);
    if (answer && !good)
        fprintf(stderr, "refit probe: %s: %d %s\n", text, answer->status, answer->body);
    else if (!answer)
        fprintf(stderr, "refit probe: %s\n", err->text);
    json_decref(body);
    return good ? REFIT_EXIT_OK : REFIT_EXIT_FAILED;
}

static int probe(const char *text, struct refit_deadline deadline, bool json)
{
    struct refit_error err;
    struct refit_http_url url;
    if (refit_http_url_parse(text, &url, &err) != REFIT_OK) {
        fprintf(stderr, "refit probe: %s\n", err.text);
        return REFIT_EXIT_USAGE;
    }
    /* The path of a probe is the URL's prefix: /readyz. */
    struct refit_http_url bare = url;
    bare.prefix[0] = '\0';
    bare.text[strlen(bare.text) - strlen(url.prefix)] = '\0';
    /* The last answer counts, although the time may end in the middle of a later call. */
    struct refit_http_answer last = {0};
    bool answered = false;
    for (;;) {
        struct refit_http_answer answer = {0};
        if (call(&bare, REFIT_HTTP_GET, url.prefix[0] ? url.prefix : "/", deadline, &answer, &err) == REFIT_OK) {
            if (answered)
                refit_http_answer_release(&last);
            last = answer;
            answered = true;
        }
        if ((answered && last.status >= 200 && last.status < 300) || refit_deadline_passed(deadline))
            break;
        pause_between();
    }
    int rc = end_probe(text, answered ? &last : NULL, &err, json);
    if (answered)
        refit_http_answer_release(&last);
    return rc;
}

static int run_probe(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0};
    int64_t timeout_ms = 1000;
    bool json = false;
    const struct refit_cli_option options[] = {
        {"timeout", REFIT_CLI_DURATION, "TIME", "ask again until then (default: 1s)", &timeout_ms, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED)
        rc = probe(words.items[0], refit_deadline_in_ms(timeout_ms), json);
    refit_cli_list_release(&words);
    return rc;
}

const struct refit_cli_command refit_cli_probe = {
    .name = "probe", .arguments = "URL [--timeout TIME]", .summary = "wait until a probe answers 2xx, for images without a shell",
    .examples = "  refit probe --timeout 60s http://127.0.0.1:7071/readyz\n", .run = run_probe};
