/* SPDX-License-Identifier: Apache-2.0
 *
 * What is known of the whole replica by a part of one: the digest of the model, which no part has by itself. Digests of
 * tensors are sums of what the parts have of them, so whoever leads all parts can add them up, compare, and tell each.
 *
 * Guarded by the receiver's lock; kept in the state file.
 */
#ifndef REFIT_RECEIVER_PROOFS_H
#define REFIT_RECEIVER_PROOFS_H

#include "receiver/receiver.h"

#define REFIT_PROOFS_MAX (REFIT_SLOTS_MAX + 1) /* of what slots hold, and of what is about to be committed */

struct refit_proof {
    uint64_t version;
    char digest[REFIT_SHA256_HEX_MAX]; /* of this part */
    char model[REFIT_SHA256_HEX_MAX];
};
struct refit_proofs {
    struct refit_proof items[REFIT_PROOFS_MAX]; /* the latest last */
    uint32_t count;
};

/* The oldest is forgotten when there is no room. */
void refit_proofs_add(struct refit_proofs *proofs, uint64_t version, const char *digest, const char *model);
/* "": not known. Borrowed. */
const char *refit_proofs_find(const struct refit_proofs *proofs, uint64_t version, const char *digest);

json_t *refit_proofs_json(const struct refit_proofs *proofs); /* new; NULL when out of memory */
/* NULL is none. REFIT_INVALID: it is not what refit_proofs_json writes. */
REFIT_MUST_CHECK enum refit_status refit_proofs_read(struct refit_proofs *proofs, const json_t *json,
                                                     struct refit_error *err);

#endif
