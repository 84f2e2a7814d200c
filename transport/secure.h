/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS under a stream. OpenSSL's connection is one thread's at a time, but frames are posted by others while the stream's
 * own thread decrypts: they are put in a short queue, and whoever has the connection then, or next, sends it. So nobody
 * who posts waits for a record, and no queued frame is forgotten. (Internal to stream.c.)
 */
#ifndef REFIT_TRANSPORT_SECURE_H
#define REFIT_TRANSPORT_SECURE_H

#include "transport/stream.h"

/* More than a receiver ever owes an answer to: its grants, and DONE. */
#define REFIT_SECURE_QUEUE 64

REFIT_MUST_CHECK enum refit_status refit_secure_open(struct refit_tls *tls, int fd, const char *host,
                                                     struct refit_secure **out, struct refit_error *err);
void refit_secure_free(struct refit_secure *secure); /* NULL is fine */

/* As the functions of the stream. */
enum refit_status refit_secure_handshake(struct refit_secure *secure, struct refit_error *err);
enum refit_status refit_secure_send(struct refit_secure *secure, int fd, struct iovec *iov, int count, int flags,
                                    int wake, struct refit_deadline deadline, struct refit_error *err);
enum refit_status refit_secure_receive(struct refit_secure *secure, struct iovec *iov, int count, size_t *got,
                                       struct refit_error *err);
bool refit_secure_try(struct refit_secure *secure, const void *data, size_t len);
bool refit_secure_post(struct refit_secure *secure, int fd, const struct refit_frame *frame);
void refit_secure_end(struct refit_secure *secure);
short refit_secure_events(const struct refit_secure *secure);
bool refit_secure_waits(const struct refit_secure *secure);
uint64_t refit_secure_hidden(const struct refit_secure *secure);

#endif
