/* SPDX-License-Identifier: Apache-2.0
 *
 * A byte stream between two ends of `tcp`. All bytes of a connection that was admitted go through here, and nothing
 * else touches its socket.
 */
#ifndef REFIT_TRANSPORT_STREAM_H
#define REFIT_TRANSPORT_STREAM_H

#include "transport/frame.h"
#include "transport/wire.h"

struct refit_stream {
    int fd; /* owned; non-blocking */
};

/* All of `iov`, which is used up. `flags`: MSG_MORE or 0. */
REFIT_MUST_CHECK enum refit_status refit_stream_send(struct refit_stream *stream, struct iovec *iov, int count,
                                                     int flags, int wake, struct refit_error *err);
/* What is there, at least a byte. REFIT_BUSY: nothing yet; REFIT_PEER: it closed. */
REFIT_MUST_CHECK enum refit_status refit_stream_receive(struct refit_stream *stream, struct iovec *iov, int count,
                                                        size_t *got, struct refit_error *err);
/* As refit_frame_post; by any thread, one at a time. */
bool refit_stream_post(struct refit_stream *stream, const struct refit_frame *frame);
/* Bytes that have come and are not received yet. */
size_t refit_stream_pending(const struct refit_stream *stream);
/* No byte comes or goes any more; a thread that waits for one sees that. */
void refit_stream_shutdown(struct refit_stream *stream);
void refit_stream_close(struct refit_stream *stream);

#endif
