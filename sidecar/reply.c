/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "health/health.h"

void refit_reply_init(struct refit_reply *reply)
{
    *reply = (struct refit_reply){.status = 0};
    refit_buf_init(&reply->body, REFIT_REPLY_BODY_MAX);
}

void refit_reply_release(struct refit_reply *reply)
{
    refit_buf_release(&reply->body);
}

void refit_reply_header(struct refit_reply *reply, const char *name, const char *format, ...)
{
    char value[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    size_t used = strlen(reply->headers);
    snprintf(reply->headers + used, sizeof reply->headers - used, "%s: %s\r\n", name, value);
}

void refit_reply_bytes(struct refit_reply *reply, int status, const char *type, const void *data, size_t len)
{
    reply->status = status;
    reply->type = type;
    refit_buf_clear(&reply->body);
    if (!refit_buf_append(&reply->body, data, len))
        reply->status = 500; /* and what fits of a body: nothing */
}

static void reply_typed(struct refit_reply *reply, int status, const char *type, json_t *body)
{
    size_t len = 0;
    char *text = body ? refit_json_canonical(body, &len) : NULL;
    json_decref(body);
    if (text)
        refit_reply_bytes(reply, status, type, text, len);
    else
        reply->status = 500;
    free(text);
}

void refit_reply_json(struct refit_reply *reply, int status, json_t *body)
{
    reply_typed(reply, status, "application/json", body);
}

/* As the table of docs/api.md says. */
static int http_status(enum refit_status status)
{
    switch (status) {
    case REFIT_OK: return 200;
    case REFIT_INVALID: return 400;
    case REFIT_MISMATCH: return 422;
    case REFIT_UNSUPPORTED: return 501;
    case REFIT_NOT_FOUND: return 404;
    case REFIT_CONFLICT: return 409;
    case REFIT_STALE: return 412;
    case REFIT_BUSY: return 503;
    case REFIT_TIMEOUT: return 504;
    case REFIT_PEER: return 502;
    case REFIT_CORRUPT: return 422;
    case REFIT_ABORTED: return 409;
    case REFIT_NO_MEMORY: return 507;
    case REFIT_SYSTEM: return 500;
    }
    return 500;
}

static const char *title_of(enum refit_status status)
{
    switch (status) {
    case REFIT_OK: return "Done";
    case REFIT_INVALID: return "Request is malformed";
    case REFIT_MISMATCH: return "The two sides do not fit together";
    case REFIT_UNSUPPORTED: return "Not available here";
    case REFIT_NOT_FOUND: return "No such thing";
    case REFIT_CONFLICT: return "Refused by the present state";
    case REFIT_STALE: return "Epoch or version is not current";
    case REFIT_BUSY: return "Not possible yet";
    case REFIT_TIMEOUT: return "A deadline passed";
    case REFIT_PEER: return "The other side failed";
    case REFIT_CORRUPT: return "Bytes do not match their digest";
    case REFIT_ABORTED: return "Ended on request or by a newer refit";
    case REFIT_NO_MEMORY: return "Memory or a limit is exhausted";
    case REFIT_SYSTEM: return "The operating system refused";
    }
    return "Error";
}

static json_t *problem(int status, const char *type, const char *title, const char *detail)
{
    return json_pack("{s:o, s:s, s:i, s:o}", "type", json_sprintf("urn:refit:problem:%s", type), "title", title, "status",
                     status, "detail", refit_json_text(detail));
}

void refit_reply_error(struct refit_reply *reply, const struct refit_error *err, const char *type, int status)
{
    int http = status ? status : http_status(err->status);
    json_t *body = problem(http, type ? type : refit_status_name(err->status), title_of(err->status), err->text);
    if (body) {
        json_object_set_new(body, "refit_status", json_string(refit_status_name(err->status)));
        json_object_set_new(body, "action", json_string(refit_status_action(err->status)));
        json_object_set_new(body, "retryable", json_boolean(refit_health_is_retryable(err->status)));
    }
    if (http == 503)
        refit_reply_header(reply, "Retry-After", "1");
    reply_typed(reply, http, "application/problem+json", body);
}

/* What the library would have said, for clients that know its words only. */
static enum refit_status nearest_status(int http)
{
    switch (http) {
    case 404: return REFIT_NOT_FOUND;
    case 408: return REFIT_TIMEOUT;
    case 500: return REFIT_SYSTEM;
    case 503: return REFIT_BUSY;
    case 507: return REFIT_NO_MEMORY;
    default: return REFIT_INVALID;
    }
}

void refit_reply_problem(struct refit_reply *reply, int status, const char *type, const char *format, ...)
{
    char detail[512];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    json_t *body = problem(status, type, refit_http_reason(status), detail);
    enum refit_status nearest = nearest_status(status);
    if (body) {
        json_object_set_new(body, "refit_status", json_string(refit_status_name(nearest)));
        json_object_set_new(body, "action", json_string(refit_status_action(nearest)));
        json_object_set_new(body, "retryable", json_boolean(refit_health_is_retryable(nearest)));
    }
    if (status == 503)
        refit_reply_header(reply, "Retry-After", "1");
    reply_typed(reply, status, "application/problem+json", body);
}

const char *refit_http_reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 411: return "Length Required";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return "Unknown";
    }
}
