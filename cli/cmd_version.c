/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/remote.h"

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list none = {0};
    bool json = false;
    const struct refit_cli_option options[] = {{"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &json, false}, {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &none, 0, 0);
    refit_cli_list_release(&none);
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    if (json)
        refit_cli_print_json(json_pack("{s:s}", "version", REFIT_VERSION));
    else
        printf("refit %s\n", REFIT_VERSION);
    return REFIT_EXIT_OK;
}

const struct refit_cli_command refit_cli_version = {
    .name = "version", .arguments = "[-o json]", .summary = "print the version of this program",
    .examples = "  refit version\n", .run = run};
