/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/table.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAX (UINT32_C(1) << 30) /* names and shapes are found by 32-bit offsets */

void refit_table_init(struct refit_table *table)
{
    *table = (struct refit_table){.items = NULL};
    refit_buf_init(&table->names, POOL_MAX);
    refit_buf_init(&table->shapes, POOL_MAX);
}

void refit_table_release(struct refit_table *table)
{
    refit_buf_release(&table->names);
    refit_buf_release(&table->shapes);
    free(table->items);
    table->items = NULL;
}

enum refit_status refit_table_check_name(const char *name, const char *what, struct refit_error *err)
{
    size_t len = strlen(name);
    if (len == 0 || len >= REFIT_NAME_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: a tensor's name has %zu bytes, 1 to %d are accepted", what, len,
                          REFIT_NAME_MAX - 1);
    for (const char *at = name; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return refit_fail(err, REFIT_INVALID, "%s: control character 0x%02x in a tensor's name", what,
                              (unsigned)(unsigned char)*at);
    return REFIT_OK;
}

enum refit_status refit_table_add(struct refit_table *table, const char *name, uint32_t file, const char *what,
                                  size_t *index, struct refit_error *err)
{
    enum refit_status status = refit_table_check_name(name, what, err);
    if (status != REFIT_OK)
        return status;
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity + table->capacity / 2 : 64;
        struct refit_entry_record *items = reallocarray(table->items, capacity, sizeof *items);
        if (!items)
            return refit_fail_alloc(err, what, capacity * sizeof *items);
        table->items = items;
        table->capacity = capacity;
    }
    struct refit_entry_record record = {.name = (uint32_t)table->names.len, .file = file};
    if (!refit_buf_append(&table->names, name, strlen(name) + 1))
        return refit_fail_alloc(err, what, table->names.len + strlen(name) + 1);
    table->items[table->count] = record;
    *index = table->count++;
    return REFIT_OK;
}

enum refit_status refit_table_set_shape(struct refit_table *table, size_t index, uint32_t dims, const int64_t *shape,
                                        struct refit_error *err)
{
    struct refit_entry_record *record = &table->items[index];
    record->dims = (uint8_t)dims;
    record->shape = (uint32_t)(table->shapes.len / sizeof *shape);
    if (!refit_buf_append(&table->shapes, shape, dims * sizeof *shape))
        return refit_fail_alloc(err, "tensor shapes", table->shapes.len + dims * sizeof *shape);
    return REFIT_OK;
}

const char *refit_table_name(const struct refit_table *table, size_t index)
{
    return (const char *)table->names.data + table->items[index].name;
}

const int64_t *refit_table_shape(const struct refit_table *table, size_t index)
{
    /* A scalar has no numbers at all, and the buffer may be empty. */
    static const int64_t none[1];
    if (table->items[index].dims == 0)
        return none;
    return (const int64_t *)(const void *)table->shapes.data + table->items[index].shape;
}

static int by_name(const void *a, const void *b, void *names)
{
    const struct refit_entry_record *x = a, *y = b;
    return strcmp((const char *)names + x->name, (const char *)names + y->name);
}

enum refit_status refit_table_sort(struct refit_table *table, const char *what, struct refit_error *err)
{
    if (table->count > 1)
        qsort_r(table->items, table->count, sizeof *table->items, by_name, table->names.data);
    for (size_t i = 1; i < table->count; i++)
        if (strcmp(refit_table_name(table, i - 1), refit_table_name(table, i)) == 0)
            return refit_fail(err, REFIT_INVALID, "%s: tensor %s is there twice", what, refit_table_name(table, i));
    return REFIT_OK;
}

bool refit_table_find(const struct refit_table *table, const char *name, size_t *index)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, refit_table_name(table, middle));
        if (order == 0) {
            *index = middle;
            return true;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}
