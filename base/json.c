/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

static const char *type_name(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

/* jansson has no switch against reals, so they are looked for once; its own depth limit bounds the recursion. */
static bool has_real(const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_real(value))
        return true;
    json_array_foreach(value, i, item)
        if (has_real(item))
            return true;
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
        if (has_real(item))
            return true;
    return false;
}

enum refit_status refit_json_parse(const void *text, size_t len, const char *what, json_t **out,
                                   struct refit_error *err)
{
    json_error_t why;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!value)
        return refit_fail(err, REFIT_INVALID, "%s: not valid JSON at line %d column %d: %s", what, why.line,
                          why.column, why.text);
    if (has_real(value)) {
        json_decref(value);
        return refit_fail(err, REFIT_INVALID, "%s: holds a real number; only integers of 64 bits are accepted", what);
    }
    *out = value;
    return REFIT_OK;
}

char *refit_json_canonical(const json_t *value, size_t *len)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    if (text && len)
        *len = strlen(text);
    return text;
}

static enum refit_status wrong_type(struct refit_error *err, const char *what, const char *key, const char *expected,
                                    const json_t *found)
{
    return refit_fail(err, REFIT_INVALID, "%s: \"%s\" must be %s, found %s", what, key, expected, type_name(found));
}

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

enum refit_status refit_json_opt_string(const json_t *object, const char *key, const char *what, const char **out,
                                        struct refit_error *err)
{
    json_t *value = member(object, key);
    if (!value)
        return REFIT_OK;
    if (!json_is_string(value))
        return wrong_type(err, what, key, "a string", value);
    *out = json_string_value(value);
    return REFIT_OK;
}

enum refit_status refit_json_get_string(const json_t *object, const char *key, const char *what, const char **out,
                                        struct refit_error *err)
{
    if (!member(object, key))
        return wrong_type(err, what, key, "a string", NULL);
    return refit_json_opt_string(object, key, what, out, err);
}

enum refit_status refit_json_opt_int(const json_t *object, const char *key, const char *what, int64_t min, int64_t max,
                                     int64_t *out, struct refit_error *err)
{
    json_t *value = member(object, key);
    if (!value)
        return REFIT_OK;
    if (!json_is_integer(value))
        return wrong_type(err, what, key, "an integer", value);
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return refit_fail(err, REFIT_INVALID, "%s: \"%s\" must be between %lld and %lld, found %lld", what, key,
                          (long long)min, (long long)max, (long long)number);
    *out = number;
    return REFIT_OK;
}

enum refit_status refit_json_get_int(const json_t *object, const char *key, const char *what, int64_t min, int64_t max,
                                     int64_t *out, struct refit_error *err)
{
    if (!member(object, key))
        return wrong_type(err, what, key, "an integer", NULL);
    return refit_json_opt_int(object, key, what, min, max, out, err);
}

enum refit_status refit_json_opt_bool(const json_t *object, const char *key, const char *what, bool *out,
                                      struct refit_error *err)
{
    json_t *value = member(object, key);
    if (!value)
        return REFIT_OK;
    if (!json_is_boolean(value))
        return wrong_type(err, what, key, "true or false", value);
    *out = json_is_true(value);
    return REFIT_OK;
}

enum refit_status refit_json_get_u64(const json_t *object, const char *key, const char *what, uint64_t *out,
                                     struct refit_error *err)
{
    json_t *value = member(object, key);
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *out = (uint64_t)json_integer_value(value);
        return REFIT_OK;
    }
    const char *text = json_string_value(value);
    if (text && *text && strspn(text, "0123456789") == strlen(text)) {
        errno = 0;
        *out = strtoull(text, NULL, 10);
        if (errno == 0)
            return REFIT_OK;
    }
    return wrong_type(err, what, key, "a whole number from 0 to 2^64 - 1", value);
}

json_t *refit_json_u64(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_sprintf("%llu", (unsigned long long)value);
}

json_t *refit_json_text(const char *text)
{
    json_t *json = json_string(text);
    char *plain = json ? NULL : strdup(text);
    if (!plain)
        return json;
    for (char *at = plain; *at;) {
        unsigned len = refit_text_utf8_length(at);
        if (len == 0)
            *at = '?';
        at += len ? len : 1;
    }
    json = json_string(plain);
    free(plain);
    return json;
}

enum refit_status refit_json_known(const json_t *object, const char *what, const char *const *known,
                                   struct refit_error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return refit_fail(err, REFIT_INVALID, "%s: must be an object, found %s", what, type_name(object));
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const char *const *name = known;
        while (*name && strcmp(*name, key) != 0)
            name++;
        if (!*name)
            return refit_fail(err, REFIT_INVALID, "%s: unknown member \"%s\"", what, key);
    }
    return REFIT_OK;
}

void refit_sha256_hex(const void *data, size_t len, char hex[static REFIT_SHA256_HEX_MAX])
{
    unsigned char hash[32] = {0};
    EVP_Digest(data, len, hash, NULL, EVP_sha256(), NULL);
    for (size_t i = 0; i < sizeof hash; i++) {
        hex[2 * i] = "0123456789abcdef"[hash[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[hash[i] & 15];
    }
    hex[64] = '\0';
}
