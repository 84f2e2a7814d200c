/* SPDX-License-Identifier: Apache-2.0
 *
 * The same call to several replicas, for commands that do one thing to each.
 */
#ifndef REFIT_CLI_REMOTE_H
#define REFIT_CLI_REMOTE_H

#include "base/json.h"
#include "cli/options.h"
#include "sender/control.h"

#define REFIT_CLI_TIMEOUT_MS 30000

/* The layout in a file, or, when `path` is NULL, the one that the replica at `url` serves; *out is new. */
REFIT_MUST_CHECK enum refit_status refit_cli_layout(const char *path, const char *url, struct refit_layout **out,
                                                    struct refit_error *err);

/* Shows one replica's answer; `answer` is borrowed. */
typedef void (*refit_cli_show)(void *context, const char *url, const json_t *answer);

/* Calls each URL; errors go to standard error behind its URL. Returns the command's exit status. */
int refit_cli_each(const char *command, const struct refit_cli_list *urls, enum refit_http_method method, const char *path,
                   const json_t *body, refit_cli_show show, void *context);

#endif
