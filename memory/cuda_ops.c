/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_internal.h"
#include "memory/host.h"
#include "memory/rows.h"

/* The batch being queued by this thread: from the first call of an operation to its `finish`. */
static _Thread_local struct refit_cuda_batch *queuing;

/* The device's context is the thread's as long. */
static enum refit_status batch_of(const struct refit_arena *arena, struct refit_cuda_batch **out,
                                  struct refit_error *err)
{
    const struct refit_cuda_memory *memory = arena->device;
    struct refit_cuda_device *device = memory->device;
    enum refit_status status = REFIT_OK;
    if (!queuing) {
        status = refit_cuda_enter(device, err);
        if (status != REFIT_OK)
            return status;
        status = refit_cuda_batch_take(device, device->stream, &queuing, err);
        if (status != REFIT_OK)
            refit_cuda_leave(device);
    }
    *out = queuing;
    return status;
}

static CUdeviceptr address_of(const struct refit_rows *rows)
{
    return rows->piece->address + rows->offset;
}

static uint64_t word_span(uint64_t run_bytes)
{
    return run_bytes / 4 + 2;
}

enum refit_status refit_cuda_launch(const struct refit_cuda_batch *batch, CUdeviceptr dst, int64_t dst_stride,
                                    CUdeviceptr src, int64_t src_stride, const struct refit_rows *rows,
                                    CUdeviceptr sum, struct refit_error *err)
{
    const struct refit_cuda_device *device = batch->device;
    struct refit_cuda_move move = {
        .dst = (uint8_t *)(uintptr_t)dst,
        .src = (const uint8_t *)(uintptr_t)src,
        .dst_stride = dst_stride,
        .src_stride = src_stride,
        .run_bytes = rows->run_bytes,
        .count = rows->count,
        .tensor_offset = rows->tensor_offset,
        .tensor_stride = rows->tensor_stride,
        .k = (const uint32_t *)(uintptr_t)device->k,
        .sum = (unsigned long long *)(uintptr_t)sum,
        .tiles_per_run = (word_span(rows->run_bytes) + 1023) / 1024 + 1,
        .lanes = 1,
    };
    while (move.lanes < REFIT_CUDA_LANES_MAX && move.lanes * 16 < word_span(rows->run_bytes))
        move.lanes *= 2;
    uint64_t blocks = (move.count * move.tiles_per_run * move.lanes + REFIT_CUDA_THREADS - 1) / REFIT_CUDA_THREADS;
    uint64_t most = 8u * (uint64_t)(device->processors > 0 ? device->processors : 1);
    void *parameters[] = {&move};
    return CUDA(device->cuda, err, cuLaunchKernel, device->move, (unsigned)(blocks < most ? blocks : most), 1, 1,
                REFIT_CUDA_THREADS, 1, 1, 0, batch->stream, parameters, NULL);
}

static bool is_dense(const struct refit_rows *rows)
{
    return rows->count == 1 || rows->stride == (int64_t)rows->run_bytes;
}

/* Pinned memory for the rows, and a place for their digest. */
static enum refit_status begin_part(struct refit_cuda_batch *batch, const struct refit_rows *rows,
                                    struct refit_digest *digest, uint8_t **staged, CUdeviceptr *sum,
                                    struct refit_error *err)
{
    enum refit_status status = refit_cuda_batch_make_room(batch, refit_rows_bytes(rows), err);
    if (status == REFIT_OK)
        status = refit_cuda_batch_stage(batch, refit_rows_bytes(rows), staged, err);
    return status == REFIT_OK ? refit_cuda_batch_sum(batch, digest, sum, err) : status;
}

/* From dense pinned memory: copy engines where the slot is dense, too; else a kernel that scatters. */
static enum refit_status queue_store(const struct refit_cuda_batch *batch, const struct refit_rows *rows,
                                     const uint8_t *src, CUdeviceptr sum, struct refit_error *err)
{
    CUdeviceptr to = address_of(rows);
    if (!is_dense(rows))
        return refit_cuda_launch(batch, to, rows->stride, (CUdeviceptr)(uintptr_t)src, (int64_t)rows->run_bytes, rows,
                                 sum, err);
    enum refit_status status =
        CUDA(batch->device->cuda, err, cuMemcpyHtoDAsync, to, src, refit_rows_bytes(rows), batch->stream);
    return status == REFIT_OK && sum ? refit_cuda_launch(batch, 0, 0, to, rows->stride, rows, sum, err) : status;
}

