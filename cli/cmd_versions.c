/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that change what replicas accept: hold, release, abort, quarantine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/remote.h"

static void show_done(void *context, const char *url, const json_t *answer)
{
    (void)answer;
    printf("%s: %s\n", url, (const char *)context);
}

/* The same to all; as text the sentence `done` for each, else one document. */
static int tell(const char *command, const struct refit_cli_list *urls, const char *path, json_t *body, char *done, bool json)
{
    json_t *all = json ? json_array() : NULL;
    int rc = refit_cli_each(command, urls, REFIT_HTTP_POST, path, body, json ? NULL : show_done, done, all);
    if (json)
        refit_cli_print_json(all);
    return rc;
}

/* The same to all members, with an empty body. */
static int post_to_all(const struct refit_cli_command *self, int argc, char **argv, const char *path, char *done)
{
    struct refit_cli_list words = {0}, to = {0};
    struct refit_cli_targets targets;
    bool json = false;
    const struct refit_cli_option options[] = {{"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &to, false},
                                               {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false}, {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED)
        rc = refit_cli_targets_read(self->name, &words, &to, &targets);
    if (rc == REFIT_EXIT_PARSED) {
        json_t *body = json_object();
        rc = tell(self->name, &targets.urls, path, body, done, json);
        json_decref(body);
        refit_cli_targets_release(&targets);
    }
    refit_cli_list_release(&words);
    refit_cli_list_release(&to);
    return rc;
}

static int run_release(const struct refit_cli_command *self, int argc, char **argv)
{
    char done[] = "newer versions are accepted again";
    return post_to_all(self, argc, argv, "/v1/release", done);
}

static int run_hold(const struct refit_cli_command *self, int argc, char **argv)
{
    char done[] = "newer versions are held off until 'refit release'";
    return post_to_all(self, argc, argv, "/v1/hold", done);
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

static int abort_one(const char *url, const char *wanted, const char *reason, bool json)
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
    int rc = tell("abort", &one, path, body, done, json);
    json_decref(body);
    return rc;
}

static int run_abort(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0};
    const char *id = NULL, *reason = "refit abort", *url = getenv(REFIT_CLI_TO_VARIABLE);
    bool json = false;
    const struct refit_cli_option options[] = {
        {"id", REFIT_CLI_TEXT, "ID", "the refit (default: the running or latest one)", &id, false},
        {"reason", REFIT_CLI_TEXT, "TEXT", "shown in its state", &reason, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, url && *url ? 0 : 1, 1);
    if (rc == REFIT_EXIT_PARSED)
        rc = abort_one(words.count ? words.items[0] : url, id, reason, json);
    refit_cli_list_release(&words);
    return rc;
}

static int quarantine(const char *digest, bool on, const struct refit_cli_list *to, bool json)
{
    char on_text[] = "this digest is refused from now on", off_text[] = "this digest is accepted again";
    struct refit_cli_targets targets;
    int rc = refit_cli_targets_read("quarantine", NULL, to, &targets);
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    json_t *body = json_pack("{s:s, s:b}", "digest", digest, "on", (int)on);
    rc = tell("quarantine", &targets.urls, "/v1/quarantine", body, on ? on_text : off_text, json);
    json_decref(body);
    refit_cli_targets_release(&targets);
    return rc;
}

static int run_quarantine(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0}, to = {0};
    bool off = false, json = false;
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &to, true},
        {"off", REFIT_CLI_FLAG, NULL, "accept it again", &off, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED)
        rc = quarantine(words.items[0], !off, &to, json);
    refit_cli_list_release(&words);
    refit_cli_list_release(&to);
    return rc;
}

const struct refit_cli_command refit_cli_hold = {
    .name = "hold", .arguments = "MEMBER...", .summary = "refuse newer versions until released",
    .examples = "  refit hold --to file:/etc/refit/members\n", .run = run_hold};

const struct refit_cli_command refit_cli_release = {
    .name = "release", .arguments = "MEMBER...", .summary = "end the hold that a rollback or hold set",
    .examples = "  refit release http://10.0.0.7:7070\n", .run = run_release};

const struct refit_cli_command refit_cli_abort = {
    .name = "abort", .arguments = "URL", .summary = "end a refit that has not been committed",
    .examples = "  refit abort http://10.0.0.7:7070\n", .run = run_abort};

const struct refit_cli_command refit_cli_quarantine = {
    .name = "quarantine", .arguments = "DIGEST --to MEMBER...", .summary = "refuse a model digest, or accept it again",
    .examples = "  refit quarantine 4f0c... --to http://10.0.0.7:7070\n", .run = run_quarantine};
