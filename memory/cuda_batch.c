/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing of the caller's is ever named to the device, unless the caller named it: what it reads and writes is pinned
 * memory of ours, so a wait that gives up at its deadline leaves the caller free to reuse or free its message.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/cuda_internal.h"
#include "memory/host.h"

#define SUM_BYTES (2 * sizeof(uint64_t))
#define SUMS_BYTES (SUM_BYTES * REFIT_CUDA_SUMS)

static enum refit_status batch_wait(struct refit_pending *pending, struct refit_deadline deadline,
                                    struct refit_error *err);
static enum refit_status batch_poll(struct refit_pending *pending, struct refit_error *err);

/* ---- what batches are made of ---- */

static enum refit_status batch_create(struct refit_cuda_device *device, struct refit_cuda_batch **out,
                                      struct refit_error *err)
{
    struct refit_cuda_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return refit_fail_alloc(err, "CUDA batch", sizeof *batch);
    batch->device = device;
    batch->pending = (struct refit_pending){.wait = batch_wait, .poll = batch_poll};
    enum refit_status status = CUDA(device->cuda, err, cuEventCreate, &batch->event, CU_EVENT_DISABLE_TIMING);
    if (status != REFIT_OK) {
        free(batch);
        return status;
    }
    *out = batch;
    return REFIT_OK;
}

static void sums_free(const struct refit_cuda_device *device, struct refit_cuda_sums *sums)
{
    if (sums->device)
        (void)device->cuda->cuMemFree(sums->device);
    if (sums->pinned)
        (void)device->cuda->cuMemFreeHost(sums->pinned);
    free(sums);
}

static enum refit_status sums_create(const struct refit_cuda_device *device, struct refit_cuda_sums **out,
                                     struct refit_error *err)
{
    struct refit_cuda_sums *sums = calloc(1, sizeof *sums);
    void *pinned = NULL;
    if (!sums)
        return refit_fail_alloc(err, "CUDA digests", sizeof *sums);
    enum refit_status status = CUDA(device->cuda, err, cuMemAlloc, &sums->device, SUMS_BYTES);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuMemHostAlloc, &pinned, SUMS_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    sums->pinned = pinned;
    if (status != REFIT_OK) {
        sums_free(device, sums);
        return status;
    }
    *out = sums;
    return REFIT_OK;
}

