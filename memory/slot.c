/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd_create(2), fcntl(2) for seals. Everything that could be refused is done before pages are touched.
 */
#include "memory/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "memory/arena_ops.h"
#include "memory/limits.h"

/* Newer than the oldest headers this builds with. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

const char *refit_protection_name(enum refit_protection protection)
{
    switch (protection) {
    case REFIT_PROTECT_UID: return "uid";
    case REFIT_PROTECT_SEAL: return "seal";
    case REFIT_PROTECT_MAPPING: return "mapping";
    }
    return "unknown";
}

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A rank that owns nothing still has a slot of one page, so that nobody needs a special case. */
static enum refit_status slot_bytes(uint64_t bytes, uint64_t *out, struct refit_error *err)
{
    uint64_t page = page_bytes();
    if (bytes > INT64_MAX - page)
        return refit_fail(err, REFIT_INVALID, "slot: %" PRIu64 " bytes are more than a file can have", bytes);
    *out = bytes == 0 ? page : (bytes + page - 1) / page * page;
    return REFIT_OK;
}

static enum refit_status check_memory(const char *name, uint64_t bytes, struct refit_error *err)
{
    struct refit_limit limit = refit_limit_read("");
    if (bytes <= limit.available)
        return REFIT_OK;
    return refit_fail(err, REFIT_NO_MEMORY,
                      "slot %s: %" PRIu64 " bytes needed, %" PRIu64 " available under %s (limit %" PRIu64
                      ", %s); raise the limit to at least %" PRIu64 " or use fewer slots",
                      name, bytes, limit.available, limit.name, limit.limit, limit.path,
                      limit.limit + (bytes - limit.available));
}

/* Every page present and writable. Kernels before 5.14 lack MADV_POPULATE_WRITE. */
static enum refit_status touch(uint8_t *mapping, uint64_t bytes, const char *name, struct refit_error *err)
{
    while (madvise(mapping, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return refit_fail(err, REFIT_NO_MEMORY,
                              "slot %s: the kernel could not provide %" PRIu64 " bytes (errno %d); raise the limit",
                              name, bytes, errno);
        for (uint64_t at = 0; at < bytes; at += page_bytes()) {
            volatile uint8_t *byte = mapping + at;
            *byte = *byte;
        }
        return REFIT_OK;
    }
    return REFIT_OK;
}

/* An arena of one piece over a whole descriptor, which it owns from here on, also when this fails. */
static enum refit_status map_slot(int fd, uint64_t bytes, bool writable, struct refit_arena **out,
                                  struct refit_error *err)
{
    struct refit_arena *arena = NULL;
    enum refit_status status = refit_arena_create(REFIT_ARENA_HOST, bytes, &arena, err);
    if (status != REFIT_OK) {
        refit_io_close(&fd);
        return status;
    }
    arena->mapping_fd = fd;
    arena->read_only = !writable;
    void *mapping = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        status = refit_fail_errno(err, errno, "slot: map %" PRIu64 " bytes", bytes);
        goto release_arena;
    }
    arena->mapping = mapping;
    arena->mapping_bytes = bytes;
    /* Neither a forked child nor a core file should hold a model's worth of memory. */
    if (madvise(mapping, bytes, MADV_DONTFORK) != 0 || madvise(mapping, bytes, MADV_DONTDUMP) != 0) {
        status = refit_fail_errno(err, errno, "slot: madvise");
        goto release_arena;
    }
    status = refit_arena_bind_host(arena, 0, mapping, bytes, fd, 0, err);
    if (status != REFIT_OK)
        goto release_arena;
    *out = arena;
    return REFIT_OK;

release_arena:
    refit_arena_release(arena);
    return status;
}

/* F_SEAL_FUTURE_WRITE spares the mapping that exists; F_SEAL_SEAL keeps others from adding seals of their own. */
static enum refit_status seal(int fd, enum refit_protection protection, const char *name, struct refit_error *err)
{
    int seals = SIZE_SEALS | F_SEAL_SEAL | (protection == REFIT_PROTECT_SEAL ? F_SEAL_FUTURE_WRITE : 0);
    if (fcntl(fd, F_ADD_SEALS, seals) != 0)
        return refit_fail_errno(err, errno, "slot %s: seal", name);
    return REFIT_OK;
}

enum refit_status refit_slot_create(const char *name, uint64_t bytes, enum refit_protection protection,
                                    struct refit_arena **out, struct refit_error *err)
{
    struct refit_arena *slot = NULL;
    enum refit_status status = slot_bytes(bytes, &bytes, err);
    if (status == REFIT_OK)
        status = check_memory(name, bytes, err);
    if (status != REFIT_OK)
        return status;
    int fd = refit_io_memfd(name);
    if (fd < 0)
        return refit_fail_errno(err, errno, "slot %s: memfd_create", name);
    if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)bytes) != 0) {
        status = refit_fail_errno(err, errno, "slot %s: set the size to %" PRIu64, name, bytes);
        refit_io_close(&fd);
        return status;
    }
    status = map_slot(fd, bytes, true, &slot, err);
    if (status != REFIT_OK)
        return status;
    status = seal(fd, protection, name, err);
    if (status == REFIT_OK)
        status = touch(slot->mapping, bytes, name, err);
    if (status != REFIT_OK) {
        refit_arena_release(slot);
        return status;
    }
    *out = slot;
    return REFIT_OK;
}

