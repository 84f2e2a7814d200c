/* SPDX-License-Identifier: Apache-2.0
 *
 * Who would send what to whom. The plan is a pure function of two layouts, so it is made here; nothing moves.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/io.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/table.h"
#include "layouts/plan.h"

struct plan_options {
    const char *checkpoint, *source, *destination, *to;
    bool json;
};

static enum refit_status read_layout(const char *path, struct refit_layout **out, struct refit_error *err)
{
    char *text;
    size_t len;
    enum refit_status status = refit_io_read_file(path, REFIT_LAYOUT_TEXT_MAX, &text, &len, err);
    if (status != REFIT_OK)
        return status;
    status = refit_layout_parse(text, len, path, out, err);
    free(text);
    return status;
}

static enum refit_status source_layout(const struct plan_options *o, struct refit_layout **out, struct refit_error *err)
{
    struct refit_checkpoint *checkpoint;
    if (o->source)
        return read_layout(o->source, out, err);
    if (!o->checkpoint)
        return refit_fail(err, REFIT_INVALID, "no source: give a checkpoint, or --source-layout FILE");
    enum refit_status status = refit_checkpoint_open(o->checkpoint, &checkpoint, err);
    if (status != REFIT_OK)
        return status;
    *out = refit_layout_retain(refit_checkpoint_layout(checkpoint));
    refit_checkpoint_close(checkpoint);
    return REFIT_OK;
}

static enum refit_status destination_layout(const struct plan_options *o, struct refit_layout **out, struct refit_error *err)
{
    struct refit_control control;
    if (o->destination)
        return read_layout(o->destination, out, err);
    if (!o->to)
        return refit_fail(err, REFIT_INVALID, "no destination: give --to URL, or --layout FILE");
    enum refit_status status = refit_control_init(&control, o->to, err);
    return status == REFIT_OK ? refit_control_layout(&control, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS), out, err) : status;
}

static void print_text(const struct refit_plan *plan, const struct refit_edge *edges, size_t count)
{
    char text[16];
    struct refit_cli_table table;
    refit_cli_table_init(&table, 5);
    static const char *const head[] = {"SOURCE RANK", "SERVING RANK", "BYTES", "BOXES", "BATCHES"};
    for (size_t i = 0; i < 5; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < count; i++) {
        refit_cli_cell(&table, "%u", edges[i].source_rank);
        refit_cli_cell(&table, "%u", edges[i].destination_rank);
        refit_cli_cell(&table, "%s", refit_cli_bytes(edges[i].bytes, text, sizeof text));
        refit_cli_cell(&table, "%llu", (unsigned long long)edges[i].ops);
        refit_cli_cell(&table, "%u", edges[i].batches);
    }
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
    printf("%llu bytes (%s) over %zu links, of a model of %llu\n", (unsigned long long)refit_plan_bytes(plan),
           refit_cli_bytes(refit_plan_bytes(plan), text, sizeof text), count,
           (unsigned long long)refit_layout_model_bytes(refit_plan_destination(plan)));
}

static void print_json(const struct refit_plan *plan, const struct refit_edge *edges, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:I, s:I, s:o, s:o, s:I}", "source_rank", (json_int_t)edges[i].source_rank,
                                              "destination_rank", (json_int_t)edges[i].destination_rank, "bytes",
                                              refit_json_u64(edges[i].bytes), "ops", refit_json_u64(edges[i].ops), "batches",
                                              (json_int_t)edges[i].batches));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o}", "source", refit_layout_digest(refit_plan_source(plan)), "destination",
                             refit_layout_digest(refit_plan_destination(plan)), "bytes",
                             refit_json_u64(refit_plan_bytes(plan)), "edges", list);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

static enum refit_status show_plan(const struct plan_options *o, struct refit_error *err)
{
    struct refit_layout *source = NULL, *destination = NULL;
    struct refit_plan *plan = NULL;
    size_t count;
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .totals_only = true};
    enum refit_status status = source_layout(o, &source, err);
    if (status == REFIT_OK)
        status = destination_layout(o, &destination, err);
    if (status == REFIT_OK)
        status = refit_plan_build(source, destination, scope, &plan, err);
    if (status == REFIT_OK) {
        const struct refit_edge *edges = refit_plan_edges(plan, &count);
        (o->json ? print_json : print_text)(plan, edges, count);
    }
    refit_plan_release(plan);
    refit_layout_release(destination);
    refit_layout_release(source);
    return status;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0};
    struct plan_options o = {0};
    struct refit_error err;
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_TEXT, "URL", "control API of the replica", &o.to, false},
        {"source-layout", REFIT_CLI_TEXT, "FILE", "a layout document instead of a checkpoint", &o.source, false},
        {"layout", REFIT_CLI_TEXT, "FILE", "a layout document instead of a replica", &o.destination, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &o.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 0, 1);
    if (rc == REFIT_EXIT_PARSED) {
        o.checkpoint = words.count ? words.items[0] : NULL;
        rc = REFIT_EXIT_OK;
        if (show_plan(&o, &err) != REFIT_OK) {
            fprintf(stderr, "refit plan: %s (%s)\n", err.text, refit_status_action(err.status));
            rc = REFIT_EXIT_FAILED;
        }
    }
    refit_cli_list_release(&words);
    return rc;
}

const struct refit_cli_command refit_cli_plan = {
    .name = "plan", .arguments = "[CHECKPOINT] --to URL", .summary = "who would send what to whom, bytes per link; nothing moves",
    .examples = "  refit plan model.safetensors --to http://10.0.0.7:7070\n"
                "  refit plan --source-layout trainer.json --layout engine.json --output json\n",
    .run = run};
