/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

static struct {
    enum refit_log_level level;
    enum refit_log_format format;
    const char *component;
} setup = {REFIT_LOG_WARN, REFIT_LOG_TEXT, "refit"};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void refit_log_setup(enum refit_log_level level, enum refit_log_format format, const char *component)
{
    setup.level = level;
    setup.format = format;
    setup.component = component;
}

/* Escapes what would break a line or a JSON string; always terminates. */
static void escape(char *out, size_t out_len, const char *in)
{
    size_t n = 0;
    for (unsigned bytes = 1; *in && n + 7 < out_len; in += bytes) {
        unsigned control = refit_text_control(in, &bytes);
        if (control) {
            n += (size_t)snprintf(out + n, out_len - n, "\\u%04x", control);
            continue;
        }
        if (*in == '"' || *in == '\\')
            out[n++] = '\\';
        memcpy(out + n, in, bytes);
        n += bytes;
    }
    out[n] = '\0';
}

void refit_log(enum refit_log_level level, const char *format, ...)
{
    if (level > setup.level)
        return;
    char text[1024], safe[2048], line[2304];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    escape(safe, sizeof safe, text);

    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    const char *shape = setup.format == REFIT_LOG_JSON
                            ? "{\"ts\":\"%s.%03ldZ\",\"level\":\"%s\",\"component\":\"%s\",\"msg\":\"%s\"}\n"
                            : "ts=%s.%03ldZ level=%s component=%s msg=\"%s\"\n";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(line, sizeof line, shape, stamp, now.tv_nsec / 1000000, level_names[level], setup.component, safe);
#pragma GCC diagnostic pop
    if (n > 0) {
        /* Nothing can be done about a log that can't be written (a full disk must not end a refit). */
        ssize_t written = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
        (void)written;
    }
}
