/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "tls/load.h"

#define LOOK_NS 1000000000ll
#define READ_TRIES 3
#define RECORDS_PER_KEY ((uint64_t)1 << 23)

struct fingerprint {
    unsigned char bytes[SHA256_DIGEST_LENGTH];
};

struct refit_tls {
    struct refit_tls_config config; /* its paths are the ones below */
    char *paths[REFIT_TLS_FILES];
    pthread_mutex_t lock;
    SSL_CTX *context;
    struct fingerprint loaded, refused; /* what the files held */
    int64_t looked_ns;
    struct refit_tls_status status;
};

/* --- files ---------------------------------------------------------------------------------------------------------- */

static void take_fingerprint(const struct refit_tls_pem files[static REFIT_TLS_FILES], struct fingerprint *out)
{
    unsigned char all[REFIT_TLS_FILES][SHA256_DIGEST_LENGTH];
    for (int i = 0; i < REFIT_TLS_FILES; i++)
        SHA256((const unsigned char *)(files[i].text ? files[i].text : ""), files[i].len, all[i]);
    SHA256(&all[0][0], sizeof all, out->bytes);
}

static bool same(const struct fingerprint *a, const struct fingerprint *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The files as they are, made into a context. When they don't fit each other they may have been read while they were
 * replaced: then they are read again. */
static enum refit_status read_and_load(struct refit_tls *tls, const struct fingerprint *known, SSL_CTX **out,
                                       struct fingerprint *found, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    *out = NULL;
    for (int i = 0; i < READ_TRIES; i++) {
        struct refit_tls_pem files[REFIT_TLS_FILES] = {{.path = tls->paths[0]}, {.path = tls->paths[1]}, {.path = tls->paths[2]}};
        struct fingerprint before = *found;
        enum refit_status readable = refit_tls_pem_read(files, err);
        if (readable) {
            /* As good as any bytes: said once, and forgotten when the file is there again. */
            SHA256((const unsigned char *)"absent", 6, found->bytes);
            return readable;
        }
        take_fingerprint(files, found);
        bool in_use = known && same(known, found), again = i > 0 && same(&before, found);
        if (!in_use && !again)
            status = refit_tls_load(&tls->config, files, out, err);
        refit_tls_pem_release(files);
        if (in_use || again || status == REFIT_OK)
            return in_use ? REFIT_OK : status;
    }
    return status;
}

static void note_certificate(struct refit_tls *tls)
{
    const X509 *leaf = SSL_CTX_get0_certificate(tls->context);
    struct tm utc;
    tls->status.subject[0] = '\0';
    tls->status.not_after_s = 0;
    if (!leaf)
        return;
    refit_tls_print_name(X509_get_subject_name(leaf), tls->status.subject, sizeof tls->status.subject);
    if (ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &utc) == 1)
        tls->status.not_after_s = (int64_t)timegm(&utc);
}

static enum refit_status check_config(const struct refit_tls *tls, struct refit_error *err)
{
    const struct refit_tls_config *c = &tls->config;
    if (!c->cert[0] != !c->key[0])
        return refit_fail(err, REFIT_INVALID, "TLS: a certificate and its key belong together, found only %s",
                          c->cert[0] ? c->cert : c->key);
    if (c->end == REFIT_TLS_SERVER && !c->cert[0])
        return refit_fail(err, REFIT_INVALID, "TLS: a server needs a certificate and its key, found none");
    return REFIT_OK;
}

static enum refit_status first_load(struct refit_tls *tls, struct refit_error *err)
{
    struct refit_error dates;
    enum refit_status status = check_config(tls, err);
    if (status == REFIT_OK)
        status = read_and_load(tls, NULL, &tls->context, &tls->loaded, err);
    if (status)
        return status;
    /* Not fatal: the peers refuse it by name, and it is replaced without a restart. */
    if (refit_tls_check_dates(tls->context, tls->config.cert, &dates))
        refit_log_event(REFIT_LOG_WARN, "certificate is not valid now", REFIT_LOG_CAUSE(&dates));
    note_certificate(tls);
    return REFIT_OK;
}

