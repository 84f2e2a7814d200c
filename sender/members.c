/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "sender/http_client.h"
#include "sender/resolver.h"

#define FILE_MAX (1u << 20)
#define LIST_BREAKS ", \t\r\n"

enum origin_kind { ORIGIN_GIVEN, ORIGIN_FILE, ORIGIN_DNS };

/* Where members come from, and what it said last. */
struct origin {
    enum origin_kind kind;
    char *path; /* of a file */
    struct refit_resolver *resolver;
    char *name; /* behind DNS, with https: in their certificates */
    uint16_t port;
    bool known;
    struct refit_membership last; /* its epoch is not used */
};

struct refit_members {
    struct origin *origins;
    size_t count;
    refit_members_resolve_fn resolve;
    void *context;
    struct refit_membership now;
};

/* ---- lists of members ---- */

static void release_member(struct refit_members_item *member)
{
    for (size_t i = 0; i < member->count; i++)
        free(member->urls[i]);
    free(member->urls);
    *member = (struct refit_members_item){0};
}

void refit_membership_release(struct refit_membership *membership)
{
    for (size_t i = 0; i < membership->count; i++)
        release_member(&membership->members[i]);
    free(membership->members);
    *membership = (struct refit_membership){0};
}

void refit_membership_remove(struct refit_membership *membership, size_t index)
{
    release_member(&membership->members[index]);
    membership->count--;
    memmove(&membership->members[index], &membership->members[index + 1],
            (membership->count - index) * sizeof membership->members[0]);
}

static bool has_url(const struct refit_members_item *member, const char *url)
{
    for (size_t i = 0; i < member->count; i++)
        if (strcmp(member->urls[i], url) == 0)
            return true;
    return false;
}

static bool same_member(const struct refit_members_item *a, const struct refit_members_item *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = strcmp(a->urls[i], b->urls[i]) == 0;
    return same;
}

static bool same_members(const struct refit_membership *a, const struct refit_membership *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = same_member(&a->members[i], &b->members[i]);
    return same;
}

static enum refit_status add_url(struct refit_members_item *member, const char *text, struct refit_error *err)
{
    struct refit_http_url url;
    enum refit_status status = refit_http_url_parse(text, &url, err);
    if (status != REFIT_OK)
        return status;
    if (has_url(member, url.text))
        return refit_fail(err, REFIT_INVALID, "replica %s is given twice", url.text);
    if (member->count == REFIT_MEMBER_PODS_MAX)
        return refit_fail(err, REFIT_INVALID, "a replica of more than %d pods", REFIT_MEMBER_PODS_MAX);
    char **urls = realloc(member->urls, (member->count + 1) * sizeof *urls);
    if (urls)
        member->urls = urls;
    char *copy = urls ? strdup(url.text) : NULL;
    if (!copy)
        return refit_fail_alloc(err, "a member", sizeof url);
    member->urls[member->count++] = copy;
    return REFIT_OK;
}

static enum refit_status parse_member(const char *text, struct refit_members_item *out, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    char *copy = strdup(text), *rest = copy;
    *out = (struct refit_members_item){0};
    if (!copy)
        return refit_fail_alloc(err, "a member", strlen(text));
    for (char *url = strsep(&rest, "+"); url && status == REFIT_OK; url = strsep(&rest, "+"))
        status = add_url(out, url, err);
    free(copy);
    if (status != REFIT_OK)
        release_member(out);
    return status;
}

/* Steals what `member` holds, also on an error. */
static enum refit_status append(struct refit_membership *list, struct refit_members_item *member, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < list->count && status == REFIT_OK; i++)
        for (size_t k = 0; k < member->count && status == REFIT_OK; k++)
            if (has_url(&list->members[i], member->urls[k]))
                status = refit_fail(err, REFIT_INVALID, "replica %s is given twice", member->urls[k]);
    if (status == REFIT_OK && list->count == REFIT_MEMBERS_MAX)
        status = refit_fail(err, REFIT_INVALID, "more than %d replicas", REFIT_MEMBERS_MAX);
    struct refit_members_item *grown =
        status == REFIT_OK ? realloc(list->members, (list->count + 1) * sizeof *grown) : NULL;
    if (status == REFIT_OK && !grown)
        status = refit_fail_alloc(err, "members", (list->count + 1) * sizeof *grown);
    if (status != REFIT_OK) {
        release_member(member);
        return status;
    }
    list->members = grown;
    list->members[list->count++] = *member;
    return REFIT_OK;
}

static enum refit_status append_text(struct refit_membership *list, const char *text, struct refit_error *err)
{
    struct refit_members_item member;
    enum refit_status status = parse_member(text, &member, err);
    return status == REFIT_OK ? append(list, &member, err) : status;
}

/* ---- origins ---- */

/* A comment begins a line or stands behind a blank: within a URL "#" is before the name in its certificate. */
static void cut_comment(char *line)
{
    for (char *at = line; (at = strchr(at, '#')) != NULL; at++)
        if (at == line || strchr(LIST_BREAKS, at[-1])) {
            *at = '\0';
            return;
        }
}

