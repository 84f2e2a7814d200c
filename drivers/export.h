/* SPDX-License-Identifier: Apache-2.0
 *
 * A version written out for an engine: DIRECTORY/NAME/model.safetensors with every tensor, dense, under its checkpoint
 * name. (Internal.) Written by plan from the slot's memory, whatever its ranks and fusing, and digested on the way. The
 * engine reads it through the directory, so it is a copy: one that lives from prepare to the end of the install.
 */
#ifndef REFIT_DRIVERS_EXPORT_H
#define REFIT_DRIVERS_EXPORT_H

#include "receiver/bank.h"

#define REFIT_EXPORT_PATH_MAX 4096

struct refit_export {
    bool there;
    struct refit_version version;
    int directory;                    /* borrowed */
    char name[64];
    char path[REFIT_EXPORT_PATH_MAX]; /* DIRECTORY/NAME, for the engine */
};

/* Opens the directory (made if need be) and removes what an earlier process left in it. *fd is new. */
REFIT_MUST_CHECK enum refit_status refit_export_open(const char *directory, int *fd, struct refit_error *err);
/* `cancel` may be NULL. REFIT_NO_MEMORY when it does not fit, REFIT_CORRUPT when the slot has another digest than its
 * version; then nothing is left behind. */
REFIT_MUST_CHECK enum refit_status refit_export_write(struct refit_export *export, int directory, const char *path,
                                                      const struct refit_bank_copy *copy,
                                                      struct refit_deadline deadline, const atomic_bool *cancel,
                                                      struct refit_error *err);
void refit_export_remove(struct refit_export *export);

#endif
