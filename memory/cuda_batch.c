/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing of the caller's is ever named to the device: what it reads and writes is pinned memory of ours, so a wait that
 * gives up at its deadline leaves the caller free to reuse or free its message.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/cuda_internal.h"
#include "memory/host.h"

#define SUMS_BYTES (2 * sizeof(uint64_t) * REFIT_CUDA_DIGESTS)

static enum refit_status batch_wait(struct refit_pending *pending, struct refit_deadline deadline,
                                    struct refit_error *err);

static void batch_free(struct refit_cuda_batch *batch)
{
    const struct refit_cuda_driver *cuda = batch->device->cuda;
    if (batch->event)
        (void)cuda->cuEventDestroy(batch->event);
    if (batch->sums)
        (void)cuda->cuMemFree(batch->sums);
    if (batch->sums_pinned)
        (void)cuda->cuMemFreeHost(batch->sums_pinned);
    free(batch);
}

static enum refit_status batch_create(struct refit_cuda_device *device, struct refit_cuda_batch **out,
                                      struct refit_error *err)
{
    struct refit_cuda_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return refit_fail_alloc(err, "CUDA batch", sizeof *batch);
    void *pinned = NULL;
    batch->device = device;
    batch->pending.wait = batch_wait;
    enum refit_status status = CUDA(device->cuda, err, cuEventCreate, &batch->event, CU_EVENT_DISABLE_TIMING);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuMemAlloc, &batch->sums, SUMS_BYTES);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuMemHostAlloc, &pinned, SUMS_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    batch->sums_pinned = pinned;
    if (status != REFIT_OK) {
        batch_free(batch);
        return status;
    }
    *out = batch;
    return REFIT_OK;
}

static void give_back(struct refit_cuda_batch *batch)
{
    struct refit_cuda_device *device = batch->device;
    while (batch->chunks) {
        struct refit_cuda_chunk *chunk = batch->chunks;
        batch->chunks = chunk->next;
        chunk->next = device->chunks;
        device->chunks = chunk;
    }
    batch->chunk_count = batch->digest_count = batch->landing_count = 0;
    batch->next = device->idle;
    device->idle = batch;
}

/* Batches whose waiters gave up and which are done since. An error of the device ends them, too. */
static void reap(struct refit_cuda_device *device)
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
}

