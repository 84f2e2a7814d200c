/* SPDX-License-Identifier: Apache-2.0
 *
 * A byte stream between two ends of `tcp` (and the packets of `local`), plain or with TLS. All bytes of a connection go
 * through here, and nothing else touches its socket but to wait for it.
 *
 * One thread sends and receives; any other may post, and shut it down.
 */
#ifndef REFIT_TRANSPORT_STREAM_H
#define REFIT_TRANSPORT_STREAM_H

#include "tls/stream.h"
#include "transport/frame.h"
#include "transport/wire.h"

struct refit_secure;

struct refit_stream {
    int fd;                      /* owned; non-blocking */
    struct refit_secure *secure; /* owned; NULL: plain */
};

/* Before the first byte: TLS from here on. `host` as in refit_tls_session. */
REFIT_MUST_CHECK enum refit_status refit_stream_secure(struct refit_stream *stream, struct refit_tls *tls,
                                                       const char *host, struct refit_error *err);
/* As far as it goes now. REFIT_BUSY: call again after refit_stream_events. */
REFIT_MUST_CHECK enum refit_status refit_stream_handshake(struct refit_stream *stream, struct refit_error *err);
/* All of it. */
REFIT_MUST_CHECK enum refit_status refit_stream_shake(struct refit_stream *stream, int wake,
                                                      struct refit_deadline deadline, struct refit_error *err);

/* All of `iov`, which is used up, is with the kernel. `flags`: MSG_MORE or 0. */
REFIT_MUST_CHECK enum refit_status refit_stream_send(struct refit_stream *stream, struct iovec *iov, int count,
                                                     int flags, int wake, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_stream_send_by(struct refit_stream *stream, struct iovec *iov, int count,
                                                        int flags, int wake, struct refit_deadline deadline,
                                                        struct refit_error *err);
/* What is there, at least a byte; less than `iov` holds: no more is there. REFIT_BUSY: nothing yet; REFIT_PEER: it
 * closed, or broke TLS. */
REFIT_MUST_CHECK enum refit_status refit_stream_receive(struct refit_stream *stream, struct iovec *iov, int count,
                                                        size_t *got, struct refit_error *err);
/* Exactly `len` bytes. */
REFIT_MUST_CHECK enum refit_status refit_stream_receive_all(struct refit_stream *stream, void *data, size_t len,
                                                            int wake, struct refit_deadline deadline,
                                                            struct refit_error *err);
/* A frame, without waiting; by any thread. False when it did not fit into the socket's buffer, and so when the connection is
 * not worth keeping. */
bool refit_stream_post(struct refit_stream *stream, const struct refit_frame *frame);
static inline bool refit_stream_post_type(struct refit_stream *stream, enum refit_frame_type type)
{
    return refit_stream_post(stream, &(struct refit_frame){.type = type});
}
/* Bytes that end up with the peer at once or not at all; by the stream's thread. `flags` as for send. */
bool refit_stream_try(struct refit_stream *stream, const void *data, size_t len, int flags);

/* What to poll for before going on; by the stream's thread, while nobody posts. POLLOUT, which comes at once, while bytes
 * wait here that poll does not see. */
short refit_stream_events(const struct refit_stream *stream);
/* Whether such bytes wait: the last receive had no room for them. By any thread. */
bool refit_stream_waits(const struct refit_stream *stream);
/* Bytes that have come and are not received yet; by any thread. */
size_t refit_stream_pending(const struct refit_stream *stream);
/* The most payload that may be here already although nothing is pending: it will not make the socket readable. */
uint64_t refit_stream_hidden(const struct refit_stream *stream);

/* Tells the peer that no more comes. Best effort, never waits. Nothing is sent or received after it. */
void refit_stream_end(struct refit_stream *stream);
/* No byte comes or goes any more; a thread that waits for one sees that. By any thread. */
void refit_stream_shutdown(struct refit_stream *stream);
void refit_stream_close(struct refit_stream *stream);

#endif
