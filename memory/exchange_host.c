/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "memory/exchange_internal.h"

enum refit_status refit_exchange_host_chunk(uint8_t *a, uint8_t *b, uint64_t bytes, uint8_t *bounce,
                                            struct refit_error *err)
{
    (void)err;
    memcpy(bounce, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, bounce, bytes);
    return REFIT_OK;
}
