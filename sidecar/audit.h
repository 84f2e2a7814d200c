/* SPDX-License-Identifier: Apache-2.0
 *
 * One line per change, to the log at level info and to --audit-log: who, what, its result, and its fields (from which
 * version to which, digest, refit). From any thread. "By" is the name of a token or of a certificate and where it came
 * from: token:ci@10.0.0.7:5214.
 */
#ifndef REFIT_SIDECAR_AUDIT_H
#define REFIT_SIDECAR_AUDIT_H

#include "base/error.h"
#include "base/log.h"

/* Opens the file (mode 0600, appended to); an empty path: the log only. Process-wide, before threads start. */
REFIT_MUST_CHECK enum refit_status refit_audit_open(const char *path, struct refit_error *err);
/* Opens it again by its name, for whoever moved it away. */
void refit_audit_reopen(void);
void refit_audit_close(void);

/* The result of a change is ok, refused (nothing changed) or failed. */
#define refit_audit_as(result, by_, change_, ...)                                                                   \
    refit_audit_write(result,                                                                                       \
                      (const struct refit_log_field[]){refit_log_text("by", by_), refit_log_text("change", change_), \
                                                       __VA_ARGS__},                                                \
                      sizeof((const struct refit_log_field[]){refit_log_text("", ""), refit_log_text("", ""),       \
                                                              __VA_ARGS__}) / sizeof(struct refit_log_field))
#define refit_audit(by_, change_, ...) refit_audit_as("ok", by_, change_, __VA_ARGS__)

#define REFIT_AUDIT_FIELDS_MAX 15 /* what is more is left out */
void refit_audit_write(const char *result, const struct refit_log_field *fields, size_t count);

#endif
