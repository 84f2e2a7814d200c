/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/nccl_pair.h"
#include "transport/transport.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct refit_nccl_device *devices;
static unsigned keepers;

static void destroy(struct refit_nccl_device *device)
{
    while (device->pairs)
        refit_nccl_pair_abort(device, device->pairs);
    refit_cuda_buffer_destroy(device->ring);
    refit_cuda_stream_destroy(device->work);
    refit_cuda_stream_destroy(device->wire);
    refit_turn_destroy(&device->turn);
    free(device);
}

/* The lock is held. */
static enum refit_status create(int ordinal, struct refit_nccl_device **out, struct refit_error *err)
{
    struct refit_nccl_device *device = calloc(1, sizeof *device);
    if (!device)
        return refit_fail_alloc(err, "a device of nccl", sizeof *device);
    device->ordinal = ordinal;
    refit_turn_init(&device->turn);
    enum refit_status status = refit_nccl_driver(&device->nccl, err);
    if (status == REFIT_OK)
        status = refit_cuda_stream_create(ordinal, REFIT_CUDA_PRIORITY_LEAST, &device->wire, err);
    if (status == REFIT_OK)
        status = refit_cuda_stream_create(ordinal, REFIT_CUDA_PRIORITY_LEAST, &device->work, err);
    if (status == REFIT_OK)
        refit_cuda_stream_uuid(device->wire, device->uuid.bytes);
    if (status != REFIT_OK) {
        destroy(device);
        return status;
    }
    device->next = devices;
    devices = device;
    *out = device;
    return REFIT_OK;
}

static struct refit_nccl_device *find(int ordinal)
{
    struct refit_nccl_device *device = devices;
    while (device && device->ordinal != ordinal)
        device = device->next;
    return device;
}

enum refit_status refit_nccl_device_of(const struct refit_arena *arena, struct refit_nccl_device **out,
                                       struct refit_error *err)
{
    if (refit_arena_kind(arena) != REFIT_ARENA_CUDA)
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\" moves the memory of GPUs, and this end's is in the "
                          "host; use tcp, or give it memory of a GPU");
    int ordinal = refit_arena_device(arena);
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&lock);
    struct refit_nccl_device *device = find(ordinal);
    if (!device)
        status = create(ordinal, &device, err);
    if (status == REFIT_OK && device) {
        device->references++;
        *out = device;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* The lock is held. Those that nobody uses are kept for the next refit while somebody wants that. */
static void sweep(void)
{
    struct refit_nccl_device **at = &devices;
    while (*at) {
        struct refit_nccl_device *device = *at;
        if (device->references > 0 || keepers > 0) {
            at = &device->next;
            continue;
        }
        *at = device->next;
        destroy(device);
    }
}

void refit_nccl_device_release(struct refit_nccl_device *device)
{
    if (!device)
        return;
    pthread_mutex_lock(&lock);
    device->references--;
    sweep();
    pthread_mutex_unlock(&lock);
}

void refit_transports_keep(void)
{
    pthread_mutex_lock(&lock);
    keepers++;
    pthread_mutex_unlock(&lock);
}

void refit_transports_let_go(void)
{
    pthread_mutex_lock(&lock);
    keepers--;
    sweep();
    pthread_mutex_unlock(&lock);
}

enum refit_status refit_nccl_device_stage(struct refit_nccl_device *device, unsigned group, uint64_t at, uint64_t bytes,
                                          uint64_t *address, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (!device->ring)
        status = refit_cuda_buffer_create(device->ordinal, REFIT_NCCL_GROUPS * (uint64_t)REFIT_NCCL_GROUP_BYTES,
                                          &device->ring, err);
    if (status != REFIT_OK)
        return status;
    if (at > REFIT_NCCL_GROUP_BYTES || bytes > REFIT_NCCL_GROUP_BYTES - at)
        return refit_fail(err, REFIT_INVALID, "a group of more than %u bytes", REFIT_NCCL_GROUP_BYTES);
    *address = refit_cuda_buffer_address(device->ring) + group * (uint64_t)REFIT_NCCL_GROUP_BYTES + at;
    return REFIT_OK;
}

/* An error of the device is an end, too: its context is lost, and with it whatever was queued. */
static void quiet(const struct refit_nccl_device *device, const struct refit_cuda_stream *stream)
{
    struct refit_error err;
    while (refit_cuda_stream_wait(stream, refit_deadline_in_ms(REFIT_ABORT_MS), &err) == REFIT_TIMEOUT)
        refit_log_limited(REFIT_LOG_ERROR, "a device is at work beyond its abort",
                          refit_log_i64("device", device->ordinal), REFIT_LOG_CAUSE(&err));
}

void refit_nccl_device_quiet(const struct refit_nccl_device *device)
{
    quiet(device, device->wire);
    quiet(device, device->work);
}
