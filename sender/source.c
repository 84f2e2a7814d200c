/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "memory/cuda.h"

/* ---- shareable memory ---- */

/* The receiver gets a descriptor that can't be written through, and the size can't change under its mapping. */
static enum refit_status seal_and_reopen(int fd, int *read_only, struct refit_error *err)
{
    char path[64];
    if (fchmod(fd, S_IRUSR | S_IWUSR) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        return refit_fail_errno(err, errno, "cannot seal shareable memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *read_only = open(path, O_RDONLY | O_CLOEXEC);
    return *read_only >= 0 ? REFIT_OK : refit_fail_errno(err, errno, "cannot reopen shareable memory (%s)", path);
}

static enum refit_status map_shared(struct refit_shared *shared, struct refit_error *err)
{
    int fd = refit_io_memfd("refit-source");
    if (fd < 0)
        return refit_fail_errno(err, errno, "cannot make shareable memory");
    enum refit_status status = REFIT_OK;
    if (ftruncate(fd, (off_t)shared->bytes) != 0)
        status = refit_fail_errno(err, errno, "cannot size shareable memory to %zu bytes", shared->bytes);
    if (status == REFIT_OK) {
        shared->data = mmap(NULL, shared->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared->data == MAP_FAILED)
            status = refit_fail_errno(err, errno, "cannot map %zu bytes of shareable memory", shared->bytes);
    }
    if (status == REFIT_OK && (status = seal_and_reopen(fd, &shared->fd, err)) != REFIT_OK)
        munmap(shared->data, shared->bytes);
    refit_io_close(&fd);
    return status;
}

enum refit_status refit_shared_alloc(struct refit_shared **list, size_t bytes, void **out, struct refit_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded;
    if (bytes == 0 || __builtin_add_overflow(bytes, page - 1, &rounded))
        return refit_fail(err, REFIT_INVALID, "cannot allocate %zu bytes", bytes);
    struct refit_shared *shared = calloc(1, sizeof *shared);
    if (!shared)
        return refit_fail_alloc(err, "shareable memory", bytes);
    shared->bytes = rounded & ~(page - 1);
    shared->fd = -1;
    enum refit_status status = map_shared(shared, err);
    if (status != REFIT_OK) {
        free(shared);
        return status;
    }
    shared->next = *list;
    *list = shared;
    *out = shared->data;
    return REFIT_OK;
}

void refit_shared_free_all(struct refit_shared **list)
{
    while (*list) {
        struct refit_shared *shared = *list;
        *list = shared->next;
        munmap(shared->data, shared->bytes);
        refit_io_close(&shared->fd);
        free(shared);
    }
}

/* The descriptor that holds [data, data + bytes), or -1. */
static int find_shared(const struct refit_shared *list, const void *data, size_t bytes, uint64_t *offset)
{
    uintptr_t at = (uintptr_t)data;
    for (; list; list = list->next) {
        uintptr_t begin = (uintptr_t)list->data;
        if (at >= begin && at - begin <= list->bytes && bytes <= list->bytes - (at - begin)) {
            *offset = at - begin;
            return list->fd;
        }
    }
    *offset = 0;
    return -1;
}

/* ---- binding ---- */

struct binding {
    uint32_t rank;
    const struct refit_sender_buffer **sorted; /* by name */
    bool *bound;                               /* by place in `sorted` */
    size_t count;
    const struct refit_shared *shared;
    struct refit_arena *arena;
    enum refit_status status;
    struct refit_error *err;
};

static int by_name(const void *a, const void *b)
{
    const struct refit_sender_buffer *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum refit_status sort_buffers(struct binding *binding, const struct refit_sender_buffer *buffers,
                                      struct refit_error *err)
{
    for (size_t i = 0; i < binding->count; i++) {
        if (!buffers[i].name || (!buffers[i].data && buffers[i].bytes > 0))
            return refit_fail(err, REFIT_INVALID, "buffer %zu (%s) has no %s", i,
                              buffers[i].name ? buffers[i].name : "unnamed", buffers[i].name ? "memory" : "name");
        binding->sorted[i] = &buffers[i];
    }
    if (binding->count > 0)
        qsort(binding->sorted, binding->count, sizeof *binding->sorted, by_name);
    for (size_t i = 1; i < binding->count; i++)
        if (strcmp(binding->sorted[i - 1]->name, binding->sorted[i]->name) == 0)
            return refit_fail(err, REFIT_INVALID, "buffer %s is given twice", binding->sorted[i]->name);
    return REFIT_OK;
}

static size_t find_buffer(const struct binding *binding, const char *name)
{
    size_t low = 0, high = binding->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(binding->sorted[middle]->name, name);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return binding->count;
}

static enum refit_status bind_device(struct binding *binding, const struct refit_sender_buffer *given, uint64_t offset)
{
    enum refit_status status = refit_cuda_bind(binding->arena, offset, (uint64_t)(uintptr_t)given->data, given->bytes,
                                               binding->err);
    return status == REFIT_OK ? status : refit_error_prefix(binding->err, status, "buffer %s of rank %u", given->name,
                                                            binding->rank);
}

static enum refit_status bind_one(struct binding *binding, const struct refit_buffer *wanted)
{
    size_t place = find_buffer(binding, wanted->name);
    if (place == binding->count && wanted->bytes == 0)
        return REFIT_OK; /* a rank that holds nothing of a tensor has nothing to give */
    if (place == binding->count)
        return refit_fail(binding->err, REFIT_INVALID, "buffer %s of rank %u is in the layout, but was not given",
                          wanted->name, binding->rank);
    const struct refit_sender_buffer *given = binding->sorted[place];
    if (given->bytes != wanted->bytes)
        return refit_fail(binding->err, REFIT_MISMATCH,
                          "buffer %s of rank %u: the layout says %llu bytes, %zu were given", wanted->name,
                          binding->rank, (unsigned long long)wanted->bytes, given->bytes);
    binding->bound[place] = true;
    if (wanted->bytes == 0)
        return REFIT_OK;
    if (given->memory == REFIT_SENDER_CUDA)
        return bind_device(binding, given, wanted->offset);
    uint64_t fd_offset;
    int fd = find_shared(binding->shared, given->data, given->bytes, &fd_offset);
    return refit_arena_bind_host(binding->arena, wanted->offset, (void *)(uintptr_t)given->data, wanted->bytes, fd,
                                 fd_offset, binding->err);
}

static bool on_buffer(void *context, const struct refit_buffer *wanted)
{
    struct binding *binding = context;
    if (!wanted->derived)
        binding->status = bind_one(binding, wanted);
    return binding->status == REFIT_OK;
}

static enum refit_status bind_all(struct binding *binding, const struct refit_layout *layout,
                                  const struct refit_sender_buffer *buffers)
{
    enum refit_status status = sort_buffers(binding, buffers, binding->err);
    if (status != REFIT_OK)
        return status;
    if (!refit_layout_buffers(layout, binding->rank, on_buffer, binding))
        return binding->status;
    for (size_t i = 0; i < binding->count; i++)
        if (!binding->bound[i])
            return refit_fail(binding->err, REFIT_NOT_FOUND, "buffer %s was given, but the layout of rank %u has none "
                              "of that name", binding->sorted[i]->name, binding->rank);
    return REFIT_OK;
}

static bool same_place(const struct refit_sender_buffer *a, const struct refit_sender_buffer *b)
{
    return a->memory == b->memory && (a->memory == REFIT_SENDER_HOST || a->device == b->device);
}

/* Where the first buffer is that has bytes; the others must be there, too. */
static enum refit_status make_arena(const struct refit_sender_buffer *buffers, size_t count, uint64_t bytes,
                                    struct refit_arena **out, struct refit_error *err)
{
    const struct refit_sender_buffer *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (buffers[i].memory != REFIT_SENDER_HOST && buffers[i].memory != REFIT_SENDER_CUDA)
            return refit_fail(err, REFIT_INVALID, "buffer %zu: memory %d is not known", i, (int)buffers[i].memory);
        if (buffers[i].bytes == 0)
            continue;
        first = first ? first : &buffers[i];
        if (!same_place(first, &buffers[i]))
            return refit_fail(err, REFIT_INVALID,
                              "buffers %s and %s are in different memory; all of a rank's must be in the host's, or on "
                              "one device", first->name ? first->name : "unnamed",
                              buffers[i].name ? buffers[i].name : "unnamed");
    }
    if (first && first->memory == REFIT_SENDER_CUDA)
        return refit_cuda_arena_create(first->device, bytes, out, err);
    return refit_arena_create(REFIT_ARENA_HOST, bytes, out, err);
}

enum refit_status refit_source_bind(const struct refit_layout *layout, uint32_t rank,
                                    const struct refit_sender_buffer *buffers, size_t count,
                                    const struct refit_shared *shared, struct refit_arena **out,
                                    struct refit_error *err)
{
    struct binding binding = {.rank = rank, .count = count, .shared = shared, .err = err};
    enum refit_status status = make_arena(buffers, count, refit_layout_arena_bytes(layout, rank), &binding.arena, err);
    if (status != REFIT_OK)
        return status;
    binding.sorted = calloc(count + 1, sizeof(const struct refit_sender_buffer *));
    binding.bound = calloc(count + 1, sizeof *binding.bound);
    status = binding.sorted && binding.bound ? bind_all(&binding, layout, buffers)
                                             : refit_fail_alloc(err, "the buffers' names", count * sizeof(void *));
    free(binding.sorted);
    free(binding.bound);
    if (status == REFIT_OK)
        *out = binding.arena;
    else
        refit_arena_release(binding.arena);
    return status;
}
