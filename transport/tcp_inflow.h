/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of a holder over `tcp`: what is granted on it, and how its thread reads it. The threads and the
 * endpoint are in tcp_receiver.c.
 */
#ifndef REFIT_TRANSPORT_TCP_INFLOW_H
#define REFIT_TRANSPORT_TCP_INFLOW_H

#include "memory/host_buffer.h"
#include "transport/receiving.h"
#include "transport/tcp_landing.h"

#define REFIT_TCP_THREADS_MAX 4
#define REFIT_INFLOW_GRANTS (REFIT_GRANTS_PER_STREAM + REFIT_QUEUE_MAX)

enum refit_inflow_phase { REFIT_INFLOW_FRAME, REFIT_INFLOW_PAYLOAD, REFIT_INFLOW_TRAILER };

struct refit_inflow {
    struct refit_stream stream;
    uint32_t number; /* of the holder's streams */
    struct refit_tcp_receiver *receiver;
    struct refit_bulk_thread *thread;
    struct refit_peer *peer;
    struct refit_inflow *next; /* of the same peer, or of those that are reaped */

    /* Under the lock. */
    struct refit_grant granted[REFIT_INFLOW_GRANTS];
    unsigned granted_count;
    bool said_goodbye;
    bool active; /* its thread is reading it */
    bool cut;    /* its thread must not begin to */
    bool reaped; /* nothing is granted on it any more, and its peer has forgotten it */
    int64_t heard_ns;
    size_t heard_pending;

    enum refit_inflow_phase phase;
    uint32_t watched; /* events of its thread's epoll set */
    _Atomic int low_water; /* SO_RCVLOWAT as it is; 0: as it came */
    struct refit_frame frame;
    size_t have; /* bytes of the frame or trailer */
    struct refit_grant landing_grant;
    struct refit_landing landing;
    uint8_t *trailer; /* owned */
    size_t trailer_bytes, trailer_capacity;
};

struct refit_bulk_thread {
    pthread_t thread;
    int epoll;
    struct refit_host_buffer *staging; /* owned; of whichever connection it reads */
    unsigned connections; /* under the lock */
    struct refit_tcp_receiver *receiver;
};

struct refit_tcp_receiver {
    struct refit_receiving base;
    struct refit_inflow *reaped; /* until their threads free them */
    struct refit_bulk_thread threads[REFIT_TCP_THREADS_MAX];
    unsigned thread_count;
};

/* Grants what its peer has queued and its connections have room for. (refit_receiving_kind.dispatch; the lock is
 * held) */
void refit_inflow_dispatch(struct refit_receiving *receiving, struct refit_peer *peer);
/* A turn of its thread, which may end and free it. */
void refit_inflow_serve(struct refit_inflow *flow);
/* The lock is held. What was granted on it ends with `status`, and its peer forgets it. */
void refit_inflow_reap(struct refit_inflow *flow, enum refit_status status, const char *why);
void refit_inflow_free(struct refit_inflow *flow);

#endif
