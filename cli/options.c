/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Who asks for tables instead of a run. */
static refit_cli_visit visitor;
static void *visitor_context;

void refit_cli_describe(const struct refit_cli_command *command, refit_cli_visit visit, void *context)
{
    char name[] = "refit";
    visitor = visit;
    visitor_context = context;
    command->run(command, 1, (char *[]){name, NULL});
    visitor = NULL;
}

static void print_help(const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    printf("usage: refit %s %s\n\n%s\n\noptions:\n", command->name, command->arguments, command->summary);
    for (const struct refit_cli_option *o = options; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s--%s%s%s", o->kind == REFIT_CLI_OUTPUT ? "-o, " : "", o->name, o->metavar ? " " : "",
                 o->metavar ? o->metavar : "");
        printf("  %-24s %s%s\n", left, o->help, o->required ? " (required)" : "");
    }
    printf("  %-24s %s\n", "-h, --help", "this text");
    if (command->examples)
        printf("\nexamples:\n%s", command->examples);
}

static int complain(const struct refit_cli_command *command, const char *what, const char *name, const char *found)
{
    fprintf(stderr, "refit %s: %s%s%s%s%s\n", command->name, name ? name : "", name ? ": " : "", what, found ? ", found " : "",
            found ? found : "");
    fprintf(stderr, "Try 'refit %s --help'.\n", command->name);
    return REFIT_EXIT_USAGE;
}

bool refit_cli_list_append(struct refit_cli_list *list, const char *item)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return false;
    list->items = items;
    list->items[list->count++] = item;
    return true;
}

void refit_cli_list_release(struct refit_cli_list *list)
{
    free(list->items);
    *list = (struct refit_cli_list){0};
}

static bool parse_count(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || value == 0) /* strtoull takes blanks and a sign */
        return false;
    *out = value;
    return true;
}

static bool parse_duration(const char *text, int64_t *out)
{
    return refit_text_duration(text, 1000, out) && *out > 0;
}

/* What the option's value must be; NULL: it was taken. */
static const char *take(const struct refit_cli_option *option, const char *value)
{
    switch (option->kind) {
    case REFIT_CLI_FLAG: *(bool *)option->out = true; return NULL;
    case REFIT_CLI_TEXT: *(const char **)option->out = value; return NULL;
    case REFIT_CLI_COUNT: return parse_count(value, option->out) ? NULL : "expected a whole number from 1 on";
    case REFIT_CLI_DURATION: return parse_duration(value, option->out) ? NULL : "expected a duration such as 500ms, 30s or 10m";
    case REFIT_CLI_LIST: return refit_cli_list_append(option->out, value) ? NULL : "out of memory";
    case REFIT_CLI_OUTPUT:
        *(bool *)option->out = strcmp(value, "json") == 0;
        return strcmp(value, "json") == 0 || strcmp(value, "text") == 0 ? NULL : "expected json or text";
    }
    return "unknown kind";
}

/* "-o json", "-ojson" and "-o=json" are "--output json". */
static const struct refit_cli_option *find_output(const struct refit_cli_option *options, const char *word)
{
    for (; word[0] == '-' && word[1] == 'o' && options->name; options++)
        if (options->kind == REFIT_CLI_OUTPUT)
            return options;
    return NULL;
}

static const struct refit_cli_option *find(const struct refit_cli_option *options, const char *word, size_t len)
{
    for (; options->name; options++)
        if (strlen(options->name) == len && strncmp(options->name, word, len) == 0)
            return options;
    return NULL;
}

/* One "--name", "--name=value" or "--name value"; *at is left on the last word used. */
static int parse_option(const struct refit_cli_command *command, const struct refit_cli_option *options, int argc, char **argv,
                        int *at, bool *given)
{
    const char *name = argv[*at], *equals = strchr(name, '=');
    const struct refit_cli_option *option = find_output(options, name);
    const char *value = option && name[2] && name[2] != '=' ? name + 2 : equals ? equals + 1 : NULL;
    if (!option && name[1] == '-')
        option = find(options, name + 2, equals ? (size_t)(equals - name - 2) : strlen(name + 2));
    if (!option)
        return complain(command, "unknown option", name, NULL);
    if (option->kind == REFIT_CLI_FLAG && equals)
        return complain(command, "takes no value", name, NULL);
    if (option->kind != REFIT_CLI_FLAG && !value) {
        if (*at + 1 >= argc)
            return complain(command, "needs a value", name, "the end of the line");
        value = argv[++*at];
    }
    given[option - options] = true;
    const char *expected = take(option, value);
    return expected ? complain(command, expected, name, value) : REFIT_EXIT_PARSED;
}

/* Members that the environment names, for a command line that names none. `members_are_words`: those that are no options
 * are members. */
static bool take_members(const struct refit_cli_option *options, bool *given, bool members_are_words, size_t words)
{
    static char *text; /* what the list borrows from */
    const char *value = getenv(REFIT_CLI_TO_VARIABLE);
    const struct refit_cli_option *to = find(options, "to", 2);
    if (!value || !to || to->kind != REFIT_CLI_LIST || given[to - options] || (members_are_words && words > 0))
        return true;
    free(text);
    text = strdup(value);
    char *rest = NULL;
    for (char *one = text ? strtok_r(text, " ,\t\n", &rest) : NULL; one; one = strtok_r(NULL, " ,\t\n", &rest)) {
        if (!refit_cli_list_append(to->out, one))
            return false;
        given[to - options] = true;
    }
    return text != NULL;
}

static int check_complete(const struct refit_cli_command *command, const struct refit_cli_option *options, const bool *given,
                          const struct refit_cli_list *positional, size_t min, size_t max)
{
    for (size_t i = 0; options[i].name; i++)
        if (options[i].required && !given[i]) {
            char flag[64];
            snprintf(flag, sizeof flag, "--%s", options[i].name);
            return complain(command, "is required", flag, NULL);
        }
    if (positional->count < min)
        return complain(command, command->arguments, "too few arguments, expected", NULL);
    if (positional->count > max)
        return complain(command, "unexpected argument", positional->items[max], NULL);
    return REFIT_EXIT_PARSED;
}

#define OPTIONS_MAX 32

int refit_cli_parse(const struct refit_cli_command *command, const struct refit_cli_option *options, int argc, char **argv,
                    struct refit_cli_list *positional, size_t min, size_t max)
{
    bool given[OPTIONS_MAX] = {false}, only_words = false;
    if (visitor) {
        visitor(visitor_context, command, options);
        return REFIT_EXIT_OK;
    }
    for (int at = 1; at < argc; at++) {
        int rc = REFIT_EXIT_PARSED;
        if (only_words || argv[at][0] != '-' || argv[at][1] == '\0') {
            if (!refit_cli_list_append(positional, argv[at]))
                return REFIT_EXIT_FAILED;
        } else if (strcmp(argv[at], "--") == 0) {
            only_words = true;
        } else if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help(command, options);
            return REFIT_EXIT_OK;
        } else {
            rc = parse_option(command, options, argc, argv, &at, given);
        }
        if (rc != REFIT_EXIT_PARSED)
            return rc;
    }
    if (!take_members(options, given, min == 0 && max == SIZE_MAX, positional->count)) {
        fprintf(stderr, "refit %s: out of memory\n", command->name);
        return REFIT_EXIT_FAILED;
    }
    return check_complete(command, options, given, positional, min, max);
}
