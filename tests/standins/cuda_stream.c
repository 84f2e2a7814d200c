/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: a queue and a thread each. Addresses are checked when the work is done, not when it is queued.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/cuda_exchange_kernel.h"
#include "memory/cuda_move.h"
#include "tests/standins/cuda_internal.h"

/* A mark is a number: an event is done when the newest one of it has been reached. */
struct event {
    uint32_t magic;
    uint64_t marked, reached;
    int references; /* the caller's, and one for each item that names it */
};

struct item {
    struct item *next;
    enum { COPY, SET, KERNEL, EXCHANGE, MARK, WAIT, HOST } what;
    const char *call;
    uint64_t dst, src, bytes;
    uint8_t value;
    void *pageable;  /* owned copy of a source that was not pinned */
    struct refit_cuda_move move;
    struct refit_cuda_exchange_range range;
    uint64_t threads;
    struct event *event;
    uint64_t mark;
    void (*host)(void *);
    void *context;
};

struct stream {
    uint32_t magic;
    int device;
    pthread_t thread;
    struct item *first, **last;
    bool busy, ending;
};

#define STREAM_MAGIC 0x57AE0001u
#define EVENT_MAGIC 0xE7E00001u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held;
static int delay, fault_in;

void standin_cuda_hold(int hold)
{
    pthread_mutex_lock(&lock);
    held = hold != 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void standin_cuda_delay(int microseconds)
{
    pthread_mutex_lock(&lock);
    delay = microseconds;
    pthread_mutex_unlock(&lock);
}

void standin_cuda_fault(int nth)
{
    pthread_mutex_lock(&lock);
    fault_in = nth;
    pthread_mutex_unlock(&lock);
}

/* ---- what items do ---- */

static void touch_rows(const struct item *item, int device, const void *base, int64_t stride, bool writing)
{
    uint64_t first = (uint64_t)(uintptr_t)base;
    uint64_t last = first + (item->move.count - 1) * (uint64_t)stride;
    uint64_t low = first < last ? first : last;
    standin_touch_on(item->call, device, low, (first < last ? last : first) - low + item->move.run_bytes, writing);
}

static void run_kernel(const struct item *item, int device)
{
    const struct refit_cuda_move *move = &item->move;
    touch_rows(item, device, move->src, move->src_stride, false);
    if (move->dst)
        touch_rows(item, device, move->dst, move->dst_stride, true);
    if (move->sum)
        standin_touch_on(item->call, device, (uint64_t)(uintptr_t)move->sum, 16, true);
    for (uint64_t thread = 0; thread < item->threads; thread++) {
        unsigned long long sum[2];
        refit_cuda_move_thread(move, thread, item->threads, sum);
        if (move->sum) {
            move->sum[0] += sum[0];
            move->sum[1] += sum[1];
        }
    }
}

static void run_exchange(const struct item *item, int device)
{
    const struct refit_cuda_exchange_range *range = &item->range;
    standin_touch_on(item->call, device, (uint64_t)(uintptr_t)range->a, range->bytes, true);
    standin_touch_on(item->call, device, (uint64_t)(uintptr_t)range->b, range->bytes, true);
    for (uint64_t thread = 0; thread < item->threads; thread++)
        refit_cuda_exchange_thread(range, thread, item->threads);
}

static void copy(const struct item *item, int device)
{
    if (!item->pageable)
        standin_touch_on(item->call, device, item->src, item->bytes, false);
    standin_touch_on(item->call, device, item->dst, item->bytes, true);
    memmove((void *)(uintptr_t)item->dst, item->pageable ? item->pageable : (const void *)(uintptr_t)item->src,
            item->bytes);
}

static bool faults(const struct item *item)
{
    bool now = false;
    pthread_mutex_lock(&lock);
    if ((item->what == KERNEL || item->what == EXCHANGE) && fault_in > 0)
        now = --fault_in == 0;
    pthread_mutex_unlock(&lock);
    return now;
}

static void perform(const struct item *item, int device)
{
    if (item->what == HOST) { /* also on a lost device: it has things to give back */
        item->host(item->context);
        return;
    }
    if (standin_lost(device) == CUDA_SUCCESS && faults(item))
        standin_lose(device, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (standin_lost(device) != CUDA_SUCCESS)
        return;
    if (item->what == COPY) {
        copy(item, device);
    } else if (item->what == SET) {
        standin_touch_on(item->call, device, item->dst, item->bytes, true);
        memset((void *)(uintptr_t)item->dst, item->value, item->bytes);
    } else if (item->what == KERNEL) {
        run_kernel(item, device);
    } else if (item->what == EXCHANGE) {
        run_exchange(item, device);
    }
}

/* With the lock. */
static void drop_event(struct event *event)
{
    if (--event->references > 0)
        return;
    event->magic = 0;
    free(event);
}

/* With the lock: what has to do with events. */
static void settle(struct item *item)
{
    if (item->what == MARK && item->event->reached < item->mark)
        item->event->reached = item->mark;
    if (item->event)
        drop_event(item->event);
    free(item->pageable);
    free(item);
}

static bool may_run(const struct stream *stream, const struct item *item)
{
    if (standin_lost(stream->device) != CUDA_SUCCESS)
        return true;
    return !held && (item->what != WAIT || item->event->reached >= item->mark);
}

static void *work(void *context)
{
    struct stream *stream = context;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct item *item = stream->first;
        if (!item && stream->ending)
            break;
        if (!item || !may_run(stream, item)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        stream->first = item->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->busy = true;
        int pause = delay;
        pthread_mutex_unlock(&lock);
        if (pause > 0)
            usleep((useconds_t)pause);
        perform(item, stream->device);
        pthread_mutex_lock(&lock);
        settle(item);
        stream->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- streams ---- */

static struct stream *stream_of(const char *call, CUstream handle)
{
    struct stream *stream = (struct stream *)(void *)handle;
    if (!stream || stream->magic != STREAM_MAGIC)
        standin_die(call, "not a live stream (the default stream waits for all others)");
    return stream;
}

int standin_stream_device(const char *call, CUstream stream)
{
    return stream_of(call, stream)->device;
}

static struct event *event_of(const char *call, CUevent handle)
{
    struct event *event = (struct event *)(void *)handle;
    if (!event || event->magic != EVENT_MAGIC)
        standin_die(call, "not a live event");
    return event;
}

static CUresult enqueue(const char *call, CUstream handle, struct item item)
{
    struct stream *stream = stream_of(call, handle);
    struct item *queued = malloc(sizeof *queued);
    if (!queued)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *queued = item;
    queued->call = call;
    queued->next = NULL;
    pthread_mutex_lock(&lock);
    if (item.event) {
        item.event->references++;
        queued->mark = item.what == MARK ? ++item.event->marked : item.event->marked;
    }
    *stream->last = queued;
    stream->last = &queued->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void standin_enqueue(const char *call, CUstream stream, void (*host)(void *), void *context)
{
    struct item item = {.what = HOST, .host = host, .context = context};
    if (enqueue(call, stream, item) != CUDA_SUCCESS)
        standin_die(call, "no memory");
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    ENTER_CONTEXT(FAILED);
    if (flags != CU_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
        standin_die(__func__, "flags %u, priority %d", flags, priority);
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->magic = STREAM_MAGIC;
    stream->device = device;
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, work, stream) != 0)
        standin_die(__func__, "no thread");
    standin_count(1);
    *out = (CUstream)(void *)stream;
    return CUDA_SUCCESS;
}

/* CUDA lets what is queued end behind the caller's back; here the call waits for it. */
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

CUresult cuStreamQuery(CUstream handle)
{
    ENTER_CONTEXT(FAILED);
    struct stream *stream = stream_of(__func__, handle);
    pthread_mutex_lock(&lock);
    bool busy = stream->first || stream->busy;
    pthread_mutex_unlock(&lock);
    /* An error that came with the last item is told, not its end. */
    return standin_lost(device) != CUDA_SUCCESS ? standin_lost(device) : busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags)
{
    ENTER_CONTEXT(FAILED);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(__func__, stream, (struct item){.what = WAIT, .event = event_of(__func__, handle)});
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    ENTER_CONTEXT(FAILED);
    (void)flags;
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->magic = EVENT_MAGIC;
    event->references = 1;
    standin_count(1);
    *out = (CUevent)(void *)event;
    return CUDA_SUCCESS;
}

/* Also while it is queued. */
CUresult cuEventDestroy(CUevent handle)
{
    bool fails = standin_enter(__func__);
    struct event *event = event_of(__func__, handle);
    pthread_mutex_lock(&lock);
    drop_event(event);
    pthread_mutex_unlock(&lock);
    standin_count(-1);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    ENTER_CONTEXT(FAILED);
    return enqueue(__func__, stream, (struct item){.what = MARK, .event = event_of(__func__, handle)});
}

CUresult cuEventQuery(CUevent handle)
{
    ENTER_CONTEXT(FAILED);
    const struct event *event = event_of(__func__, handle);
    pthread_mutex_lock(&lock);
    bool pending = event->reached < event->marked;
    pthread_mutex_unlock(&lock);
    return standin_lost(device) != CUDA_SUCCESS ? standin_lost(device) : pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* ---- work ---- */

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT(FAILED);
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
    ENTER_CONTEXT(FAILED);
    return enqueue(__func__, stream,
                   (struct item){.what = COPY, .dst = (uint64_t)(uintptr_t)dst, .src = src, .bytes = bytes});
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT(FAILED);
    return enqueue(__func__, stream, (struct item){.what = COPY, .dst = dst, .src = src, .bytes = bytes});
}

/* At once, whatever is queued: streams are made so that they do not wait for the default one, which has these. */
CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    ENTER_CONTEXT(FAILED);
    standin_touch_on(__func__, device, dst, bytes, true);
    memcpy((void *)(uintptr_t)dst, src, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    ENTER_CONTEXT(FAILED);
    standin_touch_on(__func__, device, src, bytes, false);
    memcpy(dst, (const void *)(uintptr_t)src, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT(FAILED);
    return enqueue(__func__, stream, (struct item){.what = SET, .dst = dst, .value = value, .bytes = bytes});
}

CUresult cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int block_x,
                        unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream,
                        void **parameters, void **extra)
{
    ENTER_CONTEXT(FAILED);
    struct item item = {.what = KERNEL, .threads = (uint64_t)x * block_x};
    if (!function || x == 0 || y != 1 || z != 1 || block_x != REFIT_CUDA_THREADS || block_y != 1 || block_z != 1 ||
        shared != 0 || extra)
        standin_die(__func__, "a grid of %u and blocks of %u", x, block_x);
    if ((void *)function == &standin_exchange_function) {
        item.what = EXCHANGE;
        memcpy(&item.range, parameters[0], sizeof item.range);
    } else if ((void *)function == &standin_move_function) {
        memcpy(&item.move, parameters[0], sizeof item.move);
    } else {
        standin_die(__func__, "not a function of the module");
    }
    return enqueue(__func__, stream, item);
}
