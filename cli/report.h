/* SPDX-License-Identifier: Apache-2.0
 *
 * A publish's report for a person or a program.
 */
#ifndef REFIT_CLI_REPORT_H
#define REFIT_CLI_REPORT_H

#include <refit/sender.h>

/* `command` stands before what goes to standard error. */
void refit_cli_report_text(const char *command, const struct refit_report *report);
void refit_cli_report_json(const struct refit_report *report);
/* REFIT_EXIT_OK, REFIT_EXIT_PARTLY or REFIT_EXIT_FAILED by the outcome. */
int refit_cli_report_exit(const struct refit_report *report);

#endif
