/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/trust.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"

static enum refit_status take_secret(struct refit_trust *trust, const char *text, size_t len, const char *from,
                                     struct refit_error *err)
{
    while (len > 0 && strchr(" \t\r\n", text[len - 1]))
        len--;
    if (len < REFIT_SECRET_MIN || len > REFIT_SECRET_MAX)
        return refit_fail(err, REFIT_INVALID,
                          "the job's secret in %s: expected %d to %d bytes, found %zu; such as the output "
                          "of `openssl rand -hex 32`", from, REFIT_SECRET_MIN, REFIT_SECRET_MAX, len);
    memcpy(trust->secret, text, len);
    trust->secret_len = len;
    return REFIT_OK;
}

static enum refit_status read_file(struct refit_trust *trust, const char *path, struct refit_error *err)
{
    char *text;
    size_t len;
    enum refit_status status = refit_io_read_file(path, REFIT_SECRET_MAX + 16, &text, &len, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "the job's secret");
    status = take_secret(trust, text, len, path, err);
    explicit_bzero(text, len);
    free(text);
    return status;
}

enum refit_status refit_trust_read_secret(struct refit_trust *trust, const char *path, struct refit_error *err)
{
    const char *text = path ? NULL : getenv("REFIT_JOB_SECRET");
    if (!path)
        path = getenv("REFIT_JOB_SECRET_FILE");
    if (path && *path)
        return read_file(trust, path, err);
    return text && *text ? take_secret(trust, text, strlen(text), "REFIT_JOB_SECRET", err) : REFIT_OK;
}

void refit_trust_wipe(struct refit_trust *trust)
{
    OPENSSL_cleanse(trust->secret, sizeof trust->secret);
    trust->secret_len = 0;
}

static void print_hex(const uint8_t *bytes, char hex[static REFIT_NONCE_HEX_MAX])
{
    for (size_t i = 0; i < REFIT_NONCE_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

void refit_nonce_make(char hex[static REFIT_NONCE_HEX_MAX])
{
    uint8_t bytes[REFIT_NONCE_BYTES];
    refit_io_random(bytes, sizeof bytes);
    print_hex(bytes, hex);
}

bool refit_nonce_is_one(const char *hex)
{
    size_t len = strlen(hex);
    return len == REFIT_NONCE_HEX_MAX - 1 && strspn(hex, "0123456789abcdef") == len;
}

void refit_proof_make(const struct refit_trust *trust, const struct refit_proof_of *of,
                      char hex[static REFIT_NONCE_HEX_MAX])
{
    char text[2 * REFIT_NONCE_HEX_MAX + 64];
    uint8_t mac[EVP_MAX_MD_SIZE] = {0};
    unsigned len = 0;
    int used = snprintf(text, sizeof text, "refit-ranks/1 %s|%u|%u|%.64s|%.64s", of->lead ? "lead" : "rank", of->rank,
                        of->ranks,
                        of->rank_nonce, of->lead_nonce);
    /* Of SHA-256 it can't fail but for memory, and then it must not be a proof of anything. */
    if (!HMAC(EVP_sha256(), trust->secret, (int)trust->secret_len, (const uint8_t *)text, (size_t)used, mac, &len) ||
        len != REFIT_NONCE_BYTES)
        refit_io_random(mac, REFIT_NONCE_BYTES);
    print_hex(mac, hex);
}

bool refit_proof_holds(const struct refit_trust *trust, const struct refit_proof_of *of, const char *hex)
{
    char expected[REFIT_NONCE_HEX_MAX];
    refit_proof_make(trust, of, expected);
    bool comparable = trust->secret_len > 0 && strlen(hex) == sizeof expected - 1;
    return comparable && CRYPTO_memcmp(expected, hex, sizeof expected - 1) == 0;
}
