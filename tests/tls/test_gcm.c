/* SPDX-License-Identifier: Apache-2.0
 *
 * AES-GCM by libIPSec_MB against OpenSSL's: any length, in any parts, out of place. Skipped where the library is not
 * used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <openssl/evp.h>
#include <string.h>

#include "tls/gcm.h"

#define LONGEST 16385 /* a record with its type */
#define ROUNDS 400

static uint8_t plain[LONGEST], expected[LONGEST], out[LONGEST];
static const uint8_t aad[5] = {23, 3, 3, 64, 17};

static void seal_by_openssl(const uint8_t *key, size_t key_bytes, const uint8_t *nonce, size_t len, uint8_t *tag)
{
    int done;
    const EVP_CIPHER *kind = key_bytes == 32 ? EVP_aes_256_gcm() : EVP_aes_128_gcm();
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_EncryptInit_ex(cipher, kind, NULL, key, nonce), 1);
    assert_int_equal(EVP_EncryptUpdate(cipher, NULL, &done, aad, sizeof aad), 1);
    assert_int_equal(EVP_EncryptUpdate(cipher, expected, &done, plain, (int)len), 1);
    assert_int_equal(EVP_EncryptFinal_ex(cipher, expected + len, &done), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, 16, tag), 1);
    EVP_CIPHER_CTX_free(cipher);
}

static void pass(struct refit_tls_gcm *gcm, const uint8_t *nonce, const uint8_t *in, size_t len, unsigned *seed,
                 uint8_t *tag)
{
    refit_tls_gcm_begin(gcm, nonce, aad, sizeof aad);
    for (size_t at = 0, part; at < len; at += part) {
        part = 1 + (size_t)rand_r(seed) % (rand_r(seed) % 2 ? 40 : LONGEST);
        part = part < len - at ? part : len - at;
        refit_tls_gcm_add(gcm, in + at, part, out + at);
    }
    refit_tls_gcm_end(gcm, tag);
}

static void both_directions_are_openssls(size_t key_bytes)
{
    unsigned seed = (unsigned)key_bytes;
    uint8_t key[32], nonce[12], tag[3][16];
    struct refit_tls_gcm *seals = refit_tls_gcm_open(key_bytes, true), *opens = refit_tls_gcm_open(key_bytes, false);
    assert_true(seals && opens);
    for (int i = 0; i < ROUNDS; i++) {
        size_t len = i < 200 ? (size_t)i + 1 : 1 + (size_t)rand_r(&seed) % LONGEST;
        for (size_t k = 0; k < sizeof key; k++)
            key[k] = (uint8_t)rand_r(&seed);
        for (size_t k = 0; k < sizeof nonce; k++)
            nonce[k] = (uint8_t)rand_r(&seed);
        for (size_t k = 0; k < len; k++)
            plain[k] = (uint8_t)rand_r(&seed);
        seal_by_openssl(key, key_bytes, nonce, len, tag[0]);
        refit_tls_gcm_key(seals, key);
        refit_tls_gcm_key(opens, key);
        pass(seals, nonce, plain, len, &seed, tag[1]);
        assert_memory_equal(out, expected, len);
        pass(opens, nonce, expected, len, &seed, tag[2]);
        assert_memory_equal(out, plain, len);
        assert_memory_equal(tag[0], tag[1], 16);
        assert_memory_equal(tag[0], tag[2], 16);
    }
    refit_tls_gcm_free(seals);
    refit_tls_gcm_free(opens);
}

static void the_library_does_what_openssl_does(void **state)
{
    if (!refit_tls_gcm_library()) {
        assert_null(refit_tls_gcm_open(16, true));
        print_message("skipped: libIPSec_MB is not used here (OpenSSL 3.1 or newer, no VAES, or not installed)\n");
        skip();
    }
    both_directions_are_openssls(16);
    both_directions_are_openssls(32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_library_does_what_openssl_does)};
    return cmocka_run_group_tests_name("tls/gcm", tests, NULL, NULL);
}
