/* SPDX-License-Identifier: Apache-2.0
 *
 * What replicas are shown and trusted for: options of every command that calls one.
 */
#ifndef REFIT_CLI_CREDENTIALS_H
#define REFIT_CLI_CREDENTIALS_H

#include <stdbool.h>
#include <stdio.h>

/* Takes --cacert, --cert, --key, --token-file (with their values) and --insecure-plaintext-tokens out of the arguments up
 * to a "--", into the environment, where REFIT_CACERT and the like are. False after a message on standard error. */
bool refit_cli_take_credentials(int *argc, char **argv);
void refit_cli_credentials_help(FILE *out);
struct refit_cli_credential {
    const char *flag, *metavar, *variable, *help; /* "--cacert"; NULL metavar: takes no value */
};
extern const struct refit_cli_credential refit_cli_credentials[]; /* ends with a NULL flag */

#endif
