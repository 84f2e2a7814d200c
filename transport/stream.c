/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/io.h"
#include "transport/secure.h"

/* ---- TLS ---- */

enum refit_status refit_stream_secure(struct refit_stream *stream, struct refit_tls *tls, const char *host,
                                      struct refit_error *err)
{
    return refit_secure_open(tls, stream->fd, host, &stream->secure, err);
}

enum refit_status refit_stream_handshake(struct refit_stream *stream, struct refit_error *err)
{
    return refit_secure_handshake(stream->secure, err);
}

enum refit_status refit_stream_shake(struct refit_stream *stream, int wake, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    enum refit_status status;
    while ((status = refit_secure_handshake(stream->secure, err)) == REFIT_BUSY) {
        status = refit_wire_wait(stream->fd, refit_secure_events(stream->secure), wake, deadline, err);
        if (status != REFIT_OK)
            return refit_error_prefix(err, status, "TLS handshake");
    }
    return status;
}

/* ---- bytes ---- */

enum refit_status refit_stream_send_by(struct refit_stream *stream, struct iovec *iov, int count, int flags, int wake,
                                       struct refit_deadline deadline, struct refit_error *err)
{
    if (stream->secure)
        return refit_secure_send(stream->secure, stream->fd, iov, count, flags, wake, deadline, err);
    return refit_wire_send(stream->fd, iov, count, flags, wake, deadline, err);
}

enum refit_status refit_stream_send(struct refit_stream *stream, struct iovec *iov, int count, int flags, int wake,
                                    struct refit_error *err)
{
    return refit_stream_send_by(stream, iov, count, flags, wake, REFIT_FOREVER, err);
}

enum refit_status refit_stream_receive(struct refit_stream *stream, struct iovec *iov, int count, size_t *got,
                                       struct refit_error *err)
{
    if (stream->secure)
        return refit_secure_receive(stream->secure, iov, count, got, err);
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

enum refit_status refit_stream_receive_all(struct refit_stream *stream, void *data, size_t len, int wake,
                                           struct refit_deadline deadline, struct refit_error *err)
{
    for (size_t at = 0; at < len;) {
        struct iovec iov = {.iov_base = (char *)data + at, .iov_len = len - at};
        size_t got;
        enum refit_status status = refit_stream_receive(stream, &iov, 1, &got, err);
        at += got;
        if (status == REFIT_BUSY)
            status = refit_wire_wait(stream->fd, POLLIN, wake, deadline, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

bool refit_stream_try(struct refit_stream *stream, const void *data, size_t len, int flags)
{
    if (stream->secure)
        return refit_secure_try(stream->secure, data, len);
    return send(stream->fd, data, len, flags | MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

bool refit_stream_post(struct refit_stream *stream, const struct refit_frame *frame)
{
    if (stream->secure)
        return refit_secure_post(stream->secure, stream->fd, frame);
    return refit_frame_post(stream->fd, frame);
}

/* ---- looking ---- */

bool refit_stream_waits(const struct refit_stream *stream)
{
    return stream->secure && refit_secure_waits(stream->secure);
}

short refit_stream_events(const struct refit_stream *stream)
{
    if (!stream->secure)
        return POLLIN;
    return (short)(refit_secure_events(stream->secure) | (refit_secure_waits(stream->secure) ? POLLOUT : 0));
}

size_t refit_stream_pending(const struct refit_stream *stream)
{
    int bytes = 0;
    size_t pending = ioctl(stream->fd, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
    return pending + refit_stream_waits(stream);
}

uint64_t refit_stream_hidden(const struct refit_stream *stream)
{
    return stream->secure ? refit_secure_hidden(stream->secure) : 0;
}

/* ---- ending ---- */

void refit_stream_end(struct refit_stream *stream)
{
    if (stream->secure)
        refit_secure_end(stream->secure);
    refit_secure_free(stream->secure);
    stream->secure = NULL;
    shutdown(stream->fd, SHUT_WR);
}

void refit_stream_shutdown(struct refit_stream *stream)
{
    shutdown(stream->fd, SHUT_RDWR);
}

void refit_stream_close(struct refit_stream *stream)
{
    refit_secure_free(stream->secure);
    stream->secure = NULL;
    refit_io_close(&stream->fd);
}
