/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp.h"

enum refit_status refit_tcp_probe(struct refit_error *err)
{
    (void)err;
    return REFIT_OK;
}

enum refit_status refit_tcp_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                 struct refit_error *err)
{
    return config->role == REFIT_RECEIVER ? refit_tcp_receiver_open(config, out, err)
                                          : refit_tcp_holder_open(config, out, err);
}
