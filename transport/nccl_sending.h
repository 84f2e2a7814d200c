/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of a holder over `nccl`, on its thread: it says which batches are ready, and sends them in the groups
 * that the receiver makes of them.
 */
#ifndef REFIT_TRANSPORT_NCCL_SENDING_H
#define REFIT_TRANSPORT_NCCL_SENDING_H

#include "transport/holding.h"
#include "transport/nccl_group.h"
#include "transport/nccl_member.h"

/* A batch that the receiver waits for. */
struct refit_nccl_owed {
    const struct refit_edge *edge; /* of the holder's plan */
    uint32_t batch;
    uint32_t source; /* the device that it lies on */
    bool said;       /* READY */
    int64_t due_ns;  /* by the rate limit; 0: not asked yet */
};

enum refit_nccl_burst {
    REFIT_NCCL_OFF,
    REFIT_NCCL_MAKING, /* the communicator */
    REFIT_NCCL_ON,
};

/* A device of ours. */
struct refit_nccl_source {
    struct refit_nccl_device *device;
    struct refit_turn_seat seat;
    enum refit_nccl_burst burst; /* not OFF: we have the turn */
    struct refit_nccl_pair *pair;
    uint64_t tag;
    struct refit_deadline deadline; /* of what the receiver or NCCL is to do next */
    bool refused;                   /* somebody was told DENIED meanwhile */
    unsigned first, active;         /* groups: the oldest, and how many there are */
    struct refit_nccl_group groups[REFIT_NCCL_GROUPS];
};

/* The fast path: nccl_reshard.h. */
struct refit_nccl_sharing {
    bool offers;  /* in HELLO */
    bool listed;
    struct refit_reshard_list list;
    uint64_t tag; /* of what was asked last */
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
    struct refit_nccl_source *source; /* whose turn is taken for it; NULL: none */
    struct refit_nccl_member *member; /* at work; NULL: not yet, or it has failed */
    bool ran;                         /* said so */
};

struct refit_nccl_sending {
    struct refit_holding *holding;
    struct refit_stream stream;
    int news;  /* eventfd: batches have landed; -1 unless a relay */
    int turns; /* eventfd: a turn was left */
    struct refit_nccl_source sources[REFIT_NCCL_DEVICES_MAX];
    unsigned source_count;
    struct refit_nccl_owed owed[REFIT_OWED_MAX]; /* in the order in which they came */
    unsigned owed_count;
    bool done; /* the receiver needs no more */
    int64_t said_ns, heard_ns; /* when the receiver last heard of us, and we of it */
    int64_t poll_ns; /* before the next look at a device at work */
    struct refit_nccl_sharing sharing;

    struct refit_frame frame; /* being read, and what follows it */
    uint8_t payload[REFIT_NCCL_GO_MAX];
    size_t have;
};

/* The devices of the endpoint's arenas. */
REFIT_MUST_CHECK enum refit_status refit_nccl_sending_open(struct refit_nccl_sending *sending,
                                                           struct refit_holding *holding, struct refit_error *err);
void refit_nccl_sending_close(struct refit_nccl_sending *sending); /* after its thread */
/* After the greeting: who we are. */
REFIT_MUST_CHECK enum refit_status refit_nccl_sending_introduce(struct refit_nccl_sending *sending,
                                                                struct refit_stream *stream,
                                                                struct refit_deadline deadline,
                                                                struct refit_error *err);
/* The life of the connection. REFIT_OK: the receiver needs no more. Nothing is read any more when it returns. */
REFIT_MUST_CHECK enum refit_status refit_nccl_sending_run(struct refit_nccl_sending *sending, struct refit_error *err);

/* For nccl_reshard_sending.c. */
REFIT_MUST_CHECK enum refit_status refit_nccl_say(struct refit_nccl_sending *sending, struct refit_frame frame,
                                                  struct refit_error *err);
struct refit_nccl_source *refit_nccl_source_of(struct refit_nccl_sending *sending, const struct refit_arena *arena);

#endif
