/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/io.h"

/* A path, or an abstract name behind '@'. False: none, or too long. */
static bool notify_address(struct sockaddr_un *out, socklen_t *len)
{
    const char *name = getenv("NOTIFY_SOCKET");
    size_t n = name ? strlen(name) : 0;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || n >= sizeof out->sun_path || (name[0] != '/' && name[0] != '@'))
        return false;
    memcpy(out->sun_path, name, n);
    if (name[0] == '@')
        out->sun_path[0] = '\0';
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    return true;
}

void refit_notify(const char *lines)
{
    struct sockaddr_un address;
    socklen_t len;
    if (!notify_address(&address, &len))
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    /* A manager that does not read must not hold up the loop, and there is nobody to tell. */
    ssize_t sent = sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&address, len);
    (void)sent;
    refit_io_close(&fd);
}

void refit_notify_alive(void)
{
    const char *every = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (every && *every && (!pid || strtol(pid, NULL, 10) == (long)getpid()))
        refit_notify("WATCHDOG=1");
}
