/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of `refit`, each in a file of its own (cmd_*.c).
 */
#ifndef REFIT_CLI_COMMANDS_H
#define REFIT_CLI_COMMANDS_H

#include "cli/options.h"

extern const struct refit_cli_command refit_cli_push, refit_cli_status, refit_cli_plan, refit_cli_watch, refit_cli_rollback,
    refit_cli_release, refit_cli_abort, refit_cli_quarantine, refit_cli_digest, refit_cli_fleet, refit_cli_resolve,
    refit_cli_hold, refit_cli_drain, refit_cli_probe, refit_cli_exec, refit_cli_version, refit_cli_completion,
    refit_cli_manual;

/* All of them, in the order of the help; ends with NULL. */
extern const struct refit_cli_command *const refit_cli_commands[];
const struct refit_cli_command *refit_cli_find(const char *name);
/* It calls a control API. To others a wrong file of credentials is nothing. */
bool refit_cli_calls_replicas(const struct refit_cli_command *command);

struct refit_cli_exit_status {
    const char *status, *meaning;
};
extern const struct refit_cli_exit_status refit_cli_exit_statuses[]; /* ends with NULL */

#endif
