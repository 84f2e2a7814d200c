/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificates for tests, made when they run: P-256 keys, PEM files NAME.pem (the chain) and NAME.key in a directory.
 */
#ifndef REFIT_TESTS_TLS_PKI_H
#define REFIT_TESTS_TLS_PKI_H

#include <stdbool.h>

struct pki_leaf {
    const char *name;   /* of its files, and its common name */
    const char *ca;     /* files of the CA that signs it */
    const char *san;    /* "DNS:localhost,IP:127.0.0.1"; NULL: none */
    long from_s, to_s;  /* validity, in seconds from now; both 0: from an hour ago for a day */
    int serial;
    bool rsa;           /* RSA 2048 instead of P-256 */
};
/* All return false and say why on standard error. */
bool pki_make_ca(const char *directory, const char *name);
bool pki_make_leaf(const char *directory, const struct pki_leaf *leaf);

#endif
