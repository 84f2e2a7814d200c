/* SPDX-License-Identifier: Apache-2.0
 *
 * The one status type of Refit, and the error that travels with it.
 *
 * Every fallible function returns an `enum refit_status`; REFIT_OK is 0. A function that takes a
 * `struct refit_error *` fills it whenever it returns anything else: a text that names the thing (tensor, box,
 * rank, peer, file), what was expected, what was found and what to do. The pointer may be NULL.
 */
#ifndef REFIT_STATUS_H
#define REFIT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define REFIT_API __attribute__((visibility("default")))

/* A status says what the caller can do about it; refit_status_action() spells that out. */
enum refit_status {
    REFIT_OK = 0,
    REFIT_INVALID,     /* malformed argument, document or message: fix the request */
    REFIT_MISMATCH,    /* well formed, but the two sides do not fit together: fix the request */
    REFIT_UNSUPPORTED, /* understood, but not available here: fix the request */
    REFIT_NOT_FOUND,   /* no such thing (tensor, version, file, refit): fix the request */
    REFIT_CONFLICT,    /* refused by the state it meets (held, another lead, committed): look, then decide */
    REFIT_STALE,       /* the version or epoch named is no longer current: ask again for the current one */
    REFIT_BUSY,        /* a resource is in use for now: retry */
    REFIT_TIMEOUT,     /* a deadline passed: retry the refit */
    REFIT_PEER,        /* the other side closed, reset or broke the protocol: drop the peer, retry the refit */
    REFIT_CORRUPT,     /* bytes do not match their digest: drop the peer, retry the refit */
    REFIT_ABORTED,     /* ended on request or by a newer refit: nothing to do */
    REFIT_NO_MEMORY,   /* an allocation or a limit (cgroup, capacity): raise the limit */
    REFIT_SYSTEM,      /* the operating system refused; the text carries errno: stop and look */
};

/* Stable, lower-case, dash-separated: "no-memory". Used in JSON and metrics. Never NULL. */
REFIT_API const char *refit_status_name(enum refit_status status);

/* One imperative clause for a person: "retry the refit". Never NULL. */
REFIT_API const char *refit_status_action(enum refit_status status);

#define REFIT_ERROR_TEXT_MAX 768

struct refit_error {
    enum refit_status status;
    char text[REFIT_ERROR_TEXT_MAX]; /* NUL-terminated, one line, no trailing period needed */
};

#ifdef __cplusplus
}
#endif
#endif
