/* SPDX-License-Identifier: Apache-2.0
 *
 * refitd and one engine as children of one process, which may be process 1 of a container: refitd first, the engine when
 * refitd is ready; at the end the engine first, refitd behind it. The engine's end is the end of all, a death of refitd is
 * not: it is started again and the engine hands its slots back.
 */
#ifndef REFIT_CLI_SUPERVISOR_H
#define REFIT_CLI_SUPERVISOR_H

#include <stdint.h>

struct refit_supervisor_options {
    const char *refitd;       /* path, or a name to look up in PATH */
    char *const *engine;      /* argv, NULL-terminated */
    int64_t start_ms;         /* for refitd to be ready */
    int64_t grace_ms;         /* from a signal to the engine's end */
    int64_t refitd_grace_ms;  /* from the engine's end to refitd's */
};

/* Returns the exit status to end with: the engine's, 128 + N when signal N ended it; refitd's (or 1) when it did not become
 * ready, and 128 + N when signal N came before the engine was started. Single-threaded processes only. */
int refit_supervise(const struct refit_supervisor_options *options);

#endif
