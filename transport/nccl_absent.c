/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left of NCCL where nccl.h was not at hand when Refit was built.
 */
#include <stdio.h>

#include "transport/nccl.h"
#include "transport/nccl_version.h"

void refit_nccl_describe(char *text, size_t size)
{
    snprintf(text, size, "left out: no nccl.h and CUDA headers when it was built");
}

enum refit_status refit_nccl_probe(struct refit_error *err)
{
    return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": left out, there was no nccl.h when it was built");
}

enum refit_status refit_nccl_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                  struct refit_error *err)
{
    (void)config;
    (void)out;
    return refit_nccl_probe(err);
}

enum refit_status refit_nccl_version(int *version, struct refit_error *err)
{
    (void)version;
    return refit_nccl_probe(err);
}

const char *refit_nccl_reshard_id(void)
{
    return NULL;
}

void refit_transports_keep(void)
{
}

void refit_transports_let_go(void)
{
}
