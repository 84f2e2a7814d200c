/* SPDX-License-Identifier: Apache-2.0
 *
 * One structured line per event on standard error: `ts=... level=info msg="..." refit=... version=7`.
 * Safe from any thread; a line is written with one write(2). No line per chunk, ever.
 */
#ifndef REFIT_BASE_LOG_H
#define REFIT_BASE_LOG_H

enum refit_log_level { REFIT_LOG_ERROR, REFIT_LOG_WARN, REFIT_LOG_INFO, REFIT_LOG_DEBUG };
enum refit_log_format { REFIT_LOG_TEXT, REFIT_LOG_JSON };

/* Process-wide; call before threads start. Default: warn, text. `component` is borrowed (a literal). */
void refit_log_setup(enum refit_log_level level, enum refit_log_format format, const char *component);

/* A printf-formatted message; keys that matter are written `key=value` inside it. */
__attribute__((format(printf, 2, 3)))
void refit_log(enum refit_log_level level, const char *format, ...);

#endif
