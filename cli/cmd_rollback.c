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
    bool quarantine, fleet, json;
    json_t *all; /* what --output json prints; NULL: text */
    /* fleet: */
    bool *there;                       /* by URL: it serves that version already, and is only to hold */
    char left[REFIT_SHA256_HEX_MAX];   /* the digest of the newest version served */
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

/* Who is there already, and what the others leave behind. */
static bool note_places(struct rollback *options, const struct refit_cli_answer *answers, size_t count)
{
    uint64_t newest = newest_active(answers, count);
    options->there = calloc(count, sizeof *options->there);
    for (size_t i = 0; options->there && i < count; i++) {
        const json_t *active = json_object_get(answers[i].body, "active");
        const char *digest = json_string_value(json_object_get(active, "digest"));
        options->there[i] = version_of(active) == options->version;
        if (version_of(active) == newest && digest)
            snprintf(options->left, sizeof options->left, "%s", digest);
    }
    return options->there != NULL;
}

static void complain(const struct refit_cli_targets *targets, const struct refit_cli_answer *answers)
{
    for (size_t i = 0; i < targets->urls.count; i++)
        if (answers[i].status != REFIT_OK)
            fprintf(stderr, "refit rollback: %s\n", answers[i].error.text);
}

/* Before anything changes: is there one version that all can go back to? */
static int find_version(const struct refit_cli_targets *targets, struct rollback *options)
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
        bool asked = options->version != 0;
        if (!asked)
            options->version = common_version(answers, count);
        if (all_have(answers, count, options->version))
            rc = note_places(options, answers, count) ? REFIT_EXIT_PARSED : REFIT_EXIT_FAILED;
        else
            fprintf(stderr, "refit rollback: nothing was changed: %s\n",
                    asked ? "not every member has that version" : "no older version is at every member; 'refit status' shows which are");
    }
    refit_cli_answers_release(answers, count);
    return rc;
}

/* ---- the command ---- */

static json_t *rollback_body(const struct rollback *options)
{
    json_t *body = json_object();
    if (options->version)
        json_object_set_new(body, "version", refit_json_u64(options->version));
    if (options->kv)
        json_object_set_new(body, "kv", json_string(options->kv));
    if (options->quarantine)
        json_object_set_new(body, "quarantine", json_true());
    return body;
}

static void show_held(void *context, const char *url, const json_t *answer)
{
    (void)answer;
    printf("%s: serves version %llu already; newer versions are held off until 'refit release'\n", url,
           (unsigned long long)((const struct rollback *)context)->version);
}

/* Those that serve it already refuse what the others leave behind, too. */
static int hold(const struct refit_cli_list *urls, struct rollback *options)
{
    json_t *empty = json_object(), *digest = json_pack("{s:s, s:b}", "digest", options->left, "on", 1);
    int rc = refit_cli_each("rollback", urls, REFIT_HTTP_POST, "/v1/hold", empty, options->all ? NULL : show_held, options,
                            options->all);
    if (rc == REFIT_EXIT_OK && options->quarantine)
        rc = refit_cli_each("rollback", urls, REFIT_HTTP_POST, "/v1/quarantine", digest, NULL, NULL, NULL);
    json_decref(empty);
    json_decref(digest);
    return rc;
}

/* What the turns come to. */
struct turns {
    bool done, failed;
};

static void add_turn(struct turns *turns, int rc)
{
    turns->done |= rc != REFIT_EXIT_FAILED;
    turns->failed |= rc != REFIT_EXIT_OK;
}

/* The pods that stand `turn`-th in their replicas. */
static void take_turn(const struct refit_cli_targets *targets, struct rollback *options, size_t turn, struct turns *turns)
{
    struct refit_cli_list go = {0}, stay = {0};
    json_t *body = rollback_body(options);
    for (size_t i = 0, at = 0; i < targets->membership.count; at += targets->membership.members[i++].count)
        if (turn < targets->membership.members[i].count) {
            bool there = options->there && options->there[at + turn];
            turns->failed |= !refit_cli_list_append(there ? &stay : &go, targets->urls.items[at + turn]);
        }
    if (go.count)
        add_turn(turns, refit_cli_each("rollback", &go, REFIT_HTTP_POST, "/rollback", body, options->all ? NULL : show,
                                       NULL, options->all));
    if (stay.count)
        add_turn(turns, hold(&stay, options));
    refit_cli_list_release(&go);
    refit_cli_list_release(&stay);
    json_decref(body);
}

/* Of a replica that spans pods the one with rank 0 goes first: it names the version of the next step. */
static int roll_back(const struct refit_cli_targets *targets, struct rollback *options)
{
    struct turns turns = {0};
    int rc = options->fleet ? find_version(targets, options) : REFIT_EXIT_PARSED;
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    for (size_t turn = 0; turn < REFIT_MEMBER_PODS_MAX; turn++)
        take_turn(targets, options, turn, &turns);
    return !turns.failed ? REFIT_EXIT_OK : turns.done ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct rollback rollback = {0};
    struct refit_cli_targets targets;
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &rollback.to, false},
        {"fleet", REFIT_CLI_FLAG, NULL, "one version for all, or nothing: the newest older one that every member has",
         &rollback.fleet, false},
        {"version", REFIT_CLI_COUNT, "N", "a retained version (default: of the older ones the last)", &rollback.version, false},
        {"kv", REFIT_CLI_TEXT, "WORD", "KV and prefix caches: flush (default), keep or namespace", &rollback.kv, false},
        {"quarantine", REFIT_CLI_FLAG, NULL, "refuse the digest that is left behind from now on", &rollback.quarantine, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &rollback.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &rollback.words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED)
        rc = refit_cli_targets_read("rollback", &rollback.words, &rollback.to, &targets);
    if (rc == REFIT_EXIT_PARSED) {
        rollback.all = rollback.json ? json_array() : NULL;
        rc = roll_back(&targets, &rollback);
        if (rollback.json)
            refit_cli_print_json(rollback.all);
        refit_cli_targets_release(&targets);
    }
    free(rollback.there);
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
