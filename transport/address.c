/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>

#include "base/io.h"
#include "transport/wire.h"

enum refit_status refit_address_parse(const char *text, uint16_t port, struct refit_address *out,
                                      struct refit_error *err)
{
    *out = (struct refit_address){.len = 0};
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(port);
        out->len = sizeof out->v4;
    } else if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(port);
        out->len = sizeof out->v6;
    } else {
        return refit_fail(err, REFIT_INVALID, "\"%s\" is not a numeric IPv4 or IPv6 address", text);
    }
    return REFIT_OK;
}

uint16_t refit_address_port(const struct refit_address *address)
{
    return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

static enum refit_status dial_failed(int errnum, const char *text, struct refit_error *err)
{
    if (errnum == ECONNREFUSED || errnum == ENOENT || refit_wire_is_hangup(errnum))
        return refit_fail(err, REFIT_PEER, "%s: nobody answers there: %s", text, strerror(errnum));
    return refit_fail_errno(err, errnum, "%s: connect", text);
}

static enum refit_status dial_finish(int fd, const char *text, int wake, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    enum refit_status status = refit_wire_wait(fd, POLLOUT, wake, deadline, err);
    if (status != REFIT_OK)
        return status;
    int errnum = 0;
    socklen_t len = sizeof errnum;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) != 0)
        errnum = errno;
    return errnum == 0 ? REFIT_OK : dial_failed(errnum, text, err);
}

enum refit_status refit_address_dial(const struct sockaddr *address, socklen_t len, int type, const char *text,
                                     int wake, struct refit_deadline deadline, int *out, struct refit_error *err)
{
    int fd = socket(address->sa_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return refit_fail_errno(err, errno, "%s: socket", text);
    enum refit_status status = REFIT_OK;
    if (connect(fd, address, len) != 0) {
        /* A Unix socket says EAGAIN while the listener's backlog is full, and then has nothing to poll for. */
        status = errno == EINPROGRESS ? dial_finish(fd, text, wake, deadline, err)
                 : errno == EAGAIN    ? refit_fail(err, REFIT_BUSY, "%s: too many dial at once, retry", text)
                                      : dial_failed(errno, text, err);
    }
    if (status != REFIT_OK) {
        refit_io_close(&fd);
        return status;
    }
    *out = fd;
    return REFIT_OK;
}

void refit_socket_tune(int fd)
{
    int on = 1, idle_s = 20, interval_s = 10, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}
