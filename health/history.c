/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "health/health.h"

static int64_t spent_ms(const struct refit_session_snapshot *session)
{
    int64_t ns = 0;
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++)
        ns += session->phase_ns[i];
    return ns / 1000000;
}

static struct refit_health_past *find(struct refit_health_history *history, const char *id)
{
    for (uint32_t i = 0; i < history->count; i++)
        if (strcmp(history->past[i].session.id, id) == 0)
            return &history->past[i];
    return NULL;
}

/* The newest stands first; the oldest makes room. */
static struct refit_health_past *add(struct refit_health_history *history)
{
    if (history->count < REFIT_HEALTH_HISTORY)
        history->count++;
    memmove(&history->past[1], &history->past[0], (history->count - 1) * sizeof history->past[0]);
    return &history->past[0];
}

bool refit_health_history_observe(struct refit_health_history *history, const struct refit_session_snapshot *session,
                                  int64_t now_ms)
{
    struct refit_health_past *past = find(history, session->id);
    if (past && refit_health_is_terminal(past->session.phase))
        return false;
    if (!past) {
        past = add(history);
        past->began_ms = now_ms - spent_ms(session);
    }
    past->session = *session;
    return refit_health_is_terminal(session->phase);
}

const char *refit_health_history_unfinished(const struct refit_health_history *history, const char *latest)
{
    for (uint32_t i = 0; i < history->count; i++) {
        const struct refit_session_snapshot *session = &history->past[i].session;
        if (!refit_health_is_terminal(session->phase) && strcmp(session->id, latest) != 0)
            return session->id;
    }
    return NULL;
}

void refit_health_history_forget(struct refit_health_history *history, const char *id)
{
    struct refit_health_past *past = find(history, id);
    if (!past)
        return;
    size_t behind = (size_t)(history->past + history->count - past) - 1;
    memmove(past, past + 1, behind * sizeof *past);
    history->count--;
}

json_t *refit_health_history_json(const struct refit_health_history *history)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < history->count; i++) {
        json_t *one = refit_health_session_json(&history->past[i].session);
        json_object_set_new(one, "began_ms", json_integer(history->past[i].began_ms));
        json_array_append_new(out, one);
    }
    return out;
}
