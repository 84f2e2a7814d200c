/* SPDX-License-Identifier: Apache-2.0
 *
 * A line, from its event and fields. What standard error takes of it is log_sink.c's.
 */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log_sink.h"
#include "base/text.h"

#define END_ROOM 4 /* quote, brace, newline, and one to spare */

static struct {
    enum refit_log_level level;
    enum refit_log_format format;
    const char *component;
} setup = {REFIT_LOG_WARN, REFIT_LOG_TEXT, "refit"};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static _Thread_local struct {
    char refit[64];
    uint64_t version;
} context;

struct line {
    char text[REFIT_LOG_LINE_MAX];
    size_t len;
    bool json;
    bool first;
};

void refit_log_setup(enum refit_log_level level, enum refit_log_format format, const char *component)
{
    setup.level = level;
    setup.format = format;
    setup.component = component;
}

enum refit_log_level refit_log_level(void)
{
    return setup.level;
}

void refit_log_context(const char *refit, uint64_t version)
{
    snprintf(context.refit, sizeof context.refit, "%s", refit ? refit : "");
    context.version = version;
}

struct refit_log_field refit_log_errno(int errnum)
{
    const char *name = strerrorname_np(errnum);
    return refit_log_text("errno", name ? name : "unknown");
}

/* --- bytes ------------------------------------------------------------------------------------------------------- */

static bool room(const struct line *line, size_t len)
{
    return line->len + len + END_ROOM <= sizeof line->text;
}

static bool put(struct line *line, const char *bytes, size_t len)
{
    if (!room(line, len))
        return false;
    memcpy(line->text + line->len, bytes, len);
    line->len += len;
    return true;
}

/* One character of a value, escaped when it would break a line or a JSON string; how many bytes of `at` it took. */
static unsigned put_character(struct line *line, const char *at, bool *fits)
{
    char escaped[8];
    unsigned bytes, control = refit_text_control(at, &bytes);
    unsigned valid = refit_text_utf8_length(at);
    if (control) {
        *fits = put(line, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", control));
        return bytes;
    }
    if (line->json && valid == 0) {
        *fits = put(line, "\\ufffd", 6);
        return 1;
    }
    if (*at == '"' || *at == '\\') {
        *fits = put(line, (const char[]){'\\', *at}, 2);
        return 1;
    }
    valid = valid ? valid : 1;
    *fits = put(line, at, valid);
    return valid;
}

static void put_quoted(struct line *line, const char *value)
{
    bool fits = put(line, "\"", 1);
    while (fits && *value)
        value += put_character(line, value, &fits);
    line->text[line->len++] = '"'; /* there is room for it at the end */
}

static bool is_plain(const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+@,%#";
    return *value && value[strspn(value, plain)] == '\0' && strlen(value) < 256;
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

static bool put_key(struct line *line, const char *key)
{
    size_t len = strlen(key);
    if (!room(line, len + 40)) /* and a number, or the quotes of a text */
        return false;
    if (!line->first)
        put(line, line->json ? "," : " ", 1);
    line->first = false;
    if (line->json)
        put(line, "\"", 1);
    put(line, key, len);
    put(line, line->json ? "\":" : "=", line->json ? 2 : 1);
    return true;
}

__attribute__((format(printf, 3, 4)))
static void put_number(struct line *line, const char *key, const char *format, ...)
{
    char text[40];
    va_list args;
    if (!put_key(line, key))
        return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(line, text, (size_t)n);
}

static void put_text(struct line *line, const char *key, const char *value)
{
    if (!put_key(line, key))
        return;
    if (!line->json && is_plain(value) && room(line, strlen(value)))
        put(line, value, strlen(value));
    else
        put_quoted(line, value);
}

/* As in the API: a number that JSON's readers may not hold is a text. */
static void put_u64(struct line *line, const char *key, uint64_t value)
{
    put_number(line, key, line->json && value > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
}

static void put_field(struct line *line, const struct refit_log_field *field)
{
    switch (field->kind) {
    case REFIT_LOG_IS_TEXT: put_text(line, field->key, field->value.text ? field->value.text : ""); break;
    case REFIT_LOG_IS_U64: put_u64(line, field->key, field->value.u64); break;
    case REFIT_LOG_IS_I64: put_number(line, field->key, "%" PRId64, field->value.i64); break;
    case REFIT_LOG_IS_BOOL: put_number(line, field->key, "%s", field->value.truth ? "true" : "false"); break;
    case REFIT_LOG_IS_REAL: put_number(line, field->key, "%.9g", isfinite(field->value.real) ? field->value.real : 0); break;
    case REFIT_LOG_IS_COUNT:
        if (field->value.u64)
            put_u64(line, field->key, field->value.u64);
        break;
    }
}

/* --- lines ------------------------------------------------------------------------------------------------------- */

static void begin(struct line *line, enum refit_log_level level, const char *message)
{
    struct timespec now;
    struct tm utc;
    char stamp[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + n, sizeof stamp - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
    line->len = 0;
    line->json = setup.format == REFIT_LOG_JSON;
    line->first = true;
    if (line->json)
        put(line, "{", 1);
    put_text(line, "ts", stamp);
    put_text(line, "level", level_names[level]);
    put_text(line, "component", setup.component);
    put_text(line, "msg", message);
}

static void end(struct line *line)
{
    if (line->json)
        line->text[line->len++] = '}';
    line->text[line->len++] = '\n';
}

static bool names_refit(const struct refit_log_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(fields[i].key, "refit") == 0)
            return true;
    return false;
}

static void render(struct line *line, enum refit_log_level level, const char *message,
                   const struct refit_log_field *fields, size_t count)
{
    begin(line, level, message);
    if (context.refit[0] && !names_refit(fields, count)) {
        put_text(line, "refit", context.refit);
        put_u64(line, "version", context.version);
    }
    for (size_t i = 0; i < count; i++)
        put_field(line, &fields[i]);
    end(line);
}

void refit_log_write(enum refit_log_level level, const char *message, const struct refit_log_field *fields, size_t count)
{
    struct line line;
    int saved = errno;
    if (level > setup.level)
        return;
    render(&line, level, message, fields, count);
    refit_log_sink(line.text, line.len);
    errno = saved;
}

bool refit_log_append(int fd, enum refit_log_level level, const char *message, const struct refit_log_field *fields,
                      size_t count)
{
    struct line line;
    render(&line, level, message, fields, count);
    errno = ENOSPC; /* for a write that took a part */
    return write(fd, line.text, line.len) == (ssize_t)line.len;
}

size_t refit_log_lost_line(char *out, size_t size, unsigned long long lost, unsigned long long total, int errnum)
{
    struct line line;
    const struct refit_log_field why = refit_log_errno(errnum);
    begin(&line, REFIT_LOG_WARN, "log lines were lost");
    put_u64(&line, "lost", lost);
    put_u64(&line, "lost_total", total);
    put_field(&line, &why);
    end(&line);
    size_t len = line.len < size ? line.len : size;
    memcpy(out, line.text, len);
    return len;
}
