/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/rank_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"

#define DIAL_AGAIN_MS 50
#define DIAL_MS 5000
#define ACCEPT_BACKLOG 1024

static enum refit_status resolve(const char *address, bool passive, struct addrinfo **out, struct refit_error *err)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t len = colon ? (size_t)(colon - address) : 0;
    if (!colon || len == 0 || len >= sizeof host)
        return refit_fail(err, REFIT_INVALID, "lead address \"%s\": expected HOST:PORT", address);
    bool bracketed = address[0] == '[' && address[len - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? len - 2 : len), address + bracketed);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    int failed = getaddrinfo(host, colon + 1, &hints, out);
    if (failed)
        return refit_fail(err, REFIT_INVALID, "lead address \"%s\": %s", address, gai_strerror(failed));
    return REFIT_OK;
}

enum refit_status refit_rank_address_listen(const char *address, int *out, struct refit_error *err)
{
    struct addrinfo *found = NULL;
    enum refit_status status = resolve(address, true, &found, err);
    if (status != REFIT_OK)
        return status;
    int on = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, ACCEPT_BACKLOG) != 0) {
        status = refit_fail_errno(err, errno, "rank 0 cannot listen on %s", address);
        refit_io_close(&fd);
    }
    freeaddrinfo(found);
    *out = fd;
    return status;
}

void refit_rank_address_name(int fd, int (*which)(int, struct sockaddr *, socklen_t *),
                             char out[static INET6_ADDRSTRLEN])
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } end = {.any.sa_family = AF_UNSPEC};
    socklen_t len = sizeof end;
    *out = '\0';
    if (which(fd, &end.any, &len) != 0)
        return;
    const void *address = end.any.sa_family == AF_INET ? (const void *)&end.v4.sin_addr : &end.v6.sin6_addr;
    if (!inet_ntop(end.any.sa_family, address, out, INET6_ADDRSTRLEN))
        *out = '\0';
}

/* One attempt; -1 with errno. */
static int dial(const struct addrinfo *to, struct refit_deadline deadline)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    int failed = errno;
    if (failed == EINPROGRESS) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        struct refit_deadline by = refit_deadline_earlier(deadline, refit_deadline_in_ms(DIAL_MS));
        socklen_t len = sizeof failed;
        failed = ETIMEDOUT;
        if (poll(&wait, 1, refit_deadline_left_ms(by)) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len);
    }
    if (failed == 0)
        return fd;
    close(fd);
    errno = failed;
    return -1;
}

static int dial_any(const struct addrinfo *found, struct refit_deadline deadline)
{
    int fd = -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = dial(at, deadline);
    return fd;
}

enum refit_status refit_rank_address_dial(const char *address, struct refit_deadline deadline, int *out,
                                          struct refit_error *err)
{
    struct addrinfo *found = NULL;
    enum refit_status status = resolve(address, false, &found, err);
    if (status != REFIT_OK)
        return status;
    /* The lead may start later than its ranks. */
    while ((*out = dial_any(found, deadline)) < 0 && !refit_deadline_passed(deadline))
        poll(NULL, 0, DIAL_AGAIN_MS);
    int errnum = errno;
    freeaddrinfo(found);
    return *out >= 0 ? REFIT_OK
                     : refit_fail(err, REFIT_TIMEOUT, "cannot reach the lead (rank 0) at %s: %s", address,
                                  strerror(errnum));
}
