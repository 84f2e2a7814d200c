/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/remote_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

#define PACKET_MAX (sizeof(struct refit_remote_message) + REFIT_REMOTE_PAYLOAD_MAX)
_Static_assert(sizeof(struct refit_remote_open) <= REFIT_REMOTE_PAYLOAD_MAX, "OPEN is one packet");

enum refit_status refit_remote_send(int sock, const struct refit_remote_message *message, const void *payload, size_t len,
                                    const int *fds, size_t fd_count, struct refit_error *err)
{
    uint8_t packet[PACKET_MAX];
    memcpy(packet, message, sizeof *message);
    if (len > 0)
        memcpy(packet + sizeof *message, payload, len);
    return refit_io_send_fds(sock, packet, sizeof *message + len, fds, fd_count, err);
}

enum refit_status refit_remote_receive(int sock, struct refit_remote_packet *out, struct refit_error *err)
{
    uint8_t packet[PACKET_MAX];
    size_t len = 0;
    out->fd_count = 0;
    enum refit_status status =
        refit_io_recv_fds(sock, packet, sizeof packet, &len, out->fds, REFIT_REMOTE_FDS_MAX, &out->fd_count, err);
    if (status != REFIT_OK)
        return status;
    if (len == 0)
        return refit_fail(err, REFIT_PEER, "the connection between refitd and the engine was closed");
    if (len < sizeof out->message) {
        refit_remote_packet_release(out);
        return refit_fail(err, REFIT_INVALID, "a message of %zu bytes, it has %zu at least", len, sizeof out->message);
    }
    memcpy(&out->message, packet, sizeof out->message);
    out->len = len - sizeof out->message;
    memcpy(out->payload, packet + sizeof out->message, out->len);
    return REFIT_OK;
}

void refit_remote_packet_release(struct refit_remote_packet *packet)
{
    while (packet->fd_count > 0)
        refit_io_close(&packet->fds[--packet->fd_count]);
}

enum refit_status refit_remote_memfd(const void *data, size_t len, int *out, struct refit_error *err)
{
    int fd = refit_io_memfd("refit-remote");
    if (fd < 0)
        return refit_fail_errno(err, errno, "memfd_create");
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const uint8_t *)data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int saved = errno;
            refit_io_close(&fd);
            return refit_fail_errno(err, saved, "writing a memfd of %zu bytes", len);
        }
        done += (size_t)n;
    }
    *out = fd;
    return REFIT_OK;
}

enum refit_status refit_remote_read(int fd, size_t max, const char *what, char **data, size_t *len,
                                    struct refit_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refit_fail_errno(err, errno, "%s", what);
    if (st.st_size < 0 || (uint64_t)st.st_size > max)
        return refit_fail(err, REFIT_INVALID, "%s: %lld bytes, at most %zu are expected", what, (long long)st.st_size, max);
    *len = (size_t)st.st_size;
    *data = malloc(*len + 1);
    if (!*data)
        return refit_fail_alloc(err, what, *len);
    enum refit_status status = refit_io_pread_full(fd, *data, *len, 0, what, err);
    if (status != REFIT_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}
