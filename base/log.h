/* SPDX-License-Identifier: Apache-2.0
 *
 * One structured line per event on standard error, as text or as JSON:
 *
 *   ts=2026-01-31T10:00:00.123Z level=info component=refitd msg="refit committed" refit=r-7f3a version=8 bytes=90868224
 *   {"ts":"...","level":"info","component":"refitd","msg":"refit committed","refit":"r-7f3a","version":8,"bytes":...}
 *
 * Safe from any thread; errno is as before after each call. A line has at most 4096 bytes (PIPE_BUF, so lines of several
 * processes on one pipe don't mix); longer values are cut. No line per chunk, ever.
 *
 * A log that can't be written never holds anybody up. Between refit_log_start and refit_log_stop a thread of its own
 * writes and everybody else only queues; without it (in the libraries, in other people's processes) a line is written by
 * the caller if standard error takes it at once. What finds no room, or meets a full disk, is dropped and counted, and a
 * line says how many were lost as soon as lines can be written again.
 */
#ifndef REFIT_BASE_LOG_H
#define REFIT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum refit_log_level { REFIT_LOG_ERROR, REFIT_LOG_WARN, REFIT_LOG_INFO, REFIT_LOG_DEBUG };
enum refit_log_format { REFIT_LOG_TEXT, REFIT_LOG_JSON };

/* Process-wide; call before threads start. Default: warn, text. `component` is borrowed (a literal). */
void refit_log_setup(enum refit_log_level level, enum refit_log_format format, const char *component);
enum refit_log_level refit_log_level(void); /* what is logged now */
/* Starts and ends the thread that writes. Stop waits at most that long for what is queued, and may be left out. */
REFIT_MUST_CHECK enum refit_status refit_log_start(struct refit_error *err);
void refit_log_stop(int64_t timeout_ms);
/* Lines that were dropped since the start of the process. */
uint64_t refit_log_lost(void);

/* A key and its value. Keys are literals of [a-z_]; texts are borrowed for the call. */
struct refit_log_field {
    const char *key;
    enum {
        REFIT_LOG_IS_TEXT, REFIT_LOG_IS_U64, REFIT_LOG_IS_I64, REFIT_LOG_IS_REAL, REFIT_LOG_IS_BOOL, REFIT_LOG_IS_COUNT
    } kind;
    union {
        const char *text;
        uint64_t u64;
        int64_t i64;
        double real;
        bool truth;
    } value;
};

static inline struct refit_log_field refit_log_text(const char *key, const char *value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_TEXT, .value.text = value};
}
static inline struct refit_log_field refit_log_u64(const char *key, uint64_t value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_U64, .value.u64 = value};
}
static inline struct refit_log_field refit_log_i64(const char *key, int64_t value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_I64, .value.i64 = value};
}
static inline struct refit_log_field refit_log_real(const char *key, double value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_REAL, .value.real = value};
}
static inline struct refit_log_field refit_log_bool(const char *key, bool value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_BOOL, .value.truth = value};
}
/* Left out when it is 0. */
static inline struct refit_log_field refit_log_count(const char *key, uint64_t value)
{
    return (struct refit_log_field){.key = key, .kind = REFIT_LOG_IS_COUNT, .value.u64 = value};
}
/* errno=ENOSPC */
struct refit_log_field refit_log_errno(int errnum);
/* status=peer reason="...": why something failed, of a struct refit_error *. Two fields. */
#define REFIT_LOG_CAUSE(err) \
    refit_log_text("status", refit_status_name((err)->status)), refit_log_text("reason", (err)->text)

/* An event and its fields:
 *   refit_log_event(REFIT_LOG_INFO, "refit committed", refit_log_text("refit", id), refit_log_u64("version", version));
 * The message is a literal, the same for each event of its kind: what differs is in the fields. */
#define refit_log_event(level, message, ...) \
    refit_log_write(level, message, (const struct refit_log_field[]){__VA_ARGS__}, \
                    sizeof((const struct refit_log_field[]){__VA_ARGS__}) / sizeof(struct refit_log_field))
/* The same for events that others can provoke as often as they like: 20 lines of one message in 10 seconds, the rest is
 * counted, and the next line says how many (suppressed=17). */
#define refit_log_limited(level, message, ...) \
    ((void)(refit_log_passes(level, message) && \
            (refit_log_event(level, message, __VA_ARGS__, refit_log_count("suppressed", refit_log_suppressed(message))), true)))

/* The refit this thread works for from now on: each line it writes says refit and version, unless the event names them
 * itself. NULL: none. */
void refit_log_context(const char *refit, uint64_t version);

/* The same line to another file as well (an audit log): whole, by the caller. False when it could not be written; errno
 * says why. */
bool refit_log_append(int fd, enum refit_log_level level, const char *message, const struct refit_log_field *fields,
                      size_t count);

/* Behind the macros. */
void refit_log_write(enum refit_log_level level, const char *message, const struct refit_log_field *fields, size_t count);
bool refit_log_passes(enum refit_log_level level, const char *message);
uint64_t refit_log_suppressed(const char *message); /* and forgets it */

#endif
