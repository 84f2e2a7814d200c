/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/access_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "base/text.h"

#define FILE_MAX ((size_t)256 << 10)
#define TOKEN_MIN 16
#define TOKEN_MAX 256

static const char *const role_names[] = {"none", "read", "refit", "admin"};

const char *refit_access_role_name(enum refit_access_role role)
{
    return (unsigned)role < sizeof role_names / sizeof *role_names ? role_names[role] : "none";
}

/* --- lines --------------------------------------------------------------------------------------------------------- */

struct line {
    const char *at;
    size_t len;
};

static struct line trimmed(struct line line)
{
    while (line.len && (*line.at == ' ' || *line.at == '\t')) {
        line.at++;
        line.len--;
    }
    while (line.len && memchr(" \t\r", line.at[line.len - 1], 3))
        line.len--;
    return line;
}

static bool take_until_colon(struct line *rest, struct line *out)
{
    const char *colon = memchr(rest->at, ':', rest->len);
    if (!colon)
        return false;
    *out = (struct line){rest->at, (size_t)(colon - rest->at)};
    rest->len -= out->len + 1;
    rest->at = colon + 1;
    return true;
}

static bool read_role(struct line word, enum refit_access_role *out)
{
    for (size_t i = 0; i < sizeof role_names / sizeof *role_names; i++)
        if (strlen(role_names[i]) == word.len && memcmp(role_names[i], word.at, word.len) == 0) {
            *out = (enum refit_access_role)i;
            return true;
        }
    return false;
}

static bool copy_name(struct line name, char out[static REFIT_ACCESS_NAME_MAX])
{
    if (name.len == 0 || name.len >= 200)
        return false;
    memcpy(out, name.at, name.len);
    out[name.len] = '\0';
    return strlen(out) == name.len && out[refit_text_first_control(out)] == '\0';
}

/* As RFC 6750 has it; what a header can carry. */
static bool is_token(struct line token)
{
    for (size_t i = 0; i < token.len; i++) {
        char c = token.at[i];
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    (c && strchr("-._~+/=", c));
        if (!good)
            return false;
    }
    return token.len >= TOKEN_MIN && token.len <= TOKEN_MAX;
}

/* What is expected, when the line is not that; NULL: it was taken. */
typedef const char *(*take_line)(struct line line, struct refit_access_entry *out);

static const char *take_token(struct line line, struct refit_access_entry *out)
{
    struct line role, name;
    if (!take_until_colon(&line, &role) || !read_role(role, &out->role) || out->role == REFIT_MAY_NONE)
        return "ROLE:TOKEN or ROLE:NAME:TOKEN with a ROLE of read, refit or admin";
    if (!take_until_colon(&line, &name))
        name = role;
    if (!copy_name(name, out->name))
        return "a NAME of 1 to 199 printable bytes";
    if (!is_token(line))
        return "a TOKEN of 16 to 256 letters, digits and -._~+/=";
    SHA256((const unsigned char *)line.at, line.len, out->digest);
    return NULL;
}

static const char *take_name(struct line line, struct refit_access_entry *out)
{
    static const char *const kinds[] = {"uri:", "dns:", "ip:", "email:", "cn:"};
    struct line role;
    if (!take_until_colon(&line, &role) || !read_role(role, &out->role))
        return "ROLE:KIND:NAME with a ROLE of none, read, refit or admin";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t len = strlen(kinds[i]);
        if (line.len > len && memcmp(line.at, kinds[i], len) == 0)
            return copy_name(line, out->name) ? NULL : "a NAME of at most 199 printable bytes";
    }
    return "a KIND of uri, dns, ip, email or cn";
}

static bool is_known(const struct refit_access_list *list, const struct refit_access_entry *entry)
{
    static const unsigned char none[32];
    bool token = memcmp(entry->digest, none, sizeof none) != 0;
    for (size_t i = 0; i < list->count; i++)
        if (token ? memcmp(list->entries[i].digest, entry->digest, sizeof none) == 0
                  : strcmp(list->entries[i].name, entry->name) == 0)
            return true;
    return false;
}

