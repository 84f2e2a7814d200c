/* SPDX-License-Identifier: Apache-2.0
 *
 * The record protection of TLS 1.3 (RFC 8446, 5.2 to 5.5 and 7.3) over OpenSSL's ciphers, out of place: a record is
 * sealed from where its bytes are into where it leaves from, and opened into where its bytes belong. No sockets, no
 * handshake: see bulk.h. (Internal to tls/.)
 *
 * Whoever changes this: a key seals each sequence number once, ever.
 */
#ifndef REFIT_TLS_RECORD_H
#define REFIT_TLS_RECORD_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "tls/secrets.h"

#define REFIT_TLS_CONTENT_MAX ((size_t)16384) /* bytes of the caller's in one record */
#define REFIT_TLS_HEADER 5u
#define REFIT_TLS_TAG 16u
#define REFIT_TLS_OVERHEAD (REFIT_TLS_HEADER + 1u + REFIT_TLS_TAG) /* 1: the content type, encrypted with the rest */
#define REFIT_TLS_RECORD_MAX (REFIT_TLS_CONTENT_MAX + REFIT_TLS_OVERHEAD)
#define REFIT_TLS_NONCE 12u

enum refit_tls_content { REFIT_TLS_ALERT = 21, REFIT_TLS_HANDSHAKE = 22, REFIT_TLS_APPLICATION = 23 };

/* What is wrong with something that came: SSL_R_* and the alert that says so to the peer. */
struct refit_tls_fault {
    int reason, alert;
};

struct refit_tls_suite;
const struct refit_tls_suite *refit_tls_suite(uint16_t number); /* NULL: not one that is known here */
size_t refit_tls_suite_secret(const struct refit_tls_suite *suite); /* bytes of a traffic secret */

/* One direction under its current key. */
struct refit_tls_keys {
    const struct refit_tls_suite *suite;
    EVP_CIPHER_CTX *cipher;    /* owned */
    struct refit_tls_gcm *gcm; /* owned; in place of `cipher` where it is faster */
    uint8_t secret[REFIT_TLS_SECRET_MAX], iv[REFIT_TLS_NONCE];
    uint64_t sequence; /* of the next record: how many went under this key */
};
/* `secret` is the traffic secret, of the suite's length; it is copied. False: no memory, or OpenSSL lacks something. */
bool refit_tls_keys_open(struct refit_tls_keys *keys, const struct refit_tls_suite *suite, const uint8_t *secret,
                         bool seals);
/* The next generation (KeyUpdate); the sequence begins anew. */
bool refit_tls_keys_renew(struct refit_tls_keys *keys);
void refit_tls_keys_wipe(struct refit_tls_keys *keys);

/* Pieces that are taken from the front. */
struct refit_tls_pieces {
    const struct iovec *iov;
    size_t count, skip; /* `skip` bytes of iov[0] are taken already */
};

/* One record of what is next in `pieces`, up to REFIT_TLS_CONTENT_MAX bytes (none is fine), which are taken; *content
 * says how many. `out` has room for so much and REFIT_TLS_OVERHEAD. 0: OpenSSL failed, and the keys are of no use any
 * more. */
size_t refit_tls_seal(struct refit_tls_keys *keys, enum refit_tls_content type, struct refit_tls_pieces *pieces,
                      uint8_t *out, size_t *content);

/* How long the record at `bytes` is with its header; 0: that is not all here yet. */
const struct refit_tls_fault *refit_tls_measure(const uint8_t *bytes, size_t have, size_t *len);
/* A whole record, as measured. `out` has room for len - REFIT_TLS_OVERHEAD bytes, and does not overlap the record. What
 * is in `out` is the peer's only when NULL is returned: *content bytes of it. */
const struct refit_tls_fault *refit_tls_unseal(struct refit_tls_keys *keys, const uint8_t *record, size_t len,
                                               uint8_t *out, size_t *content, uint8_t *type);

extern const struct refit_tls_fault refit_tls_broken; /* OpenSSL failed */

#endif
