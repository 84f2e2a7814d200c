/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS over a non-blocking stream socket, for loops that poll the socket beside descriptors of their own.
 *
 *     while ((step = refit_tls_stream_handshake(s, &err)) == REFIT_TLS_AGAIN)
 *         poll(fd for refit_tls_stream_events(s), wake descriptor)
 *
 * Every step goes as far as it can without waiting. AGAIN: poll for refit_tls_stream_events, then call the same step
 * again. A read must be repeated until it says AGAIN: bytes may wait inside that poll does not know of. A write takes
 * bytes in as soon as they are encrypted: some may still wait inside, and go out with the next write, read or flush;
 * what must be out is flushed. Where kernel and OpenSSL offer kTLS the kernel encrypts, and nothing waits inside.
 *
 * One thread at a time per stream; two threads, one for each direction, are not allowed. Closing the stream does not
 * close the socket.
 */
#ifndef REFIT_TLS_STREAM_H
#define REFIT_TLS_STREAM_H

#include <sys/uio.h>

#include "tls/tls.h"

enum refit_tls_step {
    REFIT_TLS_DONE,
    REFIT_TLS_AGAIN,
    REFIT_TLS_END,    /* the peer said that it is done (reads only) */
    REFIT_TLS_FAILED, /* *err says why; only free is left */
};

struct refit_tls_stream;
/* `fd` is borrowed, non-blocking. `tls` says which end this is; `host` as in refit_tls_session. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_tls_stream_open(struct refit_tls *tls, int fd, const char *host,
                                                         struct refit_tls_stream **out, struct refit_error *err);
/* Sends nothing: a stream that ends well is shut down first. NULL is fine. */
void refit_tls_stream_free(struct refit_tls_stream *stream);

enum refit_tls_step refit_tls_stream_handshake(struct refit_tls_stream *stream, struct refit_error *err);
/* After the handshake. *done is how many bytes; > 0 with DONE, 0 with all else. An end without the peer's word (a reset,
 * or a bare FIN) is FAILED with REFIT_PEER: it could be a cut. */
enum refit_tls_step refit_tls_stream_read(struct refit_tls_stream *stream, void *data, size_t len, size_t *done,
                                          struct refit_error *err);
/* AGAIN: nothing was taken. Small pieces are packed into whole records. `more`: a write follows at once, and the kernel
 * may wait for it with what does not fill a packet. */
enum refit_tls_step refit_tls_stream_write(struct refit_tls_stream *stream, const void *data, size_t len, size_t *done,
                                           struct refit_error *err);
enum refit_tls_step refit_tls_stream_writev(struct refit_tls_stream *stream, const struct iovec *pieces, size_t count,
                                            bool more, size_t *done, struct refit_error *err);
/* DONE: all that was taken is with the kernel. */
enum refit_tls_step refit_tls_stream_flush(struct refit_tls_stream *stream, struct refit_error *err);
/* Says that no more will be written, and flushes. Reading goes on. */
enum refit_tls_step refit_tls_stream_shutdown(struct refit_tls_stream *stream, struct refit_error *err);

/* POLLIN and POLLOUT: what the last step waits for, and POLLOUT while bytes wait inside. */
short refit_tls_stream_events(const struct refit_tls_stream *stream);
/* Bytes that the kernel has not got yet. */
size_t refit_tls_stream_unsent(const struct refit_tls_stream *stream);
/* Whether bytes have been taken from the kernel that no read has returned yet; they may be less than a record. */
bool refit_tls_stream_holds(const struct refit_tls_stream *stream);

struct refit_tls_stream_info {
    char version[16]; /* "TLSv1.3" */
    char cipher[40];
    bool kernel_sends, kernel_receives; /* kTLS */
    bool own_records;                   /* made here since the handshake, not by OpenSSL */
    uint64_t key_updates;               /* of what this end sends */
};
void refit_tls_stream_read_info(const struct refit_tls_stream *stream, struct refit_tls_stream_info *out);
void refit_tls_stream_peer(const struct refit_tls_stream *stream, struct refit_tls_peer *out);

#endif
