/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/credentials.h"

#include <stdlib.h>
#include <string.h>

const struct refit_cli_credential refit_cli_credentials[] = {
    {"--cacert", "FILE", "REFIT_CACERT", "CAs that sign replicas (else the system's)"},
    {"--cert", "FILE", "REFIT_CERT", "certificate to show them"},
    {"--key", "FILE", "REFIT_KEY", "its key"},
    {"--token-file", "FILE", "REFIT_TOKEN_FILE", "bearer token to show them"},
    {"--insecure-plaintext-tokens", NULL, "REFIT_INSECURE_PLAINTEXT_TOKENS", "show it over http:// beyond loopback, too"},
    {0},
};
#define OPTIONS (sizeof refit_cli_credentials / sizeof *refit_cli_credentials - 1)

void refit_cli_credentials_help(FILE *out)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s%s%s", refit_cli_credentials[i].flag, refit_cli_credentials[i].metavar ? " " : "",
                 refit_cli_credentials[i].metavar ? refit_cli_credentials[i].metavar : "");
        fprintf(out, "  %-29s %s [env: %s]\n", left, refit_cli_credentials[i].help, refit_cli_credentials[i].variable);
    }
}

/* Which option argv[at] is, and its value; -1: none of them. *words: how many it takes; 0: its value is missing. */
static int match(int argc, char **argv, int at, const char **value, int *words)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        size_t len = strlen(refit_cli_credentials[i].flag);
        if (strncmp(argv[at], refit_cli_credentials[i].flag, len) != 0)
            continue;
        const char *rest = argv[at] + len;
        if (!refit_cli_credentials[i].metavar && *rest == '\0') {
            *value = "1";
            *words = 1;
        } else if (refit_cli_credentials[i].metavar && *rest == '=') {
            *value = rest + 1;
            *words = 1;
        } else if (refit_cli_credentials[i].metavar && *rest == '\0') {
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
        if (words == 0 || setenv(refit_cli_credentials[option].variable, value, 1) != 0) {
            fprintf(stderr, "refit: %s needs a value, found the end of the line\n", refit_cli_credentials[option].flag);
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