static enum refit_status add_line(struct line line, const char *path, unsigned number, take_line take,
                                  struct refit_access_list *out, struct refit_error *err)
{
    struct refit_access_entry *entry = &out->entries[out->count];
    if (out->count == REFIT_ACCESS_LIST_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: line %u: more than %d entries", path, number, REFIT_ACCESS_LIST_MAX);
    memset(entry, 0, sizeof *entry);
    const char *expected = take(line, entry);
    if (expected) /* what was found may be a secret */
        return refit_fail(err, REFIT_INVALID, "%s: line %u: expected %s (the line is not shown)", path, number, expected);
    if (is_known(out, entry))
        return refit_fail(err, REFIT_INVALID, "%s: line %u: the same as one before; remove one of them", path, number);
    out->count++;
    return REFIT_OK;
}

static enum refit_status parse(const char *text, size_t len, const char *path, take_line take,
                               struct refit_access_list *out, struct refit_error *err)
{
    struct line rest = {text, len};
    out->count = 0;
    for (unsigned number = 1; rest.len; number++) {
        const char *end = memchr(rest.at, '\n', rest.len);
        struct line line = {rest.at, end ? (size_t)(end - rest.at) : rest.len};
        size_t used = line.len + (end ? 1 : 0);
        rest = (struct line){rest.at + used, rest.len - used};
        line = trimmed(line);
        if (line.len == 0 || line.at[0] == '#')
            continue;
        enum refit_status status = add_line(line, path, number, take, out, err);
        if (status)
            return status;
    }
    if (out->count == 0)
        return refit_fail(err, REFIT_INVALID, "%s: expected at least one entry, found none", path);
    return REFIT_OK;
}

enum refit_status refit_access_parse_tokens(const char *text, size_t len, const char *path,
                                            struct refit_access_list *out, struct refit_error *err)
{
    return parse(text, len, path, take_token, out, err);
}

enum refit_status refit_access_parse_names(const char *text, size_t len, const char *path,
                                           struct refit_access_list *out, struct refit_error *err)
{
    return parse(text, len, path, take_name, out, err);
}

/* --- the file ------------------------------------------------------------------------------------------------------ */

/* *out is new, or NULL with REFIT_OK when the bytes are those that `file` has already. */
static enum refit_status load(struct refit_access_file *file, struct refit_access_list **out, struct refit_error *err)
{
    char *text;
    size_t len;
    *out = NULL;
    SHA256((const unsigned char *)"absent", 6, file->tried);
    enum refit_status status = refit_io_read_file(file->path, FILE_MAX, &text, &len, err);
    if (status)
        return refit_error_prefix(err, status, "%s", file->option);
    SHA256((const unsigned char *)text, len, file->tried);
    if (!file->list || memcmp(file->tried, file->loaded, sizeof file->loaded) != 0) {
        *out = malloc(sizeof **out);
        status = *out ? file->parse(text, len, file->path, *out, err) : refit_fail_alloc(err, file->path, sizeof **out);
    }
    OPENSSL_cleanse(text, len);
    free(text);
    if (status) {
        free(*out);
        *out = NULL;
        return refit_error_prefix(err, status, "%s", file->option);
    }
    return REFIT_OK;
}

enum refit_status refit_access_file_open(struct refit_access_file *file, const char *path, const char *option,
                                         refit_access_parse parser, struct refit_error *err)
{
    *file = (struct refit_access_file){.path = path, .option = option, .parse = parser};
    if (!path[0])
        return REFIT_OK;
    enum refit_status status = load(file, &file->list, err);
    memcpy(file->loaded, file->tried, sizeof file->loaded);
    return status;
}

void refit_access_file_close(struct refit_access_file *file)
{
    free(file->list);
    file->list = NULL;
}

void refit_access_file_refresh(struct refit_access_file *file)
{
    unsigned char before[sizeof file->tried];
    struct refit_access_list *list;
    struct refit_error err;
    if (!file->list)
        return;
    memcpy(before, file->tried, sizeof before);
    enum refit_status status = load(file, &list, &err);
    if (status == REFIT_OK) {
        file->refused = false;
        if (!list)
            return;
        free(file->list);
        file->list = list;
        memcpy(file->loaded, file->tried, sizeof file->loaded);
        refit_log_event(REFIT_LOG_INFO, "access list read again", refit_log_text("file", file->path),
                        refit_log_u64("entries", list->count));
    } else if (!file->refused || memcmp(before, file->tried, sizeof before) != 0) {
        file->refused = true;
        refit_log_event(REFIT_LOG_ERROR, "a new access list is refused, the old one is in use", REFIT_LOG_CAUSE(&err));
    }
}
