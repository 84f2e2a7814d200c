/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of access.h that is read from a file, and read again when the file's bytes change. (Internal to access.c.)
 */
#ifndef REFIT_SIDECAR_ACCESS_FILE_H
#define REFIT_SIDECAR_ACCESS_FILE_H

#include "sidecar/access.h"

typedef enum refit_status (*refit_access_parse)(const char *text, size_t len, const char *path,
                                                struct refit_access_list *out, struct refit_error *err);

struct refit_access_file {
    const char *path, *option; /* borrowed */
    refit_access_parse parse;
    struct refit_access_list *list; /* NULL: no such file is configured */
    unsigned char loaded[32], tried[32]; /* digests of the file's bytes */
    bool refused;
};
/* An empty path: no file. */
REFIT_MUST_CHECK enum refit_status refit_access_file_open(struct refit_access_file *file, const char *path,
                                                          const char *option, refit_access_parse parse,
                                                          struct refit_error *err);
void refit_access_file_close(struct refit_access_file *file);
void refit_access_file_refresh(struct refit_access_file *file);

#endif
