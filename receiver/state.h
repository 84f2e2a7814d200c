/* SPDX-License-Identifier: Apache-2.0
 *
 * The state file: one small JSON object beside the socket, with a section for each who keeps something there ("bank",
 * "receiver"). It is replaced whole, so a crash or a full disk leaves the last one that was written.
 *
 * Thread-safe. A put blocks for an fsync.
 */
#ifndef REFIT_RECEIVER_STATE_H
#define REFIT_RECEIVER_STATE_H

#include "base/error.h"
#include "base/json.h"

#define REFIT_STATE_FILE_MAX (4u << 20)

struct refit_state;

/* A missing file is an empty one. A regular file that is no state is put aside as "<path>.bad", with a warning: a
 * refitd that does not start is worse than one that starts without its memory. Anything else there (a directory, a file
 * that may not be read) is the configuration's mistake: it stays where it is, and opening fails. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_state_open(const char *path, struct refit_state **out, struct refit_error *err);
void refit_state_close(struct refit_state *state); /* NULL is fine */

/* A copy of the section, new (json_decref); NULL when there is none. */
json_t *refit_state_get(struct refit_state *state, const char *section);
/* Writes the file with the section replaced; borrows `value`. On an error (a full disk) the file keeps what it had; the
 * new value stays in memory and goes out with the next put that succeeds. */
REFIT_MUST_CHECK enum refit_status refit_state_put(struct refit_state *state, const char *section, const json_t *value,
                                                   struct refit_error *err);

/* A section whose owner can't make sense of it: the file as it is now is copied to "<path>.bad", with a warning that says
 * why, and the section is there no more. The others stay. */
void refit_state_drop(struct refit_state *state, const char *section, const char *why);

#endif
