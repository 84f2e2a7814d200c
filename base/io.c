/* SPDX-License-Identifier: Apache-2.0 */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Newer than the oldest headers this builds with. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* MFD_NOEXEC_SEAL is refused by kernels before 6.3. */
int refit_io_memfd(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

void refit_io_close(int *fd)
{
    int saved = errno;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = saved;
}

static enum refit_status wait_ready(int fd, short events, struct refit_deadline deadline, const char *what,
                                    struct refit_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, refit_deadline_left_ms(deadline));
        if (n > 0)
            return REFIT_OK;
        if (n == 0)
            return refit_fail(err, REFIT_TIMEOUT, "%s: deadline passed", what);
        if (errno != EINTR)
            return refit_fail_errno(err, errno, "%s: poll", what);
    }
}

static bool is_hangup(int errnum)
{
    return errnum == ECONNRESET || errnum == EPIPE || errnum == ECONNABORTED || errnum == ENOTCONN;
}

enum refit_status refit_io_send_full(int fd, const void *data, size_t len, struct refit_deadline deadline,
                                     const char *what, struct refit_error *err)
{
    const uint8_t *at = data;
    while (len > 0) {
        enum refit_status status = wait_ready(fd, POLLOUT, deadline, what, err);
        if (status != REFIT_OK)
            return status;
        ssize_t n = send(fd, at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && is_hangup(errno))
            return refit_fail(err, REFIT_PEER, "%s: closed with %zu bytes still to send", what, len);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return refit_fail_errno(err, errno, "%s: send", what);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return REFIT_OK;
}

enum refit_status refit_io_pread_full(int fd, void *data, size_t len, uint64_t offset, const char *path,
                                      struct refit_error *err)
{
    uint8_t *at = data;
    size_t left = len;
    while (left > 0) {
        ssize_t n = pread(fd, at, left, (off_t)(offset + (len - left)));
        if (n == 0)
            return refit_fail(err, REFIT_CORRUPT, "%s: ends at byte %llu, %zu bytes expected at offset %llu", path,
                              (unsigned long long)(offset + (len - left)), len, (unsigned long long)offset);
        if (n < 0 && errno != EINTR)
            return refit_fail_errno(err, errno, "%s: read at offset %llu", path, (unsigned long long)offset);
        if (n > 0) {
            at += n;
            left -= (size_t)n;
        }
    }
    return REFIT_OK;
}

static enum refit_status check_regular(int fd, const char *path, size_t max_bytes, size_t *size,
                                       struct refit_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refit_fail_errno(err, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode))
        return refit_fail(err, REFIT_INVALID, "%s: must be a regular file", path);
    if ((uint64_t)st.st_size > max_bytes)
        return refit_fail(err, REFIT_INVALID, "%s: %lld bytes, at most %zu are read", path, (long long)st.st_size,
                          max_bytes);
    *size = (size_t)st.st_size;
    return REFIT_OK;
}

enum refit_status refit_io_read_file(const char *path, size_t max_bytes, char **data, size_t *len,
                                     struct refit_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    if (fd < 0)
        return errno == ENOENT ? refit_fail(err, REFIT_NOT_FOUND, "%s: no such file", path)
                               : refit_fail_errno(err, errno, "%s: open", path);
    size_t size = 0;
    char *text = NULL;
    enum refit_status status = check_regular(fd, path, max_bytes, &size, err);
    if (status == REFIT_OK && !(text = malloc(size + 1)))
        status = refit_fail_alloc(err, path, size + 1);
    if (status == REFIT_OK)
        status = refit_io_pread_full(fd, text, size, 0, path, err);
    refit_io_close(&fd);
    if (status != REFIT_OK) {
        free(text);
        return status;
    }
    text[size] = '\0';
    *data = text;
    *len = size;
    return REFIT_OK;
}

static enum refit_status write_file(int fd, const void *data, size_t len, const char *path, struct refit_error *err)
{
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno != EINTR)
            return refit_fail_errno(err, errno, "%s: write", path);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
    return fsync(fd) == 0 ? REFIT_OK : refit_fail_errno(err, errno, "%s: fsync", path);
}

/* The new name, too, must outlast a loss of power. Where a file system can't do this, there is nothing to do. */
static void sync_directory(const char *path)
{
    char directory[4096];
    const char *slash = strrchr(path, '/');
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)fsync(fd);
    refit_io_close(&fd);
}

enum refit_status refit_io_replace_file(const char *path, const void *data, size_t len, mode_t mode,
                                        struct refit_error *err)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.tmp.%d", path, (int)getpid()) >= (int)sizeof temporary)
        return refit_fail(err, REFIT_INVALID, "%s: path too long", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return refit_fail_errno(err, errno, "%s: create", temporary);
    enum refit_status status = write_file(fd, data, len, temporary, err);
    refit_io_close(&fd);
    if (status == REFIT_OK && rename(temporary, path) != 0)
        status = refit_fail_errno(err, errno, "%s: rename to %s", temporary, path);
    if (status == REFIT_OK)
        sync_directory(path);
    else
        unlink(temporary);
    return status;
}

enum refit_status refit_io_send_fds(int sock, const void *data, size_t len, const int *fds, size_t fd_count,
                                    struct refit_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(REFIT_IO_FDS_MAX * sizeof(int))];
    } control;
    if (fd_count > REFIT_IO_FDS_MAX)
        return refit_fail(err, REFIT_INVALID, "%zu descriptors in one message, at most %d", fd_count, REFIT_IO_FDS_MAX);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    ssize_t n;
    do
        n = sendmsg(sock, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return refit_fail(err, REFIT_BUSY, "unix socket: peer does not read its messages");
    if (n < 0)
        return is_hangup(errno) ? refit_fail(err, REFIT_PEER, "unix socket: peer closed")
                                : refit_fail_errno(err, errno, "unix socket: send");
    return REFIT_OK;
}

/* Every descriptor the kernel installed is either handed over or closed here. */
static size_t collect_fds(struct msghdr *message, int *fds, size_t fd_max, size_t *surplus)
{
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (count < fd_max) {
                fds[count++] = fd;
            } else {
                close(fd);
                ++*surplus;
            }
        }
    }
    return count;
}

enum refit_status refit_io_recv_fds(int sock, void *data, size_t len, size_t *data_len, int *fds, size_t fd_max,
                                    size_t *fd_count, struct refit_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(REFIT_IO_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = len};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    *fd_count = 0;
    ssize_t n;
    do
        n = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return REFIT_BUSY;
    if (n < 0)
        return is_hangup(errno) ? refit_fail(err, REFIT_PEER, "unix socket: peer reset")
                                : refit_fail_errno(err, errno, "unix socket: receive");
    size_t surplus = 0;
    size_t count = collect_fds(&message, fds, fd_max, &surplus);
    if (surplus > 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        while (count > 0)
            close(fds[--count]);
        return refit_fail(err, REFIT_INVALID, "unix socket: message longer than %zu bytes or %zu descriptors", len,
                          fd_max);
    }
    *data_len = (size_t)n;
    *fd_count = count;
    return REFIT_OK;
}

void refit_io_random(void *data, size_t len)
{
    uint8_t *at = data;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0 && errno != EINTR)
            abort();
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        }
    }
}
