/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/load.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "tls/secrets.h"

#define FILE_MAX ((size_t)1 << 20)
#define DEPTH_MAX 8
#define CIPHERS_13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_12 "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:@SECLEVEL=2"

/* --- reading ------------------------------------------------------------------------------------------------------ */

void refit_tls_pem_release(struct refit_tls_pem files[static REFIT_TLS_FILES])
{
    for (int i = 0; i < REFIT_TLS_FILES; i++) {
        if (files[i].text)
            OPENSSL_cleanse(files[i].text, files[i].len);
        free(files[i].text);
        files[i].text = NULL;
        files[i].len = 0;
    }
}

enum refit_status refit_tls_pem_read(struct refit_tls_pem files[static REFIT_TLS_FILES], struct refit_error *err)
{
    static const char *const what[] = {"TLS certificate", "TLS key", "TLS CA bundle"};
    for (int i = 0; i < REFIT_TLS_FILES; i++) {
        if (!files[i].path[0])
            continue;
        enum refit_status status = refit_io_read_file(files[i].path, FILE_MAX, &files[i].text, &files[i].len, err);
        if (status) {
            files[i].text = NULL;
            refit_tls_pem_release(files);
            return refit_error_prefix(err, status, "%s", what[i]);
        }
    }
    return REFIT_OK;
}

void refit_tls_print_name(X509_NAME *name, char *out, size_t size)
{
    BIO *bio = BIO_new(BIO_s_mem());
    int len = bio && X509_NAME_print_ex(bio, name, 0, XN_FLAG_RFC2253) >= 0 ? BIO_read(bio, out, (int)size - 1) : 0;
    out[len > 0 ? len : 0] = '\0';
    BIO_free(bio);
}

void refit_tls_print_error(unsigned long code, char *out, size_t size)
{
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    snprintf(out, size, "%s", text ? text : "no reason given");
}

/* What OpenSSL thought of a file: "expected X, found Y". Empties its queue. */
static enum refit_status refuse(struct refit_error *err, const char *path, const char *expected)
{
    char why[160];
    refit_tls_print_error(ERR_peek_last_error(), why, sizeof why);
    ERR_clear_error();
    return refit_fail(err, REFIT_INVALID, "%s: expected %s, found something else (%s)", path, expected, why);
}

/* A key with a pass phrase must fail, not ask on a terminal. */
static int no_pass_phrase(char *out, int size, int writing, void *context)
{
    (void)out;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

/* The next certificate of a bundle; NULL at its end, and then *bad tells whether it was one. */
static X509 *next_certificate(BIO *bio, bool *bad)
{
    X509 *certificate = PEM_read_bio_X509(bio, NULL, no_pass_phrase, NULL);
    if (!certificate) {
        unsigned long code = ERR_peek_last_error();
        *bad = ERR_GET_LIB(code) != ERR_LIB_PEM || ERR_GET_REASON(code) != PEM_R_NO_START_LINE;
        if (!*bad)
            ERR_clear_error();
    }
    return certificate;
}

static enum refit_status use_chain(SSL_CTX *context, const struct refit_tls_pem *file, BIO *bio,
                                   struct refit_error *err)
{
    static const char expected[] = "PEM certificates, the server's or client's own first";
    bool bad = false;
    X509 *certificate = next_certificate(bio, &bad);
    if (!certificate || SSL_CTX_use_certificate(context, certificate) != 1) {
        X509_free(certificate);
        return refuse(err, file->path, expected);
    }
    X509_free(certificate);
    while ((certificate = next_certificate(bio, &bad)) != NULL) {
        if (SSL_CTX_add0_chain_cert(context, certificate) == 1)
            continue;
        X509_free(certificate);
        return refuse(err, file->path, expected);
    }
    return bad ? refuse(err, file->path, expected) : REFIT_OK;
}

static enum refit_status use_key(SSL_CTX *context, const struct refit_tls_pem files[static REFIT_TLS_FILES], BIO *bio,
                                 struct refit_error *err)
{
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_pass_phrase, NULL);
    if (!key)
        return refuse(err, files[REFIT_TLS_KEY].path, "a PEM private key without a pass phrase");
    /* SSL_CTX_use_PrivateKey itself compares, and then drops the certificate. */
    bool fits = X509_check_private_key(SSL_CTX_get0_certificate(context), key) == 1;
    bool used = fits && SSL_CTX_use_PrivateKey(context, key) == 1;
    EVP_PKEY_free(key);
    if (used)
        return REFIT_OK;
    if (fits)
        return refuse(err, files[REFIT_TLS_KEY].path, "a key of at least 2048 bits (RSA) or 224 (EC)");
    ERR_clear_error();
    return refit_fail(err, REFIT_MISMATCH, "%s: not the key of the certificate in %s; replace both together",
                      files[REFIT_TLS_KEY].path, files[REFIT_TLS_CERT].path);
}

