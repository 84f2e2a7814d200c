/* SPDX-License-Identifier: Apache-2.0
 *
 * The last step of compiling a layout: who holds each tensor, where each buffer starts, and whether buffer names
 * are unique on every rank.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

#define BUFFER_MESHES_MAX 64 /* entries on meshes that share buffer names: they are compared pairwise */

/* Links in the order: group, pieces on meshes, then listed ones by rank; each in document order. */
static uint64_t link_rank(const struct refit_layout *layout, const struct refit_link *link, bool of_buffer)
{
    const struct refit_entry *entry;
    if (of_buffer)
        entry = &layout->entries[link->item];
    else if (link->item & REFIT_LINK_LISTED)
        entry = &layout->entries[layout->listed[link->item & ~REFIT_LINK_LISTED].entry];
    else
        return 0;
    return entry->listed ? entry->rank + UINT64_C(1) : 0;
}

/* `key` sorts before the link itself, which keeps the document's order. */
struct keyed_link {
    uint64_t key;
    struct refit_link link;
};

static int compare_keyed(const void *a, const void *b)
{
    const struct keyed_link *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->link.item > y->link.item) - (x->link.item < y->link.item);
}

static enum refit_status sort_links(const struct refit_layout *layout, struct refit_link *links, size_t count,
                                    bool of_buffer, struct refit_error *err)
{
    struct keyed_link *keyed = calloc(count + 1, sizeof *keyed);
    if (!keyed)
        return refit_fail_alloc(err, "links", count * sizeof *keyed);
    for (size_t i = 0; i < count; i++)
        keyed[i] = (struct keyed_link){.key = (uint64_t)links[i].group << 32 | link_rank(layout, &links[i], of_buffer),
                                       .link = links[i]};
    qsort(keyed, count, sizeof *keyed, compare_keyed);
    for (size_t i = 0; i < count; i++)
        links[i] = keyed[i].link;
    free(keyed);
    return REFIT_OK;
}

static int32_t piece_mesh(const struct refit_layout *layout, uint32_t piece)
{
    return (int32_t)layout->entries[layout->pieces[piece].entry].mesh;
}

/* Fills first_link and the counts of every tensor, and its mesh when there is but one. */
static void index_tensor_links(struct refit_layout *layout)
{
    for (size_t i = 0; i < layout->tensor_link_count; i++) {
        const struct refit_link *link = &layout->tensor_links[i];
        struct refit_tensor_group *tensor = &layout->tensors[link->group];
        if (tensor->mesh_links + tensor->listed_links == 0)
            tensor->first_link = (uint32_t)i;
        if (link->item & REFIT_LINK_LISTED) {
            tensor->listed_links++;
            tensor->mesh = -1;
            continue;
        }
        int32_t mesh = piece_mesh(layout, link->item);
        tensor->mesh = tensor->mesh_links == 0 || tensor->mesh == mesh ? mesh : -1;
        tensor->mesh_links++;
    }
}

