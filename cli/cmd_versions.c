/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that change what a replica serves or accepts: rollback, release, abort, quarantine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/remote.h"

static void show_rollback(void *context, const char *url, const json_t *answer)
{
    (void)context;
    const json_t *active = json_object_get(answer, "active");
    json_t *version = json_object_get(active, "version");
    char *text = json_dumps(version, JSON_ENCODE_ANY);
    const char *digest = json_string_value(json_object_get(active, "digest"));
    printf("%s: serves version %s, digest %s; newer versions are held off until 'refit release'\n", url, text ? text : "-",
           digest ? digest : "-");
    free(text);
}

static int run_rollback(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list urls = {0};
    const char *kv = NULL;
    uint64_t version = 0;
    bool quarantine = false;
    const struct refit_cli_option options[] = {
        {"version", REFIT_CLI_COUNT, "N", "a retained version (default: the one before the current)", &version, false},
        {"kv", REFIT_CLI_TEXT, "WORD", "KV and prefix caches: flush (default), keep or namespace", &kv, false},
        {"quarantine", REFIT_CLI_FLAG, NULL, "refuse the digest that is left behind from now on", &quarantine, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &urls, 1, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED) {
        json_t *body = json_object();
        if (version)
            json_object_set_new(body, "version", refit_json_u64(version));
        if (kv)
            json_object_set_new(body, "kv", json_string(kv));
        if (quarantine)
            json_object_set_new(body, "quarantine", json_true());
        rc = refit_cli_each("rollback", &urls, REFIT_HTTP_POST, "/rollback", body, show_rollback, NULL);
        json_decref(body);
    }
    refit_cli_list_release(&urls);
    return rc;
}

static void show_done(void *context, const char *url, const json_t *answer)
{
    (void)answer;
    printf("%s: %s\n", url, (const char *)context);
}

static int run_release(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list urls = {0};
    char done[] = "newer versions are accepted again";
    const struct refit_cli_option options[] = {{0}};
    int rc = refit_cli_parse(self, options, argc, argv, &urls, 1, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED) {
        json_t *body = json_object();
        rc = refit_cli_each("release", &urls, REFIT_HTTP_POST, "/v1/release", body, show_done, done);
        json_decref(body);
    }
    refit_cli_list_release(&urls);
    return rc;
}

/* The id of the refit that runs at `url`, or its latest. */
static enum refit_status latest_id(const char *url, char id[REFIT_ID_MAX], struct refit_error *err)
{
    struct refit_control control;
    struct refit_control_state state;
    enum refit_status status = refit_control_init(&control, url, err);
    if (status == REFIT_OK)
        status = refit_control_state(&control, NULL, -1, 0, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS), &state, err);
    if (status == REFIT_OK)
        memcpy(id, state.id, REFIT_ID_MAX);
    return status;
}

static int abort_one(const char *url, const char *wanted, const char *reason)
{
    struct refit_error err;
    char id[REFIT_ID_MAX], path[REFIT_ID_MAX + 32], done[] = "aborted; the old version serves";
    snprintf(id, sizeof id, "%s", wanted ? wanted : "");
    if (!wanted && latest_id(url, id, &err) != REFIT_OK) {
        fprintf(stderr, "refit abort: %s\n", err.text);
        return REFIT_EXIT_FAILED;
    }
    snprintf(path, sizeof path, "/refit/%s/abort", id);
    struct refit_cli_list one = {.items = &url, .count = 1};
    json_t *body = json_pack("{s:s}", "reason", reason);
    int rc = refit_cli_each("abort", &one, REFIT_HTTP_POST, path, body, show_done, done);
    json_decref(body);
    return rc;
}

static int run_abort(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0};
    const char *id = NULL, *reason = "refit abort";
    const struct refit_cli_option options[] = {
        {"id", REFIT_CLI_TEXT, "ID", "the refit (default: the running or latest one)", &id, false},
        {"reason", REFIT_CLI_TEXT, "TEXT", "shown in its state", &reason, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED)
        rc = abort_one(words.items[0], id, reason);
    refit_cli_list_release(&words);
    return rc;
}

static int run_quarantine(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0}, to = {0};
    bool off = false;
    char on_text[] = "this digest is refused from now on", off_text[] = "this digest is accepted again";
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "URL", "control API of a replica; once for each", &to, true},
        {"off", REFIT_CLI_FLAG, NULL, "accept it again", &off, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED) {
        json_t *body = json_pack("{s:s, s:b}", "digest", words.items[0], "on", !off);
        rc = refit_cli_each("quarantine", &to, REFIT_HTTP_POST, "/v1/quarantine", body, show_done, off ? off_text : on_text);
        json_decref(body);
    }
    refit_cli_list_release(&words);
    refit_cli_list_release(&to);
    return rc;
}

const struct refit_cli_command refit_cli_rollback = {
    .name = "rollback", .arguments = "URL...", .summary = "serve the retained version again, with no transfer, and hold there",
    .examples = "  refit rollback http://10.0.0.7:7070 http://10.0.0.8:7070\n"
                "  refit rollback --version 6 --quarantine http://10.0.0.7:7070\n",
    .run = run_rollback};

const struct refit_cli_command refit_cli_release = {
    .name = "release", .arguments = "URL...", .summary = "end the hold that a rollback set",
    .examples = "  refit release http://10.0.0.7:7070\n", .run = run_release};

const struct refit_cli_command refit_cli_abort = {
    .name = "abort", .arguments = "URL", .summary = "end a refit that has not been committed",
    .examples = "  refit abort http://10.0.0.7:7070\n", .run = run_abort};

const struct refit_cli_command refit_cli_quarantine = {
    .name = "quarantine", .arguments = "DIGEST --to URL...", .summary = "refuse a model digest, or accept it again",
    .examples = "  refit quarantine 4f0c... --to http://10.0.0.7:7070\n", .run = run_quarantine};
