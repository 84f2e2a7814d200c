/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <string.h>

const struct refit_cli_command *const refit_cli_commands[] = {
    &refit_cli_push, &refit_cli_status, &refit_cli_fleet, &refit_cli_plan, &refit_cli_watch, &refit_cli_resolve,
    &refit_cli_rollback, &refit_cli_hold, &refit_cli_release, &refit_cli_abort, &refit_cli_quarantine, &refit_cli_digest,
    &refit_cli_drain, &refit_cli_probe, &refit_cli_exec, &refit_cli_version, &refit_cli_completion, &refit_cli_manual, NULL,
};

const struct refit_cli_exit_status refit_cli_exit_statuses[] = {
    {"0", "done"},
    {"1", "failed: nothing was done, or it is not known how far it went; the message says which"},
    {"2", "wrong usage: nothing was tried"},
    {"3", "done in part: some replicas, not all"},
    {0},
};

const struct refit_cli_command *refit_cli_find(const char *name)
{
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return *c;
    return NULL;
}

bool refit_cli_calls_replicas(const struct refit_cli_command *command)
{
    static const struct refit_cli_command *const local[] = {&refit_cli_exec,    &refit_cli_probe,      &refit_cli_drain,
                                                            &refit_cli_version, &refit_cli_completion, &refit_cli_manual};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (command == local[i])
            return false;
    return true;
}
