/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/index.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/members.h"

void refit_file_names_release(struct refit_file_names *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->items[i]);
    free(files->items);
    *files = (struct refit_file_names){.items = NULL};
}

/* A name that leaves the directory would let an index read any file of the process. */
static enum refit_status check_plain(const char *name, const char *what, struct refit_error *err)
{
    size_t len = strlen(name);
    bool shown = len > 0 && len < 256;
    for (const char *at = name; shown && *at; at++)
        shown = (unsigned char)*at >= 0x20 && *at != 0x7f;
    if (shown && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "%s: names a file that is not a plain name in the same directory: %s", what,
                      shown ? name : "(empty, too long, or with control characters)");
}

enum refit_status refit_file_names_intern(struct refit_file_names *files, const char *name, const char *what,
                                          uint32_t *number, struct refit_error *err)
{
    /* Consecutive tensors mostly lie in one file: the newest is looked at first. */
    for (size_t i = files->count; i-- > 0;) {
        if (strcmp(files->items[i], name) == 0) {
            *number = (uint32_t)i;
            return REFIT_OK;
        }
    }
    enum refit_status status = check_plain(name, what, err);
    if (status != REFIT_OK)
        return status;
    if (files->count == REFIT_CHECKPOINT_FILES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: more than %d files", what, REFIT_CHECKPOINT_FILES_MAX);
    if (files->count == files->capacity) {
        size_t capacity = files->capacity ? 2 * files->capacity : 16;
        char **items = reallocarray(files->items, capacity, sizeof *items);
        if (!items)
            return refit_fail_alloc(err, what, capacity * sizeof *items);
        files->items = items;
        files->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy)
        return refit_fail_alloc(err, what, strlen(name) + 1);
    *number = (uint32_t)files->count;
    files->items[files->count++] = copy;
    return REFIT_OK;
}

static enum refit_status read_place(struct refit_table *table, struct refit_file_names *files, const char *name,
                                    const json_t *value, const char *path, struct refit_error *err)
{
    size_t index;
    uint32_t file = 0;
    enum refit_status status = refit_table_check_name(name, path, err);
    if (status != REFIT_OK)
        return status;
    if (!json_is_string(value))
        return refit_fail(err, REFIT_INVALID, "%s: tensor %s: a file name in quotes expected", path, name);
    status = refit_file_names_intern(files, json_string_value(value), path, &file, err);
    return status == REFIT_OK ? refit_table_add(table, name, file, path, &index, err) : status;
}

static enum refit_status read_weight_map(struct refit_members *outer, struct refit_table *table,
                                         struct refit_file_names *files, struct refit_error *err)
{
    struct refit_members map;
    const char *key = NULL;
    enum refit_status status = refit_members_begin(&map, outer->text, outer->len, outer->at, outer->what, err);
    while (status == REFIT_OK && (status = refit_members_next(&map, &key, err)) == REFIT_OK && key) {
        json_t *value = NULL;
        status = refit_members_value(&map, &value, err);
        if (status == REFIT_OK)
            status = read_place(table, files, key, value, outer->what, err);
        json_decref(value);
    }
    outer->at = map.at;
    refit_members_release(&map);
    return status;
}

/* Members other than weight_map are the writer's own: metadata and its total_size, which may be a real number. */
static enum refit_status read_member(struct refit_members *members, const char *key, struct refit_table *table,
                                     struct refit_file_names *files, struct refit_error *err)
{
    if (strcmp(key, "weight_map") == 0)
        return read_weight_map(members, table, files, err);
    json_t *value = NULL;
    enum refit_status status = refit_members_value(members, &value, err);
    json_decref(value);
    return status;
}

enum refit_status refit_index_parse(struct refit_table *table, struct refit_file_names *files, const char *text,
                                    size_t len, const char *path, struct refit_error *err)
{
    struct refit_members members;
    const char *key = NULL;
    enum refit_status status = refit_members_begin(&members, text, len, 0, path, err);
    while (status == REFIT_OK && (status = refit_members_next(&members, &key, err)) == REFIT_OK && key)
        status = read_member(&members, key, table, files, err);
    if (status == REFIT_OK)
        status = refit_members_finish(&members, err);
    refit_members_release(&members);
    if (status == REFIT_OK && table->count == 0)
        status = refit_fail(err, REFIT_INVALID, "%s: \"weight_map\" names no tensor", path);
    if (status == REFIT_OK)
        status = refit_table_sort(table, path, err);
    table->closed = true;
    return status;
}
