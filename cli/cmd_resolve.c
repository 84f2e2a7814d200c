/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lead that is gone has left half done, finished.
 */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/report.h"
#include "sender/resolve.h"

#define DEADLINE_MS 60000

struct resolve {
    struct refit_cli_list words, to;
    int64_t deadline_ms;
    bool commit, abort, json;
};

static int resolve_all(const struct refit_membership *members, const struct resolve *options)
{
    struct refit_error err;
    struct refit_report_store store;
    enum refit_resolve_choice choice = options->commit  ? REFIT_RESOLVE_COMMIT
                                       : options->abort ? REFIT_RESOLVE_ABORT
                                                        : REFIT_RESOLVE_AUTO;
    if (refit_resolve(members, choice, refit_deadline_in_ms(options->deadline_ms), &store, &err) != REFIT_OK) {
        fprintf(stderr, "refit resolve: %s (%s)\n", err.text, refit_status_action(err.status));
        return REFIT_EXIT_FAILED;
    }
    if (options->json)
        refit_cli_report_json(&store.report);
    else
        refit_cli_report_text("resolve", &store.report);
    /* A publish that was aborted everywhere is resolved. */
    bool same = store.report.outcome == REFIT_FLEET_COMMITTED || store.report.outcome == REFIT_FLEET_ABORTED;
    int rc = same ? REFIT_EXIT_OK : refit_cli_report_exit(&store.report);
    refit_report_release(&store);
    return rc;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct resolve resolve = {.deadline_ms = DEADLINE_MS};
    struct refit_cli_targets targets;
    const struct refit_cli_option options[] = {
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &resolve.to, false},
        {"commit", REFIT_CLI_FLAG, NULL, "commit what is staged, also when no replica has committed it", &resolve.commit, false},
        {"abort", REFIT_CLI_FLAG, NULL, "abort what is staged, and take back what was committed", &resolve.abort, false},
        {"deadline", REFIT_CLI_DURATION, "TIME", "for all of it (1m)", &resolve.deadline_ms, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &resolve.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &resolve.words, 0, SIZE_MAX);
    if (rc == REFIT_EXIT_PARSED && resolve.commit && resolve.abort) {
        fprintf(stderr, "refit resolve: --commit or --abort, not both\n");
        rc = REFIT_EXIT_USAGE;
    }
    if (rc == REFIT_EXIT_PARSED)
        rc = refit_cli_targets_read("resolve", &resolve.words, &resolve.to, &targets);
    if (rc == REFIT_EXIT_PARSED) {
        rc = resolve_all(&targets.membership, &resolve);
        refit_cli_targets_release(&targets);
    }
    refit_cli_list_release(&resolve.words);
    refit_cli_list_release(&resolve.to);
    return rc;
}

const struct refit_cli_command refit_cli_resolve = {
    .name = "resolve", .arguments = "MEMBER... [--commit | --abort]",
    .summary = "finish what a lead that died left staged: commit it where others have, else abort it",
    .examples = "  refit resolve --to dns:rollout.default.svc:7070\n", .run = run};
