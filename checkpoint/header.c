/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cursor.h"
#include "checkpoint/members.h"

/* Of all known names; an unknown one is shown as far as it is made of them. */
#define DTYPE_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

struct parse {
    struct refit_table *table;
    const char *path;
    uint32_t file;
    uint64_t data_begin;
    uint64_t data_bytes;
    uint32_t *mine; /* owned: records of this file */
    size_t mine_count;
    size_t mine_capacity;
};

enum refit_status refit_header_length(const uint8_t prefix[static 8], uint64_t file_bytes, const char *path,
                                      uint64_t *len, struct refit_error *err)
{
    struct refit_cursor cursor = refit_cursor_over(prefix, 8);
    *len = refit_cursor_u64(&cursor);
    if (*len > REFIT_SAFETENSORS_HEADER_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: header of %" PRIu64 " bytes, at most %u are accepted; is this a "
                          "safetensors file?", path, *len, REFIT_SAFETENSORS_HEADER_MAX);
    if (*len > file_bytes - 8)
        return refit_fail(err, REFIT_CORRUPT, "%s: header of %" PRIu64 " bytes in a file of %" PRIu64
                          " bytes; the file was cut short", path, *len, file_bytes);
    return REFIT_OK;
}

static enum refit_status check_metadata(const struct parse *p, json_t *value, struct refit_error *err)
{
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return refit_fail(err, REFIT_INVALID, "%s: __metadata__ must be an object of strings", p->path);
    json_object_foreach(value, key, text)
        if (!json_is_string(text))
            return refit_fail(err, REFIT_INVALID, "%s: __metadata__ must hold strings only", p->path);
    return REFIT_OK;
}

static enum refit_status whole_numbers(const struct parse *p, const char *name, const json_t *info, const char *key,
                                       int64_t *numbers, size_t max, size_t *count, struct refit_error *err)
{
    const json_t *array = json_object_get(info, key);
    *count = json_array_size(array);
    if (!json_is_array(array))
        return refit_fail(err, REFIT_INVALID, "%s: tensor %s: \"%s\" must be a list", p->path, name, key);
    if (*count > max)
        return refit_fail(err, REFIT_UNSUPPORTED, "%s: tensor %s: \"%s\" has %zu numbers, at most %zu are supported",
                          p->path, name, key, *count, max);
    for (size_t i = 0; i < *count; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return refit_fail(err, REFIT_INVALID, "%s: tensor %s: \"%s\" must hold whole numbers from 0 on", p->path,
                              name, key);
        numbers[i] = json_integer_value(item);
    }
    return REFIT_OK;
}

