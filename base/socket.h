/* SPDX-License-Identifier: Apache-2.0
 *
 * Unix sockets by path: of type SOCK_SEQPACKET where engines attach, of type SOCK_STREAM for HTTP.
 */
#ifndef REFIT_BASE_SOCKET_H
#define REFIT_BASE_SOCKET_H

#include <sys/types.h>
#include <sys/un.h>

#include "base/error.h"

/* REFIT_INVALID: longer than an address has room for. */
REFIT_MUST_CHECK enum refit_status refit_socket_address(const char *path, struct sockaddr_un *out,
                                                        struct refit_error *err);

/* Listens at `path`, non-blocking and close-on-exec. A socket that an ended process left there is replaced; one where
 * somebody answers, and whatever is not a socket, is REFIT_CONFLICT. Of two that start at once one wins. `mode` 0: by
 * the umask. */
REFIT_MUST_CHECK enum refit_status refit_socket_listen(const char *path, mode_t mode, int *out,
                                                       struct refit_error *err);
/* The same for SOCK_STREAM. */
REFIT_MUST_CHECK enum refit_status refit_socket_listen_stream(const char *path, mode_t mode, int *out,
                                                              struct refit_error *err);

#endif
