/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of an HTTP/1.1 request (RFC 9112), read strictly: what two readers could understand differently is refused.
 *
 * Pure: bytes in, a struct out; no I/O. Refused: a NUL or another control character anywhere, a bare CR or LF, white
 * space before a colon, folded lines, two different framings (Content-Length twice, or beside Transfer-Encoding),
 * HTTP/1.1 without one Host. A body needs Content-Length: chunked requests are answered 411.
 */
#ifndef REFIT_SIDECAR_HTTP_HEAD_H
#define REFIT_SIDECAR_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFIT_HTTPD_TARGET_MAX 2048
#define REFIT_HTTPD_METHOD_MAX 16
#define REFIT_HTTPD_TOKEN_MAX 264

struct refit_http_head {
    char method[REFIT_HTTPD_METHOD_MAX];
    char path[REFIT_HTTPD_TARGET_MAX];  /* as sent: nothing in this API needs percent-encoding, so nothing is decoded */
    char query[REFIT_HTTPD_TARGET_MAX]; /* behind the '?', or empty */
    uint64_t content_length;
    bool keep_alive;
    bool expect_continue;
    bool cross_site;        /* an Origin header: a browser sends it on behalf of a page */
    uint64_t last_event_id; /* 0: none */
    char if_none_match[96]; /* without its quotes; empty: none */
    char accept[256];       /* empty: none, or too long to be of interest */
    char bearer[REFIT_HTTPD_TOKEN_MAX]; /* the token of "Authorization: Bearer"; empty: none. A secret: wiped when used */
};

/* Where the head in `data` ends: the offset behind its empty line; 0 while it is not complete. */
size_t refit_http_head_end(const char *data, size_t len);

/* Parses a complete head (`len` as refit_http_head_end said). 0, or the HTTP status to refuse it with and *why, a
 * static text. */
int refit_http_head_parse(const char *data, size_t len, struct refit_http_head *out, const char **why);

/* A whole number among the parameters of a query ("after=12&wait_ms=100"); false when it is there and is none, or is
 * larger than `max`. *out stays as it is when the parameter is missing. */
bool refit_http_query_u64(const char *query, const char *key, uint64_t max, uint64_t *out);
/* Whether a parameter is there: "verbose" in "verbose" and in "a=1&verbose=1". */
bool refit_http_query_has(const char *query, const char *key);

/* Whether an Accept header names that media type with a weight above 0. Wildcards don't count. */
bool refit_http_accepts(const char *accept, const char *type);

#endif
