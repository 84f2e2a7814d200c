/* SPDX-License-Identifier: Apache-2.0
 *
 * Who would send what to whom. The plan is a pure function of two layouts, so it is made here; nothing moves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/table.h"
#include "layouts/plan_json.h"
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

static struct refit_group side_of(const struct refit_plan *plan, const struct refit_edge *edge, enum refit_side side)
{
    return refit_plan_group(plan, side, side == REFIT_SOURCE ? edge->source_group : edge->destination_group);
}

static uint32_t domain_of(const struct refit_topology *topology, uint32_t rank)
{
    return topology ? refit_topology_domain_of(topology, rank) : 0;
}

static const char *name_of(const struct refit_topology *topology, uint32_t domain)
{
    return topology ? refit_topology_name(topology, domain) : "-";
}

/* The domains of a group's ranks, each once; new. */
static json_t *domains_of(const struct refit_topology *topology, struct refit_group group)
{
    json_t *seen = json_object(), *list = json_array();
    for (uint32_t i = 0; i < group.count; i++) {
        const char *name = name_of(topology, domain_of(topology, group.ranks[i]));
        if (!json_object_get(seen, name))
            json_array_append_new(list, json_string(name));
        json_object_set_new(seen, name, json_true());
    }
    json_decref(seen);
    return list;
}

static void domains_cell(struct refit_cli_table *table, const struct refit_topology *topology, struct refit_group group)
{
    json_t *list = domains_of(topology, group);
    const char *first = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) > 1)
        refit_cli_cell(table, "%s and %zu more", first, json_array_size(list) - 1);
    else
        refit_cli_cell(table, "%s", first ? first : "-");
    json_decref(list);
}

static void print_text(const struct refit_plan *plan, const struct places *places, const struct refit_edge *edges,
                       size_t count)
{
    char text[64], written[16];
    struct refit_cli_table table;
    static const char *const head[] = {"SOURCE RANKS", "SERVING RANKS", "BYTES", "BOXES", "BATCHES", "FROM", "TO"};
    size_t columns = places->from || places->to ? 7 : 5;
    refit_cli_table_init(&table, columns);
    for (size_t i = 0; i < columns; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < count; i++) {
        struct refit_group senders = side_of(plan, &edges[i], REFIT_SOURCE);
        struct refit_group takers = side_of(plan, &edges[i], REFIT_DESTINATION);
        refit_cli_cell(&table, "%s", refit_group_format(senders, text, sizeof text));
        refit_cli_cell(&table, "%s", refit_group_format(takers, text, sizeof text));
        refit_cli_cell(&table, "%s", refit_cli_bytes(edges[i].bytes, text, sizeof text));
        refit_cli_cell(&table, "%llu", (unsigned long long)edges[i].ops);
        refit_cli_cell(&table, "%u", edges[i].batches);
        if (columns > 5) {
            domains_cell(&table, places->from, senders);
            domains_cell(&table, places->to, takers);
        }
    }
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
    printf("%llu bytes (%s) over %zu links, %s written, of a model of %llu\n",
           (unsigned long long)refit_plan_bytes(plan),
           refit_cli_bytes(refit_plan_bytes(plan), text, sizeof text), count,
           refit_cli_bytes(refit_plan_written_bytes(plan), written, sizeof written),
           (unsigned long long)refit_layout_model_bytes(refit_plan_destination(plan)));
}

static void print_json(const struct refit_plan *plan, const struct places *places, const struct refit_edge *edges,
                       size_t count)
{
    json_t *root = refit_plan_json(plan), *list = json_object_get(root, "edges");
    for (size_t i = 0; i < count; i++) {
        json_t *edge = json_array_get(list, i);
        json_object_set_new(edge, "from", domains_of(places->from, side_of(plan, &edges[i], REFIT_SOURCE)));
        json_object_set_new(edge, "to", domains_of(places->to, side_of(plan, &edges[i], REFIT_DESTINATION)));
    }
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

static void count_domains(const struct refit_topology *topology, struct refit_group group, uint32_t domains,
                          uint32_t *ranks)
{
    memset(ranks, 0, domains * sizeof *ranks);
    for (uint32_t i = 0; i < group.count; i++)
        ranks[domain_of(topology, group.ranks[i])]++;
}

/* Bytes from one domain to another, as they are when the ranks of each group share evenly; a link within a domain is
 * its fast path. */
static void print_links(const struct refit_plan *plan, const struct places *places, const struct refit_edge *edges,
                        size_t count)
{
    uint32_t rows = places->from ? refit_topology_domains(places->from) : 1;
    uint32_t columns = places->to ? refit_topology_domains(places->to) : 1;
    double *bytes = calloc((size_t)rows * columns, sizeof *bytes);
    uint32_t *from = calloc(rows, sizeof *from), *to = calloc(columns, sizeof *to);
    if (!bytes || !from || !to)
        count = rows = 0;
    for (size_t i = 0; i < count; i++) {
        struct refit_group senders = side_of(plan, &edges[i], REFIT_SOURCE);
        struct refit_group takers = side_of(plan, &edges[i], REFIT_DESTINATION);
        count_domains(places->from, senders, rows, from);
        count_domains(places->to, takers, columns, to);
        for (size_t at = 0; at < (size_t)rows * columns; at++)
            bytes[at] += (double)edges[i].bytes * from[at / columns] / senders.count * to[at % columns] / takers.count;
    }
    for (size_t at = 0; at < (size_t)rows * columns; at++) {
        char text[16];
        if (bytes[at] > 0)
            printf("link %s -> %s: %s\n", name_of(places->from, (uint32_t)(at / columns)),
                   name_of(places->to, (uint32_t)(at % columns)),
                   refit_cli_bytes((uint64_t)bytes[at], text, sizeof text));
    }
    free(bytes);
    free(from);
    free(to);
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
            print_links(plan, &places, edges, count);
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
    if (rc == REFIT_EXIT_PARSED && ((words.count && o.source) || (o.to && o.destination))) {
        fprintf(stderr, "refit plan: %s: give one of the two\n",
                words.count && o.source ? "CHECKPOINT and --source-layout" : "--to and --layout");
        rc = REFIT_EXIT_USAGE;
    }
    if (rc == REFIT_EXIT_PARSED) {
        o.checkpoint = words.count ? words.items[0] : NULL;
        if (!o.to && !o.destination)
            o.to = getenv(REFIT_CLI_TO_VARIABLE);
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