static enum refit_status chunk_create(const struct refit_cuda_device *device, struct refit_cuda_chunk **out,
                                      struct refit_error *err)
{
    struct refit_cuda_chunk *chunk = calloc(1, sizeof *chunk);
    void *bytes = NULL;
    if (!chunk)
        return refit_fail_alloc(err, "CUDA staging", sizeof *chunk);
    enum refit_status status =
        CUDA(device->cuda, err, cuMemHostAlloc, &bytes, REFIT_CUDA_CHUNK_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    if (status != REFIT_OK) {
        free(chunk);
        return refit_error_prefix(err, status, "pinned staging of %llu bytes",
                                  (unsigned long long)REFIT_CUDA_CHUNK_BYTES);
    }
    chunk->bytes = bytes;
    *out = chunk;
    return REFIT_OK;
}

/* ---- taking and giving back ---- */

/* Under the device's lock. */
static void give_back(struct refit_cuda_batch *batch)
{
    struct refit_cuda_device *device = batch->device;
    while (batch->chunks) {
        struct refit_cuda_chunk *chunk = batch->chunks;
        batch->chunks = chunk->next;
        chunk->next = device->chunks;
        device->chunks = chunk;
    }
    while (batch->sums) {
        struct refit_cuda_sums *sums = batch->sums;
        batch->sums = sums->next;
        sums->next = device->sums;
        device->sums = sums;
    }
    if (batch->pinned)
        refit_cuda_pinned_drop(batch->pinned);
    batch->pinned = NULL;
    batch->chunk_count = batch->landing_count = 0;
    batch->next = device->idle;
    device->idle = batch;
}

/* Batches whose waiters gave up and which are done since. An error of the device ends them, too. */
static struct refit_cuda_memory *reap_batches(struct refit_cuda_device *device)
{
    struct refit_cuda_batch **at = &device->late;
    while (*at) {
        struct refit_cuda_batch *batch = *at;
        if (device->cuda->cuEventQuery(batch->event) == CUDA_ERROR_NOT_READY) {
            at = &batch->next;
            continue;
        }
        *at = batch->next;
        give_back(batch);
    }
    struct refit_cuda_memory *dying = device->late ? NULL : device->dying;
    if (dying)
        device->dying = NULL;
    return dying;
}

void refit_cuda_reap(struct refit_cuda_device *device)
{
    pthread_mutex_lock(&device->lock);
    struct refit_cuda_memory *dying = reap_batches(device);
    pthread_mutex_unlock(&device->lock);
    while (dying) {
        struct refit_cuda_memory *memory = dying;
        dying = memory->next;
        refit_cuda_memory_retry(memory);
    }
}

enum refit_status refit_cuda_batch_take(struct refit_cuda_device *device, CUstream stream,
                                        struct refit_cuda_batch **out, struct refit_error *err)
{
    struct refit_cuda_batch *batch;
    enum refit_status status = REFIT_OK;
    refit_cuda_reap(device);
    pthread_mutex_lock(&device->lock);
    batch = device->idle;
    if (batch)
        device->idle = batch->next;
    pthread_mutex_unlock(&device->lock);
    if (!batch)
        status = batch_create(device, &batch, err);
    if (status != REFIT_OK || !batch)
        return status;
    batch->stream = stream;
    batch->follows = NULL;
    *out = batch;
    return REFIT_OK;
}

static void release(struct refit_cuda_batch *batch, bool late)
{
    struct refit_cuda_device *device = batch->device;
    pthread_mutex_lock(&device->lock);
    if (late) {
        batch->next = device->late;
        device->late = batch;
    } else {
        give_back(batch);
    }
    pthread_mutex_unlock(&device->lock);
}

/* ---- its end ---- */

/* Bytes to where the caller wants them, digests to theirs. */
static void settle(struct refit_cuda_batch *batch)
{
    for (uint32_t i = 0; i < batch->landing_count; i++) {
        const struct refit_cuda_landing *landing = &batch->landings[i];
        struct refit_rows rows = {.run_bytes = landing->run_bytes, .count = landing->count};
        refit_host_move(landing->dst, landing->dst_stride, landing->from, (int64_t)landing->run_bytes, &rows,
                        REFIT_STORE_CACHED, NULL);
    }
    batch->landing_count = 0;
    for (struct refit_cuda_sums *sums = batch->sums; sums; sums = sums->next) {
        for (uint32_t i = 0; i < sums->count; i++) {
            struct refit_digest part = {{sums->pinned[2 * i], sums->pinned[2 * i + 1]}};
            refit_digest_merge(sums->digests[i], part);
        }
        sums->count = 0;
    }
}

static enum refit_status fetch_sums(const struct refit_cuda_batch *batch, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (const struct refit_cuda_sums *sums = batch->sums; sums && status == REFIT_OK; sums = sums->next)
        if (sums->count > 0)
            status = CUDA(batch->device->cuda, err, cuMemcpyDtoHAsync, sums->pinned, sums->device,
                          SUM_BYTES * sums->count, batch->stream);
    return status;
}

static enum refit_status mark_end(const struct refit_cuda_batch *batch, struct refit_error *err)
{
    enum refit_status status = fetch_sums(batch, err);
    return status == REFIT_OK ? CUDA(batch->device->cuda, err, cuEventRecord, batch->event, batch->stream) : status;
}

/* A batch that is larger than its bounds waits for itself, then goes on. */
static enum refit_status drain(struct refit_cuda_batch *batch, struct refit_error *err)
{
    enum refit_status status = mark_end(batch, err);
    if (status == REFIT_OK)
        status = refit_cuda_wait_event(batch->device, batch->event, refit_memory_patience(), err);
    if (status != REFIT_OK)
        return status;
    settle(batch);
    for (struct refit_cuda_chunk *chunk = batch->chunks; chunk; chunk = chunk->next)
        chunk->used = 0;
    return REFIT_OK;
}

/* When the end can't be marked, the stream is waited for here: nothing may still be at work on a batch given back. A
 * batch of a stream that then does not end is never used again. */
enum refit_status refit_cuda_batch_seal(struct refit_cuda_batch *batch, struct refit_error *err)
{
    enum refit_status status = mark_end(batch, err);
    if (status != REFIT_OK &&
        refit_cuda_wait_stream(batch->device, batch->stream, refit_memory_patience(), NULL) != REFIT_TIMEOUT)
        release(batch, false);
    return status;
}

static enum refit_status batch_wait(struct refit_pending *pending, struct refit_deadline deadline,
                                    struct refit_error *err)
{
    struct refit_cuda_batch *batch = (struct refit_cuda_batch *)(void *)pending;
    const struct refit_cuda_device *device = batch->device;
    enum refit_status status = refit_cuda_enter(device, err);
    if (status == REFIT_OK) {
        status = refit_cuda_wait_event(device, batch->event, deadline, err);
        refit_cuda_leave(device);
    }
    if (status == REFIT_OK)
        settle(batch);
    release(batch, status != REFIT_OK);
    return status;
}

static enum refit_status batch_poll(struct refit_pending *pending, struct refit_error *err)
{
    struct refit_cuda_batch *batch = (struct refit_cuda_batch *)(void *)pending;
    const struct refit_cuda_device *device = batch->device;
    enum refit_status status = refit_cuda_enter(device, err);
    if (status == REFIT_OK) {
        status = refit_cuda_poll_event(device, batch->event, err);
        refit_cuda_leave(device);
    }
    if (status == REFIT_BUSY)
        return status;
    if (status == REFIT_OK)
        settle(batch);
    release(batch, status != REFIT_OK);
    return status;
}

/* ---- filling it ---- */

/* An empty chunk, the batch's now. */
static enum refit_status add_chunk(struct refit_cuda_batch *batch, struct refit_cuda_chunk **out,
                                   struct refit_error *err)
{
    struct refit_cuda_device *device = batch->device;
    pthread_mutex_lock(&device->lock);
    struct refit_cuda_chunk *chunk = device->chunks;
    if (chunk)
        device->chunks = chunk->next;
    pthread_mutex_unlock(&device->lock);
    enum refit_status status = chunk ? REFIT_OK : chunk_create(device, &chunk, err);
    if (status != REFIT_OK || !chunk)
        return status;
    chunk->used = 0;
    chunk->next = batch->chunks;
    batch->chunks = chunk;
    batch->chunk_count++;
    *out = chunk;
    return REFIT_OK;
}

static struct refit_cuda_chunk *chunk_with(const struct refit_cuda_batch *batch, uint64_t bytes)
{
    struct refit_cuda_chunk *chunk = batch->chunks;
    while (chunk && REFIT_CUDA_CHUNK_BYTES - chunk->used < bytes)
        chunk = chunk->next;
    return chunk;
}

enum refit_status refit_cuda_batch_make_room(struct refit_cuda_batch *batch, uint64_t bytes, struct refit_error *err)
{
    bool staging = chunk_with(batch, bytes) || batch->chunk_count < REFIT_CUDA_CHUNKS;
    return !staging || batch->landing_count == REFIT_CUDA_LANDINGS ? drain(batch, err) : REFIT_OK;
}

enum refit_status refit_cuda_batch_stage(struct refit_cuda_batch *batch, uint64_t bytes, uint8_t **out,
                                         struct refit_error *err)
{
    struct refit_cuda_chunk *chunk = chunk_with(batch, bytes);
    enum refit_status status = chunk ? REFIT_OK : add_chunk(batch, &chunk, err);
    if (status != REFIT_OK || !chunk)
        return status;
    *out = chunk->bytes + chunk->used;
    /* The next one begins at a word, for kernels that then move words. */
    chunk->used += (bytes + 15) / 16 * 16;
    if (chunk->used > REFIT_CUDA_CHUNK_BYTES)
        chunk->used = REFIT_CUDA_CHUNK_BYTES;
    return REFIT_OK;
}

bool refit_cuda_batch_names(struct refit_cuda_batch *batch, const void *memory, uint64_t bytes)
{
    if (!batch->pinned)
        batch->pinned = refit_cuda_pinned_find(memory, bytes);
    return batch->pinned && refit_cuda_pinned_holds(batch->pinned, memory, bytes);
}

static enum refit_status add_sums(struct refit_cuda_batch *batch, struct refit_error *err)
{
    struct refit_cuda_device *device = batch->device;
    pthread_mutex_lock(&device->lock);
    struct refit_cuda_sums *sums = device->sums;
    if (sums)
        device->sums = sums->next;
    pthread_mutex_unlock(&device->lock);
    enum refit_status status = sums ? REFIT_OK : sums_create(device, &sums, err);
    if (status != REFIT_OK || !sums)
        return status;
    sums->count = 0;
    sums->next = batch->sums;
    batch->sums = sums;
    return REFIT_OK;
}

enum refit_status refit_cuda_batch_sum(struct refit_cuda_batch *batch, struct refit_digest *digest, CUdeviceptr *sum,
                                       struct refit_error *err)
{
    struct refit_cuda_sums *sums = batch->sums;
    *sum = 0;
    if (!digest)
        return REFIT_OK;
    if (sums && sums->count > 0 && sums->digests[sums->count - 1] == digest) {
        *sum = sums->device + SUM_BYTES * (sums->count - 1);
        return REFIT_OK;
    }
    enum refit_status status = REFIT_OK;
    if (!sums || sums->count == REFIT_CUDA_SUMS)
        status = add_sums(batch, err);
    sums = batch->sums;
    if (status == REFIT_OK && sums->count == 0)
        status = CUDA(batch->device->cuda, err, cuMemsetD8Async, sums->device, 0, SUMS_BYTES, batch->stream);
    if (status != REFIT_OK)
        return status;
    *sum = sums->device + SUM_BYTES * sums->count;
    sums->digests[sums->count++] = digest;
    return REFIT_OK;
}

void refit_cuda_batch_land(struct refit_cuda_batch *batch, struct refit_cuda_landing landing)
{
    batch->landings[batch->landing_count++] = landing;
}

/* Queues the copy of a few bytes; exactly one of `out` and `in` is given. */
static enum refit_status queue_few(struct refit_cuda_batch *batch, CUdeviceptr at, void *out, const void *in,
                                   uint64_t bytes, struct refit_error *err)
{
    const struct refit_cuda_driver *cuda = batch->device->cuda;
    uint8_t *staged = NULL;
    enum refit_status status = refit_cuda_batch_stage(batch, bytes, &staged, err);
    if (status != REFIT_OK)
        return status;
    if (in) {
        memcpy(staged, in, bytes);
        return CUDA(cuda, err, cuMemcpyHtoDAsync, at, staged, bytes, batch->stream);
    }
    refit_cuda_batch_land(batch, (struct refit_cuda_landing){staged, out, (int64_t)bytes, bytes, 1});
    return CUDA(cuda, err, cuMemcpyDtoHAsync, staged, at, bytes, batch->stream);
}

/* `status` is that of what was queued. */
static enum refit_status finish_now(struct refit_cuda_batch *batch, enum refit_status status, struct refit_error *err)
{
    enum refit_status sealed = refit_cuda_batch_seal(batch, status == REFIT_OK ? err : NULL);
    if (sealed != REFIT_OK)
        return status == REFIT_OK ? sealed : status;
    enum refit_status waited = batch_wait(&batch->pending, refit_memory_patience(), status == REFIT_OK ? err : NULL);
    return status == REFIT_OK ? waited : status;
}

enum refit_status refit_cuda_read(struct refit_cuda_device *device, CUdeviceptr from, void *out, uint64_t bytes,
                                  struct refit_error *err)
{
    struct refit_cuda_batch *batch = NULL;
    enum refit_status status = refit_cuda_batch_take(device, device->stream, &batch, err);
    if (status != REFIT_OK)
        return status;
    return finish_now(batch, queue_few(batch, from, out, NULL, bytes, err), err);
}

enum refit_status refit_cuda_clear(struct refit_cuda_device *device, CUdeviceptr at, uint64_t bytes, const void *last,
                                   uint64_t last_bytes, struct refit_error *err)
{
    struct refit_cuda_batch *batch = NULL;
    enum refit_status status = refit_cuda_batch_take(device, device->stream, &batch, err);
    if (status != REFIT_OK)
        return status;
    status = CUDA(device->cuda, err, cuMemsetD8Async, at, 0, bytes, batch->stream);
    if (status == REFIT_OK)
        status = queue_few(batch, at + bytes - last_bytes, NULL, last, last_bytes, err);
    return finish_now(batch, status, err);
}

void refit_cuda_batches_free(struct refit_cuda_device *device)
{
    while (device->late) {
        struct refit_cuda_batch *batch = device->late;
        device->late = batch->next;
        give_back(batch);
    }
    while (device->idle) {
        struct refit_cuda_batch *batch = device->idle;
        device->idle = batch->next;
        (void)device->cuda->cuEventDestroy(batch->event);
        free(batch);
    }
    while (device->sums) {
        struct refit_cuda_sums *sums = device->sums;
        device->sums = sums->next;
        sums_free(device, sums);
    }
    while (device->chunks) {
        struct refit_cuda_chunk *chunk = device->chunks;
        device->chunks = chunk->next;
        (void)device->cuda->cuMemFreeHost(chunk->bytes);
        free(chunk);
    }
}
