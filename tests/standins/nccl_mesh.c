/* SPDX-License-Identifier: Apache-2.0
 *
 * The way up and down: a rank listens at a socket named for the unique id and its rank, and dials those below it.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/standins/nccl_internal.h"

#define REDIAL_MS 2

struct hello {
    uint32_t frame;
    int32_t rank, ranks, version, device;
    int64_t process;
};

bool nccl_poll(const struct ncclComm *comm, int fd, short events, int timeout_ms)
{
    struct pollfd fds[] = {{.fd = comm->wake, .events = POLLIN}, {.fd = fd, .events = events}};
    while (poll(fds, 2, timeout_ms) < 0 && errno == EINTR)
        ;
    return fds[0].revents == 0;
}

/* Abstract, so that nothing is left behind in a file system. */
static socklen_t name_of(const struct ncclComm *comm, int rank, struct sockaddr_un *name)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "standin-nccl-%016llx-%d",
                          (unsigned long long)comm->id, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool transfer(struct ncclComm *comm, int fd, void *data, size_t bytes, bool sends)
{
    uint8_t *at = data;
    while (bytes > 0) {
        ssize_t n = sends ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, bytes, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!nccl_poll(comm, fd, sends ? POLLOUT : POLLIN, -1))
                return false;
        } else {
            if (nccl_is_silent())
                nccl_poll(comm, -1, 0, -1);
            nccl_fail(comm, ncclRemoteError, "a rank closed the connection");
            return false;
        }
    }
    return true;
}

static bool check_hello(struct ncclComm *comm, const struct hello *hello)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (hello->frame != FRAME_HELLO || hello->ranks != comm->ranks)
        nccl_die("ncclCommInitRankConfig", "rank %d is one of %d, rank %d one of %d", comm->rank, comm->ranks,
                 hello->rank, hello->ranks);
    if (hello->version != nccl_version()) {
        nccl_fail(comm, ncclInvalidUsage, "rank %d has version %d, rank %d version %d", hello->rank, hello->version,
                  comm->rank, nccl_version());
        return false;
    }
    if (hello->process == getpid() && hello->device == comm->device && !(several && strcmp(several, "1") == 0)) {
        nccl_fail(comm, ncclInvalidUsage, "ranks %d and %d are on one GPU, and NCCL_MULTI_RANK_GPU_ENABLE is not 1",
                  hello->rank, comm->rank);
        return false;
    }
    return true;
}

static bool greet(struct ncclComm *comm, int fd)
{
    struct hello mine = {.frame = FRAME_HELLO, .rank = comm->rank, .ranks = comm->ranks, .version = nccl_version(),
                         .device = comm->device, .process = getpid()};
    struct hello theirs;
    if (!transfer(comm, fd, &mine, sizeof mine, true) || !transfer(comm, fd, &theirs, sizeof theirs, false) ||
        !check_hello(comm, &theirs)) {
        close(fd);
        return false;
    }
    if (theirs.rank < 0 || theirs.rank >= comm->ranks || comm->fds[theirs.rank] >= 0)
        nccl_die("ncclCommInitRankConfig", "a second rank %d", theirs.rank);
    comm->fds[theirs.rank] = fd;
    return true;
}

static int listen_as(struct ncclComm *comm)
{
    struct sockaddr_un name;
    socklen_t length = name_of(comm, comm->rank, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, RANKS_MAX) != 0)
        nccl_die("ncclCommInitRankConfig", "rank %d: %s", comm->rank, strerror(errno));
    return fd;
}

static bool dial(struct ncclComm *comm, int rank)
{
    struct sockaddr_un name;
    socklen_t length = name_of(comm, rank, &name);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0)
            return greet(comm, fd);
        if (fd >= 0)
            close(fd);
        if (!nccl_poll(comm, -1, 0, REDIAL_MS))
            return false;
    }
}

static bool answer(struct ncclComm *comm, int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            return greet(comm, fd);
        if (!nccl_poll(comm, listener, POLLIN, -1))
            return false;
    }
}

void nccl_meet(struct ncclComm *comm)
{
    if (nccl_hangs()) {
        nccl_poll(comm, -1, 0, -1);
        return;
    }
    int listener = listen_as(comm);
    bool up = true;
    for (int rank = 0; rank < comm->rank && up; rank++)
        up = dial(comm, rank);
    for (int rank = comm->rank + 1; rank < comm->ranks && up; rank++)
        up = answer(comm, listener);
    close(listener);
}

static bool groups_are_over(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->turn != comm->tickets && !comm->aborted && !comm->revoked && comm->state == ncclInProgress)
        pthread_cond_wait(&comm->changed, &comm->lock);
    bool over = comm->turn == comm->tickets && !comm->aborted && !comm->revoked && comm->state == ncclInProgress;
    pthread_mutex_unlock(&comm->lock);
    return over;
}

/* Whatever comes in place of the farewell was sent and never asked for. */
void nccl_part(struct ncclComm *comm)
{
    struct header header;
    if (!groups_are_over(comm))
        return;
    for (int rank = 0; rank < comm->ranks; rank++) {
        header = (struct header){.frame = FRAME_BYE};
        if (rank != comm->rank && !transfer(comm, comm->fds[rank], &header, sizeof header, true))
            return;
    }
    for (int rank = 0; rank < comm->ranks; rank++) {
        if (rank == comm->rank)
            continue;
        if (!transfer(comm, comm->fds[rank], &header, sizeof header, false))
            return;
        if (header.frame != FRAME_BYE)
            nccl_die("ncclCommFinalize", "%llu bytes from rank %d are unmatched", (unsigned long long)header.bytes,
                     rank);
    }
}
