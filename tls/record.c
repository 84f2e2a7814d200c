/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/record.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <string.h>

#include "tls/gcm.h"

struct refit_tls_suite {
    uint16_t number;
    const EVP_CIPHER *(*cipher)(void);
    const char *digest;
    size_t key, secret; /* bytes */
    bool gcm;
};

static const struct refit_tls_suite suites[] = {
    {.number = 0x1301, .cipher = EVP_aes_128_gcm, .digest = "SHA256", .key = 16, .secret = 32, .gcm = true},
    {.number = 0x1302, .cipher = EVP_aes_256_gcm, .digest = "SHA384", .key = 32, .secret = 48, .gcm = true},
    {.number = 0x1303, .cipher = EVP_chacha20_poly1305, .digest = "SHA256", .key = 32, .secret = 32},
};

const struct refit_tls_fault refit_tls_broken = {ERR_R_INTERNAL_ERROR, SSL_AD_INTERNAL_ERROR};
static const struct refit_tls_fault not_a_record = {SSL_R_BAD_RECORD_TYPE, SSL_AD_UNEXPECTED_MESSAGE};
static const struct refit_tls_fault too_long = {SSL_R_ENCRYPTED_LENGTH_TOO_LONG, SSL_AD_RECORD_OVERFLOW};
static const struct refit_tls_fault too_short = {SSL_R_LENGTH_TOO_SHORT, SSL_AD_DECODE_ERROR};
static const struct refit_tls_fault changed = {SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, SSL_AD_BAD_RECORD_MAC};
static const struct refit_tls_fault only_padding = {SSL_R_BAD_RECORD_TYPE, SSL_AD_UNEXPECTED_MESSAGE};

const struct refit_tls_suite *refit_tls_suite(uint16_t number)
{
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (suites[i].number == number)
            return &suites[i];
    return NULL;
}

size_t refit_tls_suite_secret(const struct refit_tls_suite *suite)
{
    return suite->secret;
}

/* --- keys -------------------------------------------------------------------------------------------------------- */

/* HKDF-Expand-Label(secret, label, "", len), RFC 8446, 7.1. */
static bool expand(const struct refit_tls_suite *suite, const uint8_t *secret, const char *label, uint8_t *out,
                   size_t len)
{
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    /* OSSL_PARAM takes no const; nothing is written. */
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)(uintptr_t)suite->digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)secret, suite->secret),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, (void *)(uintptr_t)"tls13 ", 6),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, (void *)(uintptr_t)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, OSSL_KDF_NAME_TLS1_3_KDF, NULL);
    EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    bool good = context && EVP_KDF_derive(context, out, len, params) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return good;
}

static bool use_key(struct refit_tls_keys *keys, const uint8_t *key)
{
    if (!keys->gcm)
        return EVP_CipherInit_ex(keys->cipher, NULL, NULL, key, NULL, -1) == 1;
    refit_tls_gcm_key(keys->gcm, key);
    return true;
}

/* Key and iv of the secret (RFC 8446, 7.3). */
static bool use_secret(struct refit_tls_keys *keys)
{
    uint8_t key[EVP_MAX_KEY_LENGTH];
    bool good = expand(keys->suite, keys->secret, "key", key, keys->suite->key) &&
                expand(keys->suite, keys->secret, "iv", keys->iv, sizeof keys->iv) && use_key(keys, key);
    OPENSSL_cleanse(key, sizeof key);
    keys->sequence = 0;
    return good;
}

bool refit_tls_keys_open(struct refit_tls_keys *keys, const struct refit_tls_suite *suite, const uint8_t *secret,
                         bool seals)
{
    *keys = (struct refit_tls_keys){.suite = suite};
    memcpy(keys->secret, secret, suite->secret);
    if (suite->gcm)
        keys->gcm = refit_tls_gcm_open(suite->key, seals);
    if (!keys->gcm)
        keys->cipher = EVP_CIPHER_CTX_new();
    bool ready = keys->gcm;
    if (keys->cipher)
        ready = EVP_CipherInit_ex(keys->cipher, suite->cipher(), NULL, NULL, NULL, seals) == 1;
    if (ready && use_secret(keys))
        return true;
    refit_tls_keys_wipe(keys);
    return false;
}

bool refit_tls_keys_renew(struct refit_tls_keys *keys)
{
    uint8_t next[REFIT_TLS_SECRET_MAX];
    bool good = expand(keys->suite, keys->secret, "traffic upd", next, keys->suite->secret);
    if (good)
        memcpy(keys->secret, next, keys->suite->secret);
    OPENSSL_cleanse(next, sizeof next);
    return good && use_secret(keys);
}

void refit_tls_keys_wipe(struct refit_tls_keys *keys)
{
    EVP_CIPHER_CTX_free(keys->cipher);
    refit_tls_gcm_free(keys->gcm);
    OPENSSL_cleanse(keys, sizeof *keys);
}

/* --- records ----------------------------------------------------------------------------------------------------- */