static enum refit_status reopen(int fd, int flags, int *out, struct refit_error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out = open(path, flags | O_CLOEXEC);
    if (*out < 0)
        return refit_fail_errno(err, errno, "slot: reopen descriptor %d %s", fd,
                                flags == O_RDONLY ? "read-only" : "for writing");
    return REFIT_OK;
}

enum refit_status refit_slot_export(const struct refit_arena *slot, int *fd, struct refit_error *err)
{
    if (slot->mapping_fd < 0)
        return refit_fail(err, REFIT_INVALID, "slot: an arena of borrowed memory can't be exported");
    return reopen(slot->mapping_fd, O_RDONLY, fd, err);
}

/* What both ends demand of a descriptor that another process handed over. */
static enum refit_status check_descriptor(int fd, uint64_t bytes, struct stat *st, int *seals, struct refit_error *err)
{
    if (fstat(fd, st) != 0)
        return refit_fail_errno(err, errno, "slot: stat descriptor %d", fd);
    *seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(st->st_mode) || *seals < 0)
        return refit_fail(err, REFIT_INVALID, "slot: descriptor %d is no memfd", fd);
    if ((*seals & SIZE_SEALS) != SIZE_SEALS)
        return refit_fail(err, REFIT_INVALID,
                          "slot: descriptor %d must be sealed against shrink and grow, seals are 0x%x", fd,
                          (unsigned)*seals);
    if (st->st_size < 0 || (uint64_t)st->st_size != bytes)
        return refit_fail(err, REFIT_MISMATCH, "slot: descriptor %d holds %lld bytes, %" PRIu64 " expected", fd,
                          (long long)st->st_size, bytes);
    return REFIT_OK;
}

enum refit_status refit_slot_map(int fd, uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    struct stat st;
    int seals;
    enum refit_status status = slot_bytes(bytes, &bytes, err);
    if (status == REFIT_OK)
        status = check_descriptor(fd, bytes, &st, &seals, err);
    if (status != REFIT_OK)
        return status;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return refit_fail_errno(err, errno, "slot: duplicate descriptor %d", fd);
    struct refit_arena *slot = NULL;
    status = map_slot(own, bytes, false, &slot, err);
    if (status != REFIT_OK)
        return status;
    /* Only page tables: the pages are there. A kernel that can't fills them on demand. */
    (void)madvise(slot->mapping, bytes, MADV_POPULATE_READ);
    *out = slot;
    return REFIT_OK;
}

/* `st` and `seals` are of the descriptor that came back; whoever sent it may have made it. */
static enum refit_status check_ours(int fd, const struct stat *st, int seals, enum refit_protection protection,
                                    struct refit_error *err)
{
    if (st->st_uid != geteuid() || (st->st_mode & 07777) != 0600)
        return refit_fail(err, REFIT_INVALID,
                          "slot: descriptor %d belongs to uid %u with mode %04o, expected uid %u with mode 0600", fd,
                          (unsigned)st->st_uid, (unsigned)(st->st_mode & 07777), (unsigned)geteuid());
    if (protection == REFIT_PROTECT_SEAL && !(seals & F_SEAL_FUTURE_WRITE))
        return refit_fail(err, REFIT_MISMATCH,
                          "slot: descriptor %d is not sealed against writing (seals 0x%x), as protection seal demands",
                          fd, (unsigned)seals);
    return REFIT_OK;
}

enum refit_status refit_slot_adopt(int fd, uint64_t bytes, enum refit_protection protection, struct refit_arena **out,
                                   bool *writable, struct refit_error *err)
{
    struct stat st;
    int seals, own;
    enum refit_status status = slot_bytes(bytes, &bytes, err);
    if (status == REFIT_OK)
        status = check_descriptor(fd, bytes, &st, &seals, err);
    if (status == REFIT_OK)
        status = check_ours(fd, &st, seals, protection, err);
    bool can_write = status == REFIT_OK && !(seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE));
    uint64_t present = status == REFIT_OK ? (uint64_t)st.st_blocks * 512 : 0;
    if (can_write && present < bytes)
        status = check_memory("taken back", bytes - present, err);
    if (status == REFIT_OK)
        status = reopen(fd, can_write ? O_RDWR : O_RDONLY, &own, err);
    if (status != REFIT_OK)
        return status;
    struct refit_arena *slot = NULL;
    status = map_slot(own, bytes, can_write, &slot, err);
    /* Pages that are there need no touch, and filling the page tables of large slots would keep a restarted refitd from
     * being ready: they fill as a refit writes. */
    if (status == REFIT_OK && can_write && present < bytes)
        status = touch(slot->mapping, bytes, "taken back", err);
    if (status != REFIT_OK) {
        refit_arena_release(slot);
        return status;
    }
    *out = slot;
    *writable = can_write;
    return REFIT_OK;
}

enum refit_status refit_slot_identify(int fd, struct refit_slot_identity *identity, struct refit_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refit_fail_errno(err, errno, "slot: stat descriptor %d", fd);
    identity->device = st.st_dev;
    identity->inode = st.st_ino;
    return REFIT_OK;
}
