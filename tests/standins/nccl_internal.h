/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator has a helper thread, which does in turn what NCCL does in the background: bring it up, put groups into
 * streams, finalize. Groups are carried out by the stream's thread (nccl_wire.c).
 */
#ifndef REFIT_TESTS_STANDINS_NCCL_INTERNAL_H
#define REFIT_TESTS_STANDINS_NCCL_INTERNAL_H

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/standins/standin_nccl.h"

#define RANKS_MAX 64

/* nccl.h leaves out the void. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

struct op {
    const char *call;
    bool sends;
    int peer;
    ncclDataType_t type;
    uint8_t *buffer;
    uint64_t bytes;
    cudaStream_t stream;
};

struct group {
    struct ncclComm *comm;
    uint64_t ticket; /* groups of a communicator run one after the other */
    size_t count;
    struct op ops[];
};

enum job { JOB_NONE, JOB_INIT, JOB_LAUNCH, JOB_FINALIZE, JOB_REVOKE };

struct registration {
    struct registration *next;
};

/* Never freed, so that a communicator that is used after its end is found out. */
struct ncclComm {
    struct ncclComm *next;
    bool dead; /* under the lock of the list */
    uint64_t id;
    int rank, ranks, device;
    bool blocking;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    pthread_t helper;
    enum job job;
    struct group *launching;
    bool ending, finalized, revoked, aborted;
    int wake; /* eventfd: readable once aborted or revoked */
    ncclResult_t state;
    char last_error[256];
    unsigned children; /* made of it by shrink and grow */
    bool id_is_out;    /* ncclCommGetUniqueId, not yet consumed */
    struct registration *registrations;
    uint64_t tickets, turn;
    bool running;  /* a stream's thread uses the sockets */
    int in_flight; /* groups launched and not over */
    int fds[RANKS_MAX];
};

/* nccl.c: counts the call, and dies with its name. */
ncclResult_t nccl_enter(const char *call);
_Noreturn void nccl_die(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void nccl_count(int by);
int nccl_version(void);
bool nccl_is_silent(void);
bool nccl_hangs(void);
int nccl_delay_us(void);
/* Asks about the message that is to be sent, and the group that begins. */
bool nccl_corrupts(void);
bool nccl_dies(void);
ncclResult_t nccl_breaks(void);

/* nccl_comm.c: dies unless the communicator is alive. */
struct ncclComm *nccl_comm(const char *call, ncclComm_t comm);
/* As above, and neither in progress nor finalized; what it has gone wrong with, if it has. */
struct ncclComm *nccl_ready(const char *call, ncclComm_t comm, ncclResult_t *error);
struct ncclComm *nccl_create(const char *call, uint64_t id, int rank, int ranks, const ncclConfig_t *config,
                             bool blocking);
/* Hands the helper a job; returns what the user is told. */
ncclResult_t nccl_start(struct ncclComm *comm, enum job job, struct group *group);
ncclResult_t nccl_wait(struct ncclComm *comm);
void nccl_stop(struct ncclComm *comm, bool *why);
void nccl_free(struct ncclComm *comm);
/* The first error stays. */
void nccl_fail(struct ncclComm *comm, ncclResult_t error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* nccl_group.c: whether a group is open in this thread; then its end waits for `comm`. */
bool nccl_group_holds(struct ncclComm *comm);
bool nccl_group_is_open(void);
void nccl_launch(struct ncclComm *comm, struct group *group);
bool nccl_landed(struct ncclComm *comm); /* one group of it is over; false: none was in flight */

/* nccl_mesh.c: connects all ranks; takes leave of them. */
void nccl_meet(struct ncclComm *comm);
void nccl_part(struct ncclComm *comm);
/* Waits for `events`; false once the communicator is stopped. */
bool nccl_poll(const struct ncclComm *comm, int fd, short events, int timeout_ms);

/* nccl_wire.c */
void nccl_carry_out(void *group);

enum frame { FRAME_HELLO = 0x4E43434C, FRAME_MESSAGE, FRAME_BYE };

struct header {
    uint32_t frame;
    uint32_t type;  /* of a message: ncclDataType_t */
    uint64_t bytes;
};

#define ENTER()                                      \
    do {                                             \
        ncclResult_t injected = nccl_enter(__func__); \
        if (injected != ncclSuccess)                 \
            return injected;                         \
    } while (0)

#endif
