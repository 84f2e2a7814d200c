/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion for shells, from the tables that the help and the parser are made of.
 */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/credentials.h"

static bool is_path(const char *metavar)
{
    return metavar && (strcmp(metavar, "FILE") == 0 || strcmp(metavar, "PATH") == 0 || strcmp(metavar, "DIR") == 0);
}

/* In single quotes, which both zsh and fish take; `colons`: what zsh would read as the end of a description is hidden. */
static void put_quoted(const char *text, bool colons)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (colons && strchr(":[]", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

/* ---- bash ---- */

static void bash_options(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    (void)context;
    printf("    %s) words='--help", command->name);
    for (const struct refit_cli_option *o = options; o->name; o++)
        printf(" --%s%s", o->name, o->kind == REFIT_CLI_OUTPUT ? " -o" : "");
    if (refit_cli_calls_replicas(command))
        for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++)
            printf(" %s", c->flag);
    printf("' ;;\n");
}

static void bash_values(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    (void)context;
    for (; options->name; options++)
        if (options->kind != REFIT_CLI_FLAG && options->kind != REFIT_CLI_OUTPUT)
            printf("    '%s --%s '*) %s ;;\n", command->name, options->name,
                   is_path(options->metavar) ? "COMPREPLY=($(compgen -f -- \"$word\")); return" : "return");
}

static void print_bash(void)
{
    printf("# bash completion of refit; made by 'refit completion bash'.\n"
           "_refit()\n{\n  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=\n"
           "  COMPREPLY=()\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W 'help");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        printf(" %s", (*c)->name);
    printf("' -- \"$word\"))\n    return\n  fi\n  case $before in\n    -o|--output) COMPREPLY=($(compgen -W 'json text' -- \"$word\")); return ;;\n");
    for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++)
        if (c->metavar)
            printf("    %s) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", c->flag);
    printf("  esac\n  case \"$command $before $word\" in\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        refit_cli_describe(*c, bash_values, NULL);
    printf("    'completion completion -'*) ;;\n    'completion completion '*) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\")); return ;;\n    'help help '*) COMPREPLY=($(compgen -W '");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        printf("%s ", (*c)->name);
    printf("' -- \"$word\")); return ;;\n  esac\n  case $command in\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        refit_cli_describe(*c, bash_options, NULL);
    printf("  esac\n  case $word in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n  esac\n}\ncomplete -o filenames -F _refit refit\n");
}

/* ---- zsh ---- */

static void zsh_value(const char *metavar)
{
    if (is_path(metavar))
        printf(":%s:_files", metavar);
    else if (metavar)
        printf(":%s:", metavar);
}

static void zsh_options(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    (void)context;
    printf("    %s)\n      _arguments '(- *)--help[this text]'", command->name);
    for (const struct refit_cli_option *o = options; o->name; o++) {
        const char *star = o->kind == REFIT_CLI_LIST ? "*" : "";
        printf(" \\\n        '%s--%s[", star, o->name);
        put_quoted(o->help, true);
        printf("]");
        if (o->kind == REFIT_CLI_OUTPUT)
            printf(":FORMAT:(json text)' '-o[");
        if (o->kind == REFIT_CLI_OUTPUT) {
            put_quoted(o->help, true);
            printf("]:FORMAT:(json text)'");
            continue;
        }
        zsh_value(o->metavar);
        printf("'");
    }
    if (refit_cli_calls_replicas(command))
        for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++) {
            printf(" \\\n        '%s[", c->flag);
            put_quoted(c->help, true);
            printf("]");
            zsh_value(c->metavar);
            printf("'");
        }
    printf(" \\\n        '*:argument:%s' ;;\n", command == &refit_cli_completion ? "(bash zsh fish)" : "_files");
}

static void print_zsh(void)
{
    printf("#compdef refit\n# zsh completion of refit; made by 'refit completion zsh'.\n_refit()\n{\n  local -a commands\n  commands=('help:list the commands'");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++) {
        printf(" \\\n    '%s:", (*c)->name);
        put_quoted((*c)->summary, true);
        printf("'");
    }
    printf(")\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
           "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        refit_cli_describe(*c, zsh_options, NULL);
    printf("    help) _describe command commands ;;\n  esac\n}\n"
           "if [ \"$funcstack[1]\" = _refit ]; then _refit \"$@\"; else compdef _refit refit; fi\n");
}

/* ---- fish ---- */

static void fish_flag(const char *command, const char *name, const char *metavar, const char *help, bool output)
{
    printf("complete -c refit -n '__fish_seen_subcommand_from %s' %s-l %s %s-d '", command, output ? "-s o " : "", name,
           output               ? "-x -a 'json text' "
           : is_path(metavar)   ? "-r -F "
           : metavar            ? "-x "
                                : "");
    put_quoted(help, false);
    printf("'\n");
}

static void fish_options(void *context, const struct refit_cli_command *command, const struct refit_cli_option *options)
{
    (void)context;
    for (const struct refit_cli_option *o = options; o->name; o++)
        fish_flag(command->name, o->name, o->metavar, o->help, o->kind == REFIT_CLI_OUTPUT);
    if (refit_cli_calls_replicas(command))
        for (const struct refit_cli_credential *c = refit_cli_credentials; c->flag; c++)
            fish_flag(command->name, c->flag + 2, c->metavar, c->help, false);
}

static void print_fish(void)
{
    printf("# fish completion of refit; made by 'refit completion fish'.\n"
           "complete -c refit -n __fish_use_subcommand -f -a help -d 'list the commands'\n");
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++) {
        printf("complete -c refit -n __fish_use_subcommand -f -a %s -d '", (*c)->name);
        put_quoted((*c)->summary, false);
        printf("'\n");
    }
    for (const struct refit_cli_command *const *c = refit_cli_commands; *c; c++)
        refit_cli_describe(*c, fish_options, NULL);
    printf("complete -c refit -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n");
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    struct refit_cli_list words = {0};
    const struct refit_cli_option options[] = {{0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    for (size_t i = 0; rc == REFIT_EXIT_PARSED && i < sizeof shells / sizeof *shells; i++)
        if (strcmp(words.items[0], shells[i].shell) == 0) {
            shells[i].print();
            rc = REFIT_EXIT_OK;
        }
    if (rc == REFIT_EXIT_PARSED) {
        fprintf(stderr, "refit completion: expected bash, zsh or fish, found %s\n", words.items[0]);
        rc = REFIT_EXIT_USAGE;
    }
    refit_cli_list_release(&words);
    return rc;
}

const struct refit_cli_command refit_cli_completion = {
    .name = "completion", .arguments = "bash | zsh | fish", .summary = "print what makes a shell complete refit's commands and options",
    .examples = "  source <(refit completion bash)\n  refit completion zsh > \"${fpath[1]}/_refit\"\n"
                "  refit completion fish > ~/.config/fish/completions/refit.fish\n",
    .run = run};
