/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket of a stream with the records that wait before and behind it: a call to the kernel for each would cost at
 * least as much as the copy that it saves. (Internal to tls/.)
 */
#ifndef REFIT_TLS_SOCKET_H
#define REFIT_TLS_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFIT_TLS_UNSENT ((size_t)192 << 10) /* records that go to the kernel in one call */
#define REFIT_TLS_AHEAD ((size_t)192 << 10)  /* records that come from it in one call */

struct refit_tls_socket {
    int fd; /* borrowed */
    uint8_t *unsent, *ahead; /* owned */
    size_t unsent_from, unsent_to, ahead_from, ahead_to;
};

bool refit_tls_socket_open(struct refit_tls_socket *socket, int fd); /* false: no memory */
void refit_tls_socket_release(struct refit_tls_socket *socket);

/* All that is unsent is with the kernel; or false, with errno. `more`: the kernel may wait for what follows before it
 * sends a packet that is not full. */
bool refit_tls_socket_drain(struct refit_tls_socket *socket, bool more);
/* Reads more behind what is ahead. > 0: how much; 0: the end; < 0: errno. */
long refit_tls_socket_fetch(struct refit_tls_socket *socket);

bool refit_tls_would_block(int errnum);

#endif
