/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to checkpoint/: the members of a JSON object one at a time, so that a document of 100 MB is never a tree of
 * gigabytes. Keys and values are parsed by jansson; this only steps over the braces, colons and commas between
 * them. Duplicate keys at this level are the caller's to find.
 */
#ifndef REFIT_CHECKPOINT_MEMBERS_H
#define REFIT_CHECKPOINT_MEMBERS_H

#include "base/json.h"

struct refit_members {
    const char *text;
    size_t len;
    size_t at;
    const char *what; /* names the document in errors; borrowed */
    json_t *key;
    bool first;
    bool ended;
};

/* Steps into the object that begins at `at`, after white space. Call refit_members_release() in any case. */
REFIT_MUST_CHECK enum refit_status refit_members_begin(struct refit_members *members, const char *text, size_t len,
                                                       size_t at, const char *what, struct refit_error *err);
/* *key is borrowed until the next call, NULL at the closing brace. Then take the value, or step into it and set `at`
 * behind it. */
REFIT_MUST_CHECK enum refit_status refit_members_next(struct refit_members *members, const char **key,
                                                      struct refit_error *err);
/* *value is new. */
REFIT_MUST_CHECK enum refit_status refit_members_value(struct refit_members *members, json_t **value,
                                                       struct refit_error *err);
/* Nothing but white space may follow the object. */
REFIT_MUST_CHECK enum refit_status refit_members_finish(struct refit_members *members, struct refit_error *err);
void refit_members_release(struct refit_members *members);

#endif
