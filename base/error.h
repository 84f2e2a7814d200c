/* SPDX-License-Identifier: Apache-2.0
 *
 * Filling a refit_error. The one who first names an error writes its text; those above only pass it on or
 * prefix where it happened. All functions take a NULL error and then only return the status.
 */
#ifndef REFIT_BASE_ERROR_H
#define REFIT_BASE_ERROR_H

#include <refit/status.h>

#define REFIT_MUST_CHECK __attribute__((warn_unused_result))

/* Set the error and return its status, so that a failing path reads `return refit_fail(err, REFIT_INVALID, "...")`. */
__attribute__((format(printf, 3, 4)))
enum refit_status refit_fail(struct refit_error *err, enum refit_status status, const char *format, ...);

/* As refit_fail with REFIT_SYSTEM (REFIT_NO_MEMORY for ENOMEM), appending ": " and the text of `errnum`. */
__attribute__((format(printf, 3, 4)))
enum refit_status refit_fail_errno(struct refit_error *err, int errnum, const char *format, ...);

/* Out of memory for `what`, of `size` bytes. */
enum refit_status refit_fail_alloc(struct refit_error *err, const char *what, unsigned long long size_bytes);

/* Put "context: " in front of the error's text, for naming the peer or rank on the way up; returns `status`, which the
 * error already has. */
__attribute__((format(printf, 3, 4)))
enum refit_status refit_error_prefix(struct refit_error *err, enum refit_status status, const char *format, ...);

#endif
