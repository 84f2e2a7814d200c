/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/text.h"
#include "memory/cuda_probe.h"

void refit_cuda_uuid_text(const uint8_t uuid[16], char out[static REFIT_CUDA_UUID_TEXT_MAX])
{
    char hex[33];
    refit_text_hex(uuid, 16, hex);
    snprintf(out, REFIT_CUDA_UUID_TEXT_MAX, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}