/* The reverse. */
static enum refit_status queue_load(const struct refit_cuda_batch *batch, const struct refit_rows *rows, uint8_t *dst,
                                    CUdeviceptr sum, struct refit_error *err)
{
    CUdeviceptr from = address_of(rows);
    if (!is_dense(rows))
        return refit_cuda_launch(batch, (CUdeviceptr)(uintptr_t)dst, (int64_t)rows->run_bytes, from, rows->stride, rows,
                                 sum, err);
    enum refit_status status =
        CUDA(batch->device->cuda, err, cuMemcpyDtoHAsync, dst, from, refit_rows_bytes(rows), batch->stream);
    return status == REFIT_OK && sum ? refit_cuda_launch(batch, 0, 0, from, rows->stride, rows, sum, err) : status;
}

static enum refit_status store_part(struct refit_cuda_batch *batch, const struct refit_rows *rows, const uint8_t *src,
                                    int64_t src_stride, struct refit_digest *digest, struct refit_error *err)
{
    uint8_t *staged = NULL;
    CUdeviceptr sum = 0;
    enum refit_status status = begin_part(batch, rows, digest, &staged, &sum, err);
    if (status != REFIT_OK)
        return status;
    refit_host_move(staged, (int64_t)rows->run_bytes, src, src_stride, rows, REFIT_STORE_CACHED, NULL);
    return queue_store(batch, rows, staged, sum, err);
}

static enum refit_status load_part(struct refit_cuda_batch *batch, const struct refit_rows *rows, uint8_t *dst,
                                   int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    uint8_t *staged = NULL;
    CUdeviceptr sum = 0;
    enum refit_status status = begin_part(batch, rows, digest, &staged, &sum, err);
    if (status == REFIT_OK)
        status = queue_load(batch, rows, staged, sum, err);
    if (status == REFIT_OK)
        refit_cuda_batch_land(batch, (struct refit_cuda_landing){staged, dst, dst_stride, rows->run_bytes, rows->count});
    return status;
}

/* The caller's end of the rows is dense and pinned: the device reads or writes it there. */
static bool goes_straight(struct refit_cuda_batch *batch, const struct refit_rows *rows, const void *memory,
                          int64_t stride)
{
    return (rows->count == 1 || stride == (int64_t)rows->run_bytes) &&
           refit_cuda_batch_names(batch, memory, refit_rows_bytes(rows));
}

/* Rows as parts that fit a chunk of staging: whole runs, or a part of one. */
struct parts {
    struct refit_rows rows;
    uint64_t run;  /* of the next part */
    uint64_t done; /* bytes of that run */
};

static bool next_part(struct parts *parts, struct refit_rows *part, uint64_t *run, uint64_t *at)
{
    const struct refit_rows *rows = &parts->rows;
    if (parts->run == rows->count)
        return false;
    *part = *rows;
    *run = parts->run;
    *at = parts->done;
    part->offset = rows->offset + parts->run * (uint64_t)rows->stride + parts->done;
    part->tensor_offset = rows->tensor_offset + parts->run * (uint64_t)rows->tensor_stride + parts->done;
    if (rows->run_bytes <= REFIT_CUDA_CHUNK_BYTES) {
        uint64_t fit = REFIT_CUDA_CHUNK_BYTES / rows->run_bytes;
        part->count = rows->count - parts->run < fit ? rows->count - parts->run : fit;
        parts->run += part->count;
        return true;
    }
    uint64_t left = rows->run_bytes - parts->done;
    part->count = 1;
    part->run_bytes = left < REFIT_CUDA_CHUNK_BYTES ? left : REFIT_CUDA_CHUNK_BYTES;
    parts->done += part->run_bytes;
    if (parts->done == rows->run_bytes) {
        parts->run++;
        parts->done = 0;
    }
    return true;
}

static enum refit_status cuda_load(const struct refit_arena *arena, const struct refit_rows *rows, uint8_t *dst,
                                   int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    struct parts parts = {.rows = *rows};
    struct refit_rows part;
    struct refit_cuda_batch *batch;
    CUdeviceptr sum;
    uint64_t run, at;
    enum refit_status status = batch_of(arena, &batch, err);
    if (status == REFIT_OK && goes_straight(batch, rows, dst, dst_stride)) {
        status = refit_cuda_batch_sum(batch, digest, &sum, err);
        return status == REFIT_OK ? queue_load(batch, rows, dst, sum, err) : status;
    }
    while (status == REFIT_OK && next_part(&parts, &part, &run, &at))
        status = load_part(batch, &part, dst + (int64_t)run * dst_stride + at, dst_stride, digest, err);
    return status;
}

