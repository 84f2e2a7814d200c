/* SPDX-License-Identifier: Apache-2.0
 *
 * Where lines go: standard error, without ever waiting for it on a caller's thread. Used by log.c only.
 */
#ifndef REFIT_BASE_LOG_SINK_H
#define REFIT_BASE_LOG_SINK_H

#include <stddef.h>

#define REFIT_LOG_LINE_MAX 4096 /* PIPE_BUF: such a write to a pipe is whole or nothing */

/* A finished line with its newline. */
void refit_log_sink(const char *line, size_t len);
/* log.c: the line that says that lines were lost, into `out`; its length. */
size_t refit_log_lost_line(char *out, size_t size, unsigned long long lost, unsigned long long total, int errnum);

#endif
