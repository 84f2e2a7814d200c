/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

static struct {
    const char *path; /* borrowed from the configuration */
    int fd;
} file = {NULL, -1};

static enum refit_status open_file(int *out, struct refit_error *err)
{
    struct stat info;
    int fd = open(file.path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0)
        return refit_fail_errno(err, errno, "--audit-log %s: can't open it for appending", file.path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) { /* anything else could hold a change up */
        refit_io_close(&fd);
        return refit_fail(err, REFIT_INVALID, "--audit-log %s: expected a regular file", file.path);
    }
    *out = fd;
    return REFIT_OK;
}

enum refit_status refit_audit_open(const char *path, struct refit_error *err)
{
    if (!path[0])
        return REFIT_OK;
    file.path = path;
    return open_file(&file.fd, err);
}

void refit_audit_reopen(void)
{
    struct refit_error err;
    int fd;
    if (file.fd < 0)
        return;
    if (open_file(&fd, &err)) {
        refit_log_event(REFIT_LOG_ERROR, "the audit log stays as it is", REFIT_LOG_CAUSE(&err));
        return;
    }
    dup3(fd, file.fd, O_CLOEXEC); /* under the same number: others may be writing */
    refit_io_close(&fd);
}

void refit_audit_close(void)
{
    refit_io_close(&file.fd);
}

void refit_audit_write(const char *result, const struct refit_log_field *given, size_t count)
{
    struct refit_log_field fields[REFIT_AUDIT_FIELDS_MAX + 1];
    count = count < REFIT_AUDIT_FIELDS_MAX ? count : REFIT_AUDIT_FIELDS_MAX;
    memcpy(fields, given, count * sizeof *fields);
    fields[count++] = refit_log_text("result", result);
    refit_log_write(REFIT_LOG_INFO, "audit", fields, count);
    if (file.fd >= 0 && !refit_log_append(file.fd, REFIT_LOG_INFO, "audit", fields, count))
        refit_log_limited(REFIT_LOG_ERROR, "the audit log can't be written", refit_log_text("file", file.path),
                          refit_log_errno(errno));
}
