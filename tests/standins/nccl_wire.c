/* SPDX-License-Identifier: Apache-2.0
 *
 * One group in a stream: all its operations progress together, those of one pair and direction in their order.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/standins/cuda_internal.h"
#include "tests/standins/nccl_internal.h"

/* What goes one way between this rank and another. */
struct lane {
    bool sends;
    int peer;
    size_t next;   /* operation to look at */
    struct op *op; /* NULL: none is left */
    uint64_t done; /* bytes of header and message */
    struct header header;
    uint8_t *damaged; /* goes out in place of the buffer */
};

struct run {
    struct ncclComm *comm;
    struct group *group;
    struct lane lanes[2 * RANKS_MAX];
    uint64_t moved, fatal; /* bytes; after how many the process dies */
    bool dies;
};

enum progress { PROGRESS_DONE, PROGRESS_WAIT, PROGRESS_GONE };

static void take_next(struct run *run, struct lane *lane)
{
    struct group *group = run->group;
    free(lane->damaged);
    lane->damaged = NULL;
    lane->done = 0;
    lane->op = NULL;
    while (lane->next < group->count && !lane->op) {
        struct op *op = &group->ops[lane->next++];
        if (op->sends == lane->sends && op->peer == lane->peer)
            lane->op = op;
    }
    if (lane->op && lane->sends)
        lane->header = (struct header){.frame = FRAME_MESSAGE, .type = lane->op->type, .bytes = lane->op->bytes};
}

static void check_header(const struct lane *lane)
{
    const struct op *op = lane->op;
    if (lane->header.frame == FRAME_BYE)
        nccl_die(op->call, "%llu bytes from rank %d are unmatched: it is finalized", (unsigned long long)op->bytes,
                 op->peer);
    if (lane->header.bytes != op->bytes || lane->header.type != (uint32_t)op->type)
        nccl_die(op->call, "%llu bytes of type %d from rank %d do not match its %llu bytes of type %u",
                 (unsigned long long)op->bytes, (int)op->type, op->peer, (unsigned long long)lane->header.bytes,
                 lane->header.type);
}

static void begin_message(struct run *run, struct lane *lane)
{
    int delay_us = nccl_delay_us();
    if (delay_us > 0)
        nccl_poll(run->comm, -1, 0, (delay_us + 999) / 1000);
    if (lane->op->bytes == 0 || !nccl_corrupts())
        return;
    lane->damaged = malloc(lane->op->bytes);
    if (!lane->damaged)
        nccl_die(lane->op->call, "no memory");
    memcpy(lane->damaged, lane->op->buffer, lane->op->bytes);
    lane->damaged[lane->op->bytes / 2] ^= 0x10;
}

