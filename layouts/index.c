/* SPDX-License-Identifier: Apache-2.0
 *
 * The indices of a family ("for"): their ranges, and how a mesh axis cuts them.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

uint32_t refit_index_count(const struct refit_index *index, const uint32_t *coords)
{
    if (index->axis < 0)
        return index->hi - index->lo;
    const uint32_t *first = index->first + coords[index->axis];
    return first[1] - first[0];
}

uint32_t refit_index_id(const struct refit_index *index, const uint32_t *coords, uint32_t position)
{
    if (index->axis < 0)
        return index->lo + position;
    uint32_t first = index->first[coords[index->axis]];
    return index->lo + (index->ids ? index->ids[first + position] : first + position);
}

static uint32_t find_sorted(const struct refit_index *index, uint32_t first, uint32_t end, uint32_t id)
{
    uint32_t low = first, high = end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (index->ids[first + index->sorted[middle]] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t refit_index_positions(const struct refit_index *index, const uint32_t *coords, uint32_t id, uint32_t *begin)
{
    if (id < index->lo || id >= index->hi)
        return 0;
    id -= index->lo;
    *begin = id;
    if (index->axis < 0)
        return 1;
    uint32_t first = index->first[coords[index->axis]], end = index->first[coords[index->axis] + 1];
    if (!index->ids) {
        *begin = id - first;
        return id >= first && id < end;
    }
    uint32_t low = find_sorted(index, first, end, id), high = low;
    while (high < end && index->ids[first + index->sorted[high]] == id)
        high++;
    *begin = low;
    return high - low;
}

uint32_t refit_index_longest(const struct refit_index *index, uint32_t axis_size)
{
    uint32_t longest = 0;
    if (index->axis < 0)
        return index->hi - index->lo;
    for (uint32_t c = 0; c < axis_size; c++)
        if (index->first[c + 1] - index->first[c] > longest)
            longest = index->first[c + 1] - index->first[c];
    return longest;
}

bool refit_index_repeats(const struct refit_index *index, const struct refit_mesh *mesh, uint32_t *repeated)
{
    if (!index->ids)
        return false;
    for (uint32_t c = 0; c < mesh->size[index->axis]; c++) {
        const uint32_t *ids = index->ids + index->first[c];
        for (uint32_t i = index->first[c] + 1; i < index->first[c + 1]; i++) {
            *repeated = index->lo + ids[index->sorted[i]];
            if (ids[index->sorted[i]] == ids[index->sorted[i - 1]])
                return true;
        }
    }
    return false;
}

void refit_indices_release(struct refit_entry *entry)
{
    for (uint32_t i = 0; i < entry->index_count; i++) {
        free(entry->indices[i].name);
        free(entry->indices[i].first);
        free(entry->indices[i].ids);
        free(entry->indices[i].sorted);
    }
    free(entry->indices);
}

static enum refit_status parse_range(struct refit_index *index, const json_t *range, const char *what,
                                     struct refit_error *err)
{
    json_int_t lo = json_integer_value(json_array_get(range, 0)), hi = json_integer_value(json_array_get(range, 1));
    if (json_array_size(range) != 2 || !json_is_integer(json_array_get(range, 0)) ||
        !json_is_integer(json_array_get(range, 1)) || lo < 0 || hi <= lo || hi > REFIT_NAME_NUMBER_MAX ||
        hi - lo > REFIT_LAYOUT_NAMES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": expected a range [first, end) of 1 to %u numbers "
                          "below %d", what, index->name, REFIT_LAYOUT_NAMES_MAX, REFIT_NAME_NUMBER_MAX);
    index->lo = (uint32_t)lo;
    index->hi = (uint32_t)hi;
    return REFIT_OK;
}

static void cut_evenly(struct refit_index *index, uint32_t size)
{
    int64_t start, extent;
    for (uint32_t c = 0; c < size; c++) {
        refit_chunk(index->hi - index->lo, size, c, &start, &extent);
        index->first[c] = (uint32_t)start;
        index->first[c + 1] = (uint32_t)(start + extent);
    }
}

static enum refit_status cut_by_counts(struct refit_index *index, const json_t *counts, uint32_t size,
                                       const char *what, struct refit_error *err)
{
    uint32_t range = index->hi - index->lo;
    if (!json_is_array(counts) || json_array_size(counts) != size)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"counts\" must have %u numbers, the size of its "
                          "axis, found %zu", what, index->name, size, json_array_size(counts));
    for (uint32_t c = 0; c < size; c++) {
        const json_t *item = json_array_get(counts, c);
        json_int_t count = json_integer_value(item);
        if (!json_is_integer(item) || count < 0 || count > range - index->first[c])
            return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"counts\" must add up to %u, found %lld at %u",
                              what, index->name, range, (long long)count, c);
        index->first[c + 1] = index->first[c] + (uint32_t)count;
    }
    if (index->first[size] != range)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"counts\" add up to %u, expected %u", what,
                          index->name, index->first[size], range);
    return REFIT_OK;
}

static enum refit_status size_lists(struct refit_index *index, const json_t *lists, uint32_t size, const char *what,
                                    struct refit_error *err)
{
    size_t total = 0;
    if (!json_is_array(lists) || json_array_size(lists) != size)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"lists\" must have %u lists, the size of its axis, "
                          "found %zu", what, index->name, size, json_array_size(lists));
    for (uint32_t c = 0; c < size; c++) {
        const json_t *list = json_array_get(lists, c);
        if (!json_is_array(list))
            return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"lists\" must hold arrays", what, index->name);
        total += json_array_size(list);
        if (total > REFIT_LAYOUT_NAMES_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"lists\" hold more than %u numbers", what,
                              index->name, REFIT_LAYOUT_NAMES_MAX);
        index->first[c + 1] = (uint32_t)total;
    }
    index->ids = calloc(total + 1, sizeof *index->ids);
    index->sorted = calloc(total + 1, sizeof *index->sorted);
    return index->ids && index->sorted ? REFIT_OK : refit_fail_alloc(err, "lists", total * sizeof *index->ids);
}

static int compare_pairs(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum refit_status sort_lists(struct refit_index *index, uint32_t size, struct refit_error *err)
{
    uint32_t longest = refit_index_longest(index, size);
    uint64_t *pairs = calloc((size_t)longest + 1, sizeof *pairs);
    if (!pairs)
        return refit_fail_alloc(err, "lists", longest * sizeof *pairs);
    for (uint32_t c = 0; c < size; c++) {
        uint32_t first = index->first[c], count = index->first[c + 1] - first;
        for (uint32_t i = 0; i < count; i++)
            pairs[i] = (uint64_t)index->ids[first + i] << 32 | i;
        qsort(pairs, count, sizeof *pairs, compare_pairs);
        for (uint32_t i = 0; i < count; i++)
            index->sorted[first + i] = (uint32_t)pairs[i];
    }
    free(pairs);
    return REFIT_OK;
}

/* Every id must be somewhere, or the document describes a tensor that no rank has. */
static enum refit_status check_all_listed(const struct refit_index *index, uint32_t total, const char *what,
                                          struct refit_error *err)
{
    uint32_t range = index->hi - index->lo, id = 0;
    bool *seen = calloc(range, sizeof *seen);
    if (!seen)
        return refit_fail_alloc(err, "lists", range);
    for (uint32_t i = 0; i < total; i++)
        seen[index->ids[i]] = true;
    while (id < range && seen[id])
        id++;
    free(seen);
    if (id < range)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": %u is in none of \"lists\"", what, index->name,
                          index->lo + id);
    return REFIT_OK;
}

