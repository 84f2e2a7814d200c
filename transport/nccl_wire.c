/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_wire.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cursor.h"
#include "base/io.h"

bool refit_nccl_id_equal(const struct refit_nccl_id *a, const struct refit_nccl_id *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

struct refit_nccl_id refit_nccl_process(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct refit_nccl_id id;
    static pid_t of;
    pthread_mutex_lock(&lock);
    if (of != getpid()) {
        refit_io_random(id.bytes, sizeof id.bytes);
        of = getpid();
    }
    struct refit_nccl_id found = id;
    pthread_mutex_unlock(&lock);
    return found;
}

static uint8_t *put(uint8_t *at, const void *data, size_t len)
{
    memcpy(at, data, len);
    return at + len;
}

/* Fields lie as they travel: this code runs on little-endian machines only (frame.h). */
static size_t finish(struct refit_frame frame, uint8_t *out, const uint8_t *end)
{
    frame.length = (uint32_t)(end - out - REFIT_FRAME_BYTES);
    memcpy(out, &frame, sizeof frame);
    return (size_t)(end - out);
}

size_t refit_nccl_hello_encode(const struct refit_nccl_hello *hello, uint8_t *out)
{
    uint8_t *at = out + REFIT_FRAME_BYTES;
    at = put(at, &hello->version, sizeof hello->version);
    at = put(at, &hello->device_count, sizeof hello->device_count);
    at = put(at, hello->process.bytes, REFIT_NCCL_ID_BYTES);
    for (uint32_t i = 0; i < hello->device_count; i++)
        at = put(at, hello->devices[i].bytes, REFIT_NCCL_ID_BYTES);
    struct refit_frame frame = {.type = REFIT_FRAME_HELLO,
                                .argument = hello->reshards ? REFIT_HELLO_RESHARDS : 0,
                                .batch = hello->reshards ? hello->rank : 0};
    return finish(frame, out, at);
}

enum refit_status refit_nccl_hello_decode(const uint8_t *payload, size_t len, struct refit_nccl_hello *out,
                                          struct refit_error *err)
{
    struct refit_cursor at = refit_cursor_over(payload, len);
    out->version = refit_cursor_u32(&at);
    out->device_count = refit_cursor_u32(&at);
    if (out->device_count == 0 || out->device_count > REFIT_NCCL_DEVICES_MAX ||
        len != 8 + (1 + (size_t)out->device_count) * REFIT_NCCL_ID_BYTES)
        return refit_fail(err, REFIT_INVALID, "a holder's list of devices is not well formed");
    memcpy(out->process.bytes, refit_cursor_bytes(&at, REFIT_NCCL_ID_BYTES), REFIT_NCCL_ID_BYTES);
    for (uint32_t i = 0; i < out->device_count; i++)
        memcpy(out->devices[i].bytes, refit_cursor_bytes(&at, REFIT_NCCL_ID_BYTES), REFIT_NCCL_ID_BYTES);
    return REFIT_OK;
}

size_t refit_nccl_go_encode(const struct refit_nccl_go *go, uint8_t *out)
{
    uint8_t *at = out + REFIT_FRAME_BYTES;
    at = put(at, go->process.bytes, REFIT_NCCL_ID_BYTES);
    at = put(at, go->device.bytes, REFIT_NCCL_ID_BYTES);
    if (go->fresh)
        at = put(at, go->unique, sizeof go->unique);
    for (uint32_t i = 0; i < go->count; i++) {
        at = put(at, &go->batches[i].edge, sizeof go->batches[i].edge);
        at = put(at, &go->batches[i].batch, sizeof go->batches[i].batch);
    }
    struct refit_frame frame = {
        .type = REFIT_FRAME_GO, .edge = go->tag, .batch = go->count, .argument = go->fresh    ? REFIT_GO_NEW
                                                                                   : go->placed ? REFIT_GO_PLACED
                                                                                                : 0};
    return finish(frame, out, at);
}

enum refit_status refit_nccl_go_decode(const struct refit_frame *frame, const uint8_t *payload,
                                       struct refit_nccl_go *out, struct refit_error *err)
{
    bool fresh = frame->argument == REFIT_GO_NEW;
    size_t head = 2 * REFIT_NCCL_ID_BYTES + (fresh ? REFIT_NCCL_UNIQUE_BYTES : 0);
    if (frame->argument > REFIT_GO_PLACED || frame->batch == 0 || frame->batch > REFIT_NCCL_GROUP_MAX ||
        frame->length != head + frame->batch * 12)
        return refit_fail(err, REFIT_PEER, "the receiver asked for a group of %u batches in %u bytes, which is not well "
                          "formed", frame->batch, frame->length);
    struct refit_cursor at = refit_cursor_over(payload, frame->length);
    *out = (struct refit_nccl_go){
        .tag = frame->edge, .fresh = fresh, .placed = frame->argument == REFIT_GO_PLACED, .count = frame->batch};
    memcpy(out->process.bytes, refit_cursor_bytes(&at, REFIT_NCCL_ID_BYTES), REFIT_NCCL_ID_BYTES);
    memcpy(out->device.bytes, refit_cursor_bytes(&at, REFIT_NCCL_ID_BYTES), REFIT_NCCL_ID_BYTES);
    if (fresh)
        memcpy(out->unique, refit_cursor_bytes(&at, sizeof out->unique), sizeof out->unique);
    for (uint32_t i = 0; i < out->count; i++) {
        out->batches[i].edge = refit_cursor_u64(&at);
        out->batches[i].batch = refit_cursor_u32(&at);
    }
    return REFIT_OK;
}

size_t refit_nccl_shard_encode(const struct refit_nccl_shard *shard, uint8_t *out)
{
    uint8_t *at = put(out + REFIT_FRAME_BYTES, shard->unique, sizeof shard->unique);
    at = put(at, &shard->list, sizeof shard->list);
    return finish((struct refit_frame){.type = REFIT_FRAME_SHARD, .edge = shard->tag, .batch = shard->ranks}, out, at);
}

enum refit_status refit_nccl_shard_decode(const struct refit_frame *frame, const uint8_t *payload,
                                          struct refit_nccl_shard *out, struct refit_error *err)
{
    if (frame->length != REFIT_NCCL_SHARD_BYTES)
        return refit_fail(err, REFIT_PEER, "the receiver asked for a reshard in %u bytes, which is not well formed",
                          frame->length);
    struct refit_cursor at = refit_cursor_over(payload, frame->length);
    out->tag = frame->edge;
    out->ranks = frame->batch;
    memcpy(out->unique, refit_cursor_bytes(&at, sizeof out->unique), sizeof out->unique);
    out->list = refit_cursor_u64(&at);
    return REFIT_OK;
}
