/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left of NCCL where nccl.h was not at hand when Refit was built.
 */
#include <stdio.h>

#include "transport/nccl_version.h"

void refit_nccl_describe(char *text, size_t size)
{
    snprintf(text, size, "left out: no nccl.h and CUDA headers when it was built");
}
