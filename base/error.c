/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum refit_status refit_fail(struct refit_error *err, enum refit_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

enum refit_status refit_fail_errno(struct refit_error *err, int errnum, const char *format, ...)
{
    enum refit_status status = errnum == ENOMEM ? REFIT_NO_MEMORY : REFIT_SYSTEM;
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        size_t used = strlen(err->text);
        char reason[128];
        /* strerror_r is the GNU one: it may return a static text instead of filling the buffer. */
        snprintf(err->text + used, sizeof err->text - used, ": %s (errno %d)",
                 strerror_r(errnum, reason, sizeof reason), errnum);
        err->status = status;
    }
    return status;
}

enum refit_status refit_fail_alloc(struct refit_error *err, const char *what, unsigned long long size_bytes)
{
    return refit_fail(err, REFIT_NO_MEMORY, "out of memory: %llu bytes for %s", size_bytes, what);
}

enum refit_status refit_error_prefix(struct refit_error *err, enum refit_status status, const char *format, ...)
{
    if (!err)
        return status;
    char text[REFIT_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    snprintf(text + used, sizeof text - used, ": %.*s", (int)(sizeof text - used), err->text);
    memcpy(err->text, text, sizeof text);
    return status;
}
