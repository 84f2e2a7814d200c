/* SPDX-License-Identifier: Apache-2.0
 *
 * Back to a version that is retained, on one replica or on a whole fleet: there to the same version everywhere.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/remote.h"

struct rollback {
    struct refit_cli_list words, to;
    const char *kv;
    uint64_t version;
    bool quarantine, fleet;
};

static void show(void *context, const char *url, const json_t *answer)
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

/* ---- one version for all ---- */

static uint64_t version_of(const json_t *object)
{
    uint64_t version = 0;
    return refit_json_get_u64(object, "version", "version", &version, NULL) == REFIT_OK ? version : 0;
}

static bool has_version(const json_t *weights, uint64_t version)
{
    const json_t *retained = json_object_get(weights, "retained");
    bool found = version_of(json_object_get(weights, "active")) == version;
    for (size_t i = 0; i < json_array_size(retained); i++)
        found |= version_of(json_array_get(retained, i)) == version;
    return found;
}

static bool all_have(const struct refit_cli_answer *answers, size_t count, uint64_t version)
{
    for (size_t i = 0; i < count; i++)
        if (!has_version(answers[i].body, version))
            return false;
    return version > 0;
}

static uint64_t newest_active(const struct refit_cli_answer *answers, size_t count)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t version = version_of(json_object_get(answers[i].body, "active"));
        newest = version > newest ? version : newest;
    }
    return newest;
}

/* The newest version below what is served that every member has; 0: none. */
static uint64_t common_version(const struct refit_cli_answer *answers, size_t count)
{
    uint64_t served = newest_active(answers, count), best = 0;
    const json_t *retained = count ? json_object_get(answers[0].body, "retained") : NULL;
    uint64_t own = count ? version_of(json_object_get(answers[0].body, "active")) : 0;
    if (own < served && all_have(answers, count, own))
        best = own;
    for (size_t i = 0; i < json_array_size(retained); i++) {
        uint64_t version = version_of(json_array_get(retained, i));
        if (version < served && version > best && all_have(answers, count, version))
            best = version;
    }
    return best;
}

static void complain(const struct refit_cli_targets *targets, const struct refit_cli_answer *answers)
{
    for (size_t i = 0; i < targets->urls.count; i++)
        if (answers[i].status != REFIT_OK)
            fprintf(stderr, "refit rollback: %s\n", answers[i].error.text);
}

/* Before anything changes: is there one version that all can go back to? */
static int find_version(const struct refit_cli_targets *targets, uint64_t *version)
{
    size_t count = targets->urls.count, known = 0;
    struct refit_cli_call call = {.method = REFIT_HTTP_GET, .path = "/v1/weights", .timeout_ms = REFIT_CLI_TIMEOUT_MS};
    struct refit_cli_answer *answers = refit_cli_call_all(&targets->urls, &call);
    for (size_t i = 0; answers && i < count; i++)
        known += answers[i].status == REFIT_OK;
    int rc = REFIT_EXIT_FAILED;
    if (answers && known < count) {
        complain(targets, answers);
        fprintf(stderr, "refit rollback: nothing was changed: %zu of %zu members did not answer\n", count - known, count);
    } else if (answers) {
        bool asked = *version != 0;
        if (!asked)
            *version = common_version(answers, count);
        rc = *version && all_have(answers, count, *version) ? REFIT_EXIT_PARSED : REFIT_EXIT_FAILED;
        if (rc != REFIT_EXIT_PARSED)
            fprintf(stderr, "refit rollback: nothing was changed: %s\n",
                    asked ? "not every member has that version" : "no older version is at every member; 'refit status' shows which are");
    }
    refit_cli_answers_release(answers, count);
    return rc;
}

/* ---- the command ---- */

static json_t *rollback_body(const struct rollback *options, uint64_t version)
{
    json_t *body = json_object();
    if (version)
        json_object_set_new(body, "version", refit_json_u64(version));
    if (options->kv)
        json_object_set_new(body, "kv", json_string(options->kv));
    if (options->quarantine)
        json_object_set_new(body, "quarantine", json_true());
    return body;
}

/* Of a replica that spans pods the one with rank 0 goes first: it names the version of the next step. */
static int roll_back_in_turn(const struct refit_cli_targets *targets, json_t *body)
{
    int worst = REFIT_EXIT_OK;
    size_t done = 0;
    for (size_t turn = 0; turn < REFIT_MEMBER_PODS_MAX; turn++) {
        struct refit_cli_list urls = {0};
        for (size_t i = 0; i < targets->membership.count; i++)
            if (turn < targets->membership.members[i].count &&
                !refit_cli_list_append(&urls, targets->membership.members[i].urls[turn]))
                worst = REFIT_EXIT_FAILED;
        if (urls.count == 0)
            break;
        int rc = refit_cli_each("rollback", &urls, REFIT_HTTP_POST, "/rollback", body, show, NULL);
        done += rc != REFIT_EXIT_FAILED;
        worst = rc != REFIT_EXIT_OK ? rc : worst;
        refit_cli_list_release(&urls);
    }
    return worst == REFIT_EXIT_FAILED && done ? REFIT_EXIT_PARTLY : worst;
}

static int roll_back(const struct refit_cli_targets *targets, const struct rollback *options)
{
    uint64_t version = options->version;
    int rc = options->fleet ? find_version(targets, &version) : REFIT_EXIT_PARSED;
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    json_t *body = rollback_body(options, version);
    rc = roll_back_in_turn(targets, body);
    json_decref(body);
    return rc;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct rollback rollback = {0};
    struct refit_cli_targets targets;
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &rollback.to, false},
        {"fleet", REFIT_CLI_FLAG, NULL, "one version for all, or nothing: the newest older one that every member has",
         &rollback.fleet, false},
        {"version", REFIT_CLI_COUNT, "N", "a retained version (default: the one before the current)", &rollback.version, false},
        {"kv", REFIT_CLI_TEXT, "WORD", "KV and prefix caches: flush (default), keep or namespace", &rollback.kv, false},
        {"quarantine", REFIT_CLI_FLAG, NULL, "refuse the digest that is left behind from now on", &rollback.quarantine, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &rollback.words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED)
        rc = refit_cli_targets_read("rollback", &rollback.words, &rollback.to, &targets);
    if (rc == REFIT_EXIT_PARSED) {
        rc = roll_back(&targets, &rollback);
        refit_cli_targets_release(&targets);
    }
    refit_cli_list_release(&rollback.words);
    refit_cli_list_release(&rollback.to);
    return rc;
}

const struct refit_cli_command refit_cli_rollback = {
    .name = "rollback", .arguments = "MEMBER...",
    .summary = "serve the retained version again, with no transfer, and hold there",
    .examples = "  refit rollback http://10.0.0.7:7070 http://10.0.0.8:7070\n"
                "  refit rollback --fleet --quarantine --to dns:rollout.default.svc:7070\n",
    .run = run};
