/* SPDX-License-Identifier: Apache-2.0
 *
 * What went wrong on a connection, in words that say what to do.
 */
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tls/load.h"

/* Where a connection keeps its report. */
static int report_index = -1;
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void make_index(void)
{
    report_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

static int on_verify(int good, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct refit_tls_report *report = SSL_get_ex_data(ssl, report_index);
    X509 *certificate = X509_STORE_CTX_get_current_cert(store);
    if (good || !report || report->verify)
        return good;
    report->verify = X509_STORE_CTX_get_error(store);
    if (certificate)
        refit_tls_print_name(X509_get_subject_name(certificate), report->subject, sizeof report->subject);
    return 0;
}

/* Since OpenSSL 3.2 the last word on a bad record is a general one, and the cause is the first. */
static unsigned long cause(void)
{
    unsigned long last = ERR_peek_last_error();
#ifdef SSL_R_RECORD_LAYER_FAILURE
    if (ERR_GET_LIB(last) == ERR_LIB_SSL && ERR_GET_REASON(last) == SSL_R_RECORD_LAYER_FAILURE)
        return ERR_peek_error();
#endif
    return last;
}

/* A connection that was cut says nothing about TLS. */
void refit_tls_report_take(struct refit_tls_report *report)
{
    unsigned long code = cause();
    bool cut = ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    if (!report->reason && !cut)
        report->reason = code;
}

static void on_info(const SSL *ssl, int where, int value)
{
    struct refit_tls_report *report = SSL_get_ex_data(ssl, report_index);
    bool failed = (where & SSL_CB_EXIT && value <= 0) || (where & SSL_CB_ALERT && where & SSL_CB_WRITE);
    if (!report)
        return;
    /* A handshake begins also on a connection that never comes about. */
    report->spoke |= where & SSL_CB_EXIT && SSL_want_read(ssl);
    report->done |= (where & SSL_CB_HANDSHAKE_DONE) != 0;
    if (where & SSL_CB_ALERT && where & SSL_CB_READ && value >> 8 == SSL3_AL_FATAL)
        report->alert = value & 0xff;
    if (failed)
        refit_tls_report_take(report);
}

void refit_tls_report_attach(SSL *ssl, struct refit_tls_report *report)
{
    pthread_once(&index_once, make_index);
    SSL_set_ex_data(ssl, report_index, report);
    SSL_set_verify(ssl, SSL_get_verify_mode(ssl), on_verify);
    SSL_set_info_callback(ssl, on_info);
}

static const char *advice_for_verify(long code)
{
    switch (code) {
    case X509_V_ERR_CERT_HAS_EXPIRED: return "renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID: return "check the clocks of both hosts";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: return "its subject alternative names must hold the host that is dialled";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: return "no CA in the bundle here signed it: check the CA file";
    case X509_V_ERR_INVALID_PURPOSE: return "its extended key usage does not allow this";
    default: return NULL;
    }
}

static const char *advice_for_alert(int alert)
{
    switch (alert) {
    case SSL3_AD_NO_CERTIFICATE:
    case TLS13_AD_CERTIFICATE_REQUIRED: return "it demands a certificate and got none: name one with its key";
    case SSL3_AD_CERTIFICATE_EXPIRED: return "our certificate has expired: renew it";
    case TLS1_AD_UNKNOWN_CA: return "its CA bundle does not know who signed our certificate";
    case SSL3_AD_BAD_CERTIFICATE:
    case SSL3_AD_UNSUPPORTED_CERTIFICATE:
    case SSL3_AD_CERTIFICATE_UNKNOWN: return "it does not take our certificate";
    case TLS1_AD_PROTOCOL_VERSION: return "it speaks no version of TLS that we do (1.2 and 1.3; data 1.3)";
    case SSL3_AD_HANDSHAKE_FAILURE: return "it has no cipher or signature in common with us";
    default: return NULL;
    }
}

static const char *advice_for_reason(unsigned long code)
{
    if (ERR_GET_LIB(code) != ERR_LIB_SSL)
        return NULL;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_HTTP_REQUEST: return "plain HTTP came in on a TLS port: use https://";
    case SSL_R_WRONG_VERSION_NUMBER: return "the peer does not speak TLS: is it an http:// port?";
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: return "a client certificate is demanded here";
    case SSL_R_UNSUPPORTED_PROTOCOL: return "a version of TLS that is too old: 1.2 and 1.3 are spoken (data: 1.3)";
    case SSL_R_NO_SHARED_CIPHER: return "no cipher in common: AES-GCM or ChaCha20-Poly1305 with ECDHE is needed";
    default: return NULL;
    }
}

void refit_tls_report_text(const struct refit_tls_report *report, char *out, size_t size)
{
    const char *advice = NULL;
    char why[160] = "";
    if (report->verify) {
        advice = advice_for_verify(report->verify);
        snprintf(out, size, "the certificate of \"%s\" does not verify: %s%s%s", report->subject,
                 X509_verify_cert_error_string(report->verify), advice ? "; " : "", advice ? advice : "");
    } else if (report->alert) {
        advice = advice_for_alert(report->alert);
        snprintf(out, size, "the peer refused with the alert \"%s\"%s%s", SSL_alert_desc_string_long(report->alert),
                 advice ? "; " : "", advice ? advice : "");
    } else if (report->reason) {
        advice = advice_for_reason(report->reason);
        refit_tls_print_error(report->reason, why, sizeof why);
        snprintf(out, size, "%s%s%s", why, advice ? ": " : "", advice ? advice : "");
    } else if (size) {
        out[0] = '\0';
    }
}
