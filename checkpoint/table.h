/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to checkpoint/: the tensors of a checkpoint, some 40 bytes and a name each, for models have 10^5 of them.
 * It lives only while a checkpoint is opened; the layout and the arena hold what is needed afterwards.
 */
#ifndef REFIT_CHECKPOINT_TABLE_H
#define REFIT_CHECKPOINT_TABLE_H

#include "base/buf.h"
#include "base/error.h"
#include "layouts/layout.h"

struct refit_entry_record {
    uint64_t begin; /* in its file */
    uint64_t bytes;
    uint32_t name;  /* in `names` */
    uint32_t shape; /* in `shapes` */
    uint32_t file;
    uint8_t dims;
    uint8_t dtype;
    bool seen; /* its header has been read */
};

struct refit_table {
    struct refit_buf names;  /* NUL-terminated */
    struct refit_buf shapes; /* of int64_t, in elements */
    struct refit_entry_record *items;
    size_t count;
    size_t capacity;
    bool closed; /* an index listed all tensors: headers may add none */
};

void refit_table_init(struct refit_table *table);
void refit_table_release(struct refit_table *table);
/* Names come from files and go into messages and documents: length, no control characters. */
REFIT_MUST_CHECK enum refit_status refit_table_check_name(const char *name, const char *what, struct refit_error *err);
/* *index of a new record; the name is checked, but not for being unique. */
REFIT_MUST_CHECK enum refit_status refit_table_add(struct refit_table *table, const char *name, uint32_t file,
                                                   const char *what, size_t *index, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_table_set_shape(struct refit_table *table, size_t index, uint32_t dims,
                                                         const int64_t *shape, struct refit_error *err);
const char *refit_table_name(const struct refit_table *table, size_t index);
const int64_t *refit_table_shape(const struct refit_table *table, size_t index);
/* Sorts by name; REFIT_INVALID names a duplicate. */
REFIT_MUST_CHECK enum refit_status refit_table_sort(struct refit_table *table, const char *what,
                                                    struct refit_error *err);
/* In a sorted table; false: no such name. */
bool refit_table_find(const struct refit_table *table, const char *name, size_t *index);

#endif
