/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http_head.h"

#include <string.h>
#include <strings.h>

#define HEADERS_MAX 100

struct slice {
    const char *at;
    size_t len;
};

/* What is remembered between headers, to refuse those that say something twice. */
struct seen {
    int host, length, authorization, version_minor;
    bool transfer_encoding;
};

size_t refit_http_head_end(const char *data, size_t len)
{
    const char *end = memmem(data, len, "\r\n\r\n", 4);
    return end ? (size_t)(end - data) + 4 : 0;
}

static bool is(struct slice s, const char *word)
{
    return strlen(word) == s.len && strncasecmp(s.at, word, s.len) == 0;
}

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool all_visible(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.at[i] <= 0x20 || s.at[i] == 0x7f)
            return false;
    return true;
}

static bool decimal(struct slice s, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    if (s.len == 0)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (unsigned)(s.at[i] - '0'), &value))
            return false;
    }
    if (value > max)
        return false;
    *out = value;
    return true;
}

/* Takes what stands before `mark`; false when it is not there. */
static bool take_until(struct slice *from, char mark, struct slice *out)
{
    const char *at = memchr(from->at, mark, from->len);
    if (!at)
        return false;
    *out = (struct slice){from->at, (size_t)(at - from->at)};
    from->len -= out->len + 1;
    from->at = at + 1;
    return true;
}

static bool copy(char *out, size_t size, struct slice s)
{
    if (s.len >= size)
        return false;
    memcpy(out, s.at, s.len);
    out[s.len] = '\0';
    return true;
}

/* "http://host/path" counts as "/path"; only paths are served. */
static struct slice without_authority(struct slice target)
{
    if (target.len < 7 || strncasecmp(target.at, "http://", 7) != 0)
        return target;
    const char *slash = memchr(target.at + 7, '/', target.len - 7);
    return slash ? (struct slice){slash, target.len - (size_t)(slash - target.at)} : (struct slice){"/", 1};
}

static int parse_request_line(struct slice line, struct refit_http_head *out, struct seen *seen, const char **why)
{
    struct slice method, target, path;
    *why = "malformed request line: expected \"METHOD /path HTTP/1.1\"";
    if (!take_until(&line, ' ', &method) || method.len == 0 || !take_until(&line, ' ', &target))
        return 400;
    for (size_t i = 0; i < method.len; i++)
        if (!is_token_char(method.at[i]))
            return 400;
    if (line.len != 8 || memcmp(line.at, "HTTP/", 5) != 0 || line.at[6] != '.')
        return 400;
    if (line.at[5] != '1' || (line.at[7] != '0' && line.at[7] != '1')) {
        *why = "only HTTP/1.1 and HTTP/1.0 are spoken here";
        return 505;
    }
    seen->version_minor = line.at[7] - '0';
    if (!copy(out->method, sizeof out->method, method)) {
        *why = "unknown method";
        return 501;
    }
    bool visible = all_visible(target);
    target = without_authority(target);
    if (target.len == 0 || target.at[0] != '/' || !visible || memchr(target.at, '#', target.len)) {
        *why = "malformed request target: expected a path that begins with '/'";
        return 400;
    }
    if (target.len >= sizeof out->path) {
        *why = "request target longer than 2047 bytes";
        return 414;
    }
    if (take_until(&target, '?', &path))
        copy(out->query, sizeof out->query, target);
    else
        path = target;
    copy(out->path, sizeof out->path, path);
    return 0;
}

static struct slice trimmed(struct slice s)
{
    while (s.len && (s.at[0] == ' ' || s.at[0] == '\t'))
        s = (struct slice){s.at + 1, s.len - 1};
    while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
        s.len--;
    return s;
}

static void read_connection(struct slice value, struct refit_http_head *out)
{
    struct slice word;
    bool more = true;
    while (more) {
        more = take_until(&value, ',', &word);
        word = trimmed(more ? word : value);
        if (is(word, "close"))
            out->keep_alive = false;
        else if (is(word, "keep-alive"))
            out->keep_alive = true;
    }
}

static void read_entity_tag(struct slice value, struct refit_http_head *out)
{
    if (value.len >= 2 && value.at[0] == '"' && value.at[value.len - 1] == '"')
        copy(out->if_none_match, sizeof out->if_none_match, (struct slice){value.at + 1, value.len - 2});
}

/* The scheme's name may be in any case, the token may not. */
static bool read_bearer(struct slice value, struct refit_http_head *out)
{
    struct slice scheme;
    if (!take_until(&value, ' ', &scheme) || !is(scheme, "bearer"))
        return false;
    value = trimmed(value);
    return value.len > 0 && all_visible(value) && copy(out->bearer, sizeof out->bearer, value);
}

