/* SPDX-License-Identifier: Apache-2.0
 *
 * A *field* is a part of a name between dots that is a plain decimal number: `model.layers.3.mlp.experts.17.w` has
 * two. Records are sorted so that names that are equal but for their fields lie together, by rising fields; each such
 * group is then cut into boxes of field space. A box that a layout would write as a family is one entry.
 */
#include "checkpoint/families.h"

#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX REFIT_DIMS_MAX
#define FIELD_DIGITS_MAX 9

struct fields {
    uint32_t count;
    uint32_t value[FIELDS_MAX];
};

struct range {
    uint32_t first;
    uint32_t last;
};

struct box {
    uint32_t fields;
    struct range range[FIELDS_MAX];
};

struct build {
    const struct refit_table *table;
    json_t *entries; /* owned */
    bool failed;     /* out of memory */
};

/* Length of the number at `at` when it is a field (to the next dot or the end, no leading zero), else 0. */
static size_t field_len(const char *at, uint32_t *value)
{
    size_t len = 0;
    uint32_t number = 0;
    for (; at[len] >= '0' && at[len] <= '9' && len < FIELD_DIGITS_MAX; len++)
        number = 10 * number + (uint32_t)(at[len] - '0');
    if (len == 0 || (at[len] != '.' && at[len] != '\0') || (len > 1 && *at == '0'))
        return 0;
    *value = number;
    return len;
}

static size_t part_len(const char *at)
{
    return (size_t)(strchrnul(at, '.') - at);
}

/* Where the name's next part begins; NULL after the last. */
static const char *next_part(const char *at)
{
    const char *dot = strchr(at, '.');
    return dot ? dot + 1 : NULL;
}

static struct fields fields_of(const char *name)
{
    struct fields fields = {.count = 0};
    for (const char *at = name; at && fields.count < FIELDS_MAX; at = next_part(at))
        if (field_len(at, &fields.value[fields.count]) > 0)
            fields.count++;
    return fields;
}

/* Orders by everything but the fields: any fields of two names are equal here. */
static int compare_patterns(const char *a, const char *b)
{
    uint32_t ignored, fields = 0;
    while (a && b) {
        size_t a_field = fields < FIELDS_MAX ? field_len(a, &ignored) : 0;
        size_t b_field = fields < FIELDS_MAX ? field_len(b, &ignored) : 0;
        if ((a_field > 0) != (b_field > 0))
            return a_field > 0 ? -1 : 1;
        if (a_field == 0) {
            size_t a_len = part_len(a), b_len = part_len(b);
            int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
            if (order != 0 || a_len != b_len)
                return order != 0 ? order : (a_len < b_len ? -1 : 1);
        }
        fields += a_field > 0;
        a = next_part(a);
        b = next_part(b);
    }
    return (a != NULL) - (b != NULL);
}

static int compare_types(const struct refit_table *table, const struct refit_entry_record *a,
                         const struct refit_entry_record *b)
{
    if (a->dtype != b->dtype)
        return a->dtype < b->dtype ? -1 : 1;
    if (a->dims != b->dims)
        return a->dims < b->dims ? -1 : 1;
    const int64_t *shapes = (const int64_t *)(const void *)table->shapes.data;
    return a->dims == 0 ? 0 : memcmp(shapes + a->shape, shapes + b->shape, a->dims * sizeof *shapes);
}

static int compare_groups(const struct refit_table *table, const struct refit_entry_record *a,
                          const struct refit_entry_record *b)
{
    const char *names = (const char *)table->names.data;
    int order = compare_patterns(names + a->name, names + b->name);
    return order != 0 ? order : compare_types(table, a, b);
}

static int compare_records(const void *a, const void *b, void *table_pointer)
{
    const struct refit_table *table = table_pointer;
    const struct refit_entry_record *x = a, *y = b;
    int order = compare_groups(table, x, y);
    if (order != 0)
        return order;
    struct fields p = fields_of((const char *)table->names.data + x->name);
    struct fields q = fields_of((const char *)table->names.data + y->name);
    for (uint32_t i = 0; i < p.count; i++)
        if (p.value[i] != q.value[i])
            return p.value[i] < q.value[i] ? -1 : 1;
    return 0;
}

/* The name with {i}, {j}, ... for the fields whose range is longer than one. */
static void pattern_text(const char *name, const struct box *box, char out[static REFIT_NAME_MAX + 2 * FIELDS_MAX])
{
    uint32_t field = 0, value;
    size_t len = 0;
    for (const char *at = name; at; at = next_part(at)) {
        size_t part = part_len(at);
        bool is_field = field < box->fields && field_len(at, &value) > 0;
        if (at != name)
            out[len++] = '.';
        if (is_field && box->range[field].last > box->range[field].first) {
            out[len++] = '{';
            out[len++] = (char)('i' + field);
            out[len++] = '}';
        } else {
            memcpy(out + len, at, part);
            len += part;
        }
        field += is_field;
    }
    out[len] = '\0';
}

static json_t *ranges(const struct box *box)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i < box->fields; i++) {
        char name[2] = {(char)('i' + i), '\0'};
        if (box->range[i].last > box->range[i].first)
            json_object_set_new(object, name, json_pack("[I, I]", (json_int_t)box->range[i].first,
                                                        (json_int_t)box->range[i].last + 1));
    }
    return object;
}

