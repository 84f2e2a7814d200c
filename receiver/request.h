/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked of the receiver, checked before anything is done about it.
 */
#ifndef REFIT_RECEIVER_REQUEST_H
#define REFIT_RECEIVER_REQUEST_H

#include "receiver/receiver.h"

/* Copies `in` to `out` with its defaults filled in. REFIT_INVALID names the member. */
REFIT_MUST_CHECK enum refit_status refit_request_check(const struct refit_receiver_config *config,
                                                       const struct refit_request *in, struct refit_request *out,
                                                       struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_request_check_kv(const char *kv, struct refit_error *err);

/* REFIT_CONFLICT: what is served is as new, or newer. */
REFIT_MUST_CHECK enum refit_status refit_request_check_newer(const struct refit_bank_snapshot *bank, uint64_t version,
                                                             struct refit_error *err);

/* A checkpoint below the root, found without leaving it: absolute paths, ".." and links that lead out are refused for
 * every directory on the way. Only the last component of a path that names a file, and files inside a directory, may be
 * links to elsewhere: checkpoint caches are made of such links. */
struct refit_checkpoint_place {
    int fd;         /* the directory, O_PATH */
    char path[320]; /* to open: goes through /proc/self/fd, so that what was checked is what is read */
};
REFIT_MUST_CHECK enum refit_status refit_checkpoint_find(const char *root, const char *path,
                                                         struct refit_checkpoint_place *out, struct refit_error *err);
void refit_checkpoint_forget(struct refit_checkpoint_place *place);
/* Puts the path that was asked for where an error's text has the one that was opened. */
void refit_checkpoint_rename_in(const struct refit_checkpoint_place *place, const char *path, struct refit_error *err);

#endif