static enum refit_status cut_by_lists(struct refit_index *index, const json_t *lists, uint32_t size, const char *what,
                                      struct refit_error *err)
{
    enum refit_status status = size_lists(index, lists, size, what, err);
    uint32_t n = 0;
    if (status)
        return status;
    for (uint32_t c = 0; c < size; c++) {
        const json_t *list = json_array_get(lists, c), *item;
        size_t i;
        json_array_foreach(list, i, item) {
            json_int_t id = json_integer_value(item);
            if (!json_is_integer(item) || id < (json_int_t)index->lo || id >= (json_int_t)index->hi)
                return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"lists\" must hold numbers of its range [%u, "
                                  "%u), found %lld in list %u", what, index->name, index->lo, index->hi, (long long)id,
                                  c);
            index->ids[n++] = (uint32_t)id - index->lo;
        }
    }
    status = check_all_listed(index, n, what, err);
    return status ? status : sort_lists(index, size, err);
}

static enum refit_status parse_cut(struct refit_index *index, const json_t *json, const struct refit_mesh *mesh,
                                   const char *what, struct refit_error *err)
{
    const char *axis = NULL;
    const json_t *counts = json_object_get(json, "counts"), *lists = json_object_get(json, "lists");
    enum refit_status status = refit_json_get_string(json, "axis", what, &axis, err);
    if (status)
        return status;
    for (index->axis = 0; (uint32_t)index->axis < mesh->axes; index->axis++)
        if (strcmp(mesh->axis_name[index->axis], axis) == 0)
            break;
    if ((uint32_t)index->axis == mesh->axes)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": mesh \"%s\" has no axis \"%.64s\"", what, index->name,
                          mesh->name, axis);
    uint32_t size = mesh->size[index->axis];
    if (!(index->first = calloc((size_t)size + 1, sizeof *index->first)))
        return refit_fail_alloc(err, "an index", size * sizeof *index->first);
    if (counts && lists)
        return refit_fail(err, REFIT_INVALID, "%s: index \"%s\": \"counts\" or \"lists\", not both", what, index->name);
    if (counts)
        return cut_by_counts(index, counts, size, what, err);
    if (lists)
        return cut_by_lists(index, lists, size, what, err);
    cut_evenly(index, size);
    return REFIT_OK;
}

