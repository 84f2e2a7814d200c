/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_pinned.h"

#include <stdlib.h>

#include "memory/cuda_internal.h"

/* The device is the one in whose context it was made; all may use it. */
struct refit_cuda_pinned {
    struct refit_cuda_pinned *next;
    struct refit_cuda_device *device;
    uint8_t *memory;
    size_t bytes;
    unsigned references; /* under the list's mutex */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct refit_cuda_pinned *list; /* a few: one for each thread of a transport */

static enum refit_status allocate(struct refit_cuda_pinned *pinned, struct refit_error *err)
{
    const struct refit_cuda_device *device = pinned->device;
    void *memory = NULL;
    enum refit_status status = refit_cuda_enter(device, err);
    if (status != REFIT_OK)
        return status;
    status = CUDA(device->cuda, err, cuMemHostAlloc, &memory, pinned->bytes, CU_MEMHOSTALLOC_PORTABLE);
    refit_cuda_leave(device);
    pinned->memory = memory;
    return status == REFIT_OK ? status
                              : refit_error_prefix(err, status, "pinned staging of %zu bytes", pinned->bytes);
}

enum refit_status refit_cuda_pinned_create(int device, size_t bytes, struct refit_cuda_pinned **out, uint8_t **memory,
                                           struct refit_error *err)
{
    struct refit_cuda_pinned *pinned = calloc(1, sizeof *pinned);
    if (!pinned)
        return refit_fail_alloc(err, "pinned staging", sizeof *pinned);
    pinned->bytes = bytes;
    pinned->references = 1;
    enum refit_status status = refit_cuda_device_open(device, &pinned->device, err);
    if (status == REFIT_OK && (status = allocate(pinned, err)) != REFIT_OK)
        refit_cuda_device_close(pinned->device);
    if (status != REFIT_OK) {
        free(pinned);
        return status;
    }
    pthread_mutex_lock(&list_lock);
    pinned->next = list;
    list = pinned;
    pthread_mutex_unlock(&list_lock);
    *out = pinned;
    *memory = pinned->memory;
    return REFIT_OK;
}

bool refit_cuda_pinned_holds(const struct refit_cuda_pinned *pinned, const void *at, uint64_t bytes)
{
    uintptr_t begin = (uintptr_t)pinned->memory, where = (uintptr_t)at;
    return where >= begin && where - begin <= pinned->bytes && bytes <= pinned->bytes - (where - begin);
}

struct refit_cuda_pinned *refit_cuda_pinned_find(const void *at, uint64_t bytes)
{
    pthread_mutex_lock(&list_lock);
    struct refit_cuda_pinned *pinned = list;
    while (pinned && !refit_cuda_pinned_holds(pinned, at, bytes))
        pinned = pinned->next;
    if (pinned)
        pinned->references++;
    pthread_mutex_unlock(&list_lock);
    return pinned;
}

static bool unlink_last(struct refit_cuda_pinned *pinned)
{
    pthread_mutex_lock(&list_lock);
    bool last = --pinned->references == 0;
    struct refit_cuda_pinned **at = &list;
    while (last && *at != pinned)
        at = &(*at)->next;
    if (last)
        *at = pinned->next;
    pthread_mutex_unlock(&list_lock);
    return last;
}

void refit_cuda_pinned_drop(struct refit_cuda_pinned *pinned)
{
    if (!unlink_last(pinned))
        return;
    struct refit_cuda_device *device = pinned->device;
    bool entered = refit_cuda_enter_to_free(device);
    (void)device->cuda->cuMemFreeHost(pinned->memory);
    if (entered)
        refit_cuda_leave(device);
    refit_cuda_device_close(device);
    free(pinned);
}
