/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Below what Linux gives out by default, 32768 and up; tests/system/harness.py reserves of the same in the same way. */
#define PORT_FIRST 20000
#define BLOCKS 200
#define BLOCK_PORTS 50

/* Whoever has the abstract name has the ports; the kernel takes it back when the process ends. */
static bool claim(unsigned block)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "refit-test-ports-%u", block);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    if (bind(fd, (struct sockaddr *)&name, size) == 0)
        return true; /* the socket is kept: it is the reservation */
    close(fd);
    return false;
}

/* Not of somebody who does not reserve. */
static bool is_free(unsigned port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool free = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return free;
}

uint16_t port_reserve(void)
{
    static unsigned next, end; /* of the last block */
    for (unsigned tried = 0; tried <= BLOCKS;) {
        while (next < end)
            if (is_free(next++))
                return (uint16_t)(next - 1);
        unsigned block = ((unsigned)getpid() + tried++) % BLOCKS;
        if (claim(block)) {
            next = PORT_FIRST + block * BLOCK_PORTS;
            end = next + BLOCK_PORTS;
        }
    }
    return 0;
}
