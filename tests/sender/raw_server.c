/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sender/raw_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void read_head(struct raw_server *server, int fd)
{
    size_t used = 0;
    server->request[0] = '\0';
    while (used + 1 < sizeof server->request && !strstr(server->request, "\r\n\r\n")) {
        ssize_t n = recv(fd, server->request + used, sizeof server->request - 1 - used, 0);
        if (n <= 0)
            return;
        used += (size_t)n;
        server->request[used] = '\0';
    }
}

static bool say(int fd, const char *text, size_t len)
{
    return send(fd, text, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static void answer(struct raw_server *server, int fd)
{
    size_t len = server->answer ? strlen(server->answer) : 0;
    if (server->trickle) {
        while (say(fd, server->answer, 1))
            ;
        return;
    }
    if (len > 0 && !say(fd, server->answer, len))
        return;
    for (size_t i = 0; i < server->repeat; i++)
        if (!say(fd, server->filler, strlen(server->filler)))
            return;
    char gone;
    while (server->hold && recv(fd, &gone, 1, 0) > 0)
        ;
}

static void *serve(void *context)
{
    struct raw_server *server = context;
    do {
        int fd = accept(server->listener, NULL, NULL);
        if (fd < 0)
            break;
        read_head(server, fd);
        answer(server, fd);
        close(fd);
        server->served++;
    } while (server->again);
    return NULL;
}

void raw_server_start(struct raw_server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->listener < 0 || bind(server->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server->listener, 4) != 0 || getsockname(server->listener, (struct sockaddr *)&address, &len) != 0)
        abort();
    server->port = ntohs(address.sin_port);
    snprintf(server->url, sizeof server->url, "http://127.0.0.1:%u", (unsigned)server->port);
    if (pthread_create(&server->thread, NULL, serve, server) != 0)
        abort();
}

void raw_server_stop(struct raw_server *server)
{
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
}
