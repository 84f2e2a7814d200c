/* SPDX-License-Identifier: Apache-2.0
 *
 * One batch on its way from a stream into the arenas, digested as it lands.
 */
#ifndef REFIT_TRANSPORT_TCP_LANDING_H
#define REFIT_TRANSPORT_TCP_LANDING_H

#include "transport/endpoint.h"
#include "transport/places.h"
#include "transport/stream.h"

#define REFIT_LANDING_IOVS 256
/* Stays in the second-level cache; with less, the window opens and the sender wakes for too little (64 KiB: a quarter
 * more CPU time). */
#define REFIT_LANDING_STAGING (512u << 10)

struct refit_landing {
    uint64_t left; /* payload bytes still to come */
    bool direct;   /* read straight into the landing rank's arena; otherwise through `staging` */
    struct refit_iov_cursor handed;
    struct iovec iov[REFIT_LANDING_IOVS];
    int iov_first, iov_count;
    size_t iov_bytes; /* of those not filled yet */
    uint8_t *staging; /* borrowed: REFIT_LANDING_STAGING bytes of the thread's */
    struct refit_places places;
    struct refit_segments segments, piece;
};

void refit_landing_init(struct refit_landing *landing, bool verify);
void refit_landing_release(struct refit_landing *landing);
REFIT_MUST_CHECK enum refit_status refit_landing_begin(struct refit_landing *landing,
                                                       const struct refit_endpoint_config *receiver,
                                                       const struct refit_edge *edge, uint32_t batch, uint8_t *staging,
                                                       struct refit_error *err);
/* One read. *got bytes came; *drained: the socket held no more. REFIT_BUSY: nothing there; REFIT_PEER: closed. With
 * the last byte the batch is in every place. */
REFIT_MUST_CHECK enum refit_status refit_landing_receive(struct refit_landing *landing, struct refit_stream *stream,
                                                         struct refit_endpoint_counters *counters, size_t *got,
                                                         bool *drained, struct refit_error *err);

#endif
