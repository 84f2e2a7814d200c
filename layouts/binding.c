/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/binding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout.h"

#define FORMAT "refit-binding/1"

void refit_binding_release(struct refit_binding *binding)
{
    free(binding->rank);
    *binding = (struct refit_binding){0};
}

json_t *refit_binding_to_json(const struct refit_binding *binding)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < binding->ranks; i++) {
        const struct refit_bound_rank *rank = &binding->rank[i];
        json_array_append_new(ranks, json_pack("{s:I, s:o, s:I, s:b, s:s, s:o}", "rank", (json_int_t)i, "process",
                                               refit_json_text(rank->process), "pid", (json_int_t)rank->pid, "attached",
                                               rank->attached, "kind", rank->kind, "bytes", refit_json_u64(rank->bytes)));
    }
    return json_pack("{s:s, s:s, s:o}", "format", FORMAT, "layout", binding->layout, "ranks", ranks);
}

static enum refit_status read_text(const json_t *object, const char *key, const char *what, char *out, size_t len,
                                   struct refit_error *err)
{
    const char *text;
    enum refit_status status = refit_json_get_string(object, key, what, &text, err);
    if (status == REFIT_OK && (size_t)snprintf(out, len, "%s", text) >= len)
        status = refit_fail(err, REFIT_INVALID, "%s: \"%s\" must have at most %zu bytes", what, key, len - 1);
    return status;
}

static enum refit_status read_rank(const json_t *object, uint32_t number, const char *what, struct refit_bound_rank *out,
                                   struct refit_error *err)
{
    static const char *const known[] = {"rank", "process", "pid", "attached", "kind", "bytes", NULL};
    int64_t rank;
    enum refit_status status = refit_json_known(object, what, known, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(object, "rank", what, number, number, &rank, err);
    if (status == REFIT_OK)
        status = read_text(object, "process", what, out->process, sizeof out->process, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(object, "pid", what, 0, INT32_MAX, &out->pid, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(object, "attached", what, &out->attached, err);
    if (status == REFIT_OK)
        status = read_text(object, "kind", what, out->kind, sizeof out->kind, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(object, "bytes", what, &out->bytes, err);
    return status;
}

static enum refit_status read_head(const json_t *document, const char *what, struct refit_binding *out,
                                   struct refit_error *err)
{
    static const char *const known[] = {"format", "layout", "ranks", NULL};
    const char *format;
    enum refit_status status = refit_json_known(document, what, known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(document, "format", what, &format, err);
    if (status == REFIT_OK && strcmp(format, FORMAT) != 0)
        status = refit_fail(err, REFIT_INVALID, "%s: \"format\" must be \"" FORMAT "\", found \"%.40s\"", what, format);
    return status == REFIT_OK ? read_text(document, "layout", what, out->layout, sizeof out->layout, err) : status;
}

enum refit_status refit_binding_from_json(const json_t *document, const char *what, struct refit_binding *out,
                                          struct refit_error *err)
{
    *out = (struct refit_binding){0};
    enum refit_status status = read_head(document, what, out, err);
    if (status != REFIT_OK)
        return status;
    const json_t *ranks = json_object_get(document, "ranks"), *rank;
    size_t count = json_array_size(ranks), i;
    if (!json_is_array(ranks) || count == 0 || count > REFIT_RANKS_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: \"ranks\" must be an array of 1 to %d", what, REFIT_RANKS_MAX);
    out->rank = calloc(count, sizeof *out->rank);
    if (!out->rank)
        return refit_fail_alloc(err, what, count * sizeof *out->rank);
    out->ranks = (uint32_t)count;
    json_array_foreach(ranks, i, rank) {
        status = read_rank(rank, (uint32_t)i, what, &out->rank[i], err);
        if (status != REFIT_OK) {
            refit_binding_release(out);
            return status;
        }
    }
    return REFIT_OK;
}
