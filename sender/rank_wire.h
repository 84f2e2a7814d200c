/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of one connection between ranks, plain or over TLS: one thread reads, any may write, one at a time.
 */
#ifndef REFIT_SENDER_RANK_WIRE_H
#define REFIT_SENDER_RANK_WIRE_H

#include <pthread.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/error.h"
#include "tls/stream.h"

struct refit_rank_wire {
    int fd;                       /* non-blocking; owned */
    struct refit_tls_stream *tls; /* owned; NULL: plain */
    bool shaking;                 /* the handshake is not done; the reader's */
    pthread_mutex_t lock;         /* of `tls`: a stream is one thread's at a time */
};

/* `tls` NULL: plain. Takes `fd`, also on an error. The handshake goes on with the first reads. */
REFIT_MUST_CHECK enum refit_status refit_rank_wire_open(struct refit_rank_wire *wire, int fd, struct refit_tls *tls,
                                                   struct refit_error *err);
void refit_rank_wire_move(struct refit_rank_wire *to, struct refit_rank_wire *from); /* nobody uses either yet */
void refit_rank_wire_close(struct refit_rank_wire *wire); /* one that is not open (fd -1) is fine */

/* Until the handshake is done, for an end that must write first. */
REFIT_MUST_CHECK enum refit_status refit_rank_wire_shake(struct refit_rank_wire *wire, struct refit_deadline deadline,
                                                    struct refit_error *err);
/* What to poll for before the next read. */
short refit_rank_wire_events(struct refit_rank_wire *wire);

enum refit_rank_wire_step { REFIT_RANK_WIRE_READ, REFIT_RANK_WIRE_AGAIN, REFIT_RANK_WIRE_ENDED };
/* READ: *done bytes, 0 after a step of the handshake; call again. ENDED: *err says how. */
enum refit_rank_wire_step refit_rank_wire_read(struct refit_rank_wire *wire, void *data, size_t len, size_t *done,
                                               struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_rank_wire_send(struct refit_rank_wire *wire, const void *data, size_t len,
                                                   struct refit_deadline deadline, struct refit_error *err);

#endif
