/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

bool refit_tls_socket_open(struct refit_tls_socket *s, int fd)
{
    *s = (struct refit_tls_socket){.fd = fd, .unsent = malloc(REFIT_TLS_UNSENT), .ahead = malloc(REFIT_TLS_AHEAD)};
    return s->unsent && s->ahead;
}

void refit_tls_socket_release(struct refit_tls_socket *s)
{
    free(s->unsent);
    free(s->ahead);
    s->unsent = s->ahead = NULL;
}

bool refit_tls_would_block(int errnum)
{
    return errnum == EAGAIN || errnum == EWOULDBLOCK;
}

bool refit_tls_socket_drain(struct refit_tls_socket *s, bool more)
{
    const int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    while (s->unsent_from < s->unsent_to) {
        ssize_t sent = send(s->fd, s->unsent + s->unsent_from, s->unsent_to - s->unsent_from, flags);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        s->unsent_from += (size_t)sent;
    }
    s->unsent_from = s->unsent_to = 0;
    return true;
}

long refit_tls_socket_fetch(struct refit_tls_socket *s)
{
    ssize_t got;
    size_t have = s->ahead_to - s->ahead_from;
    if (s->ahead_from > 0 && have > 0) /* part of a record */
        memmove(s->ahead, s->ahead + s->ahead_from, have);
    s->ahead_from = 0;
    s->ahead_to = have;
    do
        got = recv(s->fd, s->ahead + have, REFIT_TLS_AHEAD - have, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        s->ahead_to += (size_t)got;
    return got;
}
