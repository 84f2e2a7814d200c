/* SPDX-License-Identifier: Apache-2.0
 *
 * What the `local` row of the table is made of.
 */
#ifndef REFIT_TRANSPORT_LOCAL_H
#define REFIT_TRANSPORT_LOCAL_H

#include "transport/endpoint.h"

enum refit_status refit_local_probe(struct refit_error *err);
enum refit_status refit_local_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                   struct refit_error *err);
enum refit_status refit_local_receiver_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                            struct refit_error *err);
enum refit_status refit_local_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                          struct refit_error *err);

#endif
