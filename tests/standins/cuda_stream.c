/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: a queue and a thread each. Addresses are checked when the work is done, not when it is queued.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "memory/cuda_move.h"
#include "tests/standins/cuda_internal.h"

struct event {
    uint32_t magic;
    atomic_int queued;
};

struct item {
    struct item *next;
    enum { COPY, SET, KERNEL, EVENT, HOST } what;
    const char *call;
    uint64_t dst, src, bytes;
    uint8_t value;
    void *pageable; /* owned copy of a source that was not pinned */
    struct refit_cuda_move move;
    uint64_t threads;
    struct event *event;
    void (*host)(void *);
    void *context;
};

struct stream {
    uint32_t magic;
    pthread_t thread;
    struct item *first, **last;
    bool busy, ending;
};

#define STREAM_MAGIC 0x57AE0001u
#define EVENT_MAGIC 0xE7E00001u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held;

void standin_cuda_hold(int hold)
{
    pthread_mutex_lock(&lock);
    held = hold != 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void touch_rows(const struct item *item, const void *base, int64_t stride, bool writing)
{
    uint64_t first = (uint64_t)(uintptr_t)base;
    uint64_t last = first + (item->move.count - 1) * (uint64_t)stride;
    uint64_t low = first < last ? first : last;
    standin_touch(item->call, low, (first < last ? last : first) - low + item->move.run_bytes, writing);
}

static void run_kernel(const struct item *item)
{
    const struct refit_cuda_move *move = &item->move;
    touch_rows(item, move->src, move->src_stride, false);
    if (move->dst)
        touch_rows(item, move->dst, move->dst_stride, true);
    if (move->sum)
        standin_touch(item->call, (uint64_t)(uintptr_t)move->sum, 16, true);
    for (uint64_t thread = 0; thread < item->threads; thread++) {
        unsigned long long sum[2];
        refit_cuda_move_thread(move, thread, item->threads, sum);
        if (move->sum) {
            move->sum[0] += sum[0];
            move->sum[1] += sum[1];
        }
    }
}

static void perform(struct item *item)
{
    if (item->what == COPY) {
        if (!item->pageable)
            standin_touch(item->call, item->src, item->bytes, false);
        standin_touch(item->call, item->dst, item->bytes, true);
        memcpy((void *)(uintptr_t)item->dst, item->pageable ? item->pageable : (const void *)(uintptr_t)item->src,
               item->bytes);
    } else if (item->what == SET) {
        standin_touch(item->call, item->dst, item->bytes, true);
        memset((void *)(uintptr_t)item->dst, item->value, item->bytes);
    } else if (item->what == KERNEL) {
        run_kernel(item);
    } else if (item->what == HOST) {
        item->host(item->context);
    } else {
        atomic_fetch_sub(&item->event->queued, 1);
    }
}

static void *work(void *context)
{
    struct stream *stream = context;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct item *item = stream->first;
        if (!item && stream->ending)
            break;
        if (!item || held) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->first = item->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->busy = true;
        pthread_mutex_unlock(&lock);
        perform(item);
        free(item->pageable);
        free(item);
        pthread_mutex_lock(&lock);
        stream->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *live_stream(const char *call, CUstream handle)
{
    struct stream *stream = (struct stream *)(void *)handle;
    if (!stream || stream->magic != STREAM_MAGIC)
        standin_die(call, "not a live stream (the default stream waits for all others)");
    return stream;
}

static struct stream *stream_of(const char *call, CUstream handle)
{
    standin_need_context(call);
    return live_stream(call, handle);
}

static struct event *event_of(const char *call, CUevent handle)
{
    struct event *event = (struct event *)(void *)handle;
    standin_need_context(call);
    if (!event || event->magic != EVENT_MAGIC)
        standin_die(call, "not a live event");
    return event;
}

static CUresult enqueue_on(const char *call, struct stream *stream, struct item item)
{
    struct item *queued = malloc(sizeof *queued);
    if (!queued)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *queued = item;
    queued->call = call;
    queued->next = NULL;
    pthread_mutex_lock(&lock);
    *stream->last = queued;
    stream->last = &queued->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult enqueue(const char *call, CUstream handle, struct item item)
{
    return enqueue_on(call, stream_of(call, handle), item);
}

void standin_need_stream(const char *call, CUstream stream)
{
    live_stream(call, stream);
}

void standin_enqueue(const char *call, CUstream stream, void (*host)(void *), void *context)
{
    struct item item = {.what = HOST, .host = host, .context = context};
    if (enqueue_on(call, live_stream(call, stream), item) != CUDA_SUCCESS)
        standin_die(call, "no memory");
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    ENTER_FAILS(FAILED);
    standin_need_context(__func__);
    (void)flags;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->magic = STREAM_MAGIC;
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, work, stream) != 0)
        standin_die(__func__, "no thread");
    standin_count(1);
    *out = (CUstream)(void *)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle)
{
    bool fails = standin_enter(__func__);
    struct stream *stream = stream_of(__func__, handle);
    pthread_mutex_lock(&lock);
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    stream->magic = 0;
    free(stream);
    standin_count(-1);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    bool fails = standin_enter(__func__);
    struct stream *stream = stream_of(__func__, handle);
    pthread_mutex_lock(&lock);
    while (stream->first || stream->busy)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    ENTER_FAILS(FAILED);
    standin_need_context(__func__);
    (void)flags;
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    standin_count(1);
    *out = (CUevent)(void *)event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle)
{
    bool fails = standin_enter(__func__);
    struct event *event = event_of(__func__, handle);
    if (atomic_load(&event->queued) != 0)
        standin_die(__func__, "the event is still queued");
    event->magic = 0;
    free(event);
    standin_count(-1);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    ENTER_FAILS(FAILED);
    struct event *event = event_of(__func__, handle);
    atomic_fetch_add(&event->queued, 1);
    return enqueue(__func__, stream, (struct item){.what = EVENT, .event = event});
}

CUresult cuEventQuery(CUevent handle)
{
    ENTER_FAILS(FAILED);
    return atomic_load(&event_of(__func__, handle)->queued) > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    ENTER_FAILS(FAILED);
    struct item item = {.what = COPY, .dst = dst, .src = (uint64_t)(uintptr_t)src, .bytes = bytes};
    if (!standin_is_known(item.src)) {
        item.pageable = malloc(bytes);
        if (!item.pageable)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(item.pageable, src, bytes);
    }
    return enqueue(__func__, stream, item);
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER_FAILS(FAILED);
    return enqueue(__func__, stream,
                   (struct item){.what = COPY, .dst = (uint64_t)(uintptr_t)dst, .src = src, .bytes = bytes});
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER_FAILS(FAILED);
    return enqueue(__func__, stream, (struct item){.what = SET, .dst = dst, .value = value, .bytes = bytes});
}

CUresult cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int block_x,
                        unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream,
                        void **parameters, void **extra)
{
    ENTER_FAILS(FAILED);
    struct item item = {.what = KERNEL, .threads = (uint64_t)x * block_x};
    if (!function || x == 0 || y != 1 || z != 1 || block_x != REFIT_CUDA_THREADS || block_y != 1 || block_z != 1 ||
        shared != 0 || extra)
        standin_die(__func__, "a grid of %u and blocks of %u", x, block_x);
    memcpy(&item.move, parameters[0], sizeof item.move);
    return enqueue(__func__, stream, item);
}
