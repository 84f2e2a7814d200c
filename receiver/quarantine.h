/* SPDX-License-Identifier: Apache-2.0
 *
 * Model digests that must not be served. A small set, kept in the state file. Not thread-safe.
 */
#ifndef REFIT_RECEIVER_QUARANTINE_H
#define REFIT_RECEIVER_QUARANTINE_H

#include "base/json.h"

#define REFIT_QUARANTINE_MAX 256

struct refit_quarantine {
    char digests[REFIT_QUARANTINE_MAX][REFIT_SHA256_HEX_MAX];
    uint32_t count;
};

bool refit_is_sha256_hex(const char *text);
bool refit_quarantine_has(const struct refit_quarantine *set, const char *digest);
/* On or off; what is so already stays. REFIT_INVALID: not 64 hex digits; REFIT_NO_MEMORY: the set is full. */
REFIT_MUST_CHECK enum refit_status refit_quarantine_set(struct refit_quarantine *set, const char *digest, bool on,
                                                        struct refit_error *err);

#endif
