/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/options.h"
#include "cli/table.h"

static void print_members(const struct refit_report *report)
{
    static const char *const head[] = {"REPLICA", "OUTCOME", "SENT", "MOVED", "NEEDED", "SECONDS", "PATH"};
    struct refit_cli_table table;
    refit_cli_table_init(&table, sizeof head / sizeof *head);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        refit_cli_cell(&table, "%s", head[i]);
    for (size_t i = 0; i < report->replica_count; i++) {
        const struct refit_replica_report *r = &report->replicas[i];
        bool pod = i > 0 && r->replica == report->replicas[i - 1].replica;
        char moved[16], needed[16], sent[16];
        refit_cli_cell(&table, "%s%s", pod ? "+ " : "", r->url);
        refit_cli_cell(&table, "%s", refit_outcome_name(r->outcome));
        refit_cli_cell(&table, "%s", refit_cli_bytes(r->bytes_sent, sent, sizeof sent));
        refit_cli_cell(&table, "%s", refit_cli_bytes(r->bytes_moved, moved, sizeof moved));
        refit_cli_cell(&table, "%s", refit_cli_bytes(r->bytes_needed, needed, sizeof needed));
        refit_cli_cell(&table, "%.3f", r->seconds);
        refit_cli_cell(&table, "%s", r->transport[0] ? r->transport : "-");
    }
    refit_cli_table_print(&table);
    refit_cli_table_release(&table);
}

static void print_sums(const struct refit_report *report)
{
    char sent[16], saved[16], excess[16];
    printf("%s: sent %s%s, saved %s, excess %s\n", refit_fleet_outcome_name(report->outcome),
           refit_cli_bytes(report->bytes_sent, sent, sizeof sent), report->relayed ? ", relayed between replicas" : "",
           refit_cli_bytes(report->bytes_saved, saved, sizeof saved),
           refit_cli_bytes(report->bytes_excess, excess, sizeof excess));
}

void refit_cli_report_text(const char *command, const struct refit_report *report)
{
    printf("version %llu  digest %s\n", (unsigned long long)report->version, report->digest[0] ? report->digest : "-");
    print_members(report);
    print_sums(report);
    if (report->outcome == REFIT_FLEET_STAGED) /* its sender ends with this program */
        fprintf(stderr, "refit %s: staged, so it would work; nothing is committed: push without --stage-only to do it\n", command);
    else if (report->outcome != REFIT_FLEET_COMMITTED)
        fprintf(stderr, "refit %s: %s: %s\n", command, refit_fleet_outcome_name(report->outcome),
                refit_fleet_outcome_action(report->outcome));
    for (size_t i = 0; i < report->replica_count; i++) {
        const struct refit_replica_report *r = &report->replicas[i];
        bool named = strstr(r->error.text, r->url) != NULL;
        if (r->error.status != REFIT_OK)
            fprintf(stderr, "refit %s: %s%s%s (%s)\n", command, named ? "" : r->url, named ? "" : ": ", r->error.text,
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
    json_object_set_new(o, "replica", json_integer(r->replica));
    json_object_set_new(o, "bytes_moved", refit_json_u64(r->bytes_moved));
    json_object_set_new(o, "bytes_sent", refit_json_u64(r->bytes_sent));
    json_object_set_new(o, "bytes_saved", refit_json_u64(r->bytes_saved));
    json_object_set_new(o, "bytes_excess", refit_json_u64(r->bytes_excess));
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
        json_object_set_new(o, "error", json_pack("{s:s, s:o}", "status", refit_status_name(r->error.status), "text",
                                                 refit_json_text(r->error.text)));
    return o;
}

void refit_cli_report_json(const struct refit_report *report)
{
    json_t *root = json_object(), *replicas = json_array();
    for (size_t i = 0; i < report->replica_count; i++)
        json_array_append_new(replicas, replica_json(&report->replicas[i]));
    json_object_set_new(root, "version", refit_json_u64(report->version));
    json_object_set_new(root, "digest", json_string(report->digest));
    json_object_set_new(root, "outcome", json_string(refit_fleet_outcome_name(report->outcome)));
    json_object_set_new(root, "action", json_string(refit_fleet_outcome_action(report->outcome)));
    json_object_set_new(root, "relayed", json_boolean(report->relayed));
    json_object_set_new(root, "membership_epoch", refit_json_u64(report->membership_epoch));
    json_object_set_new(root, "bytes_sent", refit_json_u64(report->bytes_sent));
    json_object_set_new(root, "bytes_saved", refit_json_u64(report->bytes_saved));
    json_object_set_new(root, "bytes_excess", refit_json_u64(report->bytes_excess));
    json_object_set_new(root, "seconds", json_real(report->seconds));
    json_object_set_new(root, "sources_free_s", json_real(report->sources_free_s));
    json_object_set_new(root, "replicas", replicas);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

int refit_cli_report_exit(const struct refit_report *report)
{
    if (report->outcome == REFIT_FLEET_COMMITTED || report->outcome == REFIT_FLEET_STAGED)
        return REFIT_EXIT_OK;
    for (size_t i = 0; i < report->replica_count; i++)
        if (report->replicas[i].outcome == REFIT_OUTCOME_COMMITTED)
            return REFIT_EXIT_PARTLY;
    return REFIT_EXIT_FAILED;
}
