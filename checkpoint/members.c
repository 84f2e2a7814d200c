/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/members.h"

#include <string.h>

static void skip_space(struct refit_members *members)
{
    while (members->at < members->len && memchr(" \t\r\n", members->text[members->at], 4))
        members->at++;
}

static bool take(struct refit_members *members, char c)
{
    skip_space(members);
    if (members->at >= members->len || members->text[members->at] != c)
        return false;
    members->at++;
    return true;
}

static enum refit_status expected(const struct refit_members *members, const char *what, struct refit_error *err)
{
    return refit_fail(err, REFIT_INVALID, "%s: not valid JSON: %s expected at byte %zu", members->what, what,
                      members->at);
}

/* One value of any type; jansson tells how far it read. */
static enum refit_status parse_one(struct refit_members *members, json_t **out, struct refit_error *err)
{
    json_error_t why;
    json_t *value = json_loadb(members->text + members->at, members->len - members->at,
                               JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &why);
    if (!value)
        return refit_fail(err, REFIT_INVALID, "%s: not valid JSON at byte %zu: %s", members->what,
                          members->at + (size_t)(why.position > 0 ? why.position : 0), why.text);
    members->at += (size_t)why.position;
    *out = value;
    return REFIT_OK;
}

enum refit_status refit_members_begin(struct refit_members *members, const char *text, size_t len, size_t at,
                                      const char *what, struct refit_error *err)
{
    *members = (struct refit_members){.text = text, .len = len, .at = at, .what = what, .first = true};
    return take(members, '{') ? REFIT_OK : expected(members, "an object", err);
}

enum refit_status refit_members_next(struct refit_members *members, const char **key, struct refit_error *err)
{
    bool first = members->first;
    json_decref(members->key);
    members->key = NULL;
    members->first = false;
    *key = NULL;
    if (members->ended)
        return REFIT_OK;
    if (take(members, '}')) {
        members->ended = true;
        return REFIT_OK;
    }
    if (!first && !take(members, ','))
        return expected(members, "',' or '}'", err);
    skip_space(members);
    if (members->at >= members->len || members->text[members->at] != '"')
        return expected(members, "a name in quotes", err);
    enum refit_status status = parse_one(members, &members->key, err);
    if (status != REFIT_OK)
        return status;
    if (!take(members, ':'))
        return expected(members, "':'", err);
    *key = json_string_value(members->key);
    return REFIT_OK;
}

enum refit_status refit_members_value(struct refit_members *members, json_t **value, struct refit_error *err)
{
    return parse_one(members, value, err);
}

enum refit_status refit_members_finish(struct refit_members *members, struct refit_error *err)
{
    skip_space(members);
    return members->at == members->len ? REFIT_OK : expected(members, "the end", err);
}

void refit_members_release(struct refit_members *members)
{
    json_decref(members->key);
    members->key = NULL;
}
