/* SPDX-License-Identifier: Apache-2.0
 *
 * One batch on its way from the holder's memory to a socket, digested as it goes.
 */
#ifndef REFIT_TRANSPORT_TCP_SENDING_H
#define REFIT_TRANSPORT_TCP_SENDING_H

#include <sys/uio.h>

#include "transport/endpoint.h"
#include "transport/rate.h"
#include "transport/window.h"

#define REFIT_SENDING_IOVS 512

/* What a stream keeps from batch to batch. */
struct refit_sending {
    struct refit_endpoint *endpoint;
    struct refit_rate *rate;
    int fd;
    struct iovec iov[REFIT_SENDING_IOVS + 1];
    uint8_t *staging; /* owned, made on first use */
    uint8_t *trailer; /* owned */
    size_t trailer_capacity;
    struct refit_segments segments, piece;
};

void refit_sending_init(struct refit_sending *sending, struct refit_endpoint *endpoint, struct refit_rate *rate,
                        int fd);
void refit_sending_release(struct refit_sending *sending); /* the socket is the caller's */
/* Frame, payload, trailer. Afterwards sending->segments are the batch's. */
REFIT_MUST_CHECK enum refit_status refit_sending_batch(struct refit_sending *sending, const struct refit_edge *edge,
                                                       uint32_t batch, struct refit_error *err);

#endif
