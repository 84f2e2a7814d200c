/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/remote.h"

#define TURN_MS 200 /* how long one replica may keep the others waiting for their turn */

struct watched {
    struct refit_control control;
    struct refit_control_state state;
    enum refit_status status; /* of the last look */
    struct refit_error error; /* its, when it failed */
    bool ended;
};

static void look(struct watched *w, int64_t wait_ms)
{
    int64_t after = w->state.id[0] && wait_ms > 0 ? (int64_t)w->state.sequence : -1;
    w->status = refit_control_state(&w->control, w->state.id, after, wait_ms, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS),
                                    &w->state, &w->error);
    w->ended = w->status != REFIT_OK || w->state.terminal;
    if (w->status != REFIT_OK)
        fprintf(stderr, "refit watch: %s\n", w->error.text);
}

static bool draw(struct refit_cli_progress *progress, const struct watched *all, size_t count)
{
    struct refit_replica_progress *shown = calloc(count, sizeof *shown);
    bool ended = true;
    for (size_t i = 0; shown && i < count; i++) {
        bool known = all[i].status == REFIT_OK;
        const char *why = all[i].status == REFIT_NOT_FOUND ? "no refit" : "no answer";
        shown[i] = (struct refit_replica_progress){
            .url = all[i].control.url.text, .phase = known ? refit_control_phase_name(all[i].state.phase) : why,
            .bytes_done = all[i].state.bytes_done, .bytes_due = all[i].state.bytes_due};
        ended = ended && all[i].ended;
    }
    if (shown)
        refit_cli_progress_show(progress, shown, count);
    free(shown);
    return ended;
}

static int conclude(const struct watched *all, size_t count)
{
    size_t good = 0;
    for (size_t i = 0; i < count; i++) {
        good += all[i].status == REFIT_OK && all[i].state.error.status == REFIT_OK;
        if (all[i].status == REFIT_OK && all[i].state.error.status != REFIT_OK)
            fprintf(stderr, "refit watch: %s: version %llu: %s\n", all[i].control.url.text,
                    (unsigned long long)all[i].state.version, all[i].state.error.text);
    }
    return good == count ? REFIT_EXIT_OK : good ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}

static json_t *describe(const struct watched *w)
{
    json_t *item = json_pack("{s:s}", "url", w->control.url.text);
    const struct refit_control_state *state = &w->state;
    if (w->status == REFIT_OK) {
        json_object_set_new(item, "id", json_string(state->id));
        json_object_set_new(item, "version", refit_json_u64(state->version));
        json_object_set_new(item, "phase", json_string(refit_control_phase_name(state->phase)));
        json_object_set_new(item, "terminal", json_boolean(state->terminal));
        json_object_set_new(item, "digest", json_string(state->digest));
        json_object_set_new(item, "bytes_done", refit_json_u64(state->bytes_done));
        json_object_set_new(item, "bytes_due", refit_json_u64(state->bytes_due));
    }
    const struct refit_error *error = w->status == REFIT_OK ? &state->error : &w->error;
    if (error->status != REFIT_OK)
        json_object_set_new(item, "error", refit_cli_error_json(error));
    return item;
}

static void print_all(const struct watched *all, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, describe(&all[i]));
    refit_cli_print_json(list);
}

static int watch(const struct refit_cli_list *urls, bool once, bool json)
{
    struct refit_error err;
    struct refit_cli_progress progress;
    struct watched *all = calloc(urls->count, sizeof *all);
    for (size_t i = 0; all && i < urls->count; i++)
        if (refit_control_init(&all[i].control, urls->items[i], &err) != REFIT_OK) {
            fprintf(stderr, "refit watch: %s\n", err.text);
            free(all);
            return REFIT_EXIT_USAGE;
        }
    if (!all)
        return REFIT_EXIT_FAILED;
    refit_cli_progress_init(&progress);
    for (bool ended = false; !ended;) {
        for (size_t i = 0; i < urls->count; i++)
            if (!all[i].ended)
                look(&all[i], TURN_MS);
        ended = draw(&progress, all, urls->count) || once;
    }
    refit_cli_progress_release(&progress);
    int rc = conclude(all, urls->count);
    if (json)
        print_all(all, urls->count);
    free(all);
    return rc;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0}, to = {0};
    bool once = false, json = false;
    const struct refit_cli_option options[] = {{"to", REFIT_CLI_LIST, "MEMBER", REFIT_CLI_TO_HELP, &to, false},
                                               {"once", REFIT_CLI_FLAG, NULL, "one look, then end", &once, false},
                                               {"output", REFIT_CLI_OUTPUT, "FORMAT", "json (the last states) or text", &json,
                                                false}, {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 0, SIZE_MAX);
    struct refit_cli_targets targets;
    if (rc == REFIT_EXIT_PARSED)
        rc = refit_cli_targets_read("watch", &words, &to, &targets);
    if (rc == REFIT_EXIT_PARSED) {
        rc = watch(&targets.urls, once, json);
        refit_cli_targets_release(&targets);
    }
    refit_cli_list_release(&words);
    refit_cli_list_release(&to);
    return rc;
}

const struct refit_cli_command refit_cli_watch = {
    .name = "watch", .arguments = "MEMBER...", .summary = "follow the running refit of each replica to its end",
    .examples = "  refit watch http://10.0.0.7:7070 http://10.0.0.8:7070\n", .run = run};
