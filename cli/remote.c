/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/remote.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/io.h"

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

static enum refit_status call_one(const char *url, enum refit_http_method method, const char *path, const json_t *body,
                                  json_t **answer, struct refit_error *err)
{
    struct refit_control control;
    enum refit_status status = refit_control_init(&control, url, err);
    if (status != REFIT_OK)
        return status;
    return refit_control_call(&control, method, path, body, refit_deadline_in_ms(REFIT_CLI_TIMEOUT_MS), answer, err);
}

int refit_cli_each(const char *command, const struct refit_cli_list *urls, enum refit_http_method method, const char *path,
                   const json_t *body, refit_cli_show show, void *context)
{
    size_t done = 0;
    for (size_t i = 0; i < urls->count; i++) {
        struct refit_error err;
        json_t *answer = NULL;
        enum refit_status status = call_one(urls->items[i], method, path, body, &answer, &err);
        if (status == REFIT_OK) {
            show(context, urls->items[i], answer);
            done++;
        } else {
            fprintf(stderr, "refit %s: %s (%s)\n", command, err.text, refit_status_action(status));
        }
        json_decref(answer);
    }
    if (done == urls->count)
        return REFIT_EXIT_OK;
    return done ? REFIT_EXIT_PARTLY : REFIT_EXIT_FAILED;
}
