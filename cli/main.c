/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"

static const struct refit_cli_command *const commands[] = {
    &refit_cli_push, &refit_cli_status, &refit_cli_fleet, &refit_cli_plan, &refit_cli_watch, &refit_cli_resolve,
    &refit_cli_rollback, &refit_cli_hold, &refit_cli_release, &refit_cli_abort, &refit_cli_quarantine, &refit_cli_digest,
};
#define COMMANDS (sizeof commands / sizeof *commands)

static void print_usage(FILE *out)
{
    fprintf(out, "usage: refit COMMAND [options]\n\nMoves a model's new weights into running inference.\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "  %-11s %s\n\n", "version", "print the version of this program");
    fprintf(out, "'refit COMMAND --help' has its options. Exit status: 0 done, 1 failed, 2 wrong usage, 3 done in part.\n");
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0) {
        printf("refit %s\n", REFIT_VERSION);
        return REFIT_EXIT_OK;
    }
    static char help[] = "--help";
    if (strcmp(name, "help") == 0 && argc > 2) { /* "help push" is "push --help" */
        argv[1] = argv[2];
        argv[2] = help;
        name = argv[1];
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return REFIT_EXIT_OK;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0)
            return commands[i]->run(commands[i], argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "refit: unknown command '%s'\n\n", name);
    print_usage(stderr);
    return REFIT_EXIT_USAGE;
}