enum refit_status refit_cuda_batch_take(struct refit_cuda_device *device, struct refit_cuda_batch **out,
                                        struct refit_error *err)
{
    pthread_mutex_lock(&device->lock);
    reap(device);
    struct refit_cuda_batch *batch = device->idle;
    if (batch)
        device->idle = batch->next;
    pthread_mutex_unlock(&device->lock);
    *out = batch;
    return batch ? REFIT_OK : batch_create(device, out, err);
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

static struct refit_cuda_chunk *chunk_create(struct refit_cuda_device *device, struct refit_error *err)
{
    struct refit_cuda_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) {
        (void)refit_fail_alloc(err, "CUDA staging", sizeof *chunk);
        return NULL;
    }
    void *bytes = NULL;
    enum refit_status status =
        CUDA(device->cuda, err, cuMemHostAlloc, &bytes, REFIT_CUDA_CHUNK_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    if (status != REFIT_OK) {
        free(chunk);
        (void)refit_error_prefix(err, status, "pinned staging of %llu bytes",
                                 (unsigned long long)REFIT_CUDA_CHUNK_BYTES);
        return NULL;
    }
    chunk->bytes = bytes;
    return chunk;
}

/* Bytes to where the caller wants them, digests to theirs. */
static void settle(struct refit_cuda_batch *batch)
{
    for (uint32_t i = 0; i < batch->landing_count; i++) {
        const struct refit_cuda_landing *landing = &batch->landings[i];
        struct refit_rows rows = {.run_bytes = landing->run_bytes, .count = landing->count};
        refit_host_move(landing->dst, landing->dst_stride, landing->from, (int64_t)landing->run_bytes, &rows,
                        REFIT_STORE_CACHED, NULL);
    }
    for (uint32_t i = 0; i < batch->digest_count; i++) {
        struct refit_digest part = {{batch->sums_pinned[2 * i], batch->sums_pinned[2 * i + 1]}};
        refit_digest_merge(batch->digests[i], part);
    }
    batch->landing_count = batch->digest_count = 0;
}

static enum refit_status fetch_sums(struct refit_cuda_batch *batch, struct refit_error *err)
{
    if (batch->digest_count == 0)
        return REFIT_OK;
    return CUDA(batch->device->cuda, err, cuMemcpyDtoHAsync, batch->sums_pinned, batch->sums,
                2 * sizeof(uint64_t) * batch->digest_count, batch->device->stream);
}

/* A batch that is larger than its bounds waits for itself, then goes on. */
static enum refit_status drain(struct refit_cuda_batch *batch, struct refit_error *err)
{
    enum refit_status status = fetch_sums(batch, err);
    if (status == REFIT_OK)
        status = CUDA(batch->device->cuda, err, cuStreamSynchronize, batch->device->stream);
    if (status != REFIT_OK)
        return status;
    settle(batch);
    for (struct refit_cuda_chunk *chunk = batch->chunks; chunk; chunk = chunk->next)
        chunk->used = 0;
    return REFIT_OK;
}

/* An empty chunk, the batch's now; NULL: no memory, which *err says. */
static struct refit_cuda_chunk *add_chunk(struct refit_cuda_batch *batch, struct refit_error *err)
{
    struct refit_cuda_device *device = batch->device;
    pthread_mutex_lock(&device->lock);
    struct refit_cuda_chunk *chunk = device->chunks;
    if (chunk)
        device->chunks = chunk->next;
    pthread_mutex_unlock(&device->lock);
    if (!chunk)
        chunk = chunk_create(device, err);
    if (!chunk)
        return NULL;
    chunk->used = 0;
    chunk->next = batch->chunks;
    batch->chunks = chunk;
    batch->chunk_count++;
    return chunk;
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
    bool full = !staging || batch->digest_count == REFIT_CUDA_DIGESTS || batch->landing_count == REFIT_CUDA_LANDINGS;
    return full ? drain(batch, err) : REFIT_OK;
}

enum refit_status refit_cuda_batch_stage(struct refit_cuda_batch *batch, uint64_t bytes, uint8_t **out,
                                         struct refit_error *err)
{
    struct refit_error why = {.status = REFIT_SYSTEM};
    struct refit_cuda_chunk *chunk = chunk_with(batch, bytes);
    if (!chunk)
        chunk = add_chunk(batch, &why);
    if (!chunk)
        return refit_fail(err, why.status, "%s", why.text);
    *out = chunk->bytes + chunk->used;
    /* The next one begins at a word, for kernels that then move words. */
    chunk->used += (bytes + 15) / 16 * 16;
    if (chunk->used > REFIT_CUDA_CHUNK_BYTES)
        chunk->used = REFIT_CUDA_CHUNK_BYTES;
    return REFIT_OK;
}

enum refit_status refit_cuda_batch_sum(struct refit_cuda_batch *batch, struct refit_digest *digest, CUdeviceptr *sum,
                                       struct refit_error *err)
{
    const struct refit_cuda_device *device = batch->device;
    uint32_t last = batch->digest_count;
    *sum = 0;
    if (!digest)
        return REFIT_OK;
    if (last > 0 && batch->digests[last - 1] == digest) {
        *sum = batch->sums + 2 * sizeof(uint64_t) * (last - 1);
        return REFIT_OK;
    }
    enum refit_status status = REFIT_OK;
    if (last == 0)
        status = CUDA(device->cuda, err, cuMemsetD8Async, batch->sums, 0, SUMS_BYTES, device->stream);
    if (status != REFIT_OK)
        return status;
    *sum = batch->sums + 2 * sizeof(uint64_t) * batch->digest_count;
    batch->digests[batch->digest_count++] = digest;
    return REFIT_OK;
}

void refit_cuda_batch_land(struct refit_cuda_batch *batch, struct refit_cuda_landing landing)
{
    batch->landings[batch->landing_count++] = landing;
}

/* When the event can't be queued, the stream is waited for here: nothing may still be at work on a batch given back. */
enum refit_status refit_cuda_batch_seal(struct refit_cuda_batch *batch, struct refit_error *err)
{
    const struct refit_cuda_device *device = batch->device;
    enum refit_status status = fetch_sums(batch, err);
    if (status == REFIT_OK)
        status = CUDA(device->cuda, err, cuEventRecord, batch->event, device->stream);
    if (status != REFIT_OK) {
        (void)device->cuda->cuStreamSynchronize(device->stream);
        release(batch, false);
    }
    return status;
}

static enum refit_status poll_event(const struct refit_cuda_batch *batch, struct refit_deadline deadline,
                                    struct refit_error *err)
{
    struct timespec pause = {.tv_nsec = 2000};
    for (;;) {
        CUresult result = batch->device->cuda->cuEventQuery(batch->event);
        if (result != CUDA_ERROR_NOT_READY)
            return refit_cuda_check(batch->device->cuda, result, "cuEventQuery", err);
        if (refit_deadline_passed(deadline))
            return refit_fail(err, REFIT_TIMEOUT, "CUDA device %d: queued work was not done by the deadline",
                              batch->device->ordinal);
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 200000)
            pause.tv_nsec *= 2;
    }
}

static enum refit_status batch_wait(struct refit_pending *pending, struct refit_deadline deadline,
                                    struct refit_error *err)
{
    struct refit_cuda_batch *batch = (struct refit_cuda_batch *)(void *)pending;
    enum refit_status status = refit_cuda_enter(batch->device, err);
    if (status == REFIT_OK)
        status = poll_event(batch, deadline, err);
    if (status == REFIT_OK)
        settle(batch);
    release(batch, status != REFIT_OK);
    return status;
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
        batch_free(batch);
    }
    while (device->chunks) {
        struct refit_cuda_chunk *chunk = device->chunks;
        device->chunks = chunk->next;
        (void)device->cuda->cuMemFreeHost(chunk->bytes);
        free(chunk);
    }
}
