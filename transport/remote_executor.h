/* SPDX-License-Identifier: Apache-2.0
 *
 * A refit as an engine receives it: its own receiver endpoint of `nccl` over the slot of its rank, mapped for writing.
 *
 * Two threads. One does what refitd says; the other says what came of it, and that it is alive, also while the first is
 * in a call that takes its time.
 */
#ifndef REFIT_TRANSPORT_REMOTE_EXECUTOR_H
#define REFIT_TRANSPORT_REMOTE_EXECUTOR_H

#include "transport/listener.h"
#include "transport/remote.h"
#include "transport/remote_wire.h"

/* Digests of a batch that has landed, until its completion is told. */
struct refit_remote_landed {
    struct refit_remote_landed *next;
    uint64_t edge;
    uint32_t batch;
    size_t count;
    uint8_t digests[];
};

/* A holder whose connection was handed over. */
struct refit_remote_holder {
    uint32_t number;
    uint32_t told;    /* argument of the last STATE; UINT32_MAX: none since it was dropped */
    int64_t told_ns;
    bool dropped;     /* DROPPED is due. Under the executor's `small` lock */
};

struct refit_remote_executor {
    struct refit_remote_host *host;
    struct refit_remote_executor *next; /* of the host's */
    int sock, wake;  /* wake: an eventfd, readable once it is to end */
    atomic_bool over; /* the thread is done */
    pthread_t thread;

    struct refit_remote_open open;
    struct refit_plan *plan;
    struct refit_arena *slot;    /* writable */
    struct refit_arena **arenas; /* by rank: the slot and NULLs */
    struct refit_inbox *inbox;
    struct refit_listener *listener;
    struct refit_endpoint *endpoint;

    pthread_mutex_t small; /* of what follows; nothing is done under it */
    struct refit_remote_landed *landed;
    struct refit_remote_holder *holders; /* grows only */
    size_t holder_count;
    pthread_t pump;
    bool pumps;
    atomic_bool pump_ends;
    int64_t looked_ns, alive_ns; /* the pump's own */
};

/* remote_host.c: the plan of these documents, perhaps the last one's. Retained for the caller. */
REFIT_MUST_CHECK enum refit_status refit_remote_host_plan(struct refit_remote_host *host,
                                                          const struct refit_remote_open *open, const int *fds,
                                                          size_t fd_count, struct refit_plan **out,
                                                          struct refit_error *err);

/* remote_executor.c: its thread */
void *refit_remote_executor_run(void *executor);

/* remote_pump.c */
void *refit_remote_pump_run(void *executor);
/* Waits for room, until it is to end. */
REFIT_MUST_CHECK enum refit_status refit_remote_say(struct refit_remote_executor *executor,
                                                    const struct refit_remote_message *message, const void *payload,
                                                    size_t len, struct refit_error *err);
/* Of the endpoint, as refit_endpoint_config.on_landed. */
void refit_remote_note_landed(void *executor, const struct refit_edge *edge, uint32_t batch,
                              const struct refit_segments *segments);

#endif
