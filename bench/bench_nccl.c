/* SPDX-License-Identifier: Apache-2.0
 *
 * What NCCL moves between two processes by itself: the limit for a transport over it. Two GPUs where there are two,
 * else one that both share, which NCCL 2.30.3 and newer allow when asked. The bytes are compared first.
 *
 *   bench_nccl [--mib N] [--rounds N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_stream.h"
#include "transport/nccl_driver.h"

#define MESSAGE_BYTES ((size_t)4 << 20)
#define GROUP_MESSAGES 64
#define ROUNDS_MAX 101
#define PATIENCE_MS 60000
#define SKIPPED 77

struct rank {
    int rank, peer; /* descriptor of the other */
    int rounds;
    uint64_t bytes;
    const struct refit_cuda_driver *cuda;
    const struct refit_nccl_driver *nccl;
    struct refit_cuda_stream *stream;
    struct refit_cuda_buffer *buffer;
    uint8_t *pinned;
    ncclComm_t comm;
};

static void must(enum refit_status status, const struct refit_error *err)
{
    if (status == REFIT_OK)
        return;
    fprintf(stderr, "bench_nccl: %s\n", err->text);
    _exit(1);
}

static _Noreturn void leave(const struct rank *r, const char *reason)
{
    if (r->rank == 0)
        printf("skipped: %s\n", reason);
    fflush(stdout);
    _exit(SKIPPED);
}