static enum refit_status read_lines(char *text, const char *path, struct refit_membership *out, struct refit_error *err)
{
    unsigned number = 0;
    for (char *rest = text, *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        number++;
        cut_comment(line);
        line += strspn(line, LIST_BREAKS);
        size_t len = strcspn(line, LIST_BREAKS);
        if (line[len + strspn(line + len, LIST_BREAKS)])
            return refit_fail(err, REFIT_INVALID, "%s:%u: more than one replica in a line", path, number);
        line[len] = '\0';
        enum refit_status status = len > 0 ? append_text(out, line, err) : REFIT_OK;
        if (status != REFIT_OK)
            return refit_error_prefix(err, status, "%s:%u", path, number);
    }
    /* Whoever rewrites a file in place may have emptied it first. */
    return out->count > 0 ? REFIT_OK : refit_fail(err, REFIT_INVALID, "%s: names no replica", path);
}

static enum refit_status ask_file(const struct origin *origin, struct refit_membership *out, struct refit_error *err)
{
    char *text;
    size_t len;
    enum refit_status status = refit_io_read_file(origin->path, FILE_MAX, &text, &len, err);
    if (status != REFIT_OK)
        return status;
    status = strlen(text) == len ? read_lines(text, origin->path, out, err)
                                 : refit_fail(err, REFIT_INVALID, "%s: is not text", origin->path);
    free(text);
    return status;
}

static enum refit_status ask_dns(const struct origin *origin, struct refit_deadline deadline,
                                 struct refit_membership *out, struct refit_error *err)
{
    char(*addresses)[REFIT_MEMBER_ADDRESS_MAX] = calloc(REFIT_MEMBERS_MAX, sizeof *addresses);
    size_t count = 0;
    if (!addresses)
        return refit_fail_alloc(err, "addresses", REFIT_MEMBERS_MAX * sizeof *addresses);
    enum refit_status status = refit_resolver_ask(origin->resolver, deadline, addresses, &count, err);
    for (size_t i = 0; i < count && status == REFIT_OK; i++) {
        char url[REFIT_URL_MAX];
        bool six = strchr(addresses[i], ':') != NULL;
        snprintf(url, sizeof url, "%s://%s%s%s:%u%s%s", origin->name ? "https" : "http", six ? "[" : "", addresses[i],
                 six ? "]" : "", origin->port, origin->name ? "#" : "", origin->name ? origin->name : "");
        status = append_text(out, url, err);
    }
    free(addresses);
    return status;
}

/* Afresh where that works, else as it was. */
static enum refit_status ask(struct origin *origin, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_membership fresh = {0};
    struct refit_error why;
    if (origin->kind == ORIGIN_GIVEN)
        return REFIT_OK;
    enum refit_status status = origin->kind == ORIGIN_FILE ? ask_file(origin, &fresh, &why)
                                                           : ask_dns(origin, deadline, &fresh, &why);
    if (status == REFIT_OK) {
        refit_membership_release(&origin->last);
        origin->last = fresh;
        origin->known = true;
        return REFIT_OK;
    }
    refit_membership_release(&fresh);
    if (!origin->known)
        return refit_fail(err, status, "%s", why.text);
    refit_log_event(REFIT_LOG_WARN, "members are taken as they were", REFIT_LOG_CAUSE(&why));
    return REFIT_OK;
}

static enum refit_status open_dns(struct refit_members *members, struct origin *origin, const char *text,
                                  struct refit_error *err)
{
    static const char https[] = "https://";
    bool secure = strncmp(text, https, sizeof https - 1) == 0;
    if (secure)
        text += sizeof https - 1;
    const char *colon = strrchr(text, ':');
    char *end = NULL, name[REFIT_URL_MAX - REFIT_MEMBER_ADDRESS_MAX - 24]; /* so that it fits into a URL with an address */
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    size_t len = colon ? (size_t)(colon - text) : 0;
    if (len == 0 || len >= sizeof name || !colon[1] || *end || port == 0 || port > UINT16_MAX)
        return refit_fail(err, REFIT_INVALID, "\"dns:%s\": expected dns:NAME:PORT or dns:https://NAME:PORT", text);
    snprintf(name, sizeof name, "%.*s", (int)len, text);
    origin->kind = ORIGIN_DNS;
    origin->name = secure ? strdup(name) : NULL;
    if (secure && !origin->name)
        return refit_fail_alloc(err, "a name", len);
    origin->port = (uint16_t)port;
    origin->resolver = refit_resolver_create(name, members->resolve, members->context);
    return origin->resolver ? REFIT_OK : refit_fail_alloc(err, "a resolver", sizeof *origin);
}

static enum refit_status open_file(struct origin *origin, const char *path, struct refit_error *err)
{
    if (!*path)
        return refit_fail(err, REFIT_INVALID, "\"file:\": expected file:PATH");
    origin->kind = ORIGIN_FILE;
    origin->path = strdup(path);
    return origin->path ? REFIT_OK : refit_fail_alloc(err, "a path", strlen(path));
}

