/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to checkpoint/: model.safetensors.index.json, which says in which file each tensor lies.
 */
#ifndef REFIT_CHECKPOINT_INDEX_H
#define REFIT_CHECKPOINT_INDEX_H

#include "checkpoint/table.h"

#define REFIT_CHECKPOINT_INDEX_MAX (64u << 20) /* bytes of JSON */
#define REFIT_CHECKPOINT_FILES_MAX 4096

/* File names, in order of first appearance; a record's `file` is the number. */
struct refit_file_names {
    char **items; /* owned, each owned */
    size_t count;
    size_t capacity;
};

void refit_file_names_release(struct refit_file_names *files);
/* *number of a name, which is added when it is new. Refuses all but plain file names. */
REFIT_MUST_CHECK enum refit_status refit_file_names_intern(struct refit_file_names *files, const char *name,
                                                           const char *what, uint32_t *number, struct refit_error *err);
/* Fills the table, sorted and closed. Pure: no I/O. */
REFIT_MUST_CHECK enum refit_status refit_index_parse(struct refit_table *table, struct refit_file_names *files,
                                                     const char *text, size_t len, const char *path,
                                                     struct refit_error *err);

#endif