static enum refit_status cuda_store(struct refit_arena *arena, const struct refit_rows *rows, const uint8_t *src,
                                    int64_t src_stride, struct refit_digest *digest, struct refit_error *err)
{
    struct parts parts = {.rows = *rows};
    struct refit_rows part;
    struct refit_cuda_batch *batch;
    CUdeviceptr sum;
    uint64_t run, at;
    enum refit_status status = batch_of(arena, &batch, err);
    if (status == REFIT_OK && goes_straight(batch, rows, src, src_stride)) {
        status = refit_cuda_batch_sum(batch, digest, &sum, err);
        return status == REFIT_OK ? queue_store(batch, rows, src, sum, err) : status;
    }
    while (status == REFIT_OK && next_part(&parts, &part, &run, &at))
        status = store_part(batch, &part, src + (int64_t)run * src_stride + at, src_stride, digest, err);
    return status;
}

static bool cuda_reaches(const struct refit_arena *destination, const struct refit_arena *source)
{
    const struct refit_cuda_memory *to = destination->device;
    struct refit_cuda_memory *from = source->device;
    return to->device == from->device || refit_cuda_reach(from, to->device);
}

/* The destination's device reads the source, wherever that is. Without a digest, what is dense at both ends is a copy
 * engine's; and so it is from another device, whose link would keep a kernel busy for longer than the memory does. */
static enum refit_status cuda_copy(struct refit_arena *destination, const struct refit_rows *to,
                                   const struct refit_arena *source, const struct refit_rows *from,
                                   struct refit_digest *digest, struct refit_error *err)
{
    const struct refit_cuda_memory *other = source->device;
    struct refit_cuda_batch *batch;
    CUdeviceptr sum;
    enum refit_status status = batch_of(destination, &batch, err);
    if (status == REFIT_OK)
        status = refit_cuda_batch_follow(batch, other->device, err);
    if (status == REFIT_OK)
        status = refit_cuda_batch_sum(batch, digest, &sum, err);
    if (status != REFIT_OK)
        return status;
    bool far = other->device != batch->device || other->imported;
    if (!is_dense(to) || !is_dense(from) || (sum && !far))
        return refit_cuda_launch(batch, address_of(to), to->stride, address_of(from), from->stride, to, sum, err);
    status = CUDA(batch->device->cuda, err, cuMemcpyDtoDAsync, address_of(to), address_of(from), refit_rows_bytes(to),
                  batch->stream);
    return status == REFIT_OK && sum ? refit_cuda_launch(batch, 0, 0, address_of(to), to->stride, to, sum, err) : status;
}

static enum refit_status cuda_sum(const struct refit_arena *arena, const struct refit_rows *rows,
                                  struct refit_digest *digest, struct refit_error *err)
{
    struct refit_cuda_batch *batch;
    CUdeviceptr sum = 0;
    enum refit_status status = batch_of(arena, &batch, err);
    if (status == REFIT_OK)
        status = refit_cuda_batch_sum(batch, digest, &sum, err);
    return status == REFIT_OK ? refit_cuda_launch(batch, 0, 0, address_of(rows), rows->stride, rows, sum, err) : status;
}

static enum refit_status cuda_fill(struct refit_arena *arena, const struct refit_rows *rows, uint8_t value,
                                   struct refit_error *err)
{
    struct refit_cuda_batch *batch;
    CUdeviceptr at = address_of(rows);
    enum refit_status status = batch_of(arena, &batch, err);
    for (uint64_t i = 0; status == REFIT_OK && i < rows->count; i++, at += (CUdeviceptr)rows->stride)
        status = CUDA(batch->device->cuda, err, cuMemsetD8Async, at, value, rows->run_bytes, batch->stream);
    return status;
}

static enum refit_status cuda_finish(const struct refit_arena *arena, struct refit_completion *completion,
                                     struct refit_error *err)
{
    (void)arena;
    struct refit_cuda_batch *batch = queuing;
    queuing = NULL;
    if (!batch)
        return REFIT_OK;
    const struct refit_cuda_device *device = batch->device;
    enum refit_status status = refit_cuda_batch_seal(batch, err);
    refit_cuda_leave(device);
    if (status == REFIT_OK)
        completion->pending = &batch->pending;
    return status;
}

static void cuda_release(struct refit_arena *arena)
{
    struct refit_cuda_memory *memory = arena->device;
    if (memory)
        refit_cuda_memory_release(memory);
}

const struct refit_arena_ops refit_arena_ops_cuda = {
    .name = "cuda",
    .load = cuda_load,
    .store = cuda_store,
    .sum = cuda_sum,
    .copy = cuda_copy,
    .reaches = cuda_reaches,
    .fill = cuda_fill,
    .finish = cuda_finish,
    .release = cuda_release,
};
