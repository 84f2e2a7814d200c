/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/remote.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/io.h"
#include "base/thread.h"

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

enum refit_status refit_cli_layout(const char *path, const char *url, struct refit_layout **out, struct refit_error *err)
{
    struct refit_control control;
    if (path)
        return read_layout(path, out, err);
    enum refit_status status = refit_control_init(&control, url, err);
    if (status != REFIT_OK)
        return status;
    return refit_control_layout(&control, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS), out, err);
}

static enum refit_status list_urls(struct refit_cli_targets *targets, struct refit_error *err)
{
    for (size_t i = 0; i < targets->membership.count; i++)
        for (size_t k = 0; k < targets->membership.members[i].count; k++)
            if (!refit_cli_list_append(&targets->urls, targets->membership.members[i].urls[k]))
                return refit_fail_alloc(err, "members", targets->urls.count);
    return REFIT_OK;
}

int refit_cli_targets_read(const char *command, const struct refit_cli_list *words, const struct refit_cli_list *to,
                           struct refit_cli_targets *out)
{
    struct refit_error err;
    struct refit_members *members = NULL;
    size_t words_count = words ? words->count : 0, to_count = to ? to->count : 0;
    const char **texts = calloc(words_count + to_count + 1, sizeof *texts);
    *out = (struct refit_cli_targets){0};
    for (size_t i = 0; texts && i < words_count + to_count; i++)
        texts[i] = i < words_count ? words->items[i] : to->items[i - words_count];
    struct refit_members_config config = {.texts = texts, .count = words_count + to_count};
    enum refit_status status = texts ? refit_members_open(&config, &members, &err)
                                     : refit_fail_alloc(&err, "members", words_count + to_count);
    if (status == REFIT_OK)
        status = refit_members_read(members, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS), &out->membership, &err);
    refit_members_close(members);
    free(texts);
    if (status == REFIT_OK)
        status = list_urls(out, &err);
    if (status == REFIT_OK)
        return REFIT_EXIT_PARSED;
    fprintf(stderr, "refit %s: %s\n", command, err.text);
    refit_cli_targets_release(out);
    return status == REFIT_INVALID ? REFIT_EXIT_USAGE : REFIT_EXIT_FAILED;
}

void refit_cli_targets_release(struct refit_cli_targets *targets)
{
    refit_cli_list_release(&targets->urls);
    refit_membership_release(&targets->membership);
}

/* ---- calls ---- */

struct calling {
    const char *url;
    const struct refit_cli_call *call;
    json_t *body; /* of its own: a document is not for several threads */
    struct refit_cli_answer *answer;
    pthread_t thread;
    bool started;
};

static void *call_one(void *context)
{
    struct calling *calling = context;
    const struct refit_cli_call *call = calling->call;
    struct refit_cli_answer *answer = calling->answer;
    struct refit_control control;
    answer->status = refit_control_init(&control, calling->url, &answer->error);
    if (answer->status == REFIT_OK)
        answer->status = refit_control_call(&control, call->method, call->path, calling->body,
                                            refit_deadline_in_ms(call->timeout_ms), &answer->body, &answer->error);
    return NULL;
}

struct refit_cli_answer *refit_cli_call_all(const struct refit_cli_list *urls, const struct refit_cli_call *call)
{
    struct refit_error err;
    struct refit_cli_answer *answers = calloc(urls->count + 1, sizeof *answers);
    struct calling *all = calloc(urls->count + 1, sizeof *all);
    for (size_t i = 0; all && answers && i < urls->count; i++) {
        const json_t *body = call->body_count ? call->bodies[call->body_count > 1 ? i : 0] : NULL;
        all[i] = (struct calling){.url = urls->items[i], .call = call, .answer = &answers[i],
                                  .body = body ? json_deep_copy(body) : NULL};
        all[i].started = refit_thread_start(&all[i].thread, call_one, &all[i], "a thread for a call", &err) == REFIT_OK;
        if (!all[i].started)
            call_one(&all[i]);
    }
    for (size_t i = 0; all && answers && i < urls->count; i++) {
        if (all[i].started)
            pthread_join(all[i].thread, NULL);
        json_decref(all[i].body);
    }
    if (!all) {
        free(answers);
        answers = NULL;
    }
    free(all);
    return answers;
}

void refit_cli_answers_release(struct refit_cli_answer *answers, size_t count)
{
    for (size_t i = 0; answers && i < count; i++)
        json_decref(answers[i].body);
    free(answers);
}

json_t *refit_cli_error_json(const struct refit_error *error)
{
    return json_pack("{s:s, s:o, s:s}", "status", refit_status_name(error->status), "text", refit_json_text(error->text),
                     "action", refit_status_action(error->status));
}

void refit_cli_print_json(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(json);
}

static void collect(json_t *all, const char *url, const struct refit_cli_answer *answer)
{
    json_t *item = answer->status == REFIT_OK ? json_deep_copy(answer->body) : json_object();
    if (answer->status != REFIT_OK)
        json_object_set_new(item, "error", refit_cli_error_json(&answer->error));
    json_object_set_new(item, "url", json_string(url));
    json_array_append_new(all, item);
}

int refit_cli_show_answers(const char *command, const struct refit_cli_list *urls, const struct refit_cli_answer *answers,
                           refit_cli_show show, void *context, json_t *all)
{
    size_t done = 0;
    for (size_t i = 0; i < urls->count; i++) {
        if (all)
            collect(all, urls->items[i], &answers[i]);
        if (answers[i].status == REFIT_OK && show)
            show(context, urls->items[i], answers[i].body);
        if (answers[i].status != REFIT_OK)
            fprintf(stderr, "refit %s: %s (%s)\n", command, answers[i].error.text, refit_status_action(answers[i].status));
        done += answers[i].status == REFIT_OK;
    }
    if (done == urls->count)
        return REFIT_EXIT_OK;
    return done ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}

int refit_cli_each(const char *command, const struct refit_cli_list *urls, enum refit_http_method method, const char *path,
                   json_t *body, refit_cli_show show, void *context, json_t *all)
{
    struct refit_cli_call call = {.method = method, .path = path, .bodies = &body, .body_count = body != NULL,
                                  .timeout_ms = REFIT_CLI_TIMEOUT_MS};
    struct refit_cli_answer *answers = refit_cli_call_all(urls, &call);
    int rc = answers ? refit_cli_show_answers(command, urls, answers, show, context, all) : REFIT_EXIT_FAILED;
    refit_cli_answers_release(answers, urls->count);
    return rc;
}