static enum refit_status use_ca(SSL_CTX *context, const struct refit_tls_pem *file, BIO *bio, bool server,
                                struct refit_error *err)
{
    bool bad = false;
    unsigned count = 0;
    for (X509 *certificate; (certificate = next_certificate(bio, &bad)) != NULL; count++) {
        bool added = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate) == 1 &&
                     (!server || SSL_CTX_add_client_CA(context, certificate) == 1);
        X509_free(certificate);
        if (!added)
            return refuse(err, file->path, "CA certificates in PEM");
    }
    if (bad)
        return refuse(err, file->path, "CA certificates in PEM");
    if (count == 0)
        return refit_fail(err, REFIT_INVALID, "%s: expected CA certificates in PEM, found none in %zu bytes",
                          file->path, file->len);
    return REFIT_OK;
}

static enum refit_status use_files(SSL_CTX *context, const struct refit_tls_config *config,
                                   const struct refit_tls_pem files[static REFIT_TLS_FILES], struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (int i = 0; i < REFIT_TLS_FILES && status == REFIT_OK; i++) {
        if (!files[i].text)
            continue;
        BIO *bio = BIO_new_mem_buf(files[i].text, (int)files[i].len);
        if (!bio)
            return refit_fail_alloc(err, files[i].path, files[i].len);
        if (i == REFIT_TLS_CERT)
            status = use_chain(context, &files[i], bio, err);
        else if (i == REFIT_TLS_KEY)
            status = use_key(context, files, bio, err);
        else
            status = use_ca(context, &files[i], bio, config->end == REFIT_TLS_SERVER, err);
        BIO_free(bio);
    }
    return status;
}

/* --- settings ------------------------------------------------------------------------------------------------------ */

static bool settle(SSL_CTX *context, const struct refit_tls_config *config)
{
    bool data = config->use == REFIT_TLS_DATA;
    uint64_t options = SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                       SSL_OP_CIPHER_SERVER_PREFERENCE | (data ? SSL_OP_ENABLE_KTLS : 0);
    SSL_CTX_set_options(context, options);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_NO_AUTO_CHAIN | /* the file is the chain; CAs here are for the other end */
                                  (data ? 0 : SSL_MODE_RELEASE_BUFFERS));
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify_depth(context, DEPTH_MAX);
    if (data)
        refit_tls_secrets_ask(context);
    return SSL_CTX_set_num_tickets(context, 0) == 1 &&
           SSL_CTX_set_min_proto_version(context, data ? TLS1_3_VERSION : TLS1_2_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context, CIPHERS_13) == 1 && SSL_CTX_set_cipher_list(context, CIPHERS_12) == 1;
}

static bool demand_peer(SSL_CTX *context, const struct refit_tls_config *config)
{
    if (config->any_purpose && X509_VERIFY_PARAM_set_purpose(SSL_CTX_get0_param(context), X509_PURPOSE_ANY) != 1)
        return false;
    if (config->end == REFIT_TLS_SERVER) {
        if (config->ca[0])
            SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (config->client_optional ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT),
                               NULL);
        return true;
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    return config->ca[0] || SSL_CTX_set_default_verify_paths(context) == 1;
}

enum refit_status refit_tls_load(const struct refit_tls_config *config,
                                 const struct refit_tls_pem files[static REFIT_TLS_FILES], SSL_CTX **out,
                                 struct refit_error *err)
{
    SSL_CTX *context = SSL_CTX_new(config->end == REFIT_TLS_SERVER ? TLS_server_method() : TLS_client_method());
    if (!context)
        return refit_fail(err, REFIT_NO_MEMORY, "TLS: no memory for a context");
    enum refit_status status = REFIT_OK;
    if (!settle(context, config) || !demand_peer(context, config)) {
        char why[160];
        refit_tls_print_error(ERR_peek_last_error(), why, sizeof why);
        status = refit_fail(err, REFIT_UNSUPPORTED, "TLS: this OpenSSL can't be set up as needed: %s", why);
    }
    if (status == REFIT_OK)
        status = use_files(context, config, files, err);
    ERR_clear_error();
    if (status == REFIT_OK)
        *out = context;
    else
        SSL_CTX_free(context);
    return status;
}

static void print_time(const ASN1_TIME *time, char *out, size_t size)
{
    struct tm utc;
    if (ASN1_TIME_to_tm(time, &utc) == 1)
        strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &utc);
    else
        snprintf(out, size, "an unreadable time");
}

enum refit_status refit_tls_check_dates(SSL_CTX *context, const char *path, struct refit_error *err)
{
    const X509 *leaf = SSL_CTX_get0_certificate(context);
    char when[32], subject[256];
    if (!leaf)
        return REFIT_OK;
    refit_tls_print_name(X509_get_subject_name(leaf), subject, sizeof subject);
    if (X509_cmp_current_time(X509_get0_notAfter(leaf)) < 0) {
        print_time(X509_get0_notAfter(leaf), when, sizeof when);
        return refit_fail(err, REFIT_INVALID, "%s: the certificate of \"%s\" expired at %s; renew it", path, subject, when);
    }
    if (X509_cmp_current_time(X509_get0_notBefore(leaf)) > 0) {
        print_time(X509_get0_notBefore(leaf), when, sizeof when);
        return refit_fail(err, REFIT_INVALID, "%s: the certificate of \"%s\" is valid from %s only; check the clock",
                          path, subject, when);
    }
    return REFIT_OK;
}
