/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON as Refit accepts and writes it, on jansson.
 *
 * Accepted: UTF-8, no duplicate keys, integers that fit 64 bits signed, no real numbers (a layout or a version
 * that passed through a double is wrong in silence). Written: canonical form, keys sorted by bytes, no white
 * space, so that equal documents have equal digests.
 */
#ifndef REFIT_BASE_JSON_H
#define REFIT_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* 64 lower-case hex digits and a NUL. */
#define REFIT_SHA256_HEX_MAX 65

/* Parse `len` bytes; `what` names the document in errors ("layout of rank 3"). *out is new. */
REFIT_MUST_CHECK enum refit_status refit_json_parse(const void *text, size_t len, const char *what, json_t **out,
                                                    struct refit_error *err);

/* Canonical text, NUL-terminated, new (free() it); *len without the NUL, may be NULL. NULL when out of memory. */
char *refit_json_canonical(const json_t *value, size_t *len);

/* Typed members. `what` names the object in errors. The get functions fail on a missing member or another type;
 * the opt functions leave *out as it is when the member is missing or null. Strings are borrowed from `object`. */
REFIT_MUST_CHECK enum refit_status refit_json_get_string(const json_t *object, const char *key, const char *what,
                                                         const char **out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_json_opt_string(const json_t *object, const char *key, const char *what,
                                                         const char **out, struct refit_error *err);
/* Whole numbers within [min, max]. */
REFIT_MUST_CHECK enum refit_status refit_json_get_int(const json_t *object, const char *key, const char *what,
                                                      int64_t min, int64_t max, int64_t *out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_json_opt_int(const json_t *object, const char *key, const char *what,
                                                      int64_t min, int64_t max, int64_t *out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_json_opt_bool(const json_t *object, const char *key, const char *what,
                                                       bool *out, struct refit_error *err);
/* Versions are unsigned 64-bit; those above INT64_MAX are written and read as decimal strings. */
REFIT_MUST_CHECK enum refit_status refit_json_get_u64(const json_t *object, const char *key, const char *what,
                                                      uint64_t *out, struct refit_error *err);
json_t *refit_json_u64(uint64_t value);
/* Any text: a message that was cut may end inside a character, files and processes have any name. Each byte that is no
 * UTF-8 becomes "?". NULL when out of memory. */
json_t *refit_json_text(const char *text);

/* Fails naming the first key of `object` that is not in the NULL-terminated list `known`. */
REFIT_MUST_CHECK enum refit_status refit_json_known(const json_t *object, const char *what, const char *const *known,
                                                    struct refit_error *err);

/* SHA-256 of bytes as lower-case hex. */
void refit_sha256_hex(const void *data, size_t len, char hex[static REFIT_SHA256_HEX_MAX]);

#endif