/* shape times dtype, in bytes. */
static bool tensor_bytes(enum refit_dtype dtype, const int64_t *shape, size_t dims, uint64_t *bytes)
{
    uint64_t bits = refit_dtype_bits(dtype);
    for (size_t d = 0; d < dims; d++)
        if (__builtin_mul_overflow(bits, (uint64_t)shape[d], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

static enum refit_status read_range(const struct parse *p, const char *name, const json_t *info,
                                    struct refit_entry_record *record, struct refit_error *err)
{
    int64_t offsets[2];
    size_t count;
    enum refit_status status = whole_numbers(p, name, info, "data_offsets", offsets, 2, &count, err);
    if (status != REFIT_OK)
        return status;
    if (count != 2 || offsets[1] < offsets[0])
        return refit_fail(err, REFIT_INVALID, "%s: tensor %s: \"data_offsets\" must be two rising numbers", p->path,
                          name);
    if ((uint64_t)offsets[1] > p->data_bytes)
        return refit_fail(err, REFIT_CORRUPT, "%s: tensor %s ends at byte %" PRId64 " of the data, of which there are %"
                          PRIu64 "; the file was cut short", p->path, name, offsets[1], p->data_bytes);
    record->begin = p->data_begin + (uint64_t)offsets[0];
    record->bytes = (uint64_t)(offsets[1] - offsets[0]);
    return REFIT_OK;
}

/* dtype, shape and range of one tensor, which must agree. */
static enum refit_status read_info(const struct parse *p, size_t index, const json_t *info, struct refit_error *err)
{
    static const char *const known[] = {"dtype", "shape", "data_offsets", NULL};
    struct refit_entry_record *record = &p->table->items[index];
    char name[REFIT_NAME_MAX];
    char what[REFIT_NAME_MAX + 16];
    strcpy(name, refit_table_name(p->table, index));
    snprintf(what, sizeof what, "tensor %s", name);
    const char *dtype_name;
    enum refit_dtype dtype;
    int64_t shape[REFIT_DIMS_MAX];
    size_t dims;
    uint64_t bytes;
    enum refit_status status = refit_json_known(info, what, known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(info, "dtype", what, &dtype_name, err);
    if (status != REFIT_OK) {
        refit_error_prefix(err, status, "%s", p->path);
        return status;
    }
    if (!refit_dtype_parse(dtype_name, &dtype))
        return refit_fail(err, REFIT_UNSUPPORTED, "%s: tensor %s: dtype \"%.*s\" is not known", p->path, name,
                          (int)strspn(dtype_name, DTYPE_LETTERS), dtype_name);
    status = whole_numbers(p, name, info, "shape", shape, REFIT_DIMS_MAX, &dims, err);
    if (status == REFIT_OK)
        status = read_range(p, name, info, record, err);
    if (status != REFIT_OK)
        return status;
    if (!tensor_bytes(dtype, shape, dims, &bytes) || bytes != record->bytes)
        return refit_fail(err, REFIT_INVALID, "%s: tensor %s: its shape and dtype %s do not make the %" PRIu64
                          " bytes of its \"data_offsets\"", p->path, name, refit_dtype_name(dtype), record->bytes);
    record->dtype = (uint8_t)dtype;
    record->seen = true;
    return refit_table_set_shape(p->table, index, (uint32_t)dims, shape, err);
}

/* The record of `name`: a new one, or the one that the index made for this very file. */
static enum refit_status claim(const struct parse *p, const char *name, size_t *index, struct refit_error *err)
{
    if (!p->table->closed)
        return refit_table_add(p->table, name, p->file, p->path, index, err);
    enum refit_status status = refit_table_check_name(name, p->path, err);
    if (status != REFIT_OK)
        return status;
    if (!refit_table_find(p->table, name, index))
        return refit_fail(err, REFIT_MISMATCH, "%s: tensor %s is not in the index", p->path, name);
    const struct refit_entry_record *record = &p->table->items[*index];
    if (record->file != p->file)
        return refit_fail(err, REFIT_MISMATCH, "%s: tensor %s is here, but the index names another file for it",
                          p->path, name);
    if (record->seen)
        return refit_fail(err, REFIT_INVALID, "%s: tensor %s is there twice", p->path, name);
    return REFIT_OK;
}

static enum refit_status remember(struct parse *p, size_t index, struct refit_error *err)
{
    if (p->mine_count == p->mine_capacity) {
        size_t capacity = p->mine_capacity ? 2 * p->mine_capacity : 64;
        uint32_t *mine = reallocarray(p->mine, capacity, sizeof *mine);
        if (!mine)
            return refit_fail_alloc(err, p->path, capacity * sizeof *mine);
        p->mine = mine;
        p->mine_capacity = capacity;
    }
    p->mine[p->mine_count++] = (uint32_t)index;
    return REFIT_OK;
}

static enum refit_status read_member(struct parse *p, const char *key, json_t *value, bool *metadata,
                                     struct refit_error *err)
{
    size_t index = 0;
    if (strcmp(key, "__metadata__") == 0) {
        if (*metadata)
            return refit_fail(err, REFIT_INVALID, "%s: __metadata__ is there twice", p->path);
        *metadata = true;
        return check_metadata(p, value, err);
    }
    enum refit_status status = claim(p, key, &index, err);
    if (status == REFIT_OK)
        status = read_info(p, index, value, err);
    return status == REFIT_OK ? remember(p, index, err) : status;
}

static int by_range(const void *a, const void *b, void *items)
{
    const struct refit_entry_record *x = (const struct refit_entry_record *)items + *(const uint32_t *)a;
    const struct refit_entry_record *y = (const struct refit_entry_record *)items + *(const uint32_t *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Neither holes nor overlaps nor a tail: a byte that no tensor has could carry anything. */
static enum refit_status check_cover(const struct parse *p, struct refit_error *err)
{
    uint64_t at = p->data_begin;
    if (p->mine_count > 1)
        qsort_r(p->mine, p->mine_count, sizeof *p->mine, by_range, p->table->items);
    for (size_t i = 0; i < p->mine_count; i++) {
        const struct refit_entry_record *record = &p->table->items[p->mine[i]];
        if (record->begin != at)
            return refit_fail(err, REFIT_INVALID, "%s: tensor %s begins at byte %" PRIu64 " of the file, %s %" PRIu64,
                              p->path, refit_table_name(p->table, p->mine[i]), record->begin,
                              record->begin > at ? "which leaves a hole from" : "but the one before it ends at", at);
        at += record->bytes;
    }
    if (at != p->data_begin + p->data_bytes)
        return refit_fail(err, REFIT_INVALID, "%s: its tensors end at byte %" PRIu64 ", the file at %" PRIu64, p->path,
                          at, p->data_begin + p->data_bytes);
    return REFIT_OK;
}

enum refit_status refit_header_parse(struct refit_table *table, const char *text, size_t len, uint64_t file_bytes,
                                     uint32_t file, const char *path, struct refit_error *err)
{
    struct parse p = {.table = table, .path = path, .file = file, .data_begin = 8 + len};
    struct refit_members members = {.key = NULL};
    const char *key = NULL;
    bool metadata = false;
    p.data_bytes = file_bytes - p.data_begin;
    enum refit_status status = REFIT_OK;
    if (len == 0 || text[0] != '{')
        status = refit_fail(err, REFIT_INVALID, "%s: the header must begin with '{'; is this a safetensors file?",
                            path);
    if (status == REFIT_OK)
        status = refit_members_begin(&members, text, len, 0, path, err);
    while (status == REFIT_OK && (status = refit_members_next(&members, &key, err)) == REFIT_OK && key) {
        json_t *value = NULL;
        status = refit_members_value(&members, &value, err);
        if (status == REFIT_OK)
            status = read_member(&p, key, value, &metadata, err);
        json_decref(value);
    }
    if (status == REFIT_OK)
        status = refit_members_finish(&members, err);
    if (status == REFIT_OK)
        status = check_cover(&p, err);
    refit_members_release(&members);
    free(p.mine);
    return status;
}
