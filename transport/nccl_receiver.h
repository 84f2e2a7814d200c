/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of `nccl`: one thread that reads what holders say, and one per device of ours that lands (a lane).
 *
 *   post -> GRANT -> READY (it lies there, landed) -> a lane gathers a group, takes its device's turn -> GO
 *        -> STARTED: both ends post the group -> landed and digested; DIGESTS of the holder -> completion
 *
 * A lane serves one holder for a burst of groups, two of them on their way at a time, and then lets others have the
 * turn. All that is not said to be a thread's own is under the ledger's lock.
 */
#ifndef REFIT_TRANSPORT_NCCL_RECEIVER_H
#define REFIT_TRANSPORT_NCCL_RECEIVER_H

#include "transport/nccl_group.h"
#include "transport/receiving.h"

struct refit_nccl_lane;
struct refit_nccl_reshard;

enum refit_nccl_answer { REFIT_NCCL_NO_ANSWER, REFIT_NCCL_STARTED, REFIT_NCCL_DENIED, REFIT_NCCL_UNKNOWN };

/* A batch granted to a holder, until it ends. */
struct refit_nccl_granted {
    struct refit_grant grant;
    struct refit_nccl_lane *lane; /* where it lands */
    bool ready;
    bool placed;   /* a reshard has put it there: no bytes are asked for */
    bool going;      /* in one of the lane's groups */
    uint32_t source; /* ready: the holder's device */
    size_t expected; /* going: digests that are due */
    uint8_t *digests; /* owned; NULL: they have not come */
};

/* A holder's connection. */
struct refit_nccl_flow {
    struct refit_stream stream;
    struct refit_nccl_receiver *receiver;
    struct refit_peer *peer; /* peer->flows is the flow in use; NULL until greeted */
    struct refit_nccl_flow *next; /* all of the receiver's */
    struct refit_nccl_hello hello;
    bool greeted;      /* its devices are known; grants may go out */
    bool said_goodbye;
    bool cut;          /* nothing new begins */
    bool reaped;       /* nothing is granted on it any more, and its peer has forgotten it */
    bool closed;       /* the events thread is done with it */
    unsigned users;    /* lanes at work with it; whoever is last frees a closed one */
    struct refit_nccl_granted granted[REFIT_OWED_MAX];
    unsigned granted_count;
    int64_t heard_ns;
    int64_t retry_ns;  /* a lane was denied: not before then */
    unsigned denials;  /* on end */
    struct refit_error why; /* what a lane found wrong with it */

    /* The events thread's own. */
    struct refit_frame frame;
    size_t have; /* of the frame and what follows it */
    uint8_t *payload; /* owned: of the frame being read */
};

/* A device of ours. */
struct refit_nccl_lane {
    struct refit_nccl_receiver *receiver;
    struct refit_nccl_device *device;
    struct refit_turn_seat seat;
    pthread_t thread;
    bool runs;
    unsigned next;              /* whose turn it is among holders */
    struct refit_nccl_flow *flow; /* at work with; NULL: none */
    uint64_t asked;             /* the tag of a GO that waits for its answer; 0: none */
    enum refit_nccl_answer answer;
    uint64_t prepaid;           /* the lane's own: of the rate limit, for a group that was denied */
    struct refit_nccl_group groups[REFIT_NCCL_GROUPS]; /* the lane's own */
};

struct refit_nccl_receiver {
    struct refit_receiving base;
    struct refit_nccl_flow *flows;
    int epoll;
    pthread_t events;
    bool has_events;
    pthread_cond_t work; /* for lanes: something has come */
    struct refit_nccl_reshard *reshard; /* nccl_reshard.h; NULL: none */
    unsigned lane_count;
    struct refit_nccl_lane lanes[REFIT_NCCL_DEVICES_MAX];
};

/* nccl_flow.c. The lock is held but in run and free. */
void *refit_nccl_events_run(void *receiver);
void refit_nccl_dispatch(struct refit_receiving *receiving, struct refit_peer *peer);
/* Its connection has to end; the events thread sees to that. */
void refit_nccl_flow_cut(struct refit_nccl_flow *flow);
/* What is granted on it ends, but for what a lane is at. */
void refit_nccl_flow_reap(struct refit_nccl_flow *flow, enum refit_status status, const char *why);
void refit_nccl_flow_end(struct refit_nccl_flow *flow, size_t granted, enum refit_status status);
/* A lane has left it. */
void refit_nccl_flow_leave(struct refit_nccl_flow *flow);
void refit_nccl_flow_free(struct refit_nccl_flow *flow);

/* nccl_receiver.c: can these devices and ours meet? */
REFIT_MUST_CHECK enum refit_status refit_nccl_receiver_check(const struct refit_nccl_receiver *receiver,
                                                             const struct refit_nccl_hello *hello,
                                                             struct refit_error *err);

/* nccl_lane.c */
REFIT_MUST_CHECK enum refit_status refit_nccl_lane_open(struct refit_nccl_lane *lane,
                                                        struct refit_nccl_receiver *receiver,
                                                        struct refit_nccl_device *device, struct refit_error *err);
void *refit_nccl_lane_run(void *lane);
void refit_nccl_lane_release(struct refit_nccl_lane *lane); /* after its thread */

#endif
