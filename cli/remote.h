/* SPDX-License-Identifier: Apache-2.0
 *
 * The same call to several replicas at once, for commands that do one thing to each.
 */
#ifndef REFIT_CLI_REMOTE_H
#define REFIT_CLI_REMOTE_H

#include "base/json.h"
#include "cli/options.h"
#include "sender/control.h"
#include "sender/members.h"

#define REFIT_CLI_TIMEOUT_MS 30000
#define REFIT_CLI_TO_HELP "a replica: URL, URL+URL (its pods), file:PATH, dns:NAME:PORT or dns:https://NAME:PORT; once for each"

/* The layout in a file, or, when `path` is NULL, the one that the replica at `url` serves; *out is new. */
REFIT_MUST_CHECK enum refit_status refit_cli_layout(const char *path, const char *url, struct refit_layout **out,
                                                    struct refit_error *err);

/* Replicas as words of the command line name them (sender/members.h), in two lists, either of which may be NULL. */
struct refit_cli_targets {
    struct refit_membership membership;
    struct refit_cli_list urls; /* of all pods; borrowed from the membership */
};
/* REFIT_EXIT_PARSED, or the exit status after a reason on standard error. */
int refit_cli_targets_read(const char *command, const struct refit_cli_list *words, const struct refit_cli_list *to,
                           struct refit_cli_targets *out);
void refit_cli_targets_release(struct refit_cli_targets *targets);

struct refit_cli_answer {
    enum refit_status status;
    struct refit_error error;
    json_t *body; /* new; NULL on an error */
};
/* Calls all URLs, each with the body (borrowed; NULL: none) that `bodies` has for it: one for all, or one each. The
 * answers are new, in order (refit_cli_answers_release); NULL: out of memory. */
struct refit_cli_call {
    enum refit_http_method method;
    const char *path;
    json_t *const *bodies;
    size_t body_count; /* 0, 1, or as many as URLs */
    int64_t timeout_ms;
};
struct refit_cli_answer *refit_cli_call_all(const struct refit_cli_list *urls, const struct refit_cli_call *call);
void refit_cli_answers_release(struct refit_cli_answer *answers, size_t count);

/* Shows one replica's answer; `answer` is borrowed. */
typedef void (*refit_cli_show)(void *context, const char *url, const json_t *answer);

/* Shows what came (`show` may be NULL); errors go to standard error behind their URL. With `all` (borrowed, an array) each
 * answer is added to it as well, with its "url"; one that failed as {"url", "error": {"status", "text", "action"}}. Returns the
 * command's exit status. */
int refit_cli_show_answers(const char *command, const struct refit_cli_list *urls, const struct refit_cli_answer *answers,
                           refit_cli_show show, void *context, json_t *all);
/* Both, with one body for all. */
int refit_cli_each(const char *command, const struct refit_cli_list *urls, enum refit_http_method method, const char *path,
                   json_t *body, refit_cli_show show, void *context, json_t *all);
json_t *refit_cli_error_json(const struct refit_error *error); /* new */
/* A document on standard output; `json` is stolen. */
void refit_cli_print_json(json_t *json);

#endif
