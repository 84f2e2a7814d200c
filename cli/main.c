/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/credentials.h"
#include "sender/control.h"

static void print_usage(FILE *out)
{
    fprintf(out, "usage: refit COMMAND [options]\n\nMoves a model's new weights into running inference.\n\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        fprintf(out, "  %-11s %s\n", (*c)->name, (*c)->summary);
    fprintf(out, "\nEvery command that calls a replica takes:\n");
    refit_cli_credentials_help(out);
    fprintf(out, "Members that no --to names come from %s.\n\n'refit COMMAND --help' has its options. Exit status:\n",
            REFIT_CLI_TO_VARIABLE);
    for (const struct refit_cli_exit_status *e = refit_cli_exit_statuses; e->status; e++)
        fprintf(out, "  %s  %s\n", e->status, e->meaning);
}

static int run(const struct refit_cli_command *command, int argc, char **argv)
{
    struct refit_credentials *credentials = NULL;
    struct refit_error err;
    if (refit_cli_calls_replicas(command) && refit_credentials_open(&(struct refit_credentials_config){0}, &credentials, &err)) {
        fprintf(stderr, "refit %s: %s\n", command->name, err.text);
        return REFIT_EXIT_USAGE;
    }
    refit_control_set_default(credentials);
    int rc = command->run(command, argc, argv);
    refit_control_set_default(NULL);
    refit_credentials_close(credentials);
    return rc;
}

/* An answer that did not get out is not given: a file system may be full. Who reads a pipe may have seen enough. */
static int close_output(int rc)
{
    errno = 0;
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (!failed || errno == EPIPE)
        return rc;
    fprintf(stderr, "refit: can't write to standard output: %s\n", errno ? strerror(errno) : "some of it was lost");
    return rc == REFIT_EXIT_OK ? REFIT_EXIT_FAILED : rc;
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    /* exec hands options on to refitd, which has one of the same name. */
    if (strcmp(name, "exec") != 0 && !refit_cli_take_credentials(&argc, argv))
        return REFIT_EXIT_USAGE;
    name = argc > 1 ? argv[1] : "";
    static char version[] = "version";
    if (strcmp(name, "--version") == 0)
        name = argv[1] = version;
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
    const struct refit_cli_command *command = refit_cli_find(name);
    if (command)
        return run(command, argc - 1, argv + 1);
    if (*name) {
        fprintf(stderr, "refit: unknown command '%s'; 'refit help' lists them\n", name);
        return REFIT_EXIT_USAGE;
    }
    print_usage(stderr);
    return REFIT_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    return close_output(dispatch(argc, argv));
}
