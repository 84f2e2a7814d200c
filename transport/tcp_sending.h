/* SPDX-License-Identifier: Apache-2.0
 *
 * One batch on its way from the holder's memory to a stream, digested as it goes.
 */
#ifndef REFIT_TRANSPORT_TCP_SENDING_H
#define REFIT_TRANSPORT_TCP_SENDING_H

#include "memory/host_buffer.h"
#include "transport/holding.h"
#include "transport/window.h"

#define REFIT_SENDING_IOVS 512

/* What a stream keeps from batch to batch. */
struct refit_sending {
    struct refit_serving serving; /* first */
    struct iovec iov[REFIT_SENDING_IOVS + 1];
    uint32_t piece_bytes; /* sent at a time */
    struct refit_host_buffer *staging; /* owned, made on first use */
    uint8_t *trailer; /* owned */
    size_t trailer_capacity;
    struct refit_segments segments, piece;
};

void refit_sending_init(struct refit_sending *sending, struct refit_holding *holding, struct refit_stream *stream);
void refit_sending_release(struct refit_sending *sending); /* the stream is the caller's */

#endif
