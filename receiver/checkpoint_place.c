/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "receiver/request.h"

static int open_beneath_kernel(int root, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* Where a container's system call filter predates openat2: no ".." and no link at all on the way. */
static int open_beneath_by_steps(int root, const char *path)
{
    char rest[1024];
    snprintf(rest, sizeof rest, "%s", path);
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
    char *save = NULL;
    for (char *part = strtok_r(rest, "/", &save); part && at >= 0; part = strtok_r(NULL, "/", &save)) {
        struct stat info;
        int next = strcmp(part, "..") == 0 ? -1 : openat(at, part, O_PATH | O_CLOEXEC | O_NOFOLLOW);
        if (next < 0 && strcmp(part, "..") == 0)
            errno = EXDEV;
        refit_io_close(&at);
        at = next;
        if (at >= 0 && fstat(at, &info) == 0 && S_ISLNK(info.st_mode)) {
            refit_io_close(&at);
            errno = ELOOP;
        }
    }
    return at;
}

static int open_beneath(int root, const char *path)
{
    int fd = open_beneath_kernel(root, path);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = open_beneath_by_steps(root, path);
    return fd;
}

static enum refit_status fail_open(const char *root, const char *path, int errnum, struct refit_error *err)
{
    if (errnum == ENOENT || errnum == ENOTDIR)
        return refit_fail(err, REFIT_NOT_FOUND, "checkpoint '%s': no such file or directory below %s", path, root);
    if (errnum == EXDEV || errnum == ELOOP)
        return refit_fail(err, REFIT_INVALID, "checkpoint '%s' leads out of %s; name a path below it", path, root);
    return refit_fail_errno(err, errnum, "checkpoint '%s' below %s", path, root);
}

/* The directory a file's path ends in; "." when it has no slash. */
static void split(const char *path, char *directory, size_t max, const char **tail)
{
    const char *slash = strrchr(path, '/');
    *tail = slash ? slash + 1 : path;
    snprintf(directory, max, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
}

static enum refit_status place_file(int root_fd, const char *root, const char *path, struct refit_checkpoint_place *out,
                                    struct refit_error *err)
{
    char directory[1024];
    const char *tail;
    split(path, directory, sizeof directory, &tail);
    if (strcmp(tail, "..") == 0 || tail[0] == '\0')
        return fail_open(root, path, EXDEV, err);
    out->fd = open_beneath(root_fd, directory);
    if (out->fd < 0)
        return fail_open(root, path, errno, err);
    struct stat info;
    enum refit_status status = REFIT_OK;
    if (fstatat(out->fd, tail, &info, 0) != 0)
        status = fail_open(root, path, errno, err);
    else if (S_ISDIR(info.st_mode))
        status = fail_open(root, path, EXDEV, err);
    else if (!S_ISREG(info.st_mode))
        status = refit_fail(err, REFIT_INVALID, "checkpoint '%s': must be a directory or a regular file", path);
    else if (snprintf(out->path, sizeof out->path, "/proc/self/fd/%d/%s", out->fd, tail) >= (int)sizeof out->path)
        status = fail_open(root, path, ENAMETOOLONG, err);
    if (status != REFIT_OK)
        refit_checkpoint_forget(out);
    return status;
}

enum refit_status refit_checkpoint_find(const char *root, const char *path, struct refit_checkpoint_place *out,
                                        struct refit_error *err)
{
    if (path[0] == '/')
        return refit_fail(err, REFIT_INVALID, "checkpoint '%s' is absolute; name a path below %s", path, root);
    int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return refit_fail_errno(err, errno, "checkpoint root %s", root);
    struct stat info;
    out->fd = open_beneath(root_fd, path);
    bool escapes = out->fd < 0 && (errno == EXDEV || errno == ELOOP);
    enum refit_status status = REFIT_OK;
    if (out->fd < 0 && !escapes)
        status = fail_open(root, path, errno, err);
    else if (out->fd >= 0 && fstat(out->fd, &info) != 0)
        status = refit_fail_errno(err, errno, "checkpoint '%s' below %s", path, root);
    else if (out->fd >= 0 && S_ISDIR(info.st_mode))
        snprintf(out->path, sizeof out->path, "/proc/self/fd/%d", out->fd);
    else {
        refit_io_close(&out->fd);
        status = place_file(root_fd, root, path, out, err);
    }
    if (status != REFIT_OK)
        refit_io_close(&out->fd);
    refit_io_close(&root_fd);
    return status;
}

void refit_checkpoint_forget(struct refit_checkpoint_place *place)
{
    refit_io_close(&place->fd);
}

void refit_checkpoint_rename_in(const struct refit_checkpoint_place *place, const char *path, struct refit_error *err)
{
    char *at = strstr(err->text, place->path);
    if (!at)
        return;
    char text[REFIT_ERROR_TEXT_MAX];
    int n = snprintf(text, sizeof text, "%.*s%s", (int)(at - err->text), err->text, path);
    if (n >= 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, "%s", at + strlen(place->path));
    memcpy(err->text, text, sizeof text);
}
