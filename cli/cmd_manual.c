/* SPDX-License-Identifier: Apache-2.0
 *
 * refit(1), from the tables that the help and the parser are made of.
 */
#include <stdio.h>

#include "base/roff.h"
#include "cli/commands.h"
#include "cli/credentials.h"

static void describe_options(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    FILE *out = context;
    (void)command;
    for (; options->name; options++) {
        char flag[64];
        snprintf(flag, sizeof flag, "%s--%s", options->kind == REFIT_CLI_OUTPUT ? "-o, " : "", options->name);
        refit_roff_item(out, flag, options->metavar, options->help);
        if (options->required)
            fprintf(out, "(required)\n");
    }
}

static void describe_command(FILE *out, const struct refit_cli_command *command)
{
    fprintf(out, ".SS \"refit %s\"\n.B refit %s\n", command->name, command->name);
    refit_roff_text(out, command->arguments);
    fprintf(out, "\n.PP\n");
    refit_roff_text(out, command->summary);
    fprintf(out, "\n");
    refit_cli_describe(command, describe_options, out);
    fprintf(out, ".PP\n.nf\n");
    refit_roff_text(out, command->examples);
    fprintf(out, ".fi\n");
}

static void describe_environment(FILE *out)
{
    fprintf(out, ".SH ENVIRONMENT\n");
    refit_roff_item(out, REFIT_CLI_TO_VARIABLE, NULL,
                    "members, with blanks or commas between, for a command line that names none");
    for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++) {
        char text[80];
        snprintf(text, sizeof text, "as %s", c->flag);
        refit_roff_item(out, c->variable, NULL, text);
    }
    refit_roff_item(out, "NO_COLOR", NULL, "nothing is ever coloured; bars that move are drawn on a terminal only, and not where TERM is dumb");
}

static void print_manual(FILE *out)
{
    refit_roff_head(out, "refit", 1, "moves a model's new weights into running inference", REFIT_VERSION);
    fprintf(out, ".SH SYNOPSIS\n.B refit\n.I COMMAND\n[\\fIOPTION\\fR]...\n.SH DESCRIPTION\n");
    refit_roff_text(out, "Publishes versions to the replicas that refitd(8) serves, and looks after them.\n"
                         "A MEMBER is a URL, URL+URL for the pods of one replica (the one with rank 0 first), file:PATH with one of these in\n"
                         "each line, or dns:NAME:PORT. Answers go to standard output, as text or as one JSON document (-o json); errors and\n"
                         "progress go to standard error.\n");
    fprintf(out, ".SH COMMANDS\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        describe_command(out, *c);
    fprintf(out, ".SH \"OPTIONS OF EVERY COMMAND THAT CALLS A REPLICA\"\n");
    for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++)
        refit_roff_item(out, c->flag, c->metavar, c->help);
    describe_environment(out);
    fprintf(out, ".SH \"EXIT STATUS\"\n");
    for (const struct refit_cli_exit_status *e = refit_cli_exit_statuses; e->status; e++)
        refit_roff_item(out, e->status, NULL, e->meaning);
    refit_roff_text(out, "refit exec ends as its engine did: with its status, or 128 and the number of the signal.\n");
    fprintf(out, ".SH \"SEE ALSO\"\n.BR refitd (8)\n");
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list none = {0};
    const struct refit_cli_option options[] = {{0}};
    int rc = refit_cli_parse(self, options, argc, argv, &none, 0, 0);
    refit_cli_list_release(&none);
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    print_manual(stdout);
    return REFIT_EXIT_OK;
}

const struct refit_cli_command refit_cli_manual = {
    .name = "manual", .arguments = "", .summary = "print the manual page, refit(1)", .examples = "  refit manual | man -l -\n",
    .run = run};
