/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of one job know each other: by a secret that all were given, proved without being sent, and over TLS
 * where certificates are configured.
 *
 * The secret's proof is mutual: a rank sends a nonce with its greeting; rank 0 answers with one of its own and
 * HMAC-SHA256(secret, "refit-ranks/1 lead" | rank | ranks | both nonces), the rank with the same under "refit-ranks/1
 * rank". It proves who is at the other end when a connection begins; only TLS keeps others out of it afterwards.
 */
#ifndef REFIT_SENDER_TRUST_H
#define REFIT_SENDER_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tls/tls.h"

#define REFIT_NONCE_BYTES 32
#define REFIT_SECRET_MIN 16
#define REFIT_SECRET_MAX 1024
#define REFIT_NONCE_HEX_MAX (2 * REFIT_NONCE_BYTES + 1)

/* Borrowed by whom it is given to. */
struct refit_trust {
    uint8_t secret[REFIT_SECRET_MAX];
    size_t secret_len;     /* 0: none */
    struct refit_tls *tls; /* of this end; NULL: none */
};

/* `path` names the file with the secret; NULL: REFIT_JOB_SECRET_FILE, else the secret itself in REFIT_JOB_SECRET; "":
 * none. White space at its end does not count. REFIT_INVALID: it is shorter than REFIT_SECRET_MIN bytes, or too
 * long. */
REFIT_MUST_CHECK enum refit_status refit_trust_read_secret(struct refit_trust *trust, const char *path,
                                                           struct refit_error *err);
void refit_trust_wipe(struct refit_trust *trust);

void refit_nonce_make(char hex[static REFIT_NONCE_HEX_MAX]);
bool refit_nonce_is_one(const char *hex);
/* `theirs` is the rank's nonce, `ours` rank 0's. */
struct refit_proof_of {
    bool lead;
    uint32_t rank, ranks;
    const char *rank_nonce, *lead_nonce;
};
void refit_proof_make(const struct refit_trust *trust, const struct refit_proof_of *of,
                      char hex[static REFIT_NONCE_HEX_MAX]);
/* In a time that does not depend on where they differ. */
bool refit_proof_holds(const struct refit_trust *trust, const struct refit_proof_of *of, const char *hex);

#endif
