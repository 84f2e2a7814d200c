/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of several replicas on standard error: a bar each on a terminal, redrawn in place; elsewhere one line per
 * change of phase.
 */
#ifndef REFIT_CLI_PROGRESS_H
#define REFIT_CLI_PROGRESS_H

#include <refit/sender.h>
#include <stdbool.h>

struct refit_cli_progress {
    bool terminal;
    size_t drawn;         /* lines on the terminal now */
    size_t count;
    char (*phases)[32];   /* last one shown, per replica; owned */
};

void refit_cli_progress_init(struct refit_cli_progress *progress);
/* A refit_progress_fn; `context` is the struct. */
void refit_cli_progress_show(void *context, const struct refit_replica_progress *replicas, size_t count);
void refit_cli_progress_release(struct refit_cli_progress *progress);

#endif
