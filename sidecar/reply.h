/* SPDX-License-Identifier: Apache-2.0
 *
 * An answer as a handler makes it: status, a few headers, a body. Plain data with one owner; no I/O, any thread.
 * Errors are problems (RFC 9457): `application/problem+json` with a stable type "urn:refit:problem:NAME".
 */
#ifndef REFIT_SIDECAR_REPLY_H
#define REFIT_SIDECAR_REPLY_H

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"

#define REFIT_REPLY_HEADERS_MAX 1024
#define REFIT_REPLY_BODY_MAX ((64u << 20) + 4096) /* the largest is a layout document */

struct refit_reply {
    int status;                            /* 0: not answered yet */
    const char *type;                      /* of the body; a literal; NULL: no body */
    char headers[REFIT_REPLY_HEADERS_MAX]; /* "Name: value\r\n" each */
    struct refit_buf body;
};

void refit_reply_init(struct refit_reply *reply);
void refit_reply_release(struct refit_reply *reply);

/* One more header. Values are made here, never copied from a request. */
__attribute__((format(printf, 3, 4))) void refit_reply_header(struct refit_reply *reply, const char *name,
                                                              const char *format, ...);
/* Answers with canonical JSON; steals `body` (NULL: out of memory, and so answered 500). */
void refit_reply_json(struct refit_reply *reply, int status, json_t *body);
void refit_reply_bytes(struct refit_reply *reply, int status, const char *type, const void *data, size_t len);

/* Answers with the problem of `err`. `type` NULL: the status's own name; `status` 0: by the table. */
void refit_reply_error(struct refit_reply *reply, const struct refit_error *err, const char *type, int status);
/* A problem of HTTP itself. */
__attribute__((format(printf, 4, 5))) void refit_reply_problem(struct refit_reply *reply, int status, const char *type,
                                                               const char *format, ...);

const char *refit_http_reason(int status);

#endif