static enum refit_status parse_index(struct refit_index *index, const json_t *json, const struct refit_mesh *mesh,
                                     const char *what, struct refit_error *err)
{
    static const char *const known[] = {"range", "axis", "counts", "lists", NULL};
    index->axis = -1;
    if (json_is_array(json))
        return parse_range(index, json, what, err);
    enum refit_status status = refit_json_known(json, what, known, err);
    if (!status)
        status = parse_range(index, json_object_get(json, "range"), what, err);
    if (status || json_object_size(json) == 1)
        return status;
    return parse_cut(index, json, mesh, what, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct refit_index *)a)->name, ((const struct refit_index *)b)->name);
}

static enum refit_status check_axes(const struct refit_entry *entry, const struct refit_mesh *mesh, const char *what,
                                    struct refit_error *err)
{
    for (uint32_t i = 0; i < entry->index_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (entry->indices[i].axis >= 0 && entry->indices[i].axis == entry->indices[j].axis)
                return refit_fail(err, REFIT_INVALID, "%s: mesh axis \"%s\" cuts two indices, \"%s\" and \"%s\"", what,
                                  mesh->axis_name[entry->indices[i].axis], entry->indices[j].name,
                                  entry->indices[i].name);
    return REFIT_OK;
}

/* The order of members in a JSON object means nothing, so indices are sorted by name. */
enum refit_status refit_indices_parse(struct refit_entry *entry, const json_t *ranges, const struct refit_mesh *mesh,
                                      const char *what, struct refit_error *err)
{
    const char *name;
    json_t *json;
    if (!ranges)
        return REFIT_OK;
    size_t count = json_object_size(ranges);
    if (!json_is_object(ranges) || count > REFIT_INDICES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: \"for\" must be an object of at most %d indices", what,
                          REFIT_INDICES_MAX);
    if (!(entry->indices = calloc(count + 1, sizeof *entry->indices)))
        return refit_fail_alloc(err, "indices", count * sizeof *entry->indices);
    json_object_foreach((json_t *)(uintptr_t)ranges, name, json) {
        struct refit_index *index = &entry->indices[entry->index_count++];
        if (!(index->name = strdup(name)))
            return refit_fail_alloc(err, "an index", strlen(name));
        enum refit_status status = parse_index(index, json, mesh, what, err);
        if (status)
            return status;
    }
    qsort(entry->indices, entry->index_count, sizeof *entry->indices, compare_names);
    return check_axes(entry, mesh, what, err);
}