static void give(const struct rank *r, const void *data, size_t bytes)
{
    if (send(r->peer, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        _exit(SKIPPED); /* the other has said why */
}

static void take(const struct rank *r, void *data, size_t bytes)
{
    if (recv(r->peer, data, bytes, MSG_WAITALL) != (ssize_t)bytes)
        _exit(SKIPPED);
}

static void meet(const struct rank *r)
{
    char byte = 0;
    give(r, &byte, 1);
    take(r, &byte, 1);
}

static void open_device(struct rank *r)
{
    struct refit_error err;
    if (refit_cuda_probe(&err) != REFIT_OK || refit_cuda_driver(&r->cuda, &err) != REFIT_OK)
        leave(r, err.text);
    if (r->cuda->devices == 1)
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    if (refit_nccl_driver(&r->nccl, &err) != REFIT_OK)
        leave(r, err.text);
    if (r->cuda->devices == 1 && !(r->nccl->capabilities & REFIT_NCCL_MULTI_RANK_GPU))
        leave(r, "one GPU, and this NCCL does not let two processes share it; 2.30.3 does");
    int device = r->rank % r->cuda->devices;
    must(refit_cuda_stream_create(device, REFIT_CUDA_PRIORITY_DEFAULT, &r->stream, &err), &err);
    must(refit_cuda_buffer_create(device, r->bytes, &r->buffer, &err), &err);
    must(refit_cuda_stream_enter(r->stream, &err), &err);
    void *pinned;
    must(CUDA(r->cuda, &err, cuMemHostAlloc, &pinned, r->bytes, 0), &err);
    r->pinned = pinned;
}

static void settle(const struct rank *r)
{
    struct refit_error err;
    struct refit_deadline deadline = refit_deadline_in_ms(PATIENCE_MS);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && !refit_deadline_passed(deadline)) {
        must(NCCL(r->nccl, r->comm, &err, ncclCommGetAsyncError, r->comm, &state), &err);
        usleep(state == ncclInProgress ? 100 : 0);
    }
    must(refit_nccl_check(r->nccl, r->comm, state, "ncclCommGetAsyncError", &err), &err);
    if (state == ncclInProgress) {
        fprintf(stderr, "bench_nccl: NCCL is not done after %d s\n", PATIENCE_MS / 1000);
        _exit(1);
    }
}

static void come_up(struct rank *r)
{
    struct refit_error err;
    ncclUniqueId id;
    int theirs;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    give(r, &r->nccl->version, sizeof r->nccl->version);
    take(r, &theirs, sizeof theirs);
    must(refit_nccl_check_versions(r->nccl->version, theirs, "the other process", &err), &err);
    if (r->rank == 0) {
        must(NCCL(r->nccl, NULL, &err, ncclGetUniqueId, &id), &err);
        give(r, &id, sizeof id);
    } else {
        take(r, &id, sizeof id);
    }
    must(NCCL(r->nccl, NULL, &err, ncclCommInitRankConfig, &r->comm, 2, id, r->rank, &config), &err);
    settle(r);
}

/* All bytes once, from rank 0 to rank 1, in groups. */
static void move(const struct rank *r)
{
    struct refit_error err;
    cudaStream_t stream = refit_cuda_stream_handle(r->stream);
    uint8_t *base = (uint8_t *)(uintptr_t)refit_cuda_buffer_address(r->buffer);
    for (uint64_t done = 0; done < r->bytes;) {
        must(NCCL(r->nccl, r->comm, &err, ncclGroupStart), &err);
        for (int i = 0; i < GROUP_MESSAGES && done < r->bytes; i++, done += MESSAGE_BYTES) {
            enum refit_status status =
                r->rank == 0
                    ? NCCL(r->nccl, r->comm, &err, ncclSend, base + done, MESSAGE_BYTES, ncclUint8, 1, r->comm, stream)
                    : NCCL(r->nccl, r->comm, &err, ncclRecv, base + done, MESSAGE_BYTES, ncclUint8, 0, r->comm, stream);
            must(status, &err);
        }
        must(NCCL(r->nccl, r->comm, &err, ncclGroupEnd), &err);
        settle(r);
    }
    must(refit_cuda_stream_wait(r->stream, refit_deadline_in_ms(PATIENCE_MS), &err), &err);
}

static uint8_t pattern(uint64_t i)
{
    return (uint8_t)(i * 131 + (i >> 8) * 7 + (i >> 20));
}

static void prove(const struct rank *r)
{
    struct refit_error err;
    CUstream stream = refit_cuda_stream_handle(r->stream);
    CUdeviceptr address = refit_cuda_buffer_address(r->buffer);
    for (uint64_t i = 0; i < r->bytes; i++)
        r->pinned[i] = r->rank == 0 ? pattern(i) : 0;
    must(CUDA(r->cuda, &err, cuMemcpyHtoDAsync, address, r->pinned, r->bytes, stream), &err);
    move(r);
    must(CUDA(r->cuda, &err, cuMemcpyDtoHAsync, r->pinned, address, r->bytes, stream), &err);
    must(refit_cuda_stream_wait(r->stream, refit_deadline_in_ms(PATIENCE_MS), &err), &err);
    for (uint64_t i = 0; i < r->bytes; i++) {
        if (r->pinned[i] != pattern(i)) {
            fprintf(stderr, "bench_nccl: byte %llu is wrong\n", (unsigned long long)i);
            _exit(1);
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct rank *r)
{
    double seconds[ROUNDS_MAX];
    char text[REFIT_NCCL_DESCRIPTION_MAX];
    for (int round = 0; round < r->rounds; round++) {
        meet(r);
        int64_t begin = refit_clock_ns();
        move(r);
        seconds[round] = (double)(refit_clock_ns() - begin) / 1e9;
    }
    if (r->rank == 0 || r->rounds == 0)
        return;
    qsort(seconds, (size_t)r->rounds, sizeof *seconds, by_size);
    refit_nccl_describe(text, sizeof text);
    printf("nccl: %s\n%llu MiB in messages of %zu MiB between two processes on %s, median of %d rounds: %.2f GB/s\n",
           text, (unsigned long long)(r->bytes >> 20), MESSAGE_BYTES >> 20,
           r->cuda->devices == 1 ? "one GPU" : "two GPUs", r->rounds,
           (double)r->bytes / seconds[r->rounds / 2] / 1e9);
}

static void go_down(struct rank *r)
{
    struct refit_error err;
    must(NCCL(r->nccl, r->comm, &err, ncclCommFinalize, r->comm), &err);
    settle(r);
    must(NCCL(r->nccl, NULL, &err, ncclCommDestroy, r->comm), &err);
    must(CUDA(r->cuda, &err, cuMemFreeHost, r->pinned), &err);
    refit_cuda_stream_leave(r->stream);
    refit_cuda_buffer_destroy(r->buffer);
    refit_cuda_stream_destroy(r->stream);
}

static long option(int argc, char **argv, const char *name, long otherwise, long least, long most)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            otherwise = strtol(argv[i + 1], NULL, 10);
    if (otherwise < least || otherwise > most) {
        fprintf(stderr, "bench_nccl: %s: from %ld to %ld\n", name, least, most);
        exit(2);
    }
    return otherwise;
}

int main(int argc, char **argv)
{
    int pair[2], status = 0;
    struct rank r = {
        .bytes = (uint64_t)(option(argc, argv, "--mib", 1024, 4, 1 << 16) / 4) * MESSAGE_BYTES,
        .rounds = (int)option(argc, argv, "--rounds", 15, 0, ROUNDS_MAX),
    };
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return 1;
    pid_t child = fork(); /* before either touches CUDA, which does not survive it */
    if (child < 0)
        return 1;
    r.rank = child == 0 ? 1 : 0;
    r.peer = pair[r.rank];
    close(pair[1 - r.rank]);
    open_device(&r);
    come_up(&r);
    prove(&r);
    measure(&r);
    go_down(&r);
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        return 1;
    return 0;
}
