/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/standins/nccl_ranks.h"

#define PAUSE_US 500

static CUcontext context;

static void be_rank(int rank, int ranks, struct meeting *meeting, rank_body *body)
{
    struct rank self = {.rank = rank, .ranks = ranks, .meeting = meeting};
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    self.stream = stream_new();
    body(&self);
    CHECK(cuStreamDestroy(self.stream) == CUDA_SUCCESS);
    CUcontext popped;
    CHECK(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    exit(0); /* with destructors: the look-alikes look for what is left */
}

static struct meeting *start(int ranks, rank_body *body, pid_t pids[], int errors_to)
{
    struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meeting != MAP_FAILED);
    fflush(NULL);
    for (int rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] != 0)
            continue;
        if (errors_to >= 0)
            dup2(errors_to, STDERR_FILENO);
        be_rank(rank, ranks, meeting, body);
    }
    return meeting;
}

void ranks_succeed(int ranks, rank_body *body)
{
    ranks_lose(ranks, body, -1);
}

static int rank_of(pid_t pid, const pid_t pids[], int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        if (pids[rank] == pid)
            return rank;
    fail_msg("process %d is none of the ranks", (int)pid);
    return -1;
}

/* The others would wait for one that has failed. */
static void kill_others(const pid_t pids[], int ranks, bool ended[])
{
    for (int rank = 0; rank < ranks; rank++)
        if (!ended[rank])
            kill(pids[rank], SIGKILL);
    while (wait(NULL) > 0)
        ;
}

void ranks_lose(int ranks, rank_body *body, int killed)
{
    pid_t pids[RANKS_IN_TEST];
    bool ended[RANKS_IN_TEST] = {false};
    struct meeting *meeting = start(ranks, body, pids, -1);
    for (int left = ranks; left > 0; left--) {
        int status;
        int rank = rank_of(waitpid(-1, &status, 0), pids, ranks);
        ended[rank] = true;
        if (status == (rank == killed ? SIGKILL : 0))
            continue;
        kill_others(pids, ranks, ended);
        fail_msg("rank %d: status %#x", rank, (unsigned)status);
    }
    munmap(meeting, sizeof *meeting);
}

void ranks_die(int ranks, rank_body *body, const char *text)
{
    pid_t pids[RANKS_IN_TEST];
    int status, pipes[2];
    char output[4096];
    size_t used = 0;
    assert_int_equal(pipe(pipes), 0);
    struct meeting *meeting = start(ranks, body, pids, pipes[1]);
    close(pipes[1]);
    bool ended[RANKS_IN_TEST] = {false};
    for (int left = ranks; left > 0; left--) {
        ended[rank_of(waitpid(-1, &status, 0), pids, ranks)] = true;
        if (status != 0)
            break;
    }
    kill_others(pids, ranks, ended);
    for (ssize_t n; (n = read(pipes[0], output + used, sizeof output - 1 - used)) > 0; used += (size_t)n)
        ;
    output[used] = '\0';
    close(pipes[0]);
    munmap(meeting, sizeof *meeting);
    if (status == 0 || !strstr(output, text))
        fail_msg("status %#x and this in place of '%s': %s", (unsigned)status, text, output);
}

ncclUniqueId rank_id(const struct rank *rank)
{
    if (rank->rank == 0 && !atomic_load(&rank->meeting->has_id)) {
        CHECK(ncclGetUniqueId(&rank->meeting->id) == ncclSuccess);
        atomic_store(&rank->meeting->has_id, true);
    }
    while (!atomic_load(&rank->meeting->has_id))
        usleep(PAUSE_US);
    return rank->meeting->id;
}

void rank_meet(const struct rank *rank, int point)
{
    atomic_fetch_add(&rank->meeting->arrived[point], 1);
    while (atomic_load(&rank->meeting->arrived[point]) < rank->ranks)
        usleep(PAUSE_US);
}

ncclComm_t rank_begin(const struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = 0;
    CHECK(ncclCommInitRankConfig(&comm, rank->ranks, rank_id(rank), rank->rank, &config) == ncclInProgress);
    return comm;
}

ncclComm_t rank_up(const struct rank *rank)
{
    ncclComm_t comm = rank_begin(rank);
    CHECK(rank_settle(comm) == ncclSuccess);
    return comm;
}

static ncclResult_t poll_while(ncclComm_t comm, ncclResult_t unwanted, ncclResult_t and)
{
    for (;;) {
        ncclResult_t state;
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        if (state != unwanted && state != and)
            return state;
        usleep(PAUSE_US);
    }
}

ncclResult_t rank_settle(ncclComm_t comm)
{
    return poll_while(comm, ncclInProgress, ncclInProgress);
}

ncclResult_t rank_error(ncclComm_t comm)
{
    return poll_while(comm, ncclInProgress, ncclSuccess);
}

void rank_down(ncclComm_t comm)
{
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    CHECK(rank_settle(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

CUstream stream_new(void)
{
    CUstream stream;
    CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return stream;
}

void stream_wait(CUstream stream)
{
    CUresult result;
    while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
        usleep(PAUSE_US);
    CHECK(result == CUDA_SUCCESS);
}

void *device_memory(size_t bytes, int fill)
{
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, bytes) == CUDA_SUCCESS);
    memset((void *)(uintptr_t)memory, fill, bytes); /* the look-alike's devices are in host memory */
    return (void *)(uintptr_t)memory;
}

void device_free(void *memory)
{
    CHECK(cuMemFree((CUdeviceptr)(uintptr_t)memory) == CUDA_SUCCESS);
}

ncclResult_t send_one(const struct rank *rank, ncclComm_t comm, const void *memory, size_t bytes, int peer)
{
    ncclResult_t result = ncclSend(memory, bytes, ncclUint8, peer, comm, rank->stream);
    return result == ncclInProgress ? rank_settle(comm) : result;
}

ncclResult_t recv_one(const struct rank *rank, ncclComm_t comm, void *memory, size_t bytes, int peer)
{
    ncclResult_t result = ncclRecv(memory, bytes, ncclUint8, peer, comm, rank->stream);
    return result == ncclInProgress ? rank_settle(comm) : result;
}
