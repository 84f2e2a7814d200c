/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/host_buffer.h"

#include <stdlib.h>

#include "memory/cuda_pinned.h"

struct refit_host_buffer {
    uint8_t *bytes;
    struct refit_cuda_pinned *pinned; /* NULL: from the heap */
};

enum refit_status refit_host_buffer_create(int device, size_t bytes, struct refit_host_buffer **out,
                                           struct refit_error *err)
{
    struct refit_host_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return refit_fail_alloc(err, "staging", sizeof *buffer);
    enum refit_status status = REFIT_OK;
    if (device >= 0)
        status = refit_cuda_pinned_create(device, bytes, &buffer->pinned, &buffer->bytes, err);
    else if (!(buffer->bytes = malloc(bytes)))
        status = refit_fail_alloc(err, "staging", bytes);
    if (status != REFIT_OK) {
        free(buffer);
        return status;
    }
    *out = buffer;
    return REFIT_OK;
}

void refit_host_buffer_destroy(struct refit_host_buffer *buffer)
{
    if (!buffer)
        return;
    if (buffer->pinned)
        refit_cuda_pinned_drop(buffer->pinned);
    else
        free(buffer->bytes);
    free(buffer);
}

uint8_t *refit_host_buffer_bytes(const struct refit_host_buffer *buffer)
{
    return buffer->bytes;
}
