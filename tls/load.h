/* SPDX-License-Identifier: Apache-2.0
 *
 * From the bytes of PEM files to an SSL_CTX. (Internal to tls/.)
 */
#ifndef REFIT_TLS_LOAD_H
#define REFIT_TLS_LOAD_H

#include <openssl/ssl.h>

#include "tls/tls.h"

struct refit_tls_pem {
    const char *path;
    char *text; /* NULL: not configured */
    size_t len;
};
enum { REFIT_TLS_CERT, REFIT_TLS_KEY, REFIT_TLS_CA, REFIT_TLS_FILES };

/* Reads those that have a path, whole. On an error nothing is left. */
REFIT_MUST_CHECK enum refit_status refit_tls_pem_read(struct refit_tls_pem files[static REFIT_TLS_FILES],
                                                      struct refit_error *err);
/* Wipes and frees the texts. */
void refit_tls_pem_release(struct refit_tls_pem files[static REFIT_TLS_FILES]);

/* *out is new. The error names file, what was expected and what was found. */
REFIT_MUST_CHECK enum refit_status refit_tls_load(const struct refit_tls_config *config,
                                                  const struct refit_tls_pem files[static REFIT_TLS_FILES],
                                                  SSL_CTX **out, struct refit_error *err);
/* REFIT_INVALID when the certificate in use is not valid now. */
REFIT_MUST_CHECK enum refit_status refit_tls_check_dates(SSL_CTX *context, const char *path, struct refit_error *err);

uint64_t refit_tls_records_per_key(const struct refit_tls *tls);

/* Callbacks of every connection, that fill its report. */
void refit_tls_report_attach(SSL *ssl, struct refit_tls_report *report);
/* OpenSSL's last error as the reason, unless there is one. */
void refit_tls_report_take(struct refit_tls_report *report);

void refit_tls_print_name(X509_NAME *name, char *out, size_t size);
void refit_tls_print_error(unsigned long code, char *out, size_t size);

#endif