static enum refit_status open_origin(struct refit_members *members, const char *text, struct refit_error *err)
{
    struct origin *origins = realloc(members->origins, (members->count + 1) * sizeof *origins);
    if (!origins)
        return refit_fail_alloc(err, "members", (members->count + 1) * sizeof *origins);
    members->origins = origins;
    struct origin *origin = &members->origins[members->count++];
    *origin = (struct origin){0};
    if (strncmp(text, "file:", 5) == 0)
        return open_file(origin, text + 5, err);
    if (strncmp(text, "dns:", 4) == 0)
        return open_dns(members, origin, text + 4, err);
    return append_text(&origin->last, text, err);
}

/* ---- all of them ---- */

static enum refit_status open_list(struct refit_members *members, const char *list, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    char *copy = strdup(list), *save = NULL;
    if (!copy)
        return refit_fail_alloc(err, "members", strlen(list));
    for (char *text = strtok_r(copy, LIST_BREAKS, &save); text && status == REFIT_OK;
         text = strtok_r(NULL, LIST_BREAKS, &save))
        status = open_origin(members, text, err);
    free(copy);
    return status;
}

static enum refit_status copy_member(const struct refit_members_item *member, struct refit_membership *into,
                                     struct refit_error *err)
{
    struct refit_members_item copy = {0};
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < member->count && status == REFIT_OK; i++)
        status = add_url(&copy, member->urls[i], err);
    if (status != REFIT_OK) {
        release_member(&copy);
        return status;
    }
    return append(into, &copy, err);
}

static enum refit_status copy_members(const struct refit_membership *from, struct refit_membership *into,
                                      struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < from->count && status == REFIT_OK; i++)
        status = copy_member(&from->members[i], into, err);
    return status;
}

/* What is given by hand twice is a mistake that is told at once. */
static enum refit_status check_given(const struct refit_members *members, struct refit_error *err)
{
    struct refit_membership given = {0};
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < members->count && status == REFIT_OK; i++)
        if (members->origins[i].kind == ORIGIN_GIVEN)
            status = copy_members(&members->origins[i].last, &given, err);
    refit_membership_release(&given);
    return status;
}

enum refit_status refit_members_open(const struct refit_members_config *config, struct refit_members **out,
                                     struct refit_error *err)
{
    struct refit_members *members = calloc(1, sizeof *members);
    enum refit_status status = REFIT_OK;
    if (!members)
        return refit_fail_alloc(err, "members", sizeof *members);
    members->resolve = config->resolve;
    members->context = config->context;
    for (size_t i = 0; i < config->count && status == REFIT_OK; i++)
        status = open_origin(members, config->texts[i], err);
    if (status == REFIT_OK && config->list)
        status = open_list(members, config->list, err);
    if (status == REFIT_OK && members->count == 0)
        status = refit_fail(err, REFIT_INVALID, "no replica is named; give at least one URL, file: or dns:");
    if (status == REFIT_OK)
        status = check_given(members, err);
    if (status != REFIT_OK)
        refit_members_close(members);
    else
        *out = members;
    return status;
}

/* Adds those of an origin that no other has named. */
static enum refit_status add_new(const struct refit_membership *from, struct refit_membership *into,
                                 struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < from->count && status == REFIT_OK; i++) {
        bool known = false;
        for (size_t k = 0; k < into->count && !known; k++)
            known = same_member(&from->members[i], &into->members[k]);
        if (!known)
            status = copy_member(&from->members[i], into, err);
    }
    return status;
}

enum refit_status refit_members_read(struct refit_members *members, struct refit_deadline deadline,
                                     struct refit_membership *out, struct refit_error *err)
{
    struct refit_membership now = {0};
    enum refit_status status = REFIT_OK;
    *out = (struct refit_membership){0};
    for (size_t i = 0; i < members->count && status == REFIT_OK; i++) {
        status = ask(&members->origins[i], deadline, err);
        if (status == REFIT_OK)
            status = add_new(&members->origins[i].last, &now, err);
    }
    if (status == REFIT_OK)
        status = copy_members(&now, out, err);
    if (status != REFIT_OK) {
        refit_membership_release(&now);
        refit_membership_release(out);
        return status;
    }
    now.epoch = members->now.epoch == 0 || !same_members(&now, &members->now) ? members->now.epoch + 1
                                                                              : members->now.epoch;
    out->epoch = now.epoch;
    refit_membership_release(&members->now);
    members->now = now;
    return REFIT_OK;
}

void refit_members_close(struct refit_members *members)
{
    if (!members)
        return;
    for (size_t i = 0; i < members->count; i++) {
        free(members->origins[i].path);
        free(members->origins[i].name);
        refit_resolver_destroy(members->origins[i].resolver);
        refit_membership_release(&members->origins[i].last);
    }
    free(members->origins);
    refit_membership_release(&members->now);
    free(members);
}
