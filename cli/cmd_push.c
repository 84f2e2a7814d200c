/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/remote.h"
#include "cli/report.h"
#include "transport/endpoint.h"

struct push {
    const char *checkpoint, *label, *kv, *transport, *name, *policy, *strategy;
    struct refit_cli_list to, unchanged;
    uint64_t version, streams, since;
    int64_t deadline_ms;
    bool json, stage_only, takeover, resume, check_source;
};

static int fail(const struct refit_error *err)
{
    fprintf(stderr, "refit push: %s (%s)\n", err->text, refit_status_action(err->status));
    return REFIT_EXIT_FAILED;
}

static int publish(struct refit_sender *sender, const struct push *push)
{
    struct refit_error err = {0};
    struct refit_report report = {0};
    struct refit_cli_progress progress;
    refit_cli_progress_init(&progress);
    struct refit_publish request = {.version = push->version, .label = push->label, .kv = push->kv,
                                    .deadline_ms = push->deadline_ms, .stage_only = push->stage_only,
                                    .policy = push->policy, .strategy = push->strategy,
                                    .unchanged_since = push->since, .unchanged = push->unchanged.items,
                                    .unchanged_count = push->unchanged.count, .resume = push->resume,
                                    .check_source = push->check_source,
                                    .progress = refit_cli_progress_show, .progress_context = &progress};
    enum refit_status status = refit_sender_publish(sender, &request, &report, &err);
    refit_cli_progress_release(&progress);
    if (report.replica_count == 0)
        return status == REFIT_OK ? REFIT_EXIT_OK : fail(&err);
    if (push->json)
        refit_cli_report_json(&report);
    else
        refit_cli_report_text("push", &report);
    return status == REFIT_OK ? REFIT_EXIT_OK : refit_cli_report_exit(&report);
}

static int run_push(const struct push *push)
{
    struct refit_error err;
    struct refit_sender *sender;
    struct refit_sender_config config = {.ranks = 1, .replicas = push->to.items, .replica_count = push->to.count,
                                         .name = push->name, .takeover = push->takeover, .streams = (unsigned)push->streams,
                                         .transport = push->transport};
    if (refit_sender_open(&config, &sender, &err) != REFIT_OK)
        return fail(&err);
    int rc = refit_sender_register_checkpoint(sender, push->checkpoint, &err) == REFIT_OK ? publish(sender, push) : fail(&err);
    refit_sender_close(sender);
    return rc;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct push push = {0};
    struct refit_cli_list words = {0};
    const struct refit_cli_option options[] = {
        {"version", REFIT_CLI_COUNT, "N", "version to publish, newer than what is served", &push.version, true},
        {"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &push.to, true},
        {"label", REFIT_CLI_TEXT, "TEXT", "a name beside the version", &push.label, false},
        {"kv", REFIT_CLI_TEXT, "WORD", "KV and prefix caches: flush (default), keep or namespace", &push.kv, false},
        {"policy", REFIT_CLI_TEXT, "POLICY", "each (default), all, quorum:N, canary:N[,wait=TIME][,check=URL]", &push.policy,
         false},
        {"strategy", REFIT_CLI_TEXT, "WORD", "relay (default: every byte is sent once), direct or broadcast", &push.strategy, false},
        {"since", REFIT_CLI_COUNT, "N", "a version that the tensors named by --unchanged have not changed since", &push.since,
         false},
        {"unchanged", REFIT_CLI_LIST, "NAME", "a tensor, or with a trailing * all that begin so; once for each", &push.unchanged,
         false},
        {"check-source", REFIT_CLI_FLAG, NULL,
         "read the files again for each replica, also what --unchanged names; what has changed ends the push", &push.check_source,
         false},
        {"resume", REFIT_CLI_FLAG, NULL, "this version's last push broke, the files are the same: move what is missing",
         &push.resume, false},
        {"deadline", REFIT_CLI_DURATION, "TIME", "for the whole publish (10m)", &push.deadline_ms, false},
        {"transport", REFIT_CLI_TEXT, "NAME", "auto (default), tcp, local or nccl", &push.transport, false},
        {"streams", REFIT_CLI_COUNT, "N", "tcp connections per replica (2)", &push.streams, false},
        {"name", REFIT_CLI_TEXT, "TEXT", "who leads, in messages (host and process)", &push.name, false},
        {"takeover", REFIT_CLI_FLAG, NULL, "replace a lead that still seems alive", &push.takeover, false},
        {"stage-only", REFIT_CLI_FLAG, NULL, "check that it would work: stop before the commit, then abort", &push.stage_only, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &push.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED && (push.since == 0) != (push.unchanged.count == 0)) {
        fprintf(stderr, "refit push: --since and --unchanged go together\n");
        rc = REFIT_EXIT_USAGE;
    }
    if (rc == REFIT_EXIT_PARSED && push.streams > REFIT_STREAMS_MAX) {
        fprintf(stderr, "refit push: --streams: expected a whole number from 1 to %d, found %llu\n", REFIT_STREAMS_MAX,
                (unsigned long long)push.streams);
        rc = REFIT_EXIT_USAGE;
    }
    if (rc == REFIT_EXIT_PARSED) {
        push.checkpoint = words.items[0];
        rc = run_push(&push);
    }
    refit_cli_list_release(&words);
    refit_cli_list_release(&push.to);
    refit_cli_list_release(&push.unchanged);
    return rc;
}

const struct refit_cli_command refit_cli_push = {
    .name = "push", .arguments = "CHECKPOINT --version N --to MEMBER...",
    .summary = "refit replicas from a safetensors checkpoint, one file or several",
    .examples = "  refit push model.safetensors --version 8 --to http://10.0.0.7:7070 --to http://10.0.0.8:7070\n"
                "  refit push runs/step-8 --version 8 --label step-8 --to http://127.0.0.1:7070 --output json\n"
                "  refit push runs/step-8 --version 8 --to dns:rollout.default.svc:7070 --policy canary:1,wait=30s\n",
    .run = run};
