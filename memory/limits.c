/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats: proc(5) for mountinfo and meminfo, cgroups(7), and the kernel's cgroup-v1/memory.rst and cgroup-v2.rst.
 */
#include "memory/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/slot.h"

/* /proc and cgroup files have no size to ask for, so they are read to a bound. */
#define TEXT_MAX (64u << 10)
/* A file's name is still to be added. */
#define DIRECTORY_MAX (REFIT_LIMIT_PATH_MAX - 64)

struct hierarchy {
    const char *fstype;
    const char *controller; /* in mountinfo's super options and /proc/self/cgroup; "" for v2 */
    const char *limit;
    const char *usage;
    const char *inactive; /* line of memory.stat */
};

static const struct hierarchy hierarchies[] = {
    {"cgroup2", "", "memory.max", "memory.current", "inactive_file"},
    {"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

static char *read_text(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd < 0 ? NULL : malloc(TEXT_MAX + 1);
    size_t len = 0;
    while (text && len < TEXT_MAX) {
        ssize_t n = read(fd, text + len, TEXT_MAX - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[len] = '\0';
    return text;
}

/* "max" and other words are not numbers: no limit. */
static bool read_number(const char *path, uint64_t *out)
{
    char *text = read_text(path);
    char *end = text;
    if (text) {
        errno = 0;
        *out = strtoull(text, &end, 10);
    }
    bool found = text && end != text && errno == 0;
    free(text);
    return found;
}

/* The number behind `key` at the start of a line; 0 when there is none. */
static uint64_t line_number(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, key, len) == 0 && (line[len] == ' ' || line[len] == ':'))
            return strtoull(line + len + 1, NULL, 10);
    return 0;
}

static void keep_tighter(struct refit_limit *best, uint64_t available, uint64_t limit, const char *name,
                         const char *path)
{
    if (available >= best->available)
        return;
    best->available = available;
    best->limit = limit;
    best->name = name;
    snprintf(best->path, sizeof best->path, "%s", path);
}

/* One level of a hierarchy. */
static void read_level(const struct hierarchy *h, const char *directory, struct refit_limit *best)
{
    char path[REFIT_LIMIT_PATH_MAX];
    uint64_t limit, used;
    snprintf(path, sizeof path, "%s/%s", directory, h->usage);
    if (!read_number(path, &used))
        return;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    char *stat = read_text(path);
    uint64_t inactive = stat ? line_number(stat, h->inactive) : 0;
    free(stat);
    used -= inactive < used ? inactive : used;
    snprintf(path, sizeof path, "%s/%s", directory, h->limit);
    /* v1 writes "no limit" as the largest page-aligned number. */
    if (!read_number(path, &limit) || limit >= (UINT64_C(1) << 62))
        return;
    keep_tighter(best, limit > used ? limit - used : 0, limit, h->limit, path);
}

/* The process's own level and all above it, up to the mount point: each of them limits. */
static void read_levels(const struct hierarchy *h, char *directory, size_t mount_len, struct refit_limit *best)
{
    for (;;) {
        read_level(h, directory, best);
        char *slash = strrchr(directory, '/');
        if (strlen(directory) <= mount_len || !slash || (size_t)(slash - directory) < mount_len)
            return;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        if (n == len && strncmp(at, word, n) == 0)
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* The process's path in a hierarchy, from the lines "id:controllers:path"; borrowed from and written into `text`. */
static char *own_path(char *text, const char *controller)
{
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (*controller ? has_word(controllers, controller) : *controllers == '\0')
            return path;
    }
    return NULL;
}

/* mountinfo: id parent major:minor ROOT POINT options [tags] - FSTYPE source SUPER. False: another mount. */
static bool parse_mount(char *line, const struct hierarchy *h, const char **mount_root, const char **point)
{
    char *tail = strstr(line, " - ");
    char *fields[5] = {0};
    char *save = NULL;
    if (!tail)
        return false;
    *tail = '\0';
    tail += 3;
    for (int i = 0; i < 5; i++)
        if (!(fields[i] = strtok_r(i == 0 ? line : NULL, " ", &save)))
            return false;
    char *fstype = strtok_r(tail, " ", &save);
    char *source = strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save);
    if (!fstype || !source || strcmp(fstype, h->fstype) != 0)
        return false;
    if (*h->controller && (!super || !has_word(super, h->controller)))
        return false;
    *mount_root = fields[3];
    *point = fields[4];
    return true;
}

/* A container sees its own cgroup as the root of the mount, while /proc/self/cgroup may name the whole path. */
static const char *below(const char *mount_root, const char *path)
{
    size_t len = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    if (strncmp(path, mount_root, len) != 0 || (path[len] != '/' && path[len] != '\0') || strstr(path, ".."))
        return "";
    return strcmp(path + len, "/") == 0 ? "" : path + len;
}

static void read_hierarchy(const struct hierarchy *h, const char *root, struct refit_limit *best)
{
    char path[DIRECTORY_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    char *cgroups = read_text(path);
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    char *mounts = read_text(path);
    const char *own = cgroups ? own_path(cgroups, h->controller) : NULL;
    const char *mount_root, *point;
    char *save = NULL;
    for (char *line = mounts ? strtok_r(mounts, "\n", &save) : NULL; own && line; line = strtok_r(NULL, "\n", &save)) {
        if (!parse_mount(line, h, &mount_root, &point))
            continue;
        int mount_len = snprintf(path, sizeof path, "%s%s", root, point);
        snprintf(path, sizeof path, "%s%s%s", root, point, below(mount_root, own));
        read_levels(h, path, (size_t)mount_len, best);
        break;
    }
    free(mounts);
    free(cgroups);
}

struct refit_limit refit_limit_read(const char *root)
{
    struct refit_limit best = {.available = UINT64_MAX, .limit = UINT64_MAX, .name = "unknown"};
    char path[REFIT_LIMIT_PATH_MAX];
    for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++)
        read_hierarchy(&hierarchies[i], root, &best);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    char *meminfo = read_text(path);
    uint64_t available = meminfo ? line_number(meminfo, "MemAvailable") << 10 : 0;
    uint64_t total = meminfo ? line_number(meminfo, "MemTotal") << 10 : 0;
    free(meminfo);
    if (total > 0)
        keep_tighter(&best, available, total, "MemAvailable", path);
    return best;
}

uint64_t refit_memory_available(const char **limit_path)
{
    struct refit_limit limit = refit_limit_read("");
    if (limit_path)
        *limit_path = limit.name;
    return limit.available;
}
