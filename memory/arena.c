/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/io.h"
#include "memory/arena_ops.h"

static const struct refit_arena_ops *ops_of_kind(enum refit_arena_kind kind)
{
    switch (kind) {
    case REFIT_ARENA_HOST: return &refit_arena_ops_host;
    case REFIT_ARENA_FILE: return &refit_arena_ops_file;
    case REFIT_ARENA_CUDA: return NULL;
    }
    return NULL;
}

enum refit_status refit_arena_create(enum refit_arena_kind kind, uint64_t bytes, struct refit_arena **out,
                                     struct refit_error *err)
{
    const struct refit_arena_ops *ops = ops_of_kind(kind);
    if (!ops)
        return refit_fail(err, REFIT_UNSUPPORTED, "arena: kind %d is not made empty here; use refit_cuda_arena_create", (int)kind);
    return refit_arena_create_kind(kind, ops, bytes, out, err);
}

enum refit_status refit_arena_create_kind(enum refit_arena_kind kind, const struct refit_arena_ops *ops,
                                          uint64_t bytes, struct refit_arena **out, struct refit_error *err)
{
    struct refit_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return refit_fail_alloc(err, "arena", sizeof *arena);
    atomic_init(&arena->references, 1);
    arena->kind = kind;
    arena->ops = ops;
    arena->bytes = bytes;
    arena->mapping_fd = -1;
    arena->ordinal = -1;
    *out = arena;
    return REFIT_OK;
}

struct refit_arena *refit_arena_retain(struct refit_arena *arena)
{
    atomic_fetch_add_explicit(&arena->references, 1, memory_order_relaxed);
    return arena;
}

void refit_arena_release(struct refit_arena *arena)
{
    if (!arena || atomic_fetch_sub_explicit(&arena->references, 1, memory_order_acq_rel) != 1)
        return;
    if (arena->ops->release)
        arena->ops->release(arena);
    for (size_t i = 0; i < arena->file_count; i++) {
        refit_io_close(&arena->files[i].fd);
        free(arena->files[i].path);
    }
    if (arena->mapping)
        munmap(arena->mapping, arena->mapping_bytes);
    refit_io_close(&arena->mapping_fd);
    free(arena->files);
    free(arena->pieces);
    free(arena);
}

