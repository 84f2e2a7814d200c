/* SPDX-License-Identifier: Apache-2.0
 *
 * What the `nccl` row of the table is made of. In every build: without NCCL at build or run time all of them are
 * REFIT_UNSUPPORTED with the reason.
 */
#ifndef REFIT_TRANSPORT_NCCL_H
#define REFIT_TRANSPORT_NCCL_H

#include "transport/endpoint.h"

enum refit_status refit_nccl_probe(struct refit_error *err);
enum refit_status refit_nccl_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                  struct refit_error *err);
/* Of the library that was found: 23203 is 2.32.3. */
REFIT_MUST_CHECK enum refit_status refit_nccl_version(int *version, struct refit_error *err);
/* What names the library of the fast path, where that is on and can be used (docs/gpu.md); else NULL. */
const char *refit_nccl_reshard_id(void);

#endif
