/* SPDX-License-Identifier: Apache-2.0
 *
 * Numeric addresses, dialling, and the socket options of a bulk connection.
 */
#ifndef REFIT_TRANSPORT_ADDRESS_H
#define REFIT_TRANSPORT_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"

struct refit_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t len;
};

/* "10.0.0.7" or "fd00::7"; names are not looked up, since that can't be bounded. */
REFIT_MUST_CHECK enum refit_status refit_address_parse(const char *text, uint16_t port, struct refit_address *out,
                                                       struct refit_error *err);
uint16_t refit_address_port(const struct refit_address *address);
/* A connected, non-blocking socket. `text` names it in errors. */
REFIT_MUST_CHECK enum refit_status refit_address_dial(const struct sockaddr *address, socklen_t len, int type,
                                                      const char *text, int wake, struct refit_deadline deadline,
                                                      int *out, struct refit_error *err);
/* No delay for grants, keepalive against peers that vanish without a word. */
void refit_socket_tune(int fd);

#endif