static int apply_header(struct slice name, struct slice value, struct refit_http_head *out, struct seen *seen,
                        const char **why)
{
    if (is(name, "host")) {
        seen->host++;
    } else if (is(name, "content-length")) {
        *why = "Content-Length: expected one whole number";
        if (seen->length++ || !decimal(value, INT64_MAX, &out->content_length))
            return 400;
    } else if (is(name, "transfer-encoding")) {
        seen->transfer_encoding = true;
    } else if (is(name, "connection")) {
        read_connection(value, out);
    } else if (is(name, "expect")) {
        *why = "Expect: only 100-continue is known";
        if (!is(value, "100-continue"))
            return 417;
        out->expect_continue = true;
    } else if (is(name, "origin")) {
        out->cross_site = true;
    } else if (is(name, "last-event-id")) {
        *why = "Last-Event-ID: expected the id of an event, a whole number";
        if (!decimal(value, UINT64_MAX, &out->last_event_id))
            return 400;
    } else if (is(name, "if-none-match")) {
        read_entity_tag(value, out);
    } else if (is(name, "authorization")) {
        *why = "Authorization: expected one, \"Bearer TOKEN\", with a token of at most 256 bytes";
        if (seen->authorization++ || !read_bearer(value, out))
            return 400;
    } else if (is(name, "accept")) {
        copy(out->accept, sizeof out->accept, value);
    }
    return 0;
}

static int parse_header(struct slice line, struct refit_http_head *out, struct seen *seen, const char **why)
{
    struct slice name;
    *why = "malformed header: expected \"Name: value\"";
    if (!take_until(&line, ':', &name) || name.len == 0)
        return 400;
    for (size_t i = 0; i < name.len; i++)
        if (!is_token_char(name.at[i]))
            return 400;
    *why = "a header value holds a NUL or another control character";
    for (size_t i = 0; i < line.len; i++)
        if (((unsigned char)line.at[i] < 0x20 && line.at[i] != '\t') || line.at[i] == 0x7f)
            return 400;
    return apply_header(name, trimmed(line), out, seen, why);
}

/* The next line without its CR LF. The head ends with an empty line, so there is always one. */
static struct slice next_line(struct slice *rest)
{
    const char *end = memmem(rest->at, rest->len, "\r\n", 2);
    struct slice line = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
    size_t skip = end ? line.len + 2 : line.len;
    *rest = (struct slice){rest->at + skip, rest->len - skip};
    return line;
}

static int check_framing(const struct seen *seen, const char **why)
{
    if (seen->host > 1 || (seen->version_minor == 1 && seen->host == 0)) {
        *why = "expected exactly one Host header";
        return 400;
    }
    if (seen->transfer_encoding && seen->length) {
        *why = "Content-Length beside Transfer-Encoding: one framing only";
        return 400;
    }
    if (seen->transfer_encoding) {
        *why = "a body must come with Content-Length; chunked requests are not taken";
        return 411;
    }
    return 0;
}

int refit_http_head_parse(const char *data, size_t len, struct refit_http_head *out, const char **why)
{
    struct slice rest = {data, len};
    struct seen seen = {0};
    memset(out, 0, sizeof *out);
    int status = parse_request_line(next_line(&rest), out, &seen, why);
    if (status)
        return status;
    out->keep_alive = seen.version_minor == 1;
    for (int count = 0; rest.len; count++) {
        struct slice line = next_line(&rest);
        if (line.len == 0)
            break;
        if (count == HEADERS_MAX) {
            *why = "more than 100 headers";
            return 431;
        }
        status = parse_header(line, out, &seen, why);
        if (status)
            return status;
    }
    return check_framing(&seen, why);
}

/* Up to `separator`, or all that is left; true while there is more behind it. */
static bool next_part(struct slice *rest, char separator, struct slice *part)
{
    bool more = take_until(rest, separator, part);
    if (!more)
        *part = *rest;
    return more;
}

bool refit_http_query_u64(const char *query, const char *key, uint64_t max, uint64_t *out)
{
    struct slice rest = {query, strlen(query)}, pair, name;
    bool more = rest.len > 0;
    while (more) {
        more = next_part(&rest, '&', &pair);
        if (take_until(&pair, '=', &name) && is(name, key))
            return decimal(pair, max, out);
    }
    return true;
}

bool refit_http_query_has(const char *query, const char *key)
{
    struct slice rest = {query, strlen(query)}, pair, name;
    bool more = rest.len > 0;
    while (more) {
        more = next_part(&rest, '&', &pair);
        next_part(&pair, '=', &name);
        if (is(name, key))
            return true;
    }
    return false;
}

/* The parameters of a media range hold "q=0", "q=0." or "q=0.000". */
static bool is_excluded(struct slice parameters)
{
    struct slice one;
    bool more = true;
    while (more) {
        more = next_part(&parameters, ';', &one);
        one = trimmed(one);
        if (one.len >= 3 && strncasecmp(one.at, "q=0", 3) == 0 && strspn(one.at + 3, ".0") >= one.len - 3)
            return true;
    }
    return false;
}

bool refit_http_accepts(const char *accept, const char *type)
{
    struct slice rest = {accept, strlen(accept)}, range, name;
    bool more = rest.len > 0;
    while (more) {
        more = next_part(&rest, ',', &range);
        bool has_parameters = next_part(&range, ';', &name);
        if (is(trimmed(name), type))
            return !has_parameters || !is_excluded(range);
    }
    return false;
}
