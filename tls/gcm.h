/* SPDX-License-Identifier: Apache-2.0
 *
 * AES-GCM by Intel's libIPSec_MB, for where OpenSSL has none that uses the CPU's vector AES: that is OpenSSL 3.0, on a
 * CPU with VAES, where the library is installed. It is opened at run time and compared with OpenSSL before it is used.
 * One direction under one key, as EVP_CipherInit, Update and Final. (Internal to tls/.)
 */
#ifndef REFIT_TLS_GCM_H
#define REFIT_TLS_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Its name and version; NULL: not there, of no use, or not what it should be. */
const char *refit_tls_gcm_library(void);

struct refit_tls_gcm;
/* Keys of `key_bytes`, 16 or 32. NULL: OpenSSL's is to be used, or no memory. */
struct refit_tls_gcm *refit_tls_gcm_open(size_t key_bytes, bool seals);
void refit_tls_gcm_free(struct refit_tls_gcm *gcm); /* wipes it; NULL is fine */

void refit_tls_gcm_key(struct refit_tls_gcm *gcm, const uint8_t *key);
void refit_tls_gcm_begin(struct refit_tls_gcm *gcm, const uint8_t nonce[static 12], const uint8_t *aad, size_t aad_len);
void refit_tls_gcm_add(struct refit_tls_gcm *gcm, const uint8_t *in, size_t len, uint8_t *out);
void refit_tls_gcm_end(struct refit_tls_gcm *gcm, uint8_t tag[static 16]); /* that of what was added */

#endif
