/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/state.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"

struct refit_state {
    pthread_mutex_t lock;
    char *path;
    json_t *document;
};

static void put_aside(const char *path, const struct refit_error *error)
{
    char aside[4096];
    int len = snprintf(aside, sizeof aside, "%s.bad", path);
    bool moved = len < (int)sizeof aside && rename(path, aside) == 0;
    refit_log_event(REFIT_LOG_WARN, "state file not readable, starting without it",
                    refit_log_text("moved", moved ? aside : "no"), REFIT_LOG_CAUSE(error));
}

/* A regular file that is no state is put aside. What can't be read at all (a directory, no permission) is not ours to move. */
static enum refit_status load(const char *path, json_t **out, struct refit_error *err)
{
    struct refit_error error;
    char *text = NULL;
    size_t len = 0;
    json_t *document = NULL;
    enum refit_status status = refit_io_read_file(path, REFIT_STATE_FILE_MAX, &text, &len, &error);
    if (status == REFIT_NOT_FOUND)
        return REFIT_OK;
    if (status != REFIT_OK)
        return refit_fail(err, status, "state file: %s; name another place for it, or move away what is there", error.text);
    status = refit_json_parse(text, len, path, &document, &error);
    if (status == REFIT_OK && !json_is_object(document))
        status = refit_fail(&error, REFIT_INVALID, "%s: must be a JSON object", path);
    free(text);
    if (status == REFIT_OK) {
        *out = document;
        return REFIT_OK;
    }
    json_decref(document);
    put_aside(path, &error);
    return REFIT_OK;
}

enum refit_status refit_state_open(const char *path, struct refit_state **out, struct refit_error *err)
{
    json_t *document = NULL;
    enum refit_status status = load(path, &document, err);
    if (status != REFIT_OK)
        return status;
    struct refit_state *state = calloc(1, sizeof *state);
    if (!state) {
        json_decref(document);
        return refit_fail_alloc(err, "the state file's copy", sizeof *state);
    }
    pthread_mutex_init(&state->lock, NULL);
    state->path = strdup(path);
    state->document = document ? document : json_object();
    if (!state->path || !state->document) {
        refit_state_close(state);
        return refit_fail_alloc(err, "the state file's copy", strlen(path));
    }
    *out = state;
    return REFIT_OK;
}

void refit_state_close(struct refit_state *state)
{
    if (!state)
        return;
    json_decref(state->document);
    free(state->path);
    pthread_mutex_destroy(&state->lock);
    free(state);
}

json_t *refit_state_get(struct refit_state *state, const char *section)
{
    pthread_mutex_lock(&state->lock);
    json_t *copy = json_deep_copy(json_object_get(state->document, section));
    pthread_mutex_unlock(&state->lock);
    return copy;
}

enum refit_status refit_state_put(struct refit_state *state, const char *section, const json_t *value,
                                  struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    char *text = NULL;
    size_t len = 0;
    pthread_mutex_lock(&state->lock);
    json_t *copy = json_deep_copy(value);
    if (copy && json_object_set_new(state->document, section, copy) == 0)
        text = refit_json_canonical(state->document, &len);
    status = text ? refit_io_replace_file(state->path, text, len, 0600, err)
                  : refit_fail_alloc(err, "the state file's text", REFIT_STATE_FILE_MAX);
    pthread_mutex_unlock(&state->lock);
    free(text);
    return status;
}

void refit_state_drop(struct refit_state *state, const char *section, const char *why)
{
    struct refit_error error = {0};
    char aside[4096];
    size_t len = 0;
    pthread_mutex_lock(&state->lock);
    char *text = refit_json_canonical(state->document, &len);
    bool kept = text && snprintf(aside, sizeof aside, "%s.bad", state->path) < (int)sizeof aside &&
                refit_io_replace_file(aside, text, len, 0600, &error) == REFIT_OK;
    json_object_del(state->document, section);
    pthread_mutex_unlock(&state->lock);
    refit_log_event(REFIT_LOG_WARN, "a section of the state file not readable, starting without it",
                    refit_log_text("section", section), refit_log_text("copy", kept ? aside : "no"),
                    refit_log_text("reason", why));
    free(text);
}
