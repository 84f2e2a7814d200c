/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left of libIPSec_MB where its header was not at hand when Refit was built.
 */
#include "tls/gcm.h"

const char *refit_tls_gcm_library(void)
{
    return NULL;
}

struct refit_tls_gcm *refit_tls_gcm_open(size_t key_bytes, bool seals)
{
    (void)key_bytes;
    (void)seals;
    return NULL;
}

void refit_tls_gcm_free(struct refit_tls_gcm *gcm)
{
    (void)gcm;
}

/* Nobody has one to call these with. */

void refit_tls_gcm_key(struct refit_tls_gcm *gcm, const uint8_t *key)
{
    (void)gcm;
    (void)key;
}

void refit_tls_gcm_begin(struct refit_tls_gcm *gcm, const uint8_t nonce[static 12], const uint8_t *aad, size_t aad_len)
{
    (void)gcm;
    (void)nonce;
    (void)aad;
    (void)aad_len;
}

void refit_tls_gcm_add(struct refit_tls_gcm *gcm, const uint8_t *in, size_t len, uint8_t *out)
{
    (void)gcm;
    (void)in;
    (void)len;
    (void)out;
}

void refit_tls_gcm_end(struct refit_tls_gcm *gcm, uint8_t tag[static 16])
{
    (void)gcm;
    (void)tag;
}
