/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_stream.h"

#include <stdlib.h>
#include <string.h>

#include "memory/cuda_internal.h"

struct refit_cuda_stream {
    struct refit_cuda_device *device;
    CUstream handle;
};

struct refit_cuda_event {
    struct refit_cuda_device *device;
    CUevent handle;
};

struct refit_cuda_buffer {
    struct refit_cuda_device *device;
    CUdeviceptr address;
    uint64_t bytes;
};

/* A device opened and entered, or neither. */
static enum refit_status open_device(int ordinal, struct refit_cuda_device **out, struct refit_error *err)
{
    enum refit_status status = refit_cuda_device_open(ordinal, out, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_enter(*out, err);
    if (status != REFIT_OK)
        refit_cuda_device_close(*out);
    return status;
}

/* After open_device and an allocation of host memory: what failed is undone. */
static enum refit_status close_device(struct refit_cuda_device *device, enum refit_status status, void *owned)
{
    refit_cuda_leave(device);
    if (status != REFIT_OK) {
        free(owned);
        refit_cuda_device_close(device);
    }
    return status;
}

/* ---- streams ---- */

enum refit_status refit_cuda_stream_create(int device, enum refit_cuda_priority priority,
                                           struct refit_cuda_stream **out, struct refit_error *err)
{
    struct refit_cuda_device *opened;
    enum refit_status status = open_device(device, &opened, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_stream *stream = calloc(1, sizeof *stream);
    status = stream ? refit_cuda_new_stream(opened, priority == REFIT_CUDA_PRIORITY_LEAST, &stream->handle, err)
                    : refit_fail_alloc(err, "CUDA stream", sizeof *stream);
    if (status == REFIT_OK) {
        stream->device = opened;
        *out = stream;
    }
    return close_device(opened, status, stream);
}

void refit_cuda_stream_destroy(struct refit_cuda_stream *stream)
{
    if (!stream)
        return;
    struct refit_cuda_device *device = stream->device;
    bool entered = refit_cuda_enter_to_free(device);
    (void)device->cuda->cuStreamDestroy(stream->handle);
    if (entered)
        refit_cuda_leave(device);
    refit_cuda_device_close(device);
    free(stream);
}

void *refit_cuda_stream_handle(const struct refit_cuda_stream *stream)
{
    return stream->handle;
}

int refit_cuda_stream_device(const struct refit_cuda_stream *stream)
{
    return stream->device->ordinal;
}

void refit_cuda_stream_uuid(const struct refit_cuda_stream *stream, uint8_t uuid[REFIT_CUDA_UUID_BYTES])
{
    memcpy(uuid, stream->device->info.uuid, REFIT_CUDA_UUID_BYTES);
}

enum refit_status refit_cuda_stream_enter(const struct refit_cuda_stream *stream, struct refit_error *err)
{
    return refit_cuda_enter(stream->device, err);
}

void refit_cuda_stream_leave(const struct refit_cuda_stream *stream)
{
    refit_cuda_leave(stream->device);
}

enum refit_status refit_cuda_stream_poll(const struct refit_cuda_stream *stream, struct refit_error *err)
{
    enum refit_status status = refit_cuda_enter(stream->device, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_poll_stream(stream->device, stream->handle, err);
    refit_cuda_leave(stream->device);
    return status;
}

enum refit_status refit_cuda_stream_wait(const struct refit_cuda_stream *stream, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    enum refit_status status = refit_cuda_enter(stream->device, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_wait_stream(stream->device, stream->handle, deadline, err);
    refit_cuda_leave(stream->device);
    return status;
}

/* ---- events ---- */

enum refit_status refit_cuda_event_create(int device, struct refit_cuda_event **out, struct refit_error *err)
{
    struct refit_cuda_device *opened;
    enum refit_status status = open_device(device, &opened, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_event *event = calloc(1, sizeof *event);
    status = event ? CUDA(opened->cuda, err, cuEventCreate, &event->handle, CU_EVENT_DISABLE_TIMING)
                   : refit_fail_alloc(err, "CUDA event", sizeof *event);
    if (status == REFIT_OK) {
        event->device = opened;
        *out = event;
    }
    return close_device(opened, status, event);
}

void refit_cuda_event_destroy(struct refit_cuda_event *event)
{
    if (!event)
        return;
    struct refit_cuda_device *device = event->device;
    bool entered = refit_cuda_enter_to_free(device);
    (void)device->cuda->cuEventDestroy(event->handle);
    if (entered)
        refit_cuda_leave(device);
    refit_cuda_device_close(device);
    free(event);
}

enum refit_status refit_cuda_event_record_on(struct refit_cuda_event *event, void *stream, struct refit_error *err)
{
    const struct refit_cuda_device *device = event->device;
    enum refit_status status = refit_cuda_enter(device, err);
    if (status != REFIT_OK)
        return status;
    status = CUDA(device->cuda, err, cuEventRecord, event->handle, stream);
    refit_cuda_leave(device);
    return status;
}

enum refit_status refit_cuda_event_record(struct refit_cuda_event *event, const struct refit_cuda_stream *stream,
                                          struct refit_error *err)
{
    if (event->device != stream->device)
        return refit_fail(err, REFIT_INVALID, "CUDA: an event of device %d recorded on a stream of device %d",
                          event->device->ordinal, stream->device->ordinal);
    return refit_cuda_event_record_on(event, stream->handle, err);
}

enum refit_status refit_cuda_event_order(const struct refit_cuda_event *event, const struct refit_cuda_stream *stream,
                                         struct refit_error *err)
{
    const struct refit_cuda_device *device = stream->device;
    enum refit_status status = refit_cuda_enter(device, err);
    if (status != REFIT_OK)
        return status;
    status = CUDA(device->cuda, err, cuStreamWaitEvent, stream->handle, event->handle, 0);
    refit_cuda_leave(device);
    return status;
}

enum refit_status refit_cuda_event_poll(const struct refit_cuda_event *event, struct refit_error *err)
{
    enum refit_status status = refit_cuda_enter(event->device, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_poll_event(event->device, event->handle, err);
    refit_cuda_leave(event->device);
    return status;
}

enum refit_status refit_cuda_event_wait(const struct refit_cuda_event *event, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    enum refit_status status = refit_cuda_enter(event->device, err);
    if (status != REFIT_OK)
        return status;
    status = refit_cuda_wait_event(event->device, event->handle, deadline, err);
    refit_cuda_leave(event->device);
    return status;
}

/* ---- staging ---- */

enum refit_status refit_cuda_buffer_create(int device, uint64_t bytes, struct refit_cuda_buffer **out,
                                           struct refit_error *err)
{
    struct refit_cuda_device *opened;
    enum refit_status status = open_device(device, &opened, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cuda_buffer *buffer = calloc(1, sizeof *buffer);
    status = buffer ? refit_cuda_admit(opened, "staging", bytes, err)
                    : refit_fail_alloc(err, "CUDA staging", sizeof *buffer);
    if (status == REFIT_OK)
        status = CUDA(opened->cuda, err, cuMemAlloc, &buffer->address, bytes > 0 ? bytes : 1);
    if (status == REFIT_OK) {
        buffer->device = opened;
        buffer->bytes = bytes;
        *out = buffer;
    }
    return close_device(opened, status, buffer);
}

void refit_cuda_buffer_destroy(struct refit_cuda_buffer *buffer)
{
    if (!buffer)
        return;
    struct refit_cuda_device *device = buffer->device;
    bool entered = refit_cuda_enter_to_free(device);
    (void)device->cuda->cuMemFree(buffer->address);
    if (entered)
        refit_cuda_leave(device);
    refit_cuda_device_close(device);
    free(buffer);
}

uint64_t refit_cuda_buffer_address(const struct refit_cuda_buffer *buffer)
{
    return buffer->address;
}

uint64_t refit_cuda_buffer_bytes(const struct refit_cuda_buffer *buffer)
{
    return buffer->bytes;
}

/* ---- operations ---- */

/* What a window is walked for: from the arena to `at`, from `at` to the arena, or digested in place. */
struct pass {
    struct refit_cuda_batch *batch;
    struct refit_segments *segments;
    enum { PACK, SCATTER, DIGEST } what;
    CUdeviceptr at;
};

/* Without a digest, what is dense on both sides is a copy engine's. */
static enum refit_status move_rows(const struct pass *pass, const struct refit_rows *rows, CUdeviceptr sum,
                                   struct refit_error *err)
{
    const struct refit_cuda_batch *batch = pass->batch;
    CUdeviceptr memory = rows->piece->address + rows->offset;
    CUdeviceptr dst = pass->what == PACK ? pass->at : memory, src = pass->what == PACK ? memory : pass->at;
    int64_t dense = (int64_t)rows->run_bytes;
    if (pass->what == DIGEST)
        return sum ? refit_cuda_launch(batch, 0, 0, memory, rows->stride, rows, sum, err) : REFIT_OK;
    if (!sum && (rows->count == 1 || rows->stride == dense))
        return CUDA(batch->device->cuda, err, cuMemcpyDtoDAsync, dst, src, refit_rows_bytes(rows), batch->stream);
    return refit_cuda_launch(batch, dst, pass->what == PACK ? dense : rows->stride, src,
                             pass->what == PACK ? rows->stride : dense, rows, sum, err);
}

static enum refit_status walk_rows(struct pass *pass, const struct refit_arena *arena, struct refit_walk walk,
                                   struct refit_error *err)
{
    struct refit_iov_cursor cursor;
    struct refit_rows rows;
    enum refit_status status;
    refit_iov_begin(&cursor, walk);
    while ((status = refit_rows_peek(&cursor, arena, &rows, err)) == REFIT_OK && rows.count > 0) {
        CUdeviceptr sum = 0;
        status = refit_cuda_batch_sum(pass->batch, refit_segments_digest(pass->segments, &cursor.strip), &sum, err);
        if (status == REFIT_OK)
            status = move_rows(pass, &rows, sum, err);
        if (status != REFIT_OK)
            return status;
        pass->at += refit_rows_bytes(&rows);
        refit_rows_take(&cursor, refit_rows_bytes(&rows));
    }
    return status;
}

/* In the device's context. What was queued before a failure is ended by the completion, too. */
static enum refit_status queue(const struct refit_cuda_stream *stream, struct pass *pass,
                               const struct refit_arena *arena, struct refit_walk walk,
                               struct refit_completion *completion, struct refit_error *err)
{
    enum refit_status status = refit_cuda_batch_take(stream->device, stream->handle, &pass->batch, err);
    if (status != REFIT_OK)
        return status;
    status = walk_rows(pass, arena, walk, err);
    enum refit_status sealed = refit_cuda_batch_seal(pass->batch, status == REFIT_OK ? err : NULL);
    if (sealed == REFIT_OK)
        completion->pending = &pass->batch->pending;
    return status == REFIT_OK ? sealed : status;
}

static enum refit_status run(const struct refit_cuda_stream *stream, struct pass pass, const struct refit_arena *arena,
                             struct refit_walk walk, struct refit_completion *completion, struct refit_error *err)
{
    enum refit_status status =
        refit_operation_begin(arena, walk, pass.what == SCATTER, pass.segments, completion, err);
    if (status == REFIT_OK && arena->ordinal != stream->device->ordinal)
        status = refit_fail(err, REFIT_INVALID, "arena: %s memory and a stream of CUDA device %d; both must be of one "
                            "device", arena->ops->name, stream->device->ordinal);
    if (status == REFIT_OK)
        status = refit_cuda_enter(stream->device, err);
    if (status == REFIT_OK) {
        status = queue(stream, &pass, arena, walk, completion, err);
        refit_cuda_leave(stream->device);
    }
    return completion->status = status;
}

enum refit_status refit_cuda_pack(const struct refit_cuda_stream *stream, const struct refit_arena *source,
                                  struct refit_walk walk, uint64_t out, struct refit_segments *segments,
                                  struct refit_completion *completion, struct refit_error *err)
{
    struct pass pass = {.segments = segments, .what = PACK, .at = out};
    return run(stream, pass, source, walk, completion, err);
}

enum refit_status refit_cuda_scatter(const struct refit_cuda_stream *stream, struct refit_arena *destination,
                                     struct refit_walk walk, uint64_t in, struct refit_segments *segments,
                                     struct refit_completion *completion, struct refit_error *err)
{
    struct pass pass = {.segments = segments, .what = SCATTER, .at = in};
    return run(stream, pass, destination, walk, completion, err);
}

enum refit_status refit_cuda_digest(const struct refit_cuda_stream *stream, const struct refit_arena *arena,
                                    struct refit_walk walk, struct refit_segments *segments,
                                    struct refit_completion *completion, struct refit_error *err)
{
    struct pass pass = {.segments = segments, .what = DIGEST};
    return run(stream, pass, arena, walk, completion, err);
}
