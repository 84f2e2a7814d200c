/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks for tests of the look-alike of libnccl.so.2: each a process with a context and a stream.
 */
#ifndef REFIT_TESTS_STANDINS_NCCL_RANKS_H
#define REFIT_TESTS_STANDINS_NCCL_RANKS_H

#include <cuda.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS_IN_TEST 4

/* Memory of all ranks. */
struct meeting {
    atomic_bool has_id;
    ncclUniqueId id;
    atomic_int arrived[8]; /* at points in time, numbered */
};

struct rank {
    int rank, ranks;
    struct meeting *meeting;
    CUstream stream;
};

typedef void rank_body(struct rank *rank);

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

/* All ranks end well. */
void ranks_succeed(int ranks, rank_body *body);
/* A rank ends with `text` on standard error; the others are killed then. */
void ranks_die(int ranks, rank_body *body, const char *text);
/* Rank `killed` is killed by SIGKILL, the others end well. */
void ranks_lose(int ranks, rank_body *body, int killed);

/* For bodies. The unique id of rank 0; waits for it. */
ncclUniqueId rank_id(const struct rank *rank);
/* Waits until `ranks` have come to point `point`. */
void rank_meet(const struct rank *rank, int point);
/* Begins, not blocking. */
ncclComm_t rank_begin(const struct rank *rank);
/* Up. */
ncclComm_t rank_up(const struct rank *rank);
/* Polls until the communicator is no longer in progress. */
ncclResult_t rank_settle(ncclComm_t comm);
/* Polls until it has an error. */
ncclResult_t rank_error(ncclComm_t comm);
void rank_down(ncclComm_t comm);
CUstream stream_new(void);
void stream_wait(CUstream stream);
void *device_memory(size_t bytes, int fill);
void device_free(void *memory);
/* Groups of one operation. */
ncclResult_t send_one(const struct rank *rank, ncclComm_t comm, const void *memory, size_t bytes, int peer);
ncclResult_t recv_one(const struct rank *rank, ncclComm_t comm, void *memory, size_t bytes, int peer);

#endif
