/* SPDX-License-Identifier: Apache-2.0
 *
 * Who the peer is: the names in its certificate.
 */
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "tls/load.h"

/* A name that two readers could read differently is no name. */
static void add_text(struct refit_tls_peer *out, const char *kind, const unsigned char *text, int len)
{
    char *at = out->names[out->count];
    if (out->count == REFIT_TLS_NAMES_MAX || len <= 0 || memchr(text, '\0', (size_t)len))
        return;
    if (snprintf(at, REFIT_TLS_NAME_MAX, "%s:%.*s", kind, len, (const char *)text) >= REFIT_TLS_NAME_MAX)
        return;
    if (at[refit_text_first_control(at)] == '\0')
        out->count++;
}

static void add_address(struct refit_tls_peer *out, const ASN1_OCTET_STRING *bytes)
{
    char text[INET6_ADDRSTRLEN];
    int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
    if (ASN1_STRING_length(bytes) != 4 && ASN1_STRING_length(bytes) != 16)
        return;
    if (inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof text))
        add_text(out, "ip", (const unsigned char *)text, (int)strlen(text));
}

static void add_alternatives(struct refit_tls_peer *out, const GENERAL_NAMES *names, int type, const char *kind)
{
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != type)
            continue;
        if (type == GEN_IPADD)
            add_address(out, name->d.iPAddress);
        else
            add_text(out, kind, ASN1_STRING_get0_data(name->d.ia5), ASN1_STRING_length(name->d.ia5));
    }
}

static void add_common_name(struct refit_tls_peer *out, X509_NAME *subject)
{
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    unsigned char *text = NULL;
    if (at < 0)
        return;
    int len = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    if (len > 0)
        add_text(out, "cn", text, len);
    OPENSSL_free(text);
}

void refit_tls_peer_read(SSL *ssl, struct refit_tls_peer *out)
{
    memset(out, 0, sizeof *out);
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    if (!certificate)
        return;
    if ((SSL_get_verify_mode(ssl) & SSL_VERIFY_PEER) && SSL_get_verify_result(ssl) == X509_V_OK) {
        GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
        out->verified = true;
        add_alternatives(out, names, GEN_URI, "uri");
        add_alternatives(out, names, GEN_DNS, "dns");
        add_alternatives(out, names, GEN_IPADD, "ip");
        add_alternatives(out, names, GEN_EMAIL, "email");
        add_common_name(out, X509_get_subject_name(certificate));
        GENERAL_NAMES_free(names);
    }
    X509_free(certificate);
}
