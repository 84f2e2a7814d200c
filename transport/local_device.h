/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots on GPUs that a holder on the same host has passed to a receiver that has GPUs.
 */
#ifndef REFIT_TRANSPORT_LOCAL_DEVICE_H
#define REFIT_TRANSPORT_LOCAL_DEVICE_H

#include <stdbool.h>

#include "transport/local_pieces.h"

bool refit_local_of_device(const struct refit_local_piece *piece);
/* Maps the slot of `fd` (borrowed), read-only, for a device that the receiver lands on: the one that it is on, if it is
 * one of them, else the first that reaches it. REFIT_UNSUPPORTED: the receiver has no GPU; else why none does. */
REFIT_MUST_CHECK enum refit_status refit_local_device_open(const struct refit_local_piece *piece, int fd,
                                                           const struct refit_endpoint_config *receiver,
                                                           struct refit_arena **out, struct refit_error *err);

#endif
