/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/stream.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/io.h"

enum refit_status refit_stream_send(struct refit_stream *stream, struct iovec *iov, int count, int flags, int wake,
                                    struct refit_error *err)
{
    return refit_wire_send(stream->fd, iov, count, flags, wake, REFIT_FOREVER, err);
}

enum refit_status refit_stream_receive(struct refit_stream *stream, struct iovec *iov, int count, size_t *got,
                                       struct refit_error *err)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t n = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    *got = n > 0 ? (size_t)n : 0;
    if (n > 0)
        return REFIT_OK;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return REFIT_BUSY;
    if (n == 0 || refit_wire_is_hangup(errno))
        return refit_fail(err, REFIT_PEER, "the peer closed the connection");
    return refit_fail_errno(err, errno, "receive");
}

bool refit_stream_post(struct refit_stream *stream, const struct refit_frame *frame)
{
    return refit_frame_post(stream->fd, frame);
}

size_t refit_stream_pending(const struct refit_stream *stream)
{
    int bytes = 0;
    return ioctl(stream->fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

void refit_stream_shutdown(struct refit_stream *stream)
{
    shutdown(stream->fd, SHUT_RDWR);
}

void refit_stream_close(struct refit_stream *stream)
{
    refit_io_close(&stream->fd);
}
