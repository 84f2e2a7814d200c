/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left of the fast path where nccl_m2n.h was not at hand when Refit was built.
 */
#include <stdio.h>

#include "transport/nccl_member.h"

const char *refit_nccl_reshard_id(void)
{
    return NULL;
}

void refit_nccl_reshard_describe(char *text, size_t size)
{
    snprintf(text, size, "reshard left out: no nccl_m2n.h when it was built");
}

enum refit_status refit_nccl_member_start(const struct refit_nccl_member_config *config,
                                          struct refit_nccl_member **out, struct refit_error *err)
{
    (void)config;
    (void)out;
    return refit_fail(err, REFIT_UNSUPPORTED, "reshard: left out, there was no nccl_m2n.h when it was built");
}

enum refit_status refit_nccl_member_poll(struct refit_nccl_member *member, struct refit_error *err)
{
    (void)member;
    return refit_fail(err, REFIT_UNSUPPORTED, "reshard: left out, there was no nccl_m2n.h when it was built");
}

void refit_nccl_member_end(struct refit_nccl_member *member)
{
    (void)member;
}
