/* SPDX-License-Identifier: Apache-2.0
 *
 * What the `tcp` row of the table is made of.
 */
#ifndef REFIT_TRANSPORT_TCP_H
#define REFIT_TRANSPORT_TCP_H

#include "transport/endpoint.h"

enum refit_status refit_tcp_probe(struct refit_error *err);
enum refit_status refit_tcp_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                 struct refit_error *err);
enum refit_status refit_tcp_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                          struct refit_error *err);
enum refit_status refit_tcp_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                        struct refit_error *err);

#endif