/* Index of the first piece that begins behind `offset`. */
static size_t upper_bound(const struct refit_arena *arena, uint64_t offset)
{
    size_t low = 0, high = arena->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (arena->pieces[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct refit_arena_piece *refit_arena_find(const struct refit_arena *arena, uint64_t offset)
{
    size_t behind = upper_bound(arena, offset);
    if (behind == 0)
        return NULL;
    const struct refit_arena_piece *piece = &arena->pieces[behind - 1];
    return offset - piece->offset < piece->bytes ? piece : NULL;
}

enum refit_status refit_arena_check_range(const struct refit_arena *arena, uint64_t offset, uint64_t bytes,
                                          struct refit_error *err)
{
    if (offset > arena->bytes || bytes > arena->bytes - offset)
        return refit_fail(err, REFIT_INVALID, "arena: %llu bytes at offset %llu do not lie in a space of %llu bytes",
                          (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)arena->bytes);
    return REFIT_OK;
}

static enum refit_status check_free(const struct refit_arena *arena, size_t index, uint64_t offset, uint64_t bytes,
                                    struct refit_error *err)
{
    const struct refit_arena_piece *before = index > 0 ? &arena->pieces[index - 1] : NULL;
    const struct refit_arena_piece *behind = index < arena->piece_count ? &arena->pieces[index] : NULL;
    const struct refit_arena_piece *other = NULL;
    if (before && offset - before->offset < before->bytes)
        other = before;
    else if (behind && behind->offset - offset < bytes)
        other = behind;
    if (!other)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "arena: %llu bytes at offset %llu overlap the piece of %llu bytes at %llu",
                      (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)other->bytes,
                      (unsigned long long)other->offset);
}

static enum refit_status grow(void **items, size_t *capacity, size_t count, size_t item_bytes, const char *what,
                              struct refit_error *err)
{
    if (count < *capacity)
        return REFIT_OK;
    size_t wanted = *capacity ? *capacity + *capacity / 2 + 1 : 1;
    void *larger = reallocarray(*items, wanted, item_bytes);
    if (!larger)
        return refit_fail_alloc(err, what, wanted * item_bytes);
    *items = larger;
    *capacity = wanted;
    return REFIT_OK;
}

/* Mostly appended: buffers and tensors are bound in the order of their space. */
enum refit_status refit_arena_insert(struct refit_arena *arena, struct refit_arena_piece piece,
                                     struct refit_error *err)
{
    if (piece.bytes == 0)
        return REFIT_OK;
    size_t index = upper_bound(arena, piece.offset);
    enum refit_status status = check_free(arena, index, piece.offset, piece.bytes, err);
    void *pieces = arena->pieces;
    if (status == REFIT_OK)
        status = grow(&pieces, &arena->piece_capacity, arena->piece_count, sizeof piece, "arena pieces", err);
    if (status != REFIT_OK)
        return status;
    arena->pieces = pieces;
    memmove(arena->pieces + index + 1, arena->pieces + index, (arena->piece_count - index) * sizeof piece);
    arena->pieces[index] = piece;
    arena->piece_count++;
    return REFIT_OK;
}

enum refit_status refit_arena_bind_host(struct refit_arena *arena, uint64_t offset, void *pointer, uint64_t bytes,
                                        int shareable_fd, uint64_t fd_offset, struct refit_error *err)
{
    if (arena->kind != REFIT_ARENA_HOST)
        return refit_fail(err, REFIT_INVALID, "arena: host memory bound to an arena of kind %s", arena->ops->name);
    enum refit_status status = refit_arena_check_range(arena, offset, bytes, err);
    if (status != REFIT_OK)
        return status;
    if (bytes > 0 && (!pointer || (uintptr_t)pointer > UINTPTR_MAX - bytes))
        return refit_fail(err, REFIT_INVALID, "arena: %llu bytes of host memory at address %p",
                          (unsigned long long)bytes, pointer);
    struct refit_arena_piece piece = {.offset = offset, .bytes = bytes, .host = pointer, .fd_offset = fd_offset,
                                      .fd = shareable_fd};
    return refit_arena_insert(arena, piece, err);
}

static enum refit_status add_file(struct refit_arena *arena, int fd, const struct stat *st, const char *path,
                                  struct refit_error *err)
{
    void *files = arena->files;
    enum refit_status status = grow(&files, &arena->file_capacity, arena->file_count, sizeof *arena->files,
                                    "arena files", err);
    if (status != REFIT_OK)
        return status;
    arena->files = files;
    struct refit_arena_file file = {.device = st->st_dev, .inode = st->st_ino, .path = strdup(path)};
    if (!file.path)
        return refit_fail_alloc(err, path, strlen(path) + 1);
    file.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (file.fd < 0) {
        free(file.path);
        return refit_fail_errno(err, errno, "%s: duplicate the descriptor", path);
    }
    arena->files[arena->file_count++] = file;
    return REFIT_OK;
}

/* Thousands of tensors lie in one file, and are bound one after the other: the newest is looked at first. */
static enum refit_status intern_file(struct refit_arena *arena, int fd, const struct stat *st, const char *path,
                                     uint32_t *index, struct refit_error *err)
{
    for (size_t i = arena->file_count; i-- > 0;) {
        const struct refit_arena_file *file = &arena->files[i];
        if (file->device == st->st_dev && file->inode == st->st_ino && strcmp(file->path, path) == 0) {
            *index = (uint32_t)i;
            return REFIT_OK;
        }
    }
    *index = (uint32_t)arena->file_count;
    return add_file(arena, fd, st, path, err);
}

enum refit_status refit_arena_bind_file(struct refit_arena *arena, uint64_t offset, int fd, uint64_t file_offset,
                                        uint64_t bytes, const char *path, struct refit_error *err)
{
    if (arena->kind != REFIT_ARENA_FILE)
        return refit_fail(err, REFIT_INVALID, "arena: %s bound to an arena of kind %s", path, arena->ops->name);
    enum refit_status status = refit_arena_check_range(arena, offset, bytes, err);
    if (status != REFIT_OK)
        return status;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refit_fail_errno(err, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode))
        return refit_fail(err, REFIT_INVALID, "%s: must be a regular file", path);
    if (file_offset > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - file_offset)
        return refit_fail(err, REFIT_CORRUPT, "%s: %llu bytes expected at offset %llu, the file ends at %lld", path,
                          (unsigned long long)bytes, (unsigned long long)file_offset, (long long)st.st_size);
    struct refit_arena_piece piece = {.offset = offset, .bytes = bytes, .fd_offset = file_offset, .fd = -1};
    status = intern_file(arena, fd, &st, path, &piece.file, err);
    return status == REFIT_OK ? refit_arena_insert(arena, piece, err) : status;
}

enum refit_arena_kind refit_arena_kind(const struct refit_arena *arena)
{
    return arena->kind;
}

uint64_t refit_arena_bytes(const struct refit_arena *arena)
{
    return arena->bytes;
}

void *refit_arena_host(const struct refit_arena *arena, uint64_t offset, uint64_t len)
{
    const struct refit_arena_piece *piece = refit_arena_find(arena, offset);
    if (!piece || !piece->host || len > piece->bytes - (offset - piece->offset))
        return NULL;
    return piece->host + (offset - piece->offset);
}

int refit_arena_device(const struct refit_arena *arena)
{
    return arena->ordinal;
}

uint64_t refit_arena_device_address(const struct refit_arena *arena, uint64_t offset, uint64_t len)
{
    const struct refit_arena_piece *piece = refit_arena_find(arena, offset);
    if (!piece || !piece->address || len > piece->bytes - (offset - piece->offset))
        return 0;
    return piece->address + (offset - piece->offset);
}

int refit_arena_piece_fd(const struct refit_arena *arena, const struct refit_arena_piece *piece)
{
    return arena->kind == REFIT_ARENA_FILE ? arena->files[piece->file].fd : piece->fd;
}

const char *refit_arena_piece_path(const struct refit_arena *arena, const struct refit_arena_piece *piece)
{
    return arena->kind == REFIT_ARENA_FILE ? arena->files[piece->file].path : NULL;
}

static void describe(const struct refit_arena *arena, const struct refit_arena_piece *piece, struct refit_piece *out)
{
    *out = (struct refit_piece){
        .offset = piece->offset,
        .bytes = piece->bytes,
        .host = piece->host,
        .fd = refit_arena_piece_fd(arena, piece),
        .fd_offset = piece->fd_offset,
        .path = refit_arena_piece_path(arena, piece),
    };
}

bool refit_arena_piece(const struct refit_arena *arena, uint64_t offset, struct refit_piece *piece)
{
    const struct refit_arena_piece *found = refit_arena_find(arena, offset);
    if (found)
        describe(arena, found, piece);
    return found != NULL;
}

size_t refit_arena_piece_count(const struct refit_arena *arena)
{
    return arena->piece_count;
}

void refit_arena_piece_at(const struct refit_arena *arena, size_t index, struct refit_piece *piece)
{
    describe(arena, &arena->pieces[index], piece);
}
