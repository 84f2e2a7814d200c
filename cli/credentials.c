/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/credentials.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *flag, *metavar, *variable, *help;
} options[] = {
    {"--cacert", "FILE", "REFIT_CACERT", "CAs that sign replicas (else the system's)"},
    {"--cert", "FILE", "REFIT_CERT", "certificate to show them"},
    {"--key", "FILE", "REFIT_KEY", "its key"},
    {"--token-file", "FILE", "REFIT_TOKEN_FILE", "bearer token to show them"},
    {"--insecure-plaintext-tokens", NULL, "REFIT_INSECURE_PLAINTEXT_TOKENS", "show it over http:// beyond loopback, too"},
};
#define OPTIONS (sizeof options / sizeof *options)

void refit_cli_credentials_help(FILE *out)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s%s%s", options[i].flag, options[i].metavar ? " " : "",
                 options[i].metavar ? options[i].metavar : "");
        fprintf(out, "  %-29s %s [env: %s]\n", left, options[i].help, options[i].variable);
    }
}

/* Which option argv[at] is, and its value; -1: none of them. *words: how many it takes; 0: its value is missing. */
static int match(int argc, char **argv, int at, const char **value, int *words)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        size_t len = strlen(options[i].flag);
        if (strncmp(argv[at], options[i].flag, len) != 0)
            continue;
        const char *rest = argv[at] + len;
        if (!options[i].metavar && *rest == '\0') {
            *value = "1";
            *words = 1;
        } else if (options[i].metavar && *rest == '=') {
            *value = rest + 1;
            *words = 1;
        } else if (options[i].metavar && *rest == '\0') {
            *words = at + 1 < argc ? 2 : 0;
            *value = at + 1 < argc ? argv[at + 1] : NULL;
        } else {
            continue;
        }
        return (int)i;
    }
    return -1;
}

bool refit_cli_take_credentials(int *argc, char **argv)
{
    int kept = 1, at = 1;
    while (at < *argc && strcmp(argv[at], "--") != 0) {
        const char *value = NULL;
        int words = 1, option = match(*argc, argv, at, &value, &words);
        if (option < 0) {
            argv[kept++] = argv[at++];
            continue;
        }
        if (words == 0 || setenv(options[option].variable, value, 1) != 0) {
            fprintf(stderr, "refit: %s needs a value, found the end of the line\n", options[option].flag);
            return false;
        }
        at += words;
    }
    while (at < *argc)
        argv[kept++] = argv[at++];
    argv[kept] = NULL;
    *argc = kept;
    return true;
}
