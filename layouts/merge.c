/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts of a mesh's ranks as one.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

static bool all_equal(struct refit_layout *const *parts, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (strcmp(parts[i]->digest, parts[0]->digest) != 0)
            return false;
    return true;
}

/* Part i is of rank i and lists regions of that rank only. */
static enum refit_status check_part(const struct refit_layout *part, size_t number, size_t count,
                                    struct refit_error *err)
{
    if (part->ranks != count)
        return refit_fail(err, REFIT_MISMATCH, "layout of rank %zu: \"ranks\" is %u, but %zu ranks sent a layout",
                          number, part->ranks, count);
    for (size_t i = 0; i < part->entry_count; i++) {
        const struct refit_entry *entry = &part->entries[i];
        if (!entry->listed)
            return refit_fail(err, REFIT_MISMATCH, "layout of rank %zu differs from another rank's, and its entry %zu "
                              "is on a mesh; either all ranks send the same layout, or each lists its own regions",
                              number, i);
        if (entry->rank != number)
            return refit_fail(err, REFIT_MISMATCH, "layout of rank %zu: entry %zu describes rank %u", number, i,
                              entry->rank);
    }
    return REFIT_OK;
}

static enum refit_status merge_aliases(json_t *all, const json_t *part, size_t number, struct refit_error *err)
{
    const char *name;
    json_t *target;
    json_object_foreach((json_t *)(uintptr_t)part, name, target) {
        const json_t *before = json_object_get(all, name);
        if (before && !json_equal(before, target))
            return refit_fail(err, REFIT_MISMATCH, "layout of rank %zu: alias \"%.128s\" names \"%.128s\", but "
                              "\"%.128s\" on a rank before", number, name, json_string_value(target),
                              json_string_value(before));
        if (!before && json_object_set(all, name, target) != 0)
            return refit_fail_alloc(err, "aliases", strlen(name));
    }
    return REFIT_OK;
}

static bool append_new(json_t *all, const json_t *part)
{
    json_t *item, *before;
    size_t i, j;
    json_array_foreach(part, i, item) {
        bool found = false;
        json_array_foreach(all, j, before)
            found |= json_equal(before, item);
        if (!found && json_array_append(all, item) != 0)
            return false;
    }
    return true;
}

static enum refit_status add_part(json_t *document, const struct refit_layout *part, size_t number,
                                  struct refit_error *err)
{
    json_t *json = NULL;
    char what[64];
    snprintf(what, sizeof what, "layout of rank %zu", number);
    enum refit_status status = refit_json_parse(part->text, part->text_len, what, &json, err);
    if (status)
        return status;
    status = merge_aliases(json_object_get(document, "aliases"), json_object_get(json, "aliases"), number, err);
    if (!status && (json_array_extend(json_object_get(document, "entries"), json_object_get(json, "entries")) != 0 ||
                    !append_new(json_object_get(document, "excused"), json_object_get(json, "excused"))))
        status = refit_fail_alloc(err, what, part->text_len);
    json_decref(json);
    return status;
}

enum refit_status refit_layout_merge(struct refit_layout *const *parts, size_t count, struct refit_layout **out,
                                     struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (count == 0)
        return refit_fail(err, REFIT_INVALID, "no layout to merge");
    if (all_equal(parts, count)) {
        *out = refit_layout_retain(parts[0]);
        return REFIT_OK;
    }
    json_t *document = json_pack("{s:s, s:I, s:[], s:{}, s:[]}", "format", "refit-layout/1", "ranks",
                                 (json_int_t)count, "entries", "aliases", "excused");
    if (!document)
        return refit_fail_alloc(err, "a layout", 0);
    for (size_t i = 0; !status && i < count; i++)
        if (!(status = check_part(parts[i], i, count, err)))
            status = add_part(document, parts[i], i, err);
    if (!status)
        status = refit_layout_from_json(document, "merged layout", out, err);
    json_decref(document);
    return status;
}