/* Sums of tensor sizes can't overflow anywhere once this one doesn't. */
static enum refit_status add_up_model(struct refit_layout *layout, const char *what, struct refit_error *err)
{
    for (uint32_t group = 0; group < layout->tensor_names.group_count; group++) {
        const struct refit_tensor_group *tensor = &layout->tensors[group];
        uint64_t bytes = refit_dtype_unit_bytes((enum refit_dtype)tensor->dtype), unit;
        unit = refit_dtype_unit_elements((enum refit_dtype)tensor->dtype);
        for (uint32_t d = 0; d < tensor->dims; d++)
            bytes *= (uint64_t)layout->numbers[tensor->shape + d] / (d + 1u == tensor->dims ? unit : 1);
        if (__builtin_mul_overflow(bytes, layout->tensor_names.groups[group].count, &bytes) ||
            __builtin_add_overflow(layout->model_bytes, bytes, &layout->model_bytes) ||
            layout->model_bytes > (uint64_t)REFIT_BYTES_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: its tensors are larger than 2^60 bytes together", what);
    }
    return REFIT_OK;
}

/* ---- arenas ---- */

static enum refit_status advance(struct refit_layout *layout, uint32_t rank, uint64_t bytes, const char *what,
                                 struct refit_error *err)
{
    layout->arena_bytes[rank] += bytes;
    if (layout->arena_bytes[rank] > (uint64_t)REFIT_BYTES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: the buffers of rank %u are larger than 2^60 bytes", what, rank);
    return REFIT_OK;
}

/* Keeps one base where all ranks agree, as they do with even shards, and a table where they don't. */
static enum refit_status store_bases(struct refit_layout *layout, struct refit_entry *entry, struct refit_error *err)
{
    const struct refit_mesh *mesh = &layout->meshes[entry->mesh];
    uint32_t cell = 1;
    entry->base = layout->arena_bytes[mesh->ranks[0]];
    while (cell < mesh->cells && layout->arena_bytes[mesh->ranks[cell]] == entry->base)
        cell++;
    if (cell == mesh->cells)
        return REFIT_OK;
    if (!(entry->bases = calloc(mesh->cells, sizeof *entry->bases)))
        return refit_fail_alloc(err, "offsets", mesh->cells * sizeof *entry->bases);
    for (cell = 0; cell < mesh->cells; cell++)
        entry->bases[cell] = layout->arena_bytes[mesh->ranks[cell]];
    return REFIT_OK;
}

static enum refit_status place_mesh_entry(struct refit_layout *layout, struct refit_entry *entry, const char *what,
                                          struct refit_error *err)
{
    const struct refit_mesh *mesh = &layout->meshes[entry->mesh];
    enum refit_status status = store_bases(layout, entry, err);
    for (uint32_t cell = 0; !status && cell < mesh->cells; cell++) {
        struct refit_geometry geometry;
        status = refit_entry_check_cell(layout, entry, cell, &geometry, what, err);
        if (!status)
            status = advance(layout, mesh->ranks[cell], geometry.buffer_step * geometry.buffers, what, err);
    }
    return status;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REFIT_BUFFER_ALIGN - 1) & ~(uint64_t)(REFIT_BUFFER_ALIGN - 1);
}

static enum refit_status place_entries(struct refit_layout *layout, const char *what, struct refit_error *err)
{
    if (!(layout->arena_bytes = calloc(layout->ranks, sizeof *layout->arena_bytes)))
        return refit_fail_alloc(err, "arenas", layout->ranks * sizeof *layout->arena_bytes);
    for (size_t i = 0; i < layout->entry_count; i++) {
        struct refit_entry *entry = &layout->entries[i];
        char label[REFIT_NAME_MAX + 128], name[REFIT_NAME_MAX];
        uint32_t values[REFIT_NAME_FIELDS];
        enum refit_status status;
        if (entry->listed) {
            entry->base = layout->arena_bytes[entry->rank];
            status = advance(layout, entry->rank, align_up(entry->bytes), what, err);
        } else {
            for (uint32_t f = 0; f < entry->buffer.fields; f++) {
                int v = entry->buffer.var[f];
                values[f] = v < 0 ? entry->buffer.literal[f] : entry->indices[v].lo;
            }
            refit_names_render(&layout->buffer_names, entry->buffer.skeleton, values, name);
            snprintf(label, sizeof label, "%.80s: entry %zu (%s)", what, i, name);
            status = place_mesh_entry(layout, entry, label, err);
        }
        if (status)
            return status;
    }
    return REFIT_OK;
}

/* ---- entries by rank ---- */

static enum refit_status index_entries(struct refit_layout *layout, struct refit_error *err)
{
    size_t count = layout->entry_count;
    layout->mesh_entries = calloc(count + 1, sizeof *layout->mesh_entries);
    layout->rank_entries = calloc(count + 1, sizeof *layout->rank_entries);
    layout->first_rank_entry = calloc((size_t)layout->ranks + 2, sizeof *layout->first_rank_entry);
    if (!layout->mesh_entries || !layout->rank_entries || !layout->first_rank_entry)
        return refit_fail_alloc(err, "entries", count * sizeof *layout->rank_entries);
    /* Counting sort; first[rank + 1] moves from the start to the end of `rank` while it is filled. */
    uint32_t *first = layout->first_rank_entry;
    for (uint32_t i = 0; i < count; i++) {
        if (layout->entries[i].listed)
            first[layout->entries[i].rank + 2]++;
        else
            layout->mesh_entries[layout->mesh_entry_count++] = i;
    }
    for (uint32_t rank = 0; rank < layout->ranks; rank++)
        first[rank + 2] += first[rank + 1];
    for (uint32_t i = 0; i < count; i++)
        if (layout->entries[i].listed)
            layout->rank_entries[first[layout->entries[i].rank + 1]++] = i;
    return REFIT_OK;
}

/* ---- buffer names ---- */

/* The numbers that one field of an entry's buffer names takes on a rank. */
struct number_set {
    const struct refit_index *index; /* NULL: start .. start + count */
    const uint32_t *coords;
    uint32_t start, count;
};

static struct number_set field_numbers(const struct refit_layout *layout, const struct refit_entry *entry,
                                       uint32_t rank, uint32_t field)
{
    int v = entry->buffer.var[field];
    if (v < 0)
        return (struct number_set){.start = entry->buffer.literal[field], .count = 1};
    const struct refit_mesh *mesh = &layout->meshes[entry->mesh];
    const struct refit_index *index = &entry->indices[v];
    const uint32_t *coords = mesh->coords + (size_t)mesh->cell_of[rank] * mesh->axes;
    struct number_set set = {.count = refit_index_count(index, coords), .coords = coords};
    if (entry->buffer.local >> v & 1)
        return set;
    if (index->ids)
        set.index = index;
    else if (set.count)
        set.start = refit_index_id(index, coords, 0);
    return set;
}

static bool set_has(const struct number_set *set, uint32_t number)
{
    uint32_t begin;
    if (set->index)
        return refit_index_positions(set->index, set->coords, number, &begin) > 0;
    return number - set->start < set->count;
}

static bool sets_meet(const struct number_set *a, const struct number_set *b)
{
    if (!a->index && b->index)
        return sets_meet(b, a);
    if (!a->index)
        return a->count && b->count && a->start < b->start + b->count && b->start < a->start + a->count;
    for (uint32_t i = 0; i < a->count; i++)
        if (set_has(b, refit_index_id(a->index, a->coords, i)))
            return true;
    return false;
}

static bool clash_on(const struct refit_layout *layout, const struct refit_entry *a, const struct refit_entry *b,
                     uint32_t rank)
{
    if (!refit_layout_on_rank(layout, a, rank) || !refit_layout_on_rank(layout, b, rank))
        return false;
    for (uint32_t f = 0; f < a->buffer.fields; f++) {
        struct number_set x = field_numbers(layout, a, rank, f), y = field_numbers(layout, b, rank, f);
        if (!sets_meet(&x, &y))
            return false;
    }
    return true;
}

static enum refit_status clash(const struct refit_layout *layout, uint32_t group, uint32_t a, uint32_t b, uint32_t rank,
                               const char *what, struct refit_error *err)
{
    uint32_t values[REFIT_NAME_FIELDS];
    char name[REFIT_NAME_MAX];
    refit_names_member(&layout->buffer_names, group, 0, values);
    refit_names_render(&layout->buffer_names, layout->buffer_names.groups[group].skeleton, values, name);
    return refit_fail(err, REFIT_INVALID, "%s: entries %u and %u both give rank %u the buffer \"%s\"%s", what, a, b,
                      rank, name, layout->buffer_names.groups[group].count > 1 ? " or others of its family" : "");
}

/* A mesh entry against one that comes later in the group. */
static enum refit_status check_pair(const struct refit_layout *layout, uint32_t group, uint32_t a, uint32_t b,
                                    const char *what, struct refit_error *err)
{
    const struct refit_entry *x = &layout->entries[a], *y = &layout->entries[b];
    const struct refit_mesh *mesh = &layout->meshes[x->mesh];
    if (y->listed)
        return clash_on(layout, x, y, y->rank) ? clash(layout, group, a, b, y->rank, what, err) : REFIT_OK;
    for (uint32_t cell = 0; cell < mesh->cells; cell++)
        if (clash_on(layout, x, y, mesh->ranks[cell]))
            return clash(layout, group, a, b, mesh->ranks[cell], what, err);
    return REFIT_OK;
}

static enum refit_status check_buffer_group(const struct refit_layout *layout, uint32_t group, const char *what,
                                            struct refit_error *err)
{
    const struct refit_link *links = layout->buffer_links + layout->first_buffer_link[group];
    uint32_t count = layout->first_buffer_link[group + 1] - layout->first_buffer_link[group], meshes = 0;
    while (meshes < count && !layout->entries[links[meshes].item].listed)
        meshes++;
    if (meshes > BUFFER_MESHES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: more than %d entries on meshes name one buffer", what,
                          BUFFER_MESHES_MAX);
    for (uint32_t i = 0; i < meshes; i++) {
        for (uint32_t j = i + 1; j < count; j++) {
            enum refit_status status = check_pair(layout, group, links[i].item, links[j].item, what, err);
            if (status)
                return status;
        }
    }
    for (uint32_t i = meshes + 1; i < count; i++)
        if (layout->entries[links[i].item].rank == layout->entries[links[i - 1].item].rank)
            return clash(layout, group, links[i - 1].item, links[i].item, layout->entries[links[i].item].rank, what,
                         err);
    return REFIT_OK;
}

static enum refit_status index_buffers(struct refit_layout *layout, const char *what, struct refit_error *err)
{
    size_t groups = layout->buffer_names.group_count;
    enum refit_status status = sort_links(layout, layout->buffer_links, layout->buffer_link_count, true, err);
    if (status)
        return status;
    if (!(layout->first_buffer_link = calloc(groups + 1, sizeof *layout->first_buffer_link)))
        return refit_fail_alloc(err, "buffers", groups * sizeof *layout->first_buffer_link);
    for (size_t i = 0; i < layout->buffer_link_count; i++)
        layout->first_buffer_link[layout->buffer_links[i].group + 1]++;
    for (size_t group = 0; group < groups; group++)
        layout->first_buffer_link[group + 1] += layout->first_buffer_link[group];
    for (uint32_t group = 0; !status && group < groups; group++)
        status = check_buffer_group(layout, group, what, err);
    return status;
}

enum refit_status refit_layout_finish(struct refit_layout *layout, const char *what, struct refit_error *err)
{
    enum refit_status status = sort_links(layout, layout->tensor_links, layout->tensor_link_count, false, err);
    if (status)
        return status;
    index_tensor_links(layout);
    if ((status = add_up_model(layout, what, err)) || (status = place_entries(layout, what, err)) ||
        (status = index_entries(layout, err)))
        return status;
    return index_buffers(layout, what, err);
}
