/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REFIT_TRANSPORT_NCCL_ENDPOINTS_H
#define REFIT_TRANSPORT_NCCL_ENDPOINTS_H

#include "transport/endpoint.h"

enum refit_status refit_nccl_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                           struct refit_error *err);
enum refit_status refit_nccl_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                         struct refit_error *err);

#endif
