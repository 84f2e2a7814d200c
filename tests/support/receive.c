/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/receive.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>

bool receive_full(int fd, void *data, size_t len, struct refit_deadline deadline)
{
    uint8_t *at = data;
    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, refit_deadline_left_ms(deadline)) == 0)
            return false;
        ssize_t n = recv(fd, at, len, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return true;
}
