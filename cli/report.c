/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/options.h"
#include "cli/table.h"

void refit_cli_report_text(const struct refit_report *report)
{
    struct refit_cli_table table;
    refit_cli_table_init(&table, 6);
    static const char *const head[] = {"REPLICA", "OUTCOME", "MOVED", "NEEDED", "SECONDS", "PATH"};
    for (size_t i = 0; i < 6; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < report->replica_count; i++) {
        const struct refit_replica_report *r = &report->replicas[i];
        char moved[16], needed[16];
        refit_cli_cell(&table, "%s", r->url);
        refit_cli_cell(&table, "%s", refit_outcome_name(r->outcome));
        refit_cli_cell(&table, "%s", refit_cli_bytes(r->bytes_moved, moved, sizeof moved));
        refit_cli_cell(&table, "%s", refit_cli_bytes(r->bytes_needed, needed, sizeof needed));
        refit_cli_cell(&table, "%.3f", r->seconds);
        refit_cli_cell(&table, "%s", r->transport[0] ? r->transport : "-");
    }
    printf("version %llu  digest %s\n", (unsigned long long)report->version, report->digest[0] ? report->digest : "-");
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
    for (size_t i = 0; i < report->replica_count; i++) {
        const struct refit_replica_report *r = &report->replicas[i];
        bool named = strstr(r->error.text, r->url) != NULL;
        if (r->error.status != REFIT_OK)
            fprintf(stderr, "refit push: %s%s%s (%s)\n", named ? "" : r->url, named ? "" : ": ", r->error.text,
                    refit_status_action(r->error.status));
    }
}

static json_t *replica_json(const struct refit_replica_report *r)
{
    json_t *o = json_object();
    json_object_set_new(o, "url", json_string(r->url));
    json_object_set_new(o, "outcome", json_string(refit_outcome_name(r->outcome)));
    json_object_set_new(o, "refit", json_string(r->refit_id));
    json_object_set_new(o, "digest", json_string(r->digest));
    json_object_set_new(o, "transport", json_string(r->transport));
    json_object_set_new(o, "bytes_needed", refit_json_u64(r->bytes_needed));
    json_object_set_new(o, "bytes_moved", refit_json_u64(r->bytes_moved));
    json_object_set_new(o, "wire_bytes", refit_json_u64(r->wire_bytes));
    const struct {
        const char *name;
        double seconds;
    } spans[] = {{"seconds", r->seconds}, {"plan_s", r->plan_s}, {"wait_readers_s", r->wait_readers_s},
                 {"transfer_s", r->transfer_s}, {"verify_s", r->verify_s}, {"prepare_s", r->prepare_s},
                 {"staged_s", r->staged_s}, {"swap_s", r->swap_s}};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        json_object_set_new(o, spans[i].name, json_real(spans[i].seconds));
    if (r->error.status != REFIT_OK)
        json_object_set_new(o, "error", json_pack("{s:s, s:s}", "status", refit_status_name(r->error.status), "text", r->error.text));
    return o;
}

void refit_cli_report_json(const struct refit_report *report)
{
    json_t *root = json_object(), *replicas = json_array();
    for (size_t i = 0; i < report->replica_count; i++)
        json_array_append_new(replicas, replica_json(&report->replicas[i]));
    json_object_set_new(root, "version", refit_json_u64(report->version));
    json_object_set_new(root, "digest", json_string(report->digest));
    json_object_set_new(root, "seconds", json_real(report->seconds));
    json_object_set_new(root, "sources_free_s", json_real(report->sources_free_s));
    json_object_set_new(root, "replicas", replicas);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

int refit_cli_report_exit(const struct refit_report *report, int wanted_outcome)
{
    size_t reached = 0;
    for (size_t i = 0; i < report->replica_count; i++)
        reached += (int)report->replicas[i].outcome == wanted_outcome;
    if (reached == report->replica_count && reached > 0)
        return REFIT_EXIT_OK;
    return reached ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}
