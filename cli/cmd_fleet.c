/* SPDX-License-Identifier: Apache-2.0
 *
 * Many members at a glance: drawn anew every second on a terminal, once elsewhere.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/table.h"

#define DIGEST_SHOWN 12
#define LOOK_MS 3000 /* a member that takes longer is shown as silent */
#define EVERY_MS 1000

struct look {
    const struct refit_cli_targets *targets;
    struct refit_cli_answer *weights, *refits;
    uint64_t newest; /* that any of them serves */
};

static bool take_look(struct look *look)
{
    struct refit_cli_call weights = {.method = REFIT_HTTP_GET, .path = "/v1/weights", .timeout_ms = LOOK_MS};
    struct refit_cli_call refits = {.method = REFIT_HTTP_GET, .path = "/refit", .timeout_ms = LOOK_MS};
    look->weights = refit_cli_call_all(&look->targets->urls, &weights);
    look->refits = refit_cli_call_all(&look->targets->urls, &refits);
    look->newest = 0;
    for (size_t i = 0; look->weights && i < look->targets->urls.count; i++) {
        uint64_t version = 0;
        const json_t *active = json_object_get(look->weights[i].body, "active");
        if (refit_json_get_u64(active, "version", "version", &version, NULL) == REFIT_OK && version > look->newest)
            look->newest = version;
    }
    return look->weights && look->refits;
}

static void drop_look(struct look *look)
{
    refit_cli_answers_release(look->weights, look->targets->urls.count);
    refit_cli_answers_release(look->refits, look->targets->urls.count);
}

static json_int_t count_pins(const json_t *weights)
{
    json_int_t pins = 0;
    const json_t *slots = json_object_get(weights, "slots");
    for (size_t i = 0; i < json_array_size(slots); i++)
        pins += json_integer_value(json_object_get(json_array_get(slots, i), "pins"));
    return pins;
}

/* One member as a document, from which the table is drawn, too; new. */
static json_t *describe(const struct look *look, size_t i)
{
    const struct refit_cli_answer *weights = &look->weights[i];
    json_t *member = json_pack("{s:s}", "url", look->targets->urls.items[i]);
    if (weights->status != REFIT_OK) {
        json_object_set_new(member, "state", json_string("silent"));
        json_object_set_new(member, "error", refit_json_text(weights->error.text));
        return member;
    }
    const json_t *active = json_object_get(weights->body, "active"), *refit = look->refits[i].body;
    bool running = json_is_false(json_object_get(refit, "terminal"));
    uint64_t version = 0;
    bool serves = refit_json_get_u64(active, "version", "version", &version, NULL) == REFIT_OK;
    json_object_set_new(member, "version", serves ? refit_json_u64(version) : json_null());
    json_object_set_new(member, "digest", json_string(serves ? json_string_value(json_object_get(active, "digest")) : ""));
    json_object_set_new(member, "state", running ? json_incref(json_object_get(refit, "phase"))
                                                 : json_string(serves ? "serving" : "empty"));
    json_object_set_new(member, "refit_version", running ? json_incref(json_object_get(refit, "version")) : json_null());
    json_object_set_new(member, "bytes_done", running ? json_incref(json_object_get(refit, "bytes_done")) : json_integer(0));
    json_object_set_new(member, "bytes_due", running ? json_incref(json_object_get(refit, "bytes_due")) : json_integer(0));
    json_object_set_new(member, "pins", json_integer(count_pins(weights->body)));
    json_object_set_new(member, "stale", json_boolean(version < look->newest));
    json_object_set_new(member, "held", json_boolean(json_is_true(json_object_get(weights->body, "held"))));
    return member;
}

static json_t *describe_all(const struct look *look)
{
    json_t *all = json_array();
    for (size_t i = 0; i < look->targets->urls.count; i++)
        json_array_append_new(all, describe(look, i));
    return all;
}

/* ---- for people ---- */

