/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/rank_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "sender/resolver.h"

#define DIAL_AGAIN_MS 50
#define DIAL_MS 5000
#define ACCEPT_BACKLOG 1024
#define HOST_MAX 256

/* HOST:PORT, the host without brackets; *port is borrowed from `address`. */
static enum refit_status take_apart(const char *address, char host[static HOST_MAX], const char **port,
                                    struct refit_error *err)
{
    const char *colon = strrchr(address, ':');
    size_t len = colon ? (size_t)(colon - address) : 0;
    if (!colon || len == 0 || len >= HOST_MAX || !colon[1])
        return refit_fail(err, REFIT_INVALID, "lead address \"%s\": expected HOST:PORT", address);
    bool bracketed = address[0] == '[' && address[len - 1] == ']';
    snprintf(host, HOST_MAX, "%.*s", (int)(bracketed ? len - 2 : len), address + bracketed);
    *port = colon + 1;
    return REFIT_OK;
}

static enum refit_status resolve(const char *host, const char *port, int flags, struct addrinfo **out,
                                 struct refit_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    int failed = getaddrinfo(host, port, &hints, out);
    if (failed)
        return refit_fail(err, REFIT_INVALID, "lead address \"%s:%s\": %s", host, port, gai_strerror(failed));
    return REFIT_OK;
}

enum refit_status refit_rank_address_listen(const char *address, int *out, struct refit_error *err)
{
    struct addrinfo *found = NULL;
    char host[HOST_MAX];
    const char *port = NULL;
    enum refit_status status = take_apart(address, host, &port, err);
    if (status == REFIT_OK)
        status = resolve(host, port, AI_PASSIVE, &found, err);
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

/* Where nobody listens yet, a socket may be given the very port that it dials: that is a connection, with itself, and it
 * keeps rank 0 from its port. */
static bool is_own_end(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

/* One attempt; -1 with errno. */
static int dial(const struct addrinfo *to, struct refit_deadline deadline)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int failed = connect(fd, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        struct refit_deadline by = refit_deadline_earlier(deadline, refit_deadline_in_ms(DIAL_MS));
        socklen_t len = sizeof failed;
        failed = ETIMEDOUT;
        if (poll(&wait, 1, refit_deadline_left_ms(by)) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len);
    }
    if (failed == 0 && is_own_end(fd)) {
        const struct linger at_once = {.l_onoff = 1}; /* its port is free again */
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        failed = ECONNREFUSED;
    }
    if (failed == 0)
        return fd;
    close(fd);
    errno = failed;
    return -1;
}

/* -1 with the reason. */
static int dial_address(const char *address, const char *port, struct refit_deadline deadline, struct refit_error *err)
{
    struct addrinfo *found;
    if (resolve(address, port, AI_NUMERICHOST, &found, err) != REFIT_OK)
        return -1;
    int fd = dial(found, deadline);
    if (fd < 0)
        refit_fail(err, REFIT_PEER, "%s", strerror(errno));
    freeaddrinfo(found);
    return fd;
}

/* One round; -1 with the reason. */
static int dial_name(struct refit_resolver *resolver, const char *port, struct refit_deadline deadline,
                     struct refit_error *err)
{
    char(*addresses)[REFIT_MEMBER_ADDRESS_MAX] = calloc(REFIT_MEMBERS_MAX, sizeof *addresses);
    size_t count = 0;
    int fd = -1;
    if (!addresses)
        refit_fail_alloc(err, "addresses", REFIT_MEMBERS_MAX * sizeof *addresses);
    else if (refit_resolver_ask(resolver, deadline, addresses, &count, err) == REFIT_OK && count == 0)
        refit_fail(err, REFIT_NOT_FOUND, "its name has no address");
    for (size_t i = 0; i < count && fd < 0; i++)
        fd = dial_address(addresses[i], port, deadline, err);
    free(addresses);
    return fd;
}

enum refit_status refit_rank_address_dial(const char *address, struct refit_deadline deadline, int *out,
                                          struct refit_error *err)
{
    char host[HOST_MAX];
    const char *port = NULL;
    struct refit_error why = {0};
    enum refit_status status = take_apart(address, host, &port, err);
    if (status != REFIT_OK)
        return status;
    struct refit_resolver *resolver = refit_resolver_create(host, NULL, NULL);
    if (!resolver)
        return refit_fail_alloc(err, "a resolver", HOST_MAX);
    /* No round begins past the deadline: it would know nothing but that. */
    do
        *out = dial_name(resolver, port, deadline, &why);
    while (*out < 0 && (poll(NULL, 0, DIAL_AGAIN_MS), !refit_deadline_passed(deadline)));
    refit_resolver_destroy(resolver);
    return *out >= 0 ? REFIT_OK
                     : refit_fail(err, REFIT_TIMEOUT, "cannot reach the lead (rank 0) at %s: %s", address, why.text);
}
