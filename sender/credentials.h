/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client of control APIs shows and trusts: a CA bundle, a certificate with its key, a token. All are files, and
 * are read again when they change, so that a trainer that runs for weeks goes on through rotations.
 *
 * Thread-safe, but for close.
 */
#ifndef REFIT_SENDER_CREDENTIALS_H
#define REFIT_SENDER_CREDENTIALS_H

#include <stdbool.h>

#include "base/error.h"
#include "tls/tls.h"

#define REFIT_TOKEN_TEXT_MAX 257

/* NULL: by the environment (REFIT_CACERT, REFIT_CERT, REFIT_KEY, REFIT_TOKEN_FILE); "" or not set: none. */
struct refit_credentials_config {
    const char *cacert;     /* who signs replicas; none: the system's store */
    const char *cert, *key; /* what is shown to replicas that ask */
    const char *token_file; /* its first line is the token; behind the last colon, if there is one */
    bool plaintext_tokens;  /* send the token over http:// beyond loopback, too (REFIT_INSECURE_PLAINTEXT_TOKENS=1) */
};

struct refit_credentials;
/* Files that are named are read here, so that a wrong one is told at once. */
REFIT_MUST_CHECK enum refit_status refit_credentials_open(const struct refit_credentials_config *config,
                                                          struct refit_credentials **out, struct refit_error *err);
void refit_credentials_close(struct refit_credentials *credentials); /* NULL is fine */

/* For connections to https://; made when first needed. */
REFIT_MUST_CHECK enum refit_status refit_credentials_tls(struct refit_credentials *credentials, struct refit_tls **out,
                                                         struct refit_error *err);
/* For bulk bytes; made when first needed. */
REFIT_MUST_CHECK enum refit_status refit_credentials_data_tls(struct refit_credentials *credentials,
                                                              struct refit_tls **out, struct refit_error *err);
/* For connections between the ranks of a job, which all show `cert` and trust what `cacert` signed. *out is new
 * (refit_tls_close), and NULL where not all three files are configured, or REFIT_INSECURE_RANKS=1 says that ranks speak
 * in the clear. */
REFIT_MUST_CHECK enum refit_status refit_credentials_ranks_tls(struct refit_credentials *credentials, bool server,
                                                               struct refit_tls **out, struct refit_error *err);
/* The token for a request to `host`, or "" when there is none. REFIT_INVALID: it would cross the network in the clear. The
 * caller wipes it. */
REFIT_MUST_CHECK enum refit_status refit_credentials_token(struct refit_credentials *credentials, const char *host,
                                                           bool secure, char out[static REFIT_TOKEN_TEXT_MAX],
                                                           struct refit_error *err);

#endif
