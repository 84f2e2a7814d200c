/* SPDX-License-Identifier: Apache-2.0
 *
 * A command's options as a table, from which both the parser and the help come.
 */
#ifndef REFIT_CLI_OPTIONS_H
#define REFIT_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum refit_cli_kind {
    REFIT_CLI_FLAG,     /* bool */
    REFIT_CLI_TEXT,     /* const char * */
    REFIT_CLI_COUNT,    /* uint64_t, a whole number from 1 on */
    REFIT_CLI_DURATION, /* int64_t, ms: "500ms", "30s", "10m"; a bare number is seconds */
    REFIT_CLI_LIST,     /* struct refit_cli_list, may be given several times */
    REFIT_CLI_OUTPUT    /* bool: `--output json` (-o json) sets it, `--output text` clears it */
};

/* Borrowed texts, in order. */
struct refit_cli_list {
    const char **items; /* owned */
    size_t count;
};

struct refit_cli_option {
    const char *name; /* without dashes */
    enum refit_cli_kind kind;
    const char *metavar; /* NULL for flags */
    const char *help;
    void *out; /* of the kind's type */
    bool required;
};

struct refit_cli_command {
    const char *name;
    const char *arguments; /* "CHECKPOINT --version N --to URL..." */
    const char *summary;   /* one line */
    const char *examples;  /* lines, each indented by two */
    int (*run)(const struct refit_cli_command *self, int argc, char **argv);
};

enum { REFIT_EXIT_OK = 0, REFIT_EXIT_FAILED = 1, REFIT_EXIT_USAGE = 2, REFIT_EXIT_PARTLY = 3, REFIT_EXIT_PARSED = -1 };

#define REFIT_CLI_TO_VARIABLE "REFIT_TO" /* members, with blanks or commas between, for commands that are told none */

/* REFIT_EXIT_PARSED: go on. Otherwise the exit status: 0 after --help, 2 after a message on standard error. Words that
 * are no options go to `positional`, which must get between `min` and `max` of them. `options` ends with a NULL name. A list
 * named "to" is filled from REFIT_TO where it is not given, unless the words that are no options name the members. */
int refit_cli_parse(const struct refit_cli_command *command, const struct refit_cli_option *options, int argc, char **argv,
                    struct refit_cli_list *positional, size_t min, size_t max);
/* Calls `visit` with the command's options, without running it. Single-threaded. */
typedef void (*refit_cli_visit)(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options);
void refit_cli_describe(const struct refit_cli_command *command, refit_cli_visit visit, void *context);
/* False: out of memory. */
bool refit_cli_list_append(struct refit_cli_list *list, const char *item);
void refit_cli_list_release(struct refit_cli_list *list);

#endif
