/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening addresses: "127.0.0.1:7070", "[::1]:0", "localhost:80". Numeric (or localhost), so nothing waits for a name
 * server.
 */
#ifndef REFIT_SIDECAR_LISTEN_ADDRESS_H
#define REFIT_SIDECAR_LISTEN_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

/* `what` names the option in errors. */
REFIT_MUST_CHECK enum refit_status refit_listen_address_parse(const char *text, const char *what,
                                                              struct sockaddr_storage *out, int *out_len,
                                                              struct refit_error *err);
/* The path of "unix:/PATH"; NULL for everything else. */
const char *refit_listen_address_unix(const char *text);
bool refit_listen_address_is_loopback(const struct sockaddr_storage *address);
/* Host without its port, numeric. */
void refit_listen_address_host(const struct sockaddr_storage *address, char *out, size_t size);
uint16_t refit_listen_address_port(const struct sockaddr_storage *address);
/* Host and port, as in messages. */
void refit_listen_address_print(const struct sockaddr *address, char *out, size_t size);
/* The port a socket is bound to; 0 when it is none. */
uint16_t refit_listen_address_port_of(int fd);

#endif
