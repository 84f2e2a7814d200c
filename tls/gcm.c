/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/gcm.h"

#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG 16u
#define TRIED ((size_t)2100) /* longest message that is compared: more than the library's widest loop takes */
#define STEP 61u
/* OpenSSL uses vector AES from here on. */
#define OPENSSL_WITH_VAES 0x30100000ul

struct refit_tls_gcm {
    struct gcm_key_data key; /* first: aligned */
    struct gcm_context_data context;
    bool seals, long_key;
};

static struct {
    pthread_once_t once;
    IMB_MGR *manager; /* its functions; it keeps no keys. NULL: not to be used */
    char name[64];
} library = {.once = PTHREAD_ONCE_INIT};

/* --- what it does ------------------------------------------------------------------------------------------------ */

static struct refit_tls_gcm *make(size_t key_bytes, bool seals)
{
    struct refit_tls_gcm *gcm = aligned_alloc(_Alignof(struct refit_tls_gcm), sizeof *gcm);
    if (!gcm)
        return NULL;
    memset(gcm, 0, sizeof *gcm);
    gcm->seals = seals;
    gcm->long_key = key_bytes == 32;
    return gcm;
}

void refit_tls_gcm_free(struct refit_tls_gcm *gcm)
{
    if (gcm)
        OPENSSL_cleanse(gcm, sizeof *gcm);
    free(gcm);
}

void refit_tls_gcm_key(struct refit_tls_gcm *gcm, const uint8_t *key)
{
    if (gcm->long_key)
        IMB_AES256_GCM_PRE(library.manager, key, &gcm->key);
    else
        IMB_AES128_GCM_PRE(library.manager, key, &gcm->key);
}

void refit_tls_gcm_begin(struct refit_tls_gcm *gcm, const uint8_t nonce[static 12], const uint8_t *aad, size_t aad_len)
{
    if (gcm->long_key)
        IMB_AES256_GCM_INIT(library.manager, &gcm->key, &gcm->context, nonce, aad, aad_len);
    else
        IMB_AES128_GCM_INIT(library.manager, &gcm->key, &gcm->context, nonce, aad, aad_len);
}

void refit_tls_gcm_add(struct refit_tls_gcm *gcm, const uint8_t *in, size_t len, uint8_t *out)
{
    if (gcm->seals && gcm->long_key)
        IMB_AES256_GCM_ENC_UPDATE(library.manager, &gcm->key, &gcm->context, out, in, len);
    else if (gcm->seals)
        IMB_AES128_GCM_ENC_UPDATE(library.manager, &gcm->key, &gcm->context, out, in, len);
    else if (gcm->long_key)
        IMB_AES256_GCM_DEC_UPDATE(library.manager, &gcm->key, &gcm->context, out, in, len);
    else
        IMB_AES128_GCM_DEC_UPDATE(library.manager, &gcm->key, &gcm->context, out, in, len);
}

void refit_tls_gcm_end(struct refit_tls_gcm *gcm, uint8_t tag[static 16])
{
    if (gcm->seals && gcm->long_key)
        IMB_AES256_GCM_ENC_FINALIZE(library.manager, &gcm->key, &gcm->context, tag, TAG);
    else if (gcm->seals)
        IMB_AES128_GCM_ENC_FINALIZE(library.manager, &gcm->key, &gcm->context, tag, TAG);
    else if (gcm->long_key)
        IMB_AES256_GCM_DEC_FINALIZE(library.manager, &gcm->key, &gcm->context, tag, TAG);
    else
        IMB_AES128_GCM_DEC_FINALIZE(library.manager, &gcm->key, &gcm->context, tag, TAG);
}

/* --- whether it does that ---------------------------------------------------------------------------------------- */

struct sample {
    uint8_t key[32], nonce[12], aad[5], plain[TRIED];
};

static bool by_openssl(const struct sample *s, size_t key_bytes, size_t len, uint8_t *out, uint8_t tag[static TAG])
{
    int done;
    EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
    bool good = cipher &&
                EVP_EncryptInit_ex(cipher, key_bytes == 32 ? EVP_aes_256_gcm() : EVP_aes_128_gcm(), NULL, s->key,
                                   s->nonce) == 1 &&
                EVP_EncryptUpdate(cipher, NULL, &done, s->aad, sizeof s->aad) == 1 &&
                EVP_EncryptUpdate(cipher, out, &done, s->plain, (int)len) == 1 &&
                EVP_EncryptFinal_ex(cipher, out + len, &done) == 1 &&
                EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, TAG, tag) == 1;
    EVP_CIPHER_CTX_free(cipher);
    return good;
}