/* As many bytes of header or message as go at once: -1 with errno, 0 at the end of the connection. */
static ssize_t move_bytes(struct run *run, struct lane *lane)
{
    int fd = run->comm->fds[lane->peer];
    bool in_header = lane->done < sizeof lane->header;
    uint64_t offset = in_header ? lane->done : lane->done - sizeof lane->header;
    uint8_t *base = in_header ? (uint8_t *)&lane->header : lane->damaged ? lane->damaged : lane->op->buffer;
    uint64_t bytes = (in_header ? sizeof lane->header : lane->op->bytes) - offset;
    if (run->dies && bytes > run->fatal - run->moved)
        bytes = run->fatal - run->moved; /* or one call could move all while the peer reads, and nobody be missed */
    if (lane->sends)
        return send(fd, base + offset, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    return recv(fd, base + offset, bytes, MSG_DONTWAIT);
}

static enum progress progress(struct run *run, struct lane *lane)
{
    while (lane->op) {
        if (lane->sends && lane->done == 0)
            begin_message(run, lane);
        ssize_t n = move_bytes(run, lane);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return PROGRESS_WAIT;
        if (n <= 0)
            return PROGRESS_GONE;
        lane->done += (uint64_t)n;
        run->moved += (uint64_t)n;
        if (run->dies && run->moved >= run->fatal)
            kill(getpid(), SIGKILL);
        if (!lane->sends && lane->done == sizeof lane->header)
            check_header(lane);
        if (lane->done == sizeof lane->header + lane->op->bytes)
            take_next(run, lane);
    }
    return PROGRESS_DONE;
}

/* False: stopped. */
static bool wait_for_peers(struct run *run)
{
    struct pollfd fds[2 * RANKS_MAX + 1] = {{.fd = run->comm->wake, .events = POLLIN}};
    nfds_t count = 1;
    for (int i = 0; i < 2 * run->comm->ranks; i++) {
        const struct lane *lane = &run->lanes[i];
        if (lane->op)
            fds[count++] = (struct pollfd){.fd = run->comm->fds[lane->peer], .events = lane->sends ? POLLOUT : POLLIN};
    }
    while (poll(fds, count, -1) < 0 && errno == EINTR)
        ;
    return fds[0].revents == 0;
}

static bool lose_peer(struct run *run, struct lane *lane)
{
    if (nccl_is_silent())
        nccl_poll(run->comm, -1, 0, -1);
    else
        nccl_fail(run->comm, ncclRemoteError, "rank %d closed the connection", lane->peer);
    return false;
}

/* True once all are through, false when it ended before. */
static bool exchange(struct run *run)
{
    for (;;) {
        bool waits = false;
        for (int i = 0; i < 2 * run->comm->ranks; i++) {
            enum progress got = progress(run, &run->lanes[i]);
            if (got == PROGRESS_GONE)
                return lose_peer(run, &run->lanes[i]);
            waits = waits || got == PROGRESS_WAIT;
        }
        if (!waits)
            return true;
        if (!wait_for_peers(run))
            return false;
    }
}

static void copy_own(const struct ncclComm *comm, const struct group *group)
{
    size_t recv = 0;
    for (size_t send = 0; send < group->count; send++) {
        const struct op *op = &group->ops[send];
        if (!op->sends || op->peer != comm->rank)
            continue;
        while (group->ops[recv].sends || group->ops[recv].peer != comm->rank)
            recv++;
        memmove(group->ops[recv++].buffer, op->buffer, op->bytes);
    }
}

static void run_group(struct ncclComm *comm, struct group *group)
{
    struct run run = {.comm = comm, .group = group, .dies = nccl_dies()};
    ncclResult_t broken = nccl_breaks();
    if (broken != ncclSuccess) {
        nccl_fail(comm, broken, "an asynchronous error that was asked for");
        return;
    }
    if (standin_lost(comm->device) != CUDA_SUCCESS) {
        nccl_fail(comm, ncclUnhandledCudaError, "the context of device %d is lost", comm->device);
        return;
    }
    for (size_t i = 0; i < group->count; i++) {
        const struct op *op = &group->ops[i];
        if (op->bytes > 0)
            standin_touch_on(op->call, comm->device, (uint64_t)(uintptr_t)op->buffer, op->bytes, !op->sends);
        run.fatal += op->bytes / 2;
    }
    if (run.dies && run.fatal == 0)
        kill(getpid(), SIGKILL);
    copy_own(comm, group);
    for (int i = 0; i < 2 * comm->ranks; i++) {
        run.lanes[i].peer = i / 2;
        run.lanes[i].sends = i % 2 == 0;
        if (i / 2 != comm->rank)
            take_next(&run, &run.lanes[i]);
    }
    exchange(&run);
    for (int i = 0; i < 2 * comm->ranks; i++)
        free(run.lanes[i].damaged);
}

/* In its turn; false where the communicator has stopped or failed, and nothing is touched any more. */
static bool begin(struct ncclComm *comm, uint64_t ticket)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->turn < ticket && !comm->aborted && !comm->revoked)
        pthread_cond_wait(&comm->changed, &comm->lock);
    bool goes = !comm->aborted && !comm->revoked && (comm->state == ncclSuccess || comm->state == ncclInProgress);
    comm->running = comm->running || goes;
    pthread_mutex_unlock(&comm->lock);
    return goes;
}

void nccl_carry_out(void *context)
{
    struct group *group = context;
    struct ncclComm *comm = group->comm;
    bool goes = begin(comm, group->ticket);
    if (goes)
        run_group(comm, group);
    nccl_landed(comm);
    pthread_mutex_lock(&comm->lock);
    comm->running = comm->running && !goes; /* one that may not go leaves the one that runs alone */
    comm->turn = group->ticket + 1;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    free(group);
}
