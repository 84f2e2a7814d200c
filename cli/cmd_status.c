/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/table.h"

#define DIGEST_SHOWN 12 /* digits of a digest in a table */

struct shown {
    struct refit_cli_table table;
    json_t *all; /* of --output json */
};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : "-";
}

static void version_cell(struct refit_cli_table *table, const json_t *version)
{
    const json_t *number = json_object_get(version, "version");
    if (json_is_integer(number))
        refit_cli_cell(table, "%lld", (long long)json_integer_value(number));
    else
        refit_cli_cell(table, "%s", json_is_string(number) ? json_string_value(number) : "-");
}

static size_t attached(const json_t *ranks)
{
    size_t count = 0, i;
    json_t *rank;
    json_array_foreach(ranks, i, rank)
        count += json_is_true(json_object_get(rank, "attached"));
    return count;
}

static void show_row(void *context, const char *url, const json_t *answer)
{
    struct shown *shown = context;
    const json_t *active = json_object_get(answer, "active"), *ranks = json_object_get(answer, "ranks");
    const json_t *retained = json_object_get(answer, "retained");
    refit_cli_cell(&shown->table, "%s", url);
    version_cell(&shown->table, active);
    refit_cli_cell(&shown->table, "%s", text_of(active, "label"));
    refit_cli_cell(&shown->table, "%.*s", DIGEST_SHOWN, text_of(active, "digest"));
    version_cell(&shown->table, json_object_get(answer, "staged"));
    version_cell(&shown->table, json_array_get(retained, 0));
    refit_cli_cell(&shown->table, "%zu/%zu", attached(ranks), json_array_size(ranks));
    refit_cli_cell(&shown->table, "%s", json_is_true(json_object_get(answer, "held")) ? "yes" : "no");
    refit_cli_cell(&shown->table, "%s", text_of(answer, "lead"));
}

static int show_status(const struct refit_cli_list *words, const struct refit_cli_list *to, bool json)
{
    static const char *const head[] = {"REPLICA", "VERSION", "LABEL", "DIGEST", "STAGED", "RETAINED", "RANKS", "HELD", "LEAD"};
    struct refit_cli_targets targets;
    int rc = refit_cli_targets_read("status", words, to, &targets);
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    struct shown shown = {.all = json_array()};
    refit_cli_table_init(&shown.table, sizeof head / sizeof *head);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        refit_cli_cell(&shown.table, "%s", head[i]);
    rc = refit_cli_each("status", &targets.urls, REFIT_HTTP_GET, "/v1/weights", NULL, show_row, &shown, shown.all);
    if (json)
        refit_cli_print_json(json_incref(shown.all));
    else if (rc != REFIT_EXIT_FAILED)
        refit_cli_table_print(&shown.table);
    refit_cli_table_release(&shown.table);
    json_decref(shown.all);
    refit_cli_targets_release(&targets);
    return rc;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0}, to = {0};
    bool json = false;
    const struct refit_cli_option options[] = {{"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &to, false},
                                               {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false}, {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED)
        rc = show_status(&words, &to, json);
    refit_cli_list_release(&words);
    refit_cli_list_release(&to);
    return rc;
}

const struct refit_cli_command refit_cli_status = {
    .name = "status", .arguments = "MEMBER...", .summary = "which version each replica serves, with its digest",
    .examples = "  refit status http://10.0.0.7:7070 http://10.0.0.8:7070\n"
                "  REFIT_TO=dns:rollout.default.svc:7070 refit status -o json\n", .run = run};