/* In two parts, as records are. */
static bool by_library(const struct sample *s, size_t key_bytes, bool seals, const uint8_t *in, size_t len,
                       uint8_t *out, uint8_t tag[static TAG])
{
    struct refit_tls_gcm *gcm = make(key_bytes, seals);
    size_t first = len / 3;
    if (!gcm)
        return false;
    refit_tls_gcm_key(gcm, s->key);
    refit_tls_gcm_begin(gcm, s->nonce, s->aad, sizeof s->aad);
    if (first > 0)
        refit_tls_gcm_add(gcm, in, first, out);
    refit_tls_gcm_add(gcm, in + first, len - first, out + first);
    refit_tls_gcm_end(gcm, tag);
    refit_tls_gcm_free(gcm);
    return true;
}

static bool agrees(const struct sample *s, size_t key_bytes, size_t len)
{
    uint8_t expected[TRIED + TAG], sealed[TRIED], opened[TRIED], tags[3][TAG];
    return by_openssl(s, key_bytes, len, expected, tags[0]) &&
           by_library(s, key_bytes, true, s->plain, len, sealed, tags[1]) &&
           by_library(s, key_bytes, false, expected, len, opened, tags[2]) && memcmp(sealed, expected, len) == 0 &&
           memcmp(opened, s->plain, len) == 0 && memcmp(tags[0], tags[1], TAG) == 0 &&
           memcmp(tags[0], tags[2], TAG) == 0;
}

static bool agrees_with_openssl(void)
{
    struct sample sample;
    uint8_t *bytes = (uint8_t *)&sample;
    for (size_t i = 0; i < sizeof sample; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 11);
    for (size_t len = 1; len <= TRIED; len += STEP)
        if (!agrees(&sample, 16, len) || !agrees(&sample, 32, len))
            return false;
    return true;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static bool has_vaes(const IMB_MGR *manager)
{
    const uint64_t needed = IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
    return manager->used_arch == IMB_ARCH_AVX512 && (manager->features & needed) == needed;
}

static bool find(void *handle, const char *name, void *function)
{
    const void *found = dlsym(handle, name);
    memcpy(function, &found, sizeof found); /* C has no cast for it */
    return found != NULL;
}

/* The manager's layout is that of the header for the same minor version only. */
static IMB_MGR *open_manager(void)
{
    unsigned (*version)(void);
    const char *(*text)(void);
    IMB_MGR *(*allocate)(uint64_t);
    void (*begin)(IMB_MGR *, IMB_ARCH *);
    IMB_MGR *manager = NULL;
    IMB_ARCH arch;
    char name[32];
    snprintf(name, sizeof name, "libIPSec_MB.so.%d", IMB_VERSION_NUM >> 16);
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return NULL;
    if (find(handle, "imb_get_version", &version) && find(handle, "imb_get_version_str", &text) &&
        find(handle, "alloc_mb_mgr", &allocate) && find(handle, "init_mb_mgr_auto", &begin) &&
        version() >> 8 == IMB_VERSION_NUM >> 8)
        manager = allocate(0);
    if (manager) {
        begin(manager, &arch);
        snprintf(library.name, sizeof library.name, "libIPSec_MB %s", text());
    }
    return manager;
}

static void open_library(void)
{
    if (OpenSSL_version_num() >= OPENSSL_WITH_VAES)
        return;
    library.manager = open_manager();
    if (library.manager && !(has_vaes(library.manager) && agrees_with_openssl()))
        library.manager = NULL; /* once, and small: left as it is */
}

const char *refit_tls_gcm_library(void)
{
    pthread_once(&library.once, open_library);
    return library.manager ? library.name : NULL;
}

struct refit_tls_gcm *refit_tls_gcm_open(size_t key_bytes, bool seals)
{
    return refit_tls_gcm_library() ? make(key_bytes, seals) : NULL;
}
