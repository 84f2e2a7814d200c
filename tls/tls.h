/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS from files: a certificate chain, its key and a CA bundle, read again when they change.
 *
 * A refit_tls holds what new connections use. refit_tls_refresh reads the files and compares their bytes, so no way of
 * replacing them is missed: written in place, renamed over, or a symbolic link swapped above them any number of times.
 * New bytes that do not make a working context are refused by name and what was loaded before goes on; running
 * connections keep what they began with.
 *
 * Control speaks TLS 1.3 and 1.2, data TLS 1.3 only; AEAD ciphers with forward secrecy, AES-GCM first. Sessions,
 * tickets, early data, renegotiation and compression are off. A server with a CA demands a certificate from its
 * clients. A client checks the server's chain (its CA, or the system's store without one) and that a subject
 * alternative name is the host it dialled.
 *
 * Thread-safe, but for refit_tls_close. Processes that use it ignore SIGPIPE, or block it.
 */
#ifndef REFIT_TLS_TLS_H
#define REFIT_TLS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct ssl_st; /* OpenSSL's SSL */

enum refit_tls_end { REFIT_TLS_SERVER, REFIT_TLS_CLIENT };
enum refit_tls_use { REFIT_TLS_CONTROL, REFIT_TLS_DATA };

struct refit_tls_config {
    enum refit_tls_end end;
    enum refit_tls_use use;
    const char *cert, *key; /* PEM files: the chain, leaf first, and its key without a pass phrase; NULL or "": none */
    const char *ca;         /* PEM file; server: who signs clients; client: who signs servers, "": the system's store */
    bool client_optional;   /* server with a CA: a client without a certificate is let in, unnamed */
    bool any_purpose;       /* ends are alike: a certificate for clients will do for a server, too */
    uint64_t records_per_key; /* of a stream; 0: 2^23 */
};

struct refit_tls;
/* The paths are copied. REFIT_INVALID, REFIT_MISMATCH, REFIT_NOT_FOUND or REFIT_SYSTEM name the file. */
REFIT_MUST_CHECK enum refit_status refit_tls_open(const struct refit_tls_config *config, struct refit_tls **out,
                                                  struct refit_error *err);
void refit_tls_close(struct refit_tls *tls); /* connections made from it go on; NULL is fine */

enum refit_tls_change { REFIT_TLS_SAME, REFIT_TLS_RELOADED, REFIT_TLS_REFUSED };
/* Reads the files again. REFUSED: *err says why; said once for the same bytes, then SAME. */
enum refit_tls_change refit_tls_refresh(struct refit_tls *tls, struct refit_error *err);

struct refit_tls_status {
    char subject[256];   /* of the certificate in use; empty: none */
    int64_t not_after_s; /* Unix time; 0: no certificate */
    uint64_t reloads, refusals;
    bool refused; /* the files as they are now were refused: an older state is in use */
};
void refit_tls_read_status(struct refit_tls *tls, struct refit_tls_status *out);

/* What went wrong on one connection, kept outside of it so that it outlives it. */
struct refit_tls_report {
    unsigned long reason; /* OpenSSL's error; 0: none */
    int alert;            /* that the peer sent; 0: none */
    long verify;          /* X509_V_*; 0: none */
    char subject[128];    /* of the certificate that did not verify */
    bool spoke, done;     /* of the handshake: our first words are out, or the peer's are in; all of it */
};
/* One clause: what was found, and what to do where that is known. "" when nothing went wrong that TLS knows of. */
void refit_tls_report_text(const struct refit_tls_report *report, char *out, size_t size);

/* One connection, not tied to a descriptor yet; new (SSL_free). `host`: of a client, a name or an address to be found in
 * the server's certificate; NULL: any certificate that the CA signed. `report` is borrowed for the connection's life. A
 * client's files are looked at again here, about once a second. */
REFIT_MUST_CHECK enum refit_status refit_tls_session(struct refit_tls *tls, const char *host,
                                                     struct refit_tls_report *report, struct ssl_st **out,
                                                     struct refit_error *err);

#define REFIT_TLS_NAMES_MAX 16
#define REFIT_TLS_NAME_MAX 256
struct refit_tls_peer {
    bool verified;                                     /* it showed a certificate that our CA signed */
    size_t count;
    char names[REFIT_TLS_NAMES_MAX][REFIT_TLS_NAME_MAX]; /* "uri:...", "dns:...", "ip:...", "email:...", "cn:...", in that
                                                          * order; one with a NUL or a control character is left out */
};
void refit_tls_peer_read(struct ssl_st *ssl, struct refit_tls_peer *out);

#endif
