/* SPDX-License-Identifier: Apache-2.0 */
#include "examples/minilm/group.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "examples/minilm/minilm.h"

#define PEER_TIMEOUT_S 10 /* a rank that is silent this long within a step is lost */

static int send_all(int fd, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int recv_all(int fd, void *data, size_t len)
{
    for (char *at = data; len > 0;) {
        ssize_t n = recv(fd, at, len, 0);
        if (n <= 0)
            return -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static void drop(struct group *group, int rank)
{
    if (group->peer[rank] >= 0)
        close(group->peer[rank]);
    group->peer[rank] = -1;
}

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

int group_open(struct group *group, const char *path, int rank, int ranks)
{
    *group = (struct group){.rank = rank, .ranks = ranks, .listener = -1};
    for (int r = 0; r < GROUP_RANKS_MAX; r++)
        group->peer[r] = -1;
    group->scratch = malloc((size_t)MINILM_TOKENS_MAX * MINILM_HIDDEN * sizeof *group->scratch);
    if (!group->scratch || ranks > GROUP_RANKS_MAX)
        return -1;
    if (rank > 0 || ranks == 1)
        return 0;
    struct sockaddr_un address = address_of(path);
    unlink(path);
    group->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (group->listener < 0 || bind(group->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(group->listener, GROUP_RANKS_MAX) != 0) {
        perror(path);
        return -1;
    }
    return 0;
}

void group_close(struct group *group)
{
    for (int r = 0; r < GROUP_RANKS_MAX; r++)
        drop(group, r);
    if (group->listener >= 0)
        close(group->listener);
    free(group->scratch);
}

static void bound_waits(int fd)
{
    struct timeval limit = {.tv_sec = PEER_TIMEOUT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

int group_gather(struct group *group)
{
    int fd, missing = 0;
    while (group->listener >= 0 && (fd = accept(group->listener, NULL, NULL)) >= 0) {
        int32_t rank = 0;
        bound_waits(fd);
        if (recv_all(fd, &rank, sizeof rank) != 0 || rank < 1 || rank >= group->ranks) {
            close(fd);
            continue;
        }
        drop(group, rank); /* a restarted rank replaces its dead self */
        group->peer[rank] = fd;
    }
    for (int r = 1; r < group->ranks; r++)
        missing += group->peer[r] < 0;
    return missing ? -1 : 0;
}

/* Sends to every follower, so that none is left waiting because another is gone. */
static int send_to_all(struct group *group, const void *data, size_t len)
{
    int rc = 0;
    for (int r = 1; r < group->ranks; r++) {
        if (group->peer[r] >= 0 && send_all(group->peer[r], data, len) == 0)
            continue;
        drop(group, r);
        rc = -1;
    }
    return rc;
}

int group_start(struct group *group, const struct group_step *step, struct group_ack acks[GROUP_RANKS_MAX])
{
    int rc = send_to_all(group, step, sizeof *step);
    for (int r = 1; r < group->ranks; r++) {
        if (group->peer[r] >= 0 && recv_all(group->peer[r], &acks[r], sizeof acks[r]) == 0)
            continue;
        drop(group, r);
        rc = -1;
    }
    return rc;
}

int group_go(struct group *group, int32_t go)
{
    return send_to_all(group, &go, sizeof go);
}

static int dial(struct group *group, const char *path)
{
    struct sockaddr_un address = address_of(path);
    int32_t rank = group->rank;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 || send_all(fd, &rank, sizeof rank) != 0) {
        close(fd);
        return -1;
    }
    group->peer[0] = fd;
    return 0;
}

int group_wait(struct group *group, const char *path, struct group_step *step)
{
    for (;;) {
        while (group->peer[0] < 0 && dial(group, path) != 0)
            poll(NULL, 0, 20); /* the leader is not there (yet, or again) */
        struct timeval forever = {0};
        setsockopt(group->peer[0], SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
        if (recv_all(group->peer[0], step, sizeof *step) == 0) {
            bound_waits(group->peer[0]);
            return step->count > 0 && step->count <= MINILM_TOKENS_MAX ? 0 : -1;
        }
        drop(group, 0);
    }
}

int group_answer(struct group *group, const struct group_ack *ack)
{
    int32_t go = 0;
    if (send_all(group->peer[0], ack, sizeof *ack) == 0 && recv_all(group->peer[0], &go, sizeof go) == 0)
        return go;
    drop(group, 0);
    return -1;
}

static int reduce_leader(struct group *group, float *x, size_t count)
{
    for (int r = 1; r < group->ranks; r++) {
        if (group->peer[r] < 0 || recv_all(group->peer[r], group->scratch, count * sizeof *x) != 0) {
            drop(group, r);
            return -1;
        }
        for (size_t i = 0; i < count; i++)
            x[i] += group->scratch[i];
    }
    return send_to_all(group, x, count * sizeof *x);
}

int group_reduce(void *context, float *x, size_t count)
{
    struct group *group = context;
    if (group->ranks == 1)
        return 0;
    if (group->rank == 0)
        return reduce_leader(group, x, count);
    if (send_all(group->peer[0], x, count * sizeof *x) == 0 && recv_all(group->peer[0], x, count * sizeof *x) == 0)
        return 0;
    drop(group, 0);
    return -1;
}
