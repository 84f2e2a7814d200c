/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/window.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "memory/arena_ops.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct refit_window {
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

enum refit_status refit_window_create(const struct refit_arena *slot, struct refit_window **out,
                                      struct refit_error *err)
{
    if (slot->kind != REFIT_ARENA_HOST || !slot->mapping)
        return refit_fail(err, REFIT_UNSUPPORTED, "window: memory of kind %s can't be shown in one", slot->ops->name);
    struct refit_window *window = calloc(1, sizeof *window);
    if (!window)
        return refit_fail_alloc(err, "a window", sizeof *window);
    window->bytes = slot->mapping_bytes;
    if (!map_nothing(window, 0)) {
        int saved = errno;
        free(window);
        return refit_fail_errno(err, saved, "window: reserve %zu bytes of addresses", slot->mapping_bytes);
    }
    *out = window;
    return REFIT_OK;
}

enum refit_status refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                    struct refit_error *err)
{
    if (slot->kind != REFIT_ARENA_HOST || slot->mapping_bytes != window->bytes)
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
    return window->at + offset;
}

void refit_window_destroy(struct refit_window *window)
{
    if (!window)
        return;
    munmap(window->at, window->bytes);
    free(window);
}
