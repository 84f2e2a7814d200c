/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/credentials.h"
#include "sender/control.h"

static const struct refit_cli_command *const commands[] = {
    &refit_cli_push, &refit_cli_status, &refit_cli_fleet, &refit_cli_plan, &refit_cli_watch, &refit_cli_resolve,
    &refit_cli_rollback, &refit_cli_hold, &refit_cli_release, &refit_cli_abort, &refit_cli_quarantine, &refit_cli_digest,
    &refit_cli_drain, &refit_cli_probe, &refit_cli_exec,
};
#define COMMANDS (sizeof commands / sizeof *commands)

static void print_usage(FILE *out)
{
    fprintf(out, "usage: refit COMMAND [options]\n\nMoves a model's new weights into running inference.\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "  %-11s %s\n\n", "version", "print the version of this program");
    fprintf(out, "Every command that calls a replica takes:\n");
    refit_cli_credentials_help(out);
    fprintf(out, "\n'refit COMMAND --help' has its options. Exit status: 0 done, 1 failed, 2 wrong usage, 3 done in part.\n");
}

/* These call no control API: a wrong file of credentials is nothing to them. */
static bool is_local(const struct refit_cli_command *command)
{
    return command == &refit_cli_exec || command == &refit_cli_probe || command == &refit_cli_drain ||
           command == &refit_cli_digest;
}

static int run(const struct refit_cli_command *command, int argc, char **argv)
{
    struct refit_credentials *credentials = NULL;
    struct refit_error err;
    if (!is_local(command) && refit_credentials_open(&(struct refit_credentials_config){0}, &credentials, &err)) {
        fprintf(stderr, "refit %s: %s\n", command->name, err.text);
        return REFIT_EXIT_USAGE;
    }
    refit_control_set_default(credentials);
    int rc = command->run(command, argc, argv);
    refit_control_set_default(NULL);
    refit_credentials_close(credentials);
    return rc;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    /* exec hands options on to refitd, which has one of the same name. */
    if (strcmp(name, "exec") != 0 && !refit_cli_take_credentials(&argc, argv))
        return REFIT_EXIT_USAGE;
    name = argc > 1 ? argv[1] : "";
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
            return run(commands[i], argc - 1, argv + 1);
    if (*name)
        fprintf(stderr, "refit: unknown command '%s'\n\n", name);
    print_usage(stderr);
    return REFIT_EXIT_USAGE;
}
