/* SPDX-License-Identifier: Apache-2.0 */
#include "base/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"

#define DIRECTORY_MS 5000 /* whoever else starts here is done by then */
#define AGAIN_MS 10

enum refit_status refit_socket_address(const char *path, struct sockaddr_un *out, struct refit_error *err)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path)
        return refit_fail(err, REFIT_INVALID, "%s: a Unix socket's path has at most %zu bytes; name a shorter one",
                          path, sizeof out->sun_path - 1);
    strcpy(out->sun_path, path);
    return REFIT_OK;
}

static int open_socket(int type)
{
    return socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Between the look at what is there and the bind, nobody else may do the same. */
static enum refit_status lock_directory(const char *path, int *out, struct refit_error *err)
{
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    const char *slash = strrchr(path, '/');
    struct refit_deadline deadline = refit_deadline_in_ms(DIRECTORY_MS);
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    *out = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out < 0)
        return refit_fail_errno(err, errno, "%s: its directory", path);
    while (flock(*out, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK && !refit_deadline_passed(deadline)) {
            poll(NULL, 0, AGAIN_MS);
            continue;
        }
        enum refit_status status = refit_fail_errno(err, errno, "%s: lock its directory", path);
        refit_io_close(out);
        return status;
    }
    return REFIT_OK;
}

/* A connect is refused by a socket that nobody listens at any more; whatever else it says is no leave to remove it. */
static enum refit_status refuse_live(const char *path, const struct sockaddr_un *address, int type,
                                     struct refit_error *err)
{
    int probe = open_socket(type);
    if (probe < 0)
        return refit_fail_errno(err, errno, "%s: socket", path);
    int failed = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    refit_io_close(&probe);
    if (failed == ECONNREFUSED)
        return REFIT_OK;
    if (failed == 0 || failed == EAGAIN)
        return refit_fail(err, REFIT_CONFLICT, "%s: in use by a live refitd; stop it, or give this one another path",
                          path);
    return refit_fail_errno(err, failed, "%s: can't tell whether it is in use", path);
}

static enum refit_status clear_path(const char *path, const struct sockaddr_un *address, int type,
                                    struct refit_error *err)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? REFIT_OK : refit_fail_errno(err, errno, "%s: stat", path);
    if (!S_ISSOCK(info.st_mode))
        return refit_fail(err, REFIT_CONFLICT, "%s: exists and is not a socket; move it, or name another path", path);
    enum refit_status status = refuse_live(path, address, type, err);
    if (status == REFIT_OK && unlink(path) != 0)
        status = refit_fail_errno(err, errno, "%s: remove what an ended process left", path);
    return status;
}

static enum refit_status bind_and_listen(int fd, const char *path, const struct sockaddr_un *address, mode_t mode,
                                         struct refit_error *err)
{
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        return refit_fail_errno(err, errno, "%s: bind", path);
    /* Nobody can connect before listen(). */
    if ((mode == 0 || chmod(path, mode) == 0) && listen(fd, SOMAXCONN) == 0)
        return REFIT_OK;
    enum refit_status status = refit_fail_errno(err, errno, "%s: listen", path);
    unlink(path);
    return status;
}

static enum refit_status listen_at(const char *path, int type, mode_t mode, int *out, struct refit_error *err)
{
    struct sockaddr_un address;
    int directory = -1, fd = -1;
    enum refit_status status = refit_socket_address(path, &address, err);
    if (status == REFIT_OK)
        status = lock_directory(path, &directory, err);
    if (status == REFIT_OK)
        status = clear_path(path, &address, type, err);
    if (status == REFIT_OK && (fd = open_socket(type)) < 0)
        status = refit_fail_errno(err, errno, "%s: socket", path);
    if (status == REFIT_OK)
        status = bind_and_listen(fd, path, &address, mode, err);
    refit_io_close(&directory);
    if (status != REFIT_OK)
        refit_io_close(&fd);
    else
        *out = fd;
    return status;
}

enum refit_status refit_socket_listen(const char *path, mode_t mode, int *out, struct refit_error *err)
{
    return listen_at(path, SOCK_SEQPACKET, mode, out, err);
}

enum refit_status refit_socket_listen_stream(const char *path, mode_t mode, int *out, struct refit_error *err)
{
    return listen_at(path, SOCK_STREAM, mode, out, err);
}