static void version_cell(struct refit_cli_table *table, const json_t *version)
{
    if (json_is_integer(version))
        refit_cli_cell(table, "%lld", (long long)json_integer_value(version));
    else
        refit_cli_cell(table, "%s", json_is_string(version) ? json_string_value(version) : "-");
}

static void progress_cell(struct refit_cli_table *table, const json_t *member)
{
    json_int_t done = json_integer_value(json_object_get(member, "bytes_done"));
    json_int_t due = json_integer_value(json_object_get(member, "bytes_due"));
    if (due > 0)
        refit_cli_cell(table, "%3.0f%%", 100.0 * (double)done / (double)due);
    else
        refit_cli_cell(table, "-");
}

static void member_row(struct refit_cli_table *table, const json_t *member)
{
    const char *digest = json_string_value(json_object_get(member, "digest"));
    refit_cli_cell(table, "%s", json_string_value(json_object_get(member, "url")));
    version_cell(table, json_object_get(member, "version"));
    refit_cli_cell(table, "%.*s", DIGEST_SHOWN, digest && *digest ? digest : "-");
    refit_cli_cell(table, "%s", json_string_value(json_object_get(member, "state")));
    version_cell(table, json_object_get(member, "refit_version"));
    progress_cell(table, member);
    refit_cli_cell(table, "%lld", (long long)json_integer_value(json_object_get(member, "pins")));
    refit_cli_cell(table, "%s", json_is_true(json_object_get(member, "stale")) ? "STALE" : "-");
    refit_cli_cell(table, "%s", json_is_true(json_object_get(member, "held")) ? "held" : "-");
}

static void print_table(const json_t *all)
{
    static const char *const head[] = {"MEMBER", "VERSION", "DIGEST", "STATE", "REFIT", "DONE", "PINS", "STALE", "HELD"};
    struct refit_cli_table table;
    refit_cli_table_init(&table, sizeof head / sizeof *head);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < json_array_size(all); i++)
        member_row(&table, json_array_get(all, i));
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
}

/* ---- the command ---- */

struct fleet {
    struct refit_cli_list words, to;
    bool json, once;
};

static int show_once(const struct refit_cli_targets *targets, const struct fleet *options, bool redraw)
{
    struct look look = {.targets = targets};
    size_t known = 0;
    if (!take_look(&look)) {
        drop_look(&look);
        return REFIT_EXIT_FAILED;
    }
    for (size_t i = 0; i < targets->urls.count; i++)
        known += look.weights[i].status == REFIT_OK;
    json_t *all = describe_all(&look);
    if (redraw)
        printf("\033[H\033[J");
    if (options->json)
        refit_cli_print_json(json_incref(all));
    else
        print_table(all);
    fflush(stdout);
    json_decref(all);
    drop_look(&look);
    return known == targets->urls.count ? REFIT_EXIT_OK : known ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}

/* Members are looked up anew each time: they come and go. */
static int show(const struct fleet *options)
{
    bool live = !options->once && !options->json && isatty(STDOUT_FILENO) == 1;
    for (;;) {
        struct refit_cli_targets targets;
        int rc = refit_cli_targets_read("fleet", &options->words, &options->to, &targets);
        if (rc != REFIT_EXIT_PARSED)
            return rc;
        rc = show_once(&targets, options, live);
        refit_cli_targets_release(&targets);
        if (!live)
            return rc;
        poll(NULL, 0, EVERY_MS);
    }
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct fleet fleet = {0};
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &fleet.to, false},
        {"once", REFIT_CLI_FLAG, NULL, "one look, also on a terminal", &fleet.once, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json (one look) or text", &fleet.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &fleet.words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED)
        rc = show(&fleet);
    refit_cli_list_release(&fleet.words);
    refit_cli_list_release(&fleet.to);
    return rc;
}

const struct refit_cli_command refit_cli_fleet = {
    .name = "fleet", .arguments = "MEMBER...", .summary = "all members at a glance: version, state, progress, pins, who is stale",
    .examples = "  refit fleet --to dns:rollout.default.svc:7070\n", .run = run};