static json_t *shape_of(const struct refit_table *table, size_t index)
{
    const int64_t *shape = refit_table_shape(table, index);
    json_t *array = json_array();
    for (uint32_t d = 0; d < table->items[index].dims; d++)
        json_array_append_new(array, json_integer(shape[d]));
    return array;
}

/* One entry for all names of the box; `index` is one of its records. */
static void emit(struct build *build, size_t index, const struct box *box)
{
    char text[REFIT_NAME_MAX + 2 * FIELDS_MAX];
    const struct refit_table *table = build->table;
    pattern_text(refit_table_name(table, index), box, text);
    json_t *entry = json_pack("{s:s, s:s, s:o, s:s, s:[s]}", "tensor", text, "dtype",
                              refit_dtype_name((enum refit_dtype)table->items[index].dtype), "shape",
                              shape_of(table, index), "mesh", "all", "placements", "Replicate");
    json_t *over = ranges(box);
    bool done = entry && over;
    if (done && json_object_size(over) > 0)
        done = json_object_set(entry, "for", over) == 0;
    done = done && json_array_append(build->entries, entry) == 0;
    json_decref(over);
    json_decref(entry);
    build->failed |= !done;
}

/* The box around records [begin, end), which agree in the fields before `field`; true when they fill it. */
static bool bounding_box(const struct refit_table *table, size_t begin, size_t end, struct box *box)
{
    uint64_t volume = 1;
    struct fields fields = fields_of(refit_table_name(table, begin));
    box->fields = fields.count;
    for (uint32_t i = 0; i < fields.count; i++)
        box->range[i] = (struct range){fields.value[i], fields.value[i]};
    for (size_t k = begin + 1; k < end; k++) {
        fields = fields_of(refit_table_name(table, k));
        for (uint32_t i = 0; i < fields.count; i++) {
            if (fields.value[i] < box->range[i].first)
                box->range[i].first = fields.value[i];
            if (fields.value[i] > box->range[i].last)
                box->range[i].last = fields.value[i];
        }
    }
    for (uint32_t i = 0; i < box->fields; i++)
        if (__builtin_mul_overflow(volume, (uint64_t)box->range[i].last - box->range[i].first + 1, &volume))
            return false;
    return volume == end - begin;
}

/* The first record at or after `begin` whose field differs from that of `begin`. */
static size_t same_value_end(const struct refit_table *table, size_t begin, size_t end, uint32_t field)
{
    uint32_t value = fields_of(refit_table_name(table, begin)).value[field];
    size_t k = begin + 1;
    while (k < end && fields_of(refit_table_name(table, k)).value[field] == value)
        k++;
    return k;
}

/* `next` continues `box` by one step of `field` and is alike in all fields behind. */
static bool continues(const struct box *box, const struct box *next, uint32_t field)
{
    if (next->range[field].first != box->range[field].last + 1)
        return false;
    for (uint32_t i = field + 1; i < box->fields; i++)
        if (box->range[i].first != next->range[i].first || box->range[i].last != next->range[i].last)
            return false;
    return true;
}

/* Records that agree in the fields before `field`, as few boxes: slices of one value of `field` are joined while they
 * are whole, alike and adjacent; a slice that is not whole is cut along the next field. */
static void cut(struct build *build, size_t begin, size_t end, uint32_t field)
{
    struct box box, joined;
    if (bounding_box(build->table, begin, end, &box)) {
        emit(build, begin, &box);
        return;
    }
    size_t joined_begin = begin;
    bool open = false;
    for (size_t at = begin, next; at < end; at = next) {
        next = same_value_end(build->table, at, end, field);
        bool whole = bounding_box(build->table, at, next, &box);
        if (open && whole && continues(&joined, &box, field)) {
            joined.range[field].last = box.range[field].last;
            continue;
        }
        if (open)
            emit(build, joined_begin, &joined);
        open = whole;
        joined = box;
        joined_begin = at;
        if (!whole)
            cut(build, at, next, field + 1);
    }
    if (open)
        emit(build, joined_begin, &joined);
}

enum refit_status refit_families_layout(struct refit_table *table, json_t **document, struct refit_error *err)
{
    struct build build = {.table = table, .entries = json_array()};
    if (table->count > 1)
        qsort_r(table->items, table->count, sizeof *table->items, compare_records, table);
    for (size_t begin = 0, end; build.entries && begin < table->count; begin = end) {
        end = begin + 1;
        while (end < table->count && compare_groups(table, &table->items[begin], &table->items[end]) == 0)
            end++;
        cut(&build, begin, end, 0);
    }
    *document = json_pack("{s:s, s:i, s:{s:{s:[s], s:[i]}}, s:O}", "format", "refit-layout/1", "ranks", 1, "meshes",
                          "all", "axes", "rank", "shape", 1, "entries", build.entries);
    json_decref(build.entries);
    if (*document && !build.failed)
        return REFIT_OK;
    json_decref(*document);
    *document = NULL;
    return refit_fail_alloc(err, "the layout of a checkpoint", table->count * sizeof *table->items);
}
