/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/window.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/exchange_internal.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct refit_window {
    struct refit_cuda_window *cuda; /* NULL: of the host's addresses, below */
    uint8_t *at;
    size_t bytes;
};

/* In place of whatever is mapped there; also keeps the addresses from being given to others. */
static bool map_nothing(struct refit_window *window, int fixed)
{
    void *at = mmap(window->at, window->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (at == MAP_FAILED)
        return false;
    window->at = at;
    return true;
}

static enum refit_status reserve(struct refit_window *window, size_t bytes, struct refit_error *err)
{
    window->bytes = bytes;
    return map_nothing(window, 0) ? REFIT_OK
                                  : refit_fail_errno(err, errno, "window: reserve %zu bytes of addresses", bytes);
}

static bool is_slot(const struct refit_arena *arena)
{
    return arena->kind == REFIT_ARENA_CUDA ? arena->device != NULL : arena->mapping != NULL;
}

enum refit_status refit_window_create(const struct refit_arena *slot, struct refit_window **out,
                                      struct refit_error *err)
{
    if (!is_slot(slot))
        return refit_fail(err, REFIT_UNSUPPORTED, "window: memory of kind %s can't be shown in one", slot->ops->name);
    struct refit_window *window = calloc(1, sizeof *window);
    if (!window)
        return refit_fail_alloc(err, "a window", sizeof *window);
    enum refit_status status = slot->kind == REFIT_ARENA_CUDA ? refit_cuda_window_create(slot, &window->cuda, err)
                                                              : reserve(window, slot->mapping_bytes, err);
    if (status != REFIT_OK) {
        free(window);
        return status;
    }
    *out = window;
    return REFIT_OK;
}

enum refit_status refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                    struct refit_error *err)
{
    if (window->cuda && slot->kind == REFIT_ARENA_CUDA)
        return refit_cuda_window_show(window->cuda, slot, err);
    if (window->cuda || slot->kind != REFIT_ARENA_HOST || slot->mapping_bytes != window->bytes)
        return refit_fail(err, REFIT_MISMATCH, "window of %zu bytes: a slot of %zu bytes can't be shown in it",
                          window->bytes, slot->mapping_bytes);
    void *at = mmap(window->at, window->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, slot->mapping_fd, 0);
    if (at == MAP_FAILED) {
        int saved = errno;
        (void)map_nothing(window, MAP_FIXED);
        return refit_fail_errno(err, saved, "window: map %zu bytes of a slot", window->bytes);
    }
    (void)madvise(at, window->bytes, MADV_DONTFORK);
    (void)madvise(at, window->bytes, MADV_DONTDUMP);
    /* Page tables only: the pages are there. A kernel that can't fills them on demand. */
    (void)madvise(at, window->bytes, MADV_POPULATE_READ);
    return REFIT_OK;
}

const void *refit_window_at(const struct refit_window *window, uint64_t offset)
{
    if (window->cuda)
        return (const void *)(uintptr_t)(refit_cuda_window_address(window->cuda) + offset);
    return window->at + offset;
}

void refit_window_destroy(struct refit_window *window)
{
    if (!window)
        return;
    if (window->cuda)
        refit_cuda_window_destroy(window->cuda);
    else
        munmap(window->at, window->bytes);
    free(window);
}
