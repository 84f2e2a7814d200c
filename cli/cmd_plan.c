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
#include "layouts/topology.h"

struct plan_options {
    const char *checkpoint, *source, *destination, *to, *from_topology, *to_topology;
    bool json;
};

/* Which domain the ranks of each side are in; NULL: not known. */
struct places {
    struct refit_topology *from, *to;
};

static enum refit_status source_layout(const struct plan_options *o, struct refit_layout **out, struct refit_error *err)
{
    struct refit_checkpoint *checkpoint;
    if (o->source)
        return refit_cli_layout(o->source, NULL, out, err);
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
    if (!o->destination && !o->to)
        return refit_fail(err, REFIT_INVALID, "no destination: give --to URL, or --layout FILE");
    return refit_cli_layout(o->destination, o->to, out, err);
}

static const char *place_of(const struct refit_topology *topology, uint32_t rank)
{
    return topology ? refit_topology_name(topology, refit_topology_domain_of(topology, rank)) : "-";
}

static void print_text(const struct refit_plan *plan, const struct places *places, const struct refit_edge *edges,
                       size_t count)
{
    char text[16];
    struct refit_cli_table table;
    static const char *const head[] = {"SOURCE RANK", "SERVING RANK", "BYTES", "BOXES", "BATCHES", "FROM", "TO"};
    size_t columns = places->from || places->to ? 7 : 5;
    refit_cli_table_init(&table, columns);
    for (size_t i = 0; i < columns; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < count; i++) {
        refit_cli_cell(&table, "%u", edges[i].source_rank);
        refit_cli_cell(&table, "%u", edges[i].destination_rank);
        refit_cli_cell(&table, "%s", refit_cli_bytes(edges[i].bytes, text, sizeof text));
        refit_cli_cell(&table, "%llu", (unsigned long long)edges[i].ops);
        refit_cli_cell(&table, "%u", edges[i].batches);
        if (columns > 5) {
            refit_cli_cell(&table, "%s", place_of(places->from, edges[i].source_rank));
            refit_cli_cell(&table, "%s", place_of(places->to, edges[i].destination_rank));
        }
    }
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
    printf("%llu bytes (%s) over %zu links, of a model of %llu\n", (unsigned long long)refit_plan_bytes(plan),
           refit_cli_bytes(refit_plan_bytes(plan), text, sizeof text), count,
           (unsigned long long)refit_layout_model_bytes(refit_plan_destination(plan)));
}

static void print_json(const struct refit_plan *plan, const struct places *places, const struct refit_edge *edges,
                       size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:I, s:I, s:o, s:o, s:I, s:s, s:s}", "source_rank",
                                              (json_int_t)edges[i].source_rank, "destination_rank",
                                              (json_int_t)edges[i].destination_rank, "bytes", refit_json_u64(edges[i].bytes),
                                              "ops", refit_json_u64(edges[i].ops), "batches", (json_int_t)edges[i].batches,
                                              "from", place_of(places->from, edges[i].source_rank), "to",
                                              place_of(places->to, edges[i].destination_rank)));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o}", "source", refit_layout_digest(refit_plan_source(plan)), "destination",
                             refit_layout_digest(refit_plan_destination(plan)), "bytes",
                             refit_json_u64(refit_plan_bytes(plan)), "edges", list);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

static enum refit_status read_topology(const char *path, uint32_t ranks, struct refit_topology **out,
                                       struct refit_error *err)
{
    char *text;
    size_t len;
    if (!path)
        return REFIT_OK;
    enum refit_status status = refit_io_read_file(path, REFIT_LAYOUT_TEXT_MAX, &text, &len, err);
    if (status != REFIT_OK)
        return status;
    status = refit_topology_parse(text, len, path, out, err);
    free(text);
    if (status == REFIT_OK && refit_topology_ranks(*out) != ranks)
        status = refit_fail(err, REFIT_MISMATCH, "%s: has %u ranks, its layout has %u", path, refit_topology_ranks(*out), ranks);
    return status;
}

/* Bytes from one domain to another; a link within a domain is its fast path. */
static void print_links(const struct places *places, const struct refit_edge *edges, size_t count)
{
    uint32_t rows = places->from ? refit_topology_domains(places->from) : 1;
    uint32_t columns = places->to ? refit_topology_domains(places->to) : 1;
    uint64_t *bytes = calloc((size_t)rows * columns, sizeof *bytes);
    for (size_t i = 0; bytes && i < count; i++) {
        uint32_t row = places->from ? refit_topology_domain_of(places->from, edges[i].source_rank) : 0;
        uint32_t column = places->to ? refit_topology_domain_of(places->to, edges[i].destination_rank) : 0;
        bytes[(size_t)row * columns + column] += edges[i].bytes;
    }
    for (size_t i = 0; bytes && i < (size_t)rows * columns; i++) {
        char text[16];
        const char *from = places->from ? refit_topology_name(places->from, (uint32_t)(i / columns)) : "-";
        const char *to = places->to ? refit_topology_name(places->to, (uint32_t)(i % columns)) : "-";
        if (bytes[i])
            printf("link %s -> %s: %s\n", from, to, refit_cli_bytes(bytes[i], text, sizeof text));
    }
    free(bytes);
}

static enum refit_status show_places(const struct plan_options *o, const struct refit_plan *plan,
                                     const struct refit_edge *edges, size_t count, struct refit_error *err)
{
    struct places places = {0};
    enum refit_status status =
        read_topology(o->from_topology, refit_layout_ranks(refit_plan_source(plan)), &places.from, err);
    if (status == REFIT_OK)
        status = read_topology(o->to_topology, refit_layout_ranks(refit_plan_destination(plan)), &places.to, err);
    if (status == REFIT_OK) {
        (o->json ? print_json : print_text)(plan, &places, edges, count);
        if (!o->json && (places.from || places.to))
            print_links(&places, edges, count);
    }
    refit_topology_release(places.from);
    refit_topology_release(places.to);
    return status;
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
        status = show_places(o, plan, edges, count, err);
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
        {"source-topology", REFIT_CLI_TEXT, "FILE", "domains of the source ranks, to add up bytes per link", &o.from_topology, false},
        {"topology", REFIT_CLI_TEXT, "FILE", "domains of the serving ranks", &o.to_topology, false},
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
                "  refit plan --source-layout trainer.json --layout engine.json --output json\n"
                "  refit plan --source-layout trainer.json --source-topology racks.json --layout engine.json\n",
    .run = run};
