/* SPDX-License-Identifier: Apache-2.0
 *
 * Where rank 0 is found: listening there, and dialling it.
 */
#ifndef REFIT_SENDER_RANK_ADDRESS_H
#define REFIT_SENDER_RANK_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"

/* `address` is "host:port". *out is a non-blocking socket, new. REFIT_INVALID: it is no such address. */
REFIT_MUST_CHECK enum refit_status refit_rank_address_listen(const char *address, int *out, struct refit_error *err);
/* Again and again until the deadline, the name looked up anew each time: rank 0 may start later, where names are given to
 * what runs its name is not known before, and one that is started anew elsewhere keeps its name only. REFIT_TIMEOUT says
 * why the last attempt failed. */
REFIT_MUST_CHECK enum refit_status refit_rank_address_dial(const char *address, struct refit_deadline deadline, int *out,
                                                           struct refit_error *err);
/* An end of a socket, by getsockname or getpeername, as a number; empty when it can't be told. */
void refit_rank_address_name(int fd, int (*which)(int, struct sockaddr *, socklen_t *),
                             char out[static INET6_ADDRSTRLEN]);

#endif
