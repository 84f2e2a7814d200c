/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tls/pki.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>

static bool complain(const char *name)
{
    fprintf(stderr, "pki: %s: ", name);
    ERR_print_errors_fp(stderr);
    return false;
}

static FILE *open_file(const char *directory, const char *name, const char *suffix, const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", directory, name, suffix);
    return fopen(path, mode);
}

static bool write_files(const char *directory, const char *name, X509 *certificate, EVP_PKEY *key)
{
    FILE *chain = open_file(directory, name, "pem", "we"), *secret = open_file(directory, name, "key", "we");
    bool good = chain && secret && PEM_write_X509(chain, certificate) == 1 &&
                PEM_write_PrivateKey(secret, key, NULL, NULL, 0, NULL, NULL) == 1;
    if (chain)
        good = fclose(chain) == 0 && good;
    if (secret)
        good = fclose(secret) == 0 && good;
    return good;
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool good = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good;
}

static X509 *blank(const char *name, EVP_PKEY *key, int serial, long from_s, long to_s)
{
    X509 *certificate = X509_new();
    if (!certificate)
        return NULL;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), to_s);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0);
    return certificate;
}

bool pki_make_ca(const char *directory, const char *name)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = key ? blank(name, key, 1, -3600, 86400) : NULL;
    bool good = certificate && X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
                add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE") &&
                add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
                X509_sign(certificate, key, EVP_sha256()) > 0 && write_files(directory, name, certificate, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return good || complain(name);
}

static bool load_ca(const char *directory, const char *name, X509 **certificate, EVP_PKEY **key)
{
    FILE *chain = open_file(directory, name, "pem", "re"), *secret = open_file(directory, name, "key", "re");
    *certificate = chain ? PEM_read_X509(chain, NULL, NULL, NULL) : NULL;
    *key = secret ? PEM_read_PrivateKey(secret, NULL, NULL, NULL) : NULL;
    if (chain)
        fclose(chain);
    if (secret)
        fclose(secret);
    return *certificate && *key;
}

bool pki_make_leaf(const char *directory, const struct pki_leaf *leaf)
{
    X509 *ca, *certificate = NULL;
    EVP_PKEY *ca_key, *key = leaf->rsa ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256");
    bool day = leaf->from_s == 0 && leaf->to_s == 0;
    bool good = load_ca(directory, leaf->ca, &ca, &ca_key) && key != NULL;
    if (good)
        certificate = blank(leaf->name, key, leaf->serial + 2, day ? -3600 : leaf->from_s, day ? 86400 : leaf->to_s);
    good = good && certificate && X509_set_issuer_name(certificate, X509_get_subject_name(ca)) == 1 &&
           (!leaf->san || add_extension(certificate, ca, NID_subject_alt_name, leaf->san)) &&
           add_extension(certificate, ca, NID_ext_key_usage, "serverAuth,clientAuth") &&
           X509_sign(certificate, ca_key, EVP_sha256()) > 0 && write_files(directory, leaf->name, certificate, key);
    X509_free(certificate);
    X509_free(ca);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
    return good || complain(leaf->name);
}