enum refit_status refit_tls_open(const struct refit_tls_config *config, struct refit_tls **out, struct refit_error *err)
{
    const char *const paths[REFIT_TLS_FILES] = {config->cert, config->key, config->ca};
    struct refit_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return refit_fail_alloc(err, "TLS", sizeof *tls);
    pthread_mutex_init(&tls->lock, NULL);
    tls->config = *config;
    enum refit_status status = REFIT_OK;
    for (int i = 0; i < REFIT_TLS_FILES; i++) {
        tls->paths[i] = strdup(paths[i] ? paths[i] : "");
        if (!tls->paths[i])
            status = refit_fail_alloc(err, "TLS", 0);
    }
    tls->config.cert = tls->paths[REFIT_TLS_CERT];
    tls->config.key = tls->paths[REFIT_TLS_KEY];
    tls->config.ca = tls->paths[REFIT_TLS_CA];
    if (status == REFIT_OK)
        status = first_load(tls, err);
    if (status == REFIT_OK)
        *out = tls;
    else
        refit_tls_close(tls);
    return status;
}

void refit_tls_close(struct refit_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    for (int i = 0; i < REFIT_TLS_FILES; i++)
        free(tls->paths[i]);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

static enum refit_tls_change refresh(struct refit_tls *tls, struct refit_error *err)
{
    SSL_CTX *context;
    struct fingerprint found = tls->loaded;
    tls->looked_ns = refit_clock_ns();
    enum refit_status status = read_and_load(tls, &tls->loaded, &context, &found, err);
    if (status == REFIT_OK && !context) { /* nothing new; or back at what is in use */
        tls->status.refused = false;
        memset(&tls->refused, 0, sizeof tls->refused);
        return REFIT_TLS_SAME;
    }
    if (status == REFIT_OK)
        status = refit_tls_check_dates(context, tls->config.cert, err);
    if (status == REFIT_OK) {
        SSL_CTX_free(tls->context);
        tls->context = context;
        tls->loaded = found;
        tls->status.refused = false;
        tls->status.reloads++;
        memset(&tls->refused, 0, sizeof tls->refused);
        note_certificate(tls);
        return REFIT_TLS_RELOADED;
    }
    SSL_CTX_free(context);
    if (tls->status.refused && same(&tls->refused, &found))
        return REFIT_TLS_SAME;
    tls->refused = found;
    tls->status.refused = true;
    tls->status.refusals++;
    return REFIT_TLS_REFUSED;
}

enum refit_tls_change refit_tls_refresh(struct refit_tls *tls, struct refit_error *err)
{
    struct refit_error scratch;
    pthread_mutex_lock(&tls->lock);
    enum refit_tls_change change = refresh(tls, err ? err : &scratch);
    pthread_mutex_unlock(&tls->lock);
    return change;
}

void refit_tls_read_status(struct refit_tls *tls, struct refit_tls_status *out)
{
    pthread_mutex_lock(&tls->lock);
    *out = tls->status;
    pthread_mutex_unlock(&tls->lock);
}

uint64_t refit_tls_records_per_key(const struct refit_tls *tls)
{
    return tls->config.records_per_key ? tls->config.records_per_key : RECORDS_PER_KEY;
}

/* --- connections ---------------------------------------------------------------------------------------------------- */

/* As SSL_set_tlsext_host_name, whose macro casts the const away. */
static bool name_host(SSL *ssl, const char *host)
{
    return SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, (void *)(uintptr_t)host) == 1;
}

static bool expect_host(SSL *ssl, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 && name_host(ssl, host);
}

/* A client has no loop that would look after its files. */
static void look_again(struct refit_tls *tls)
{
    struct refit_error err;
    if (tls->config.end != REFIT_TLS_CLIENT || refit_clock_ns() - tls->looked_ns < LOOK_NS)
        return;
    if (refresh(tls, &err) == REFIT_TLS_REFUSED)
        refit_log_event(REFIT_LOG_WARN, "new TLS files are refused, the old ones are in use", REFIT_LOG_CAUSE(&err));
}

enum refit_status refit_tls_session(struct refit_tls *tls, const char *host, struct refit_tls_report *report,
                                    SSL **out, struct refit_error *err)
{
    memset(report, 0, sizeof *report);
    pthread_mutex_lock(&tls->lock);
    look_again(tls);
    SSL *ssl = SSL_new(tls->context);
    pthread_mutex_unlock(&tls->lock);
    if (!ssl || (host && !expect_host(ssl, host))) {
        SSL_free(ssl);
        ERR_clear_error();
        return refit_fail(err, REFIT_NO_MEMORY, "TLS: can't make a connection to %s", host ? host : "a peer");
    }
    if (tls->config.end == REFIT_TLS_SERVER)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    refit_tls_report_attach(ssl, report);
    *out = ssl;
    return REFIT_OK;
}