/* The header is what is authenticated beside the content. */
static bool begin(struct refit_tls_keys *keys, const uint8_t header[static REFIT_TLS_HEADER])
{
    uint8_t nonce[REFIT_TLS_NONCE];
    int len;
    memcpy(nonce, keys->iv, sizeof nonce);
    for (unsigned i = 0; i < 8; i++)
        nonce[sizeof nonce - 1 - i] ^= (uint8_t)(keys->sequence >> 8 * i);
    keys->sequence++;
    if (keys->gcm) {
        refit_tls_gcm_begin(keys->gcm, nonce, header, REFIT_TLS_HEADER);
        return true;
    }
    return EVP_CipherInit_ex(keys->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(keys->cipher, NULL, &len, header, REFIT_TLS_HEADER) == 1;
}

/* OpenSSL takes an input of no bytes for the end of one. */
static bool add(struct refit_tls_keys *keys, const uint8_t *in, size_t len, uint8_t *out)
{
    int written = 0;
    if (len == 0)
        return true;
    if (!keys->gcm)
        return EVP_CipherUpdate(keys->cipher, out, &written, in, (int)len) == 1 && (size_t)written == len;
    refit_tls_gcm_add(keys->gcm, in, len, out);
    return true;
}

static bool make_tag(struct refit_tls_keys *keys, uint8_t *tag)
{
    int none;
    if (!keys->gcm)
        return EVP_CipherFinal_ex(keys->cipher, tag, &none) == 1 &&
               EVP_CIPHER_CTX_ctrl(keys->cipher, EVP_CTRL_AEAD_GET_TAG, REFIT_TLS_TAG, tag) == 1;
    refit_tls_gcm_end(keys->gcm, tag);
    return true;
}

static const struct refit_tls_fault *check_tag(struct refit_tls_keys *keys, const uint8_t *tag)
{
    uint8_t computed[REFIT_TLS_TAG];
    int none;
    if (keys->gcm) {
        refit_tls_gcm_end(keys->gcm, computed);
        return CRYPTO_memcmp(computed, tag, sizeof computed) == 0 ? NULL : &changed;
    }
    memcpy(computed, tag, sizeof computed); /* it takes no const */
    if (EVP_CIPHER_CTX_ctrl(keys->cipher, EVP_CTRL_AEAD_SET_TAG, sizeof computed, computed) != 1)
        return &refit_tls_broken;
    return EVP_CipherFinal_ex(keys->cipher, computed, &none) == 1 ? NULL : &changed;
}

static size_t content_bytes(const struct refit_tls_pieces *pieces)
{
    size_t len = 0;
    for (size_t i = 0; i < pieces->count && len < REFIT_TLS_CONTENT_MAX; i++) {
        size_t piece = pieces->iov[i].iov_len - (i == 0 ? pieces->skip : 0), room = REFIT_TLS_CONTENT_MAX - len;
        len += piece < room ? piece : room;
    }
    return len;
}

static bool add_pieces(struct refit_tls_keys *keys, struct refit_tls_pieces *pieces, size_t len, uint8_t *out)
{
    while (len > 0) {
        size_t piece = pieces->iov->iov_len - pieces->skip, take = piece < len ? piece : len;
        if (!add(keys, (const uint8_t *)pieces->iov->iov_base + pieces->skip, take, out))
            return false;
        out += take;
        len -= take;
        pieces->skip += take;
        if (take == piece) {
            pieces->iov++;
            pieces->count--;
            pieces->skip = 0;
        }
    }
    return true;
}

size_t refit_tls_seal(struct refit_tls_keys *keys, enum refit_tls_content type, struct refit_tls_pieces *pieces,
                      uint8_t *out, size_t *content)
{
    size_t len = content_bytes(pieces), sealed = len + 1 + REFIT_TLS_TAG;
    const uint8_t header[REFIT_TLS_HEADER] = {REFIT_TLS_APPLICATION, 3, 3, (uint8_t)(sealed >> 8), (uint8_t)sealed};
    const uint8_t inner = (uint8_t)type;
    uint8_t *body = out + sizeof header, *tag = body + len + 1;
    memcpy(out, header, sizeof header);
    if (!begin(keys, header) || !add_pieces(keys, pieces, len, body) || !add(keys, &inner, 1, body + len) ||
        !make_tag(keys, tag))
        return 0;
    *content = len;
    return sizeof header + sealed;
}

const struct refit_tls_fault *refit_tls_measure(const uint8_t *bytes, size_t have, size_t *len)
{
    *len = 0;
    if (have > 0 && bytes[0] != REFIT_TLS_APPLICATION)
        return &not_a_record;
    if (have < REFIT_TLS_HEADER)
        return NULL;
    size_t sealed = (size_t)bytes[3] << 8 | bytes[4];
    /* A cipher that adds more than a tag would be allowed some bytes more; here they could only be too much content. */
    if (sealed > REFIT_TLS_CONTENT_MAX + 1 + REFIT_TLS_TAG)
        return &too_long;
    if (sealed < 1 + REFIT_TLS_TAG)
        return &too_short;
    *len = REFIT_TLS_HEADER + sealed;
    return NULL;
}

/* Its last byte is the content type, or padding: kept out of `out`, which has no room for it. */
const struct refit_tls_fault *refit_tls_unseal(struct refit_tls_keys *keys, const uint8_t *record, size_t len,
                                               uint8_t *out, size_t *content, uint8_t *type)
{
    size_t most = len - REFIT_TLS_OVERHEAD;
    const uint8_t *body = record + REFIT_TLS_HEADER;
    uint8_t last;
    if (!begin(keys, record) || !add(keys, body, most, out) || !add(keys, body + most, 1, &last))
        return &refit_tls_broken;
    const struct refit_tls_fault *fault = check_tag(keys, body + most + 1);
    if (fault)
        return fault;
    while (last == 0 && most > 0)
        last = out[--most];
    *content = most;
    *type = last;
    return last == 0 ? &only_padding : NULL;
}
