/* SPDX-License-Identifier: Apache-2.0
 *
 * The two traffic secrets of a TLS 1.3 connection (RFC 8446, 7.1), as OpenSSL tells them to whoever asks for its key
 * log. They go into memory of the connection that asked, and nowhere else. (Internal to tls/.)
 */
#ifndef REFIT_TLS_SECRETS_H
#define REFIT_TLS_SECRETS_H

#include <openssl/ssl.h>
#include <stddef.h>
#include <stdint.h>

#define REFIT_TLS_SECRET_MAX 48u /* SHA-384 */

struct refit_tls_secrets { /* wiped by whoever has it */
    uint8_t bytes[2][REFIT_TLS_SECRET_MAX]; /* by enum refit_tls_end: under which that end sends */
    size_t len[2];                          /* 0: not told */
};

void refit_tls_secrets_ask(SSL_CTX *context);
/* `secrets` is borrowed for the handshake: attach NULL after it. Connections without are not told. */
void refit_tls_secrets_attach(SSL *ssl, struct refit_tls_secrets *secrets);

#endif
