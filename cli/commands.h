/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of `refit`, each in a file of its own (cmd_*.c).
 */
#ifndef REFIT_CLI_COMMANDS_H
#define REFIT_CLI_COMMANDS_H

#include "cli/options.h"

extern const struct refit_cli_command refit_cli_push, refit_cli_status, refit_cli_plan, refit_cli_watch, refit_cli_rollback,
    refit_cli_release, refit_cli_abort, refit_cli_quarantine, refit_cli_digest, refit_cli_fleet, refit_cli_resolve,
    refit_cli_hold, refit_cli_drain, refit_cli_probe, refit_cli_exec;

#endif
