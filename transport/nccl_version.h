/* SPDX-License-Identifier: Apache-2.0
 *
 * Which NCCL there is (docs/gpu.md). Plain C: these functions are in every build, with NCCL or without.
 */
#ifndef REFIT_TRANSPORT_NCCL_VERSION_H
#define REFIT_TRANSPORT_NCCL_VERSION_H

#include <stddef.h>

#include "base/error.h"

#define REFIT_NCCL_DESCRIPTION_MAX 1024
#define REFIT_NCCL_VERSION_TEXT_MAX 40

/* What was built in and what was found at run time, in one line. */
void refit_nccl_describe(char *text, size_t size);

/* "2.32.3" for 23203, which is how ncclGetVersion says it. */
void refit_nccl_version_text(int version, char text[REFIT_NCCL_VERSION_TEXT_MAX]);
/* REFIT_MISMATCH, with both versions and what to do, unless a communicator can be made of both. To be asked before one
 * is made: NCCL itself would fail in the middle of it, on every rank. `peer` names the other side in the error. */
REFIT_MUST_CHECK enum refit_status refit_nccl_check_versions(int ours, int theirs, const char *peer,
                                                             struct refit_error *err);

#endif
