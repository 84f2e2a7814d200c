/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout object: its life, and queries about tensors and names.
 */
#include "layouts/layout.h"

#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

struct refit_layout *refit_layout_retain(struct refit_layout *layout)
{
    atomic_fetch_add_explicit(&layout->references, 1, memory_order_relaxed);
    return layout;
}

static void release_entries(struct refit_layout *layout)
{
    for (size_t i = 0; i < layout->entry_count; i++) {
        refit_indices_release(&layout->entries[i]);
        free(layout->entries[i].bases);
    }
    free(layout->entries);
    free(layout->pieces);
    free(layout->listed);
    free(layout->fills);
    free(layout->numbers);
}

static void release_names(struct refit_layout *layout)
{
    refit_names_release(&layout->tensor_names);
    free(layout->tensors);
    free(layout->tensor_links);
    refit_names_release(&layout->buffer_names);
    free(layout->buffer_links);
    free(layout->first_buffer_link);
    for (size_t i = 0; i < layout->alias_count; i++) {
        free(layout->aliases[i].name);
        free(layout->aliases[i].target);
    }
    free(layout->aliases);
    for (size_t i = 0; i < layout->excused_count; i++)
        free(layout->excused[i]);
    free(layout->excused);
}

void refit_layout_release(struct refit_layout *layout)
{
    if (!layout || atomic_fetch_sub_explicit(&layout->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < layout->mesh_count; i++)
        refit_mesh_release(&layout->meshes[i]);
    free(layout->meshes);
    release_entries(layout);
    release_names(layout);
    free(layout->mesh_entries);
    free(layout->rank_entries);
    free(layout->first_rank_entry);
    free(layout->arena_bytes);
    free(layout->text);
    free(layout);
}

const char *refit_layout_text(const struct refit_layout *layout, size_t *len)
{
    if (len)
        *len = layout->text_len;
    return layout->text;
}

const char *refit_layout_digest(const struct refit_layout *layout)
{
    return layout->digest;
}

uint32_t refit_layout_ranks(const struct refit_layout *layout)
{
    return layout->ranks;
}

uint32_t refit_layout_tensor_count(const struct refit_layout *layout)
{
    return (uint32_t)layout->tensor_names.ids;
}

uint64_t refit_layout_model_bytes(const struct refit_layout *layout)
{
    return layout->model_bytes;
}

void refit_layout_tensor(const struct refit_layout *layout, uint32_t id, struct refit_tensor *out)
{
    const struct refit_names *names = &layout->tensor_names;
    uint32_t group = refit_names_group_of(names, id), values[REFIT_NAME_FIELDS];
    const struct refit_tensor_group *tensor = &layout->tensors[group];
    *out = (struct refit_tensor){.dtype = (enum refit_dtype)tensor->dtype, .dims = tensor->dims};
    refit_names_member(names, group, id - names->groups[group].first_id, values);
    refit_names_render(names, names->groups[group].skeleton, values, out->name);
    out->unit_bytes = refit_dtype_unit_bytes(out->dtype);
    out->bytes = out->unit_bytes;
    for (uint32_t d = 0; d < out->dims; d++) {
        out->shape[d] = out->shape_units[d] = layout->numbers[tensor->shape + d];
        if (d + 1 == out->dims)
            out->shape_units[d] /= refit_dtype_unit_elements(out->dtype);
        out->bytes *= (uint64_t)out->shape_units[d];
    }
}

static int compare_alias(const void *name, const void *alias)
{
    return strcmp(name, ((const struct refit_alias *)alias)->name);
}

bool refit_layout_find(const struct refit_layout *layout, const char *name, uint32_t *id)
{
    const struct refit_names *names = &layout->tensor_names;
    uint32_t values[REFIT_NAME_FIELDS], group = refit_names_find(names, name, values);
    if (group != REFIT_NAME_NONE) {
        *id = names->groups[group].first_id + refit_names_index(names, group, values);
        return true;
    }
    if (layout->alias_count == 0)
        return false;
    const struct refit_alias *alias = bsearch(name, layout->aliases, layout->alias_count, sizeof *layout->aliases,
                                              compare_alias);
    if (alias)
        *id = alias->tensor;
    return alias != NULL;
}

bool refit_layout_excuses(const struct refit_layout *layout, const char *name)
{
    for (size_t i = 0; i < layout->excused_count; i++) {
        const char *excused = layout->excused[i];
        size_t len = strlen(excused);
        if (excused[len - 1] == '*' ? strncmp(name, excused, len - 1) == 0 : strcmp(name, excused) == 0)
            return true;
    }
    return false;
}

bool refit_layout_aliases(const struct refit_layout *layout, refit_alias_sink sink, void *ctx)
{
    for (size_t i = 0; i < layout->alias_count; i++)
        if (!sink(ctx, layout->aliases[i].name, layout->aliases[i].target))
            return false;
    return true;
}
