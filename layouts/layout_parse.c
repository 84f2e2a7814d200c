/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout document as a whole: JSON to compiled form.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

enum refit_status refit_layout_count_cells(struct refit_layout *layout, uint32_t cells, const char *what,
                                           struct refit_error *err)
{
    layout->entry_cells += cells;
    if (layout->entry_cells > REFIT_BASES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: entries times ranks are more than %u; describe repeated tensors as "
                          "families", what, REFIT_BASES_MAX);
    return REFIT_OK;
}

/* "layout of rank 3: entry 17 (qkv)": what every message about an entry begins with. */
static void entry_label(char *label, size_t len, const char *what, size_t number, const json_t *json)
{
    const char *name = json_string_value(json_object_get(json, "buffer"));
    if (!name)
        name = json_string_value(json_object_get(json, "tensor"));
    snprintf(label, len, "%.80s: entry %zu (%.80s)", what, number, name ? name : "unnamed");
    for (; *label; label++)
        if (*label == '\x7f' || (unsigned char)*label < 0x20)
            *label = '?'; /* a message is one line */
}

static enum refit_status parse_entries(struct refit_layout *layout, const json_t *entries, const char *what,
                                       struct refit_error *err)
{
    const json_t *json;
    size_t i;
    if (!json_is_array(entries))
        return refit_fail(err, REFIT_INVALID, "%s: \"entries\" must be an array", what);
    layout->entry_capacity = json_array_size(entries) + 1;
    if (!(layout->entries = calloc(layout->entry_capacity, sizeof *layout->entries)))
        return refit_fail_alloc(err, "entries", layout->entry_capacity * sizeof *layout->entries);
    json_array_foreach(entries, i, json) {
        char label[256];
        entry_label(label, sizeof label, what, i, json);
        if (!json_is_object(json))
            return refit_fail(err, REFIT_INVALID, "%s: must be an object", label);
        bool listed = json_object_get(json, "rank") || json_object_get(json, "regions");
        enum refit_status status = listed ? refit_listed_parse(layout, json, label, err)
                                          : refit_entry_parse(layout, json, label, err);
        if (status)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status check_name(const char *name, const char *what, struct refit_error *err)
{
    struct refit_names scratch;
    struct refit_pattern pattern;
    refit_names_init(&scratch, "tensor");
    enum refit_status status = refit_names_pattern(&scratch, name, NULL, 0, false, &pattern, err);
    refit_names_release(&scratch);
    if (status)
        refit_error_prefix(err, status, "%.200s", what);
    return status;
}

static int compare_aliases(const void *a, const void *b)
{
    return strcmp(((const struct refit_alias *)a)->name, ((const struct refit_alias *)b)->name);
}

static enum refit_status parse_alias(struct refit_layout *layout, const json_t *aliases, const char *name,
                                     const json_t *value, const char *what, struct refit_error *err)
{
    const char *target = json_string_value(value);
    uint32_t id;
    enum refit_status status = check_name(name, what, err);
    if (status)
        return status;
    if (!target)
        return refit_fail(err, REFIT_INVALID, "%s: alias \"%.128s\" must name a tensor", what, name);
    if (refit_layout_find(layout, name, &id))
        return refit_fail(err, REFIT_INVALID, "%s: alias \"%.128s\" is the name of a tensor of this layout; to have its "
                          "bytes in a buffer of their own, name the target there and give no alias", what, name);
    if (json_object_get(aliases, target))
        return refit_fail(err, REFIT_INVALID, "%s: alias \"%.128s\": its target \"%.128s\" is an alias itself; name "
                          "the tensor that holds the bytes", what, name, target);
    if (!refit_layout_find(layout, target, &id))
        return refit_fail(err, REFIT_INVALID, "%s: alias \"%.128s\": no tensor \"%.128s\" in this layout", what, name,
                          target);
    struct refit_alias *alias = &layout->aliases[layout->alias_count++];
    alias->name = strdup(name);
    alias->target = strdup(target);
    alias->tensor = id;
    return alias->name && alias->target ? REFIT_OK : refit_fail_alloc(err, "an alias", strlen(name));
}

static enum refit_status parse_aliases(struct refit_layout *layout, const json_t *aliases, const char *what,
                                       struct refit_error *err)
{
    struct refit_alias *parsed;
    const char *name;
    json_t *value;
    size_t count = 0;
    if (!aliases)
        return REFIT_OK;
    if (!json_is_object(aliases))
        return refit_fail(err, REFIT_INVALID, "%s: \"aliases\" must be an object", what);
    if (!(parsed = calloc(json_object_size(aliases) + 1, sizeof *parsed)))
        return refit_fail_alloc(err, "aliases", json_object_size(aliases) * sizeof *parsed);
    layout->aliases = parsed;
    json_object_foreach((json_t *)(uintptr_t)aliases, name, value) {
        /* Names are unique in JSON, so what is parsed so far needn't be searched; the list is sorted at the end. */
        layout->alias_count = 0;
        layout->aliases = parsed + count;
        enum refit_status status = parse_alias(layout, aliases, name, value, what, err);
        count += layout->alias_count;
        layout->alias_count = count;
        layout->aliases = parsed;
        if (status)
            return status;
    }
    qsort(layout->aliases, layout->alias_count, sizeof *layout->aliases, compare_aliases);
    return REFIT_OK;
}

static enum refit_status parse_excused(struct refit_layout *layout, const json_t *excused, const char *what,
                                       struct refit_error *err)
{
    const json_t *item;
    size_t i;
    if (!excused)
        return REFIT_OK;
    if (!json_is_array(excused))
        return refit_fail(err, REFIT_INVALID, "%s: \"excused\" must be an array of names", what);
    if (!(layout->excused = calloc(json_array_size(excused) + 1, sizeof *layout->excused)))
        return refit_fail_alloc(err, "excused names", json_array_size(excused) * sizeof *layout->excused);
    json_array_foreach(excused, i, item) {
        const char *name = json_string_value(item), *star = name ? strchr(name, '*') : NULL;
        if (!name || !*name || (star && star[1]))
            return refit_fail(err, REFIT_INVALID, "%s: \"excused\"[%zu] must be a name, with '*' at its end only", what,
                              i);
        if (!(layout->excused[layout->excused_count++] = strdup(name)))
            return refit_fail_alloc(err, "an excused name", strlen(name));
    }
    return REFIT_OK;
}

static enum refit_status parse_members(struct refit_layout *layout, const json_t *document, const char *what,
                                       struct refit_error *err)
{
    static const char *const known[] = {"format", "ranks", "meshes", "entries", "aliases", "excused", NULL};
    const char *format = NULL;
    int64_t ranks = 0;
    enum refit_status status;
    if ((status = refit_json_known(document, what, known, err)) ||
        (status = refit_json_get_string(document, "format", what, &format, err)))
        return status;
    if (strcmp(format, "refit-layout/1") != 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "%s: \"format\" is \"%.64s\", expected \"refit-layout/1\"", what,
                          format);
    if ((status = refit_json_get_int(document, "ranks", what, 1, REFIT_RANKS_MAX, &ranks, err)))
        return status;
    layout->ranks = (uint32_t)ranks;
    if ((status = refit_meshes_parse(layout, json_object_get(document, "meshes"), what, err)) ||
        (status = parse_entries(layout, json_object_get(document, "entries"), what, err)) ||
        (status = refit_layout_finish(layout, what, err)) ||
        (status = parse_aliases(layout, json_object_get(document, "aliases"), what, err)))
        return status;
    return parse_excused(layout, json_object_get(document, "excused"), what, err);
}

static enum refit_status keep_text(struct refit_layout *layout, const json_t *document, const char *what,
                                   struct refit_error *err)
{
    layout->text = refit_json_canonical(document, &layout->text_len);
    if (!layout->text)
        return refit_fail_alloc(err, what, REFIT_LAYOUT_TEXT_MAX);
    if (layout->text_len > REFIT_LAYOUT_TEXT_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: longer than %u bytes", what, REFIT_LAYOUT_TEXT_MAX);
    refit_sha256_hex(layout->text, layout->text_len, layout->digest);
    return REFIT_OK;
}

enum refit_status refit_layout_from_json(const json_t *document, const char *what, struct refit_layout **out,
                                         struct refit_error *err)
{
    struct refit_layout *layout = calloc(1, sizeof *layout);
    if (!layout)
        return refit_fail_alloc(err, what, sizeof *layout);
    atomic_init(&layout->references, 1);
    refit_names_init(&layout->tensor_names, "tensor");
    refit_names_init(&layout->buffer_names, "buffer");
    enum refit_status status = parse_members(layout, document, what, err);
    if (!status)
        status = keep_text(layout, document, what, err);
    if (status)
        refit_layout_release(layout);
    else
        *out = layout;
    return status;
}

enum refit_status refit_layout_parse(const void *text, size_t len, const char *what, struct refit_layout **out,
                                     struct refit_error *err)
{
    json_t *document = NULL;
    if (len > REFIT_LAYOUT_TEXT_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: longer than %u bytes", what, REFIT_LAYOUT_TEXT_MAX);
    enum refit_status status = refit_json_parse(text, len, what, &document, err);
    if (status)
        return status;
    status = refit_layout_from_json(document, what, out, err);
    json_decref(document);
    return status;
}
