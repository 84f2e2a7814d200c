/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/wire.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

bool refit_wire_is_hangup(int errnum)
{
    return errnum == ECONNRESET || errnum == EPIPE || errnum == ECONNABORTED || errnum == ENOTCONN ||
           errnum == ETIMEDOUT || errnum == EHOSTUNREACH || errnum == ENETUNREACH;
}

enum refit_status refit_wire_wait(int fd, short events, int wake, struct refit_deadline deadline,
                                  struct refit_error *err)
{
    for (;;) {
        struct pollfd p[] = {{.fd = wake, .events = POLLIN}, {.fd = fd, .events = events}};
        int n = poll(p, 2, deadline.at_ns == INT64_MAX ? -1 : refit_deadline_left_ms(deadline));
        if (n == 0)
            return refit_fail(err, REFIT_TIMEOUT, "deadline passed while waiting for the peer");
        if (n < 0 && errno != EINTR)
            return refit_fail_errno(err, errno, "poll");
        if (n > 0 && p[0].revents)
            return refit_fail(err, REFIT_ABORTED, "aborted");
        if (n > 0 && p[1].revents)
            return REFIT_OK;
    }
}

static enum refit_status socket_failed(int errnum, const char *what, struct refit_error *err)
{
    if (refit_wire_is_hangup(errnum))
        return refit_fail(err, REFIT_PEER, "the peer closed the connection");
    return refit_fail_errno(err, errnum, "%s", what);
}

int refit_iov_drop(struct iovec *iov, int first, int count, size_t bytes)
{
    while (first < count && bytes >= iov[first].iov_len)
        bytes -= iov[first++].iov_len;
    if (bytes > 0 && first < count) {
        iov[first].iov_base = (char *)iov[first].iov_base + bytes;
        iov[first].iov_len -= bytes;
    }
    return first;
}

enum refit_status refit_wire_send(int fd, struct iovec *iov, int count, int flags, int wake,
                                  struct refit_deadline deadline, struct refit_error *err)
{
    for (int first = refit_iov_drop(iov, 0, count, 0); first < count;) {
        struct msghdr message = {.msg_iov = iov + first, .msg_iovlen = (size_t)(count - first)};
        ssize_t n = sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            first = refit_iov_drop(iov, first, count, (size_t)n);
        } else if (errno == EAGAIN) {
            enum refit_status status = refit_wire_wait(fd, POLLOUT, wake, deadline, err);
            if (status != REFIT_OK)
                return status;
        } else if (errno != EINTR) {
            return socket_failed(errno, "send", err);
        }
    }
    return REFIT_OK;
}
