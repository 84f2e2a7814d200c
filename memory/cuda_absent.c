/* SPDX-License-Identifier: Apache-2.0
 *
 * memory/cuda.h and memory/cuda_stream.h where neither a CUDA toolkit nor its wheels were at hand when Refit was built.
 */
#include <stdio.h>
#include <string.h>

#include "memory/cuda_pinned.h"
#include "memory/cuda_stream.h"

#define LEFT_OUT "left out: no CUDA headers and nvcc when it was built"

static enum refit_status left_out(struct refit_error *err)
{
    return refit_fail(err, REFIT_UNSUPPORTED, "CUDA: " LEFT_OUT);
}

void refit_cuda_describe(char *text, size_t size)
{
    snprintf(text, size, LEFT_OUT);
}

enum refit_status refit_cuda_probe(struct refit_error *err)
{
    return left_out(err);
}

enum refit_status refit_cuda_peers(int reader, int owner, struct refit_error *err)
{
    (void)reader;
    (void)owner;
    return left_out(err);
}

enum refit_status refit_cuda_slot_create(int device, uint64_t bytes, struct refit_arena **out,
                                         struct refit_error *err)
{
    (void)device;
    (void)bytes;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_slot_export(const struct refit_arena *slot, int *fd, struct refit_error *err)
{
    (void)slot;
    (void)fd;
    return left_out(err);
}

enum refit_status refit_cuda_slot_open(int device, int fd, uint64_t bytes, bool read_only, struct refit_arena **out,
                                       struct refit_error *err)
{
    (void)device;
    (void)fd;
    (void)bytes;
    (void)read_only;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_slot_adopt(int device, int fd, uint64_t bytes, const uint8_t id[REFIT_CUDA_ID_BYTES],
                                        struct refit_arena **out, struct refit_error *err)
{
    (void)device;
    (void)fd;
    (void)bytes;
    (void)id;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_slot_export_fabric(const struct refit_arena *slot,
                                                uint8_t handle[REFIT_CUDA_FABRIC_BYTES], struct refit_error *err)
{
    (void)slot;
    (void)handle;
    return left_out(err);
}

enum refit_status refit_cuda_slot_open_fabric(int device, const uint8_t handle[REFIT_CUDA_FABRIC_BYTES],
                                              uint64_t bytes, bool read_only, struct refit_arena **out,
                                              struct refit_error *err)
{
    (void)device;
    (void)handle;
    (void)bytes;
    (void)read_only;
    (void)out;
    return left_out(err);
}

void refit_cuda_slot_info(const struct refit_arena *slot, struct refit_cuda_slot_info *info)
{
    (void)slot;
    memset(info, 0, sizeof *info);
}

enum refit_status refit_cuda_arena_create(int device, uint64_t bytes, struct refit_arena **out,
                                          struct refit_error *err)
{
    (void)device;
    (void)bytes;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_bind(struct refit_arena *arena, uint64_t offset, uint64_t address, uint64_t bytes,
                                  struct refit_error *err)
{
    (void)arena;
    (void)offset;
    (void)address;
    (void)bytes;
    return left_out(err);
}

enum refit_status refit_cuda_stream_create(int device, enum refit_cuda_priority priority,
                                           struct refit_cuda_stream **out, struct refit_error *err)
{
    (void)device;
    (void)priority;
    (void)out;
    return left_out(err);
}

void refit_cuda_stream_destroy(struct refit_cuda_stream *stream)
{
    (void)stream;
}

void *refit_cuda_stream_handle(const struct refit_cuda_stream *stream)
{
    (void)stream;
    return NULL;
}

int refit_cuda_stream_device(const struct refit_cuda_stream *stream)
{
    (void)stream;
    return -1;
}

void refit_cuda_stream_uuid(const struct refit_cuda_stream *stream, uint8_t uuid[REFIT_CUDA_UUID_BYTES])
{
    (void)stream;
    memset(uuid, 0, REFIT_CUDA_UUID_BYTES);
}

enum refit_status refit_cuda_stream_enter(const struct refit_cuda_stream *stream, struct refit_error *err)
{
    (void)stream;
    return left_out(err);
}

void refit_cuda_stream_leave(const struct refit_cuda_stream *stream)
{
    (void)stream;
}

enum refit_status refit_cuda_stream_poll(const struct refit_cuda_stream *stream, struct refit_error *err)
{
    (void)stream;
    return left_out(err);
}

enum refit_status refit_cuda_stream_wait(const struct refit_cuda_stream *stream, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    (void)stream;
    (void)deadline;
    return left_out(err);
}

enum refit_status refit_cuda_event_create(int device, struct refit_cuda_event **out, struct refit_error *err)
{
    (void)device;
    (void)out;
    return left_out(err);
}

void refit_cuda_event_destroy(struct refit_cuda_event *event)
{
    (void)event;
}

enum refit_status refit_cuda_event_record(struct refit_cuda_event *event, const struct refit_cuda_stream *stream,
                                          struct refit_error *err)
{
    (void)event;
    (void)stream;
    return left_out(err);
}

enum refit_status refit_cuda_event_record_on(struct refit_cuda_event *event, void *stream, struct refit_error *err)
{
    (void)event;
    (void)stream;
    return left_out(err);
}

enum refit_status refit_cuda_event_order(const struct refit_cuda_event *event, const struct refit_cuda_stream *stream,
                                         struct refit_error *err)
{
    (void)event;
    (void)stream;
    return left_out(err);
}

enum refit_status refit_cuda_event_poll(const struct refit_cuda_event *event, struct refit_error *err)
{
    (void)event;
    return left_out(err);
}

enum refit_status refit_cuda_event_wait(const struct refit_cuda_event *event, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    (void)event;
    (void)deadline;
    return left_out(err);
}

enum refit_status refit_cuda_buffer_create(int device, uint64_t bytes, struct refit_cuda_buffer **out,
                                           struct refit_error *err)
{
    (void)device;
    (void)bytes;
    (void)out;
    return left_out(err);
}

void refit_cuda_buffer_destroy(struct refit_cuda_buffer *buffer)
{
    (void)buffer;
}

uint64_t refit_cuda_buffer_address(const struct refit_cuda_buffer *buffer)
{
    (void)buffer;
    return 0;
}

uint64_t refit_cuda_buffer_bytes(const struct refit_cuda_buffer *buffer)
{
    (void)buffer;
    return 0;
}

enum refit_status refit_cuda_pack(const struct refit_cuda_stream *stream, const struct refit_arena *source,
                                  struct refit_walk walk, uint64_t out, struct refit_segments *segments,
                                  struct refit_completion *completion, struct refit_error *err)
{
    (void)stream;
    (void)source;
    (void)walk;
    (void)out;
    (void)segments;
    (void)completion;
    return left_out(err);
}

enum refit_status refit_cuda_scatter(const struct refit_cuda_stream *stream, struct refit_arena *destination,
                                     struct refit_walk walk, uint64_t in, struct refit_segments *segments,
                                     struct refit_completion *completion, struct refit_error *err)
{
    (void)stream;
    (void)destination;
    (void)walk;
    (void)in;
    (void)segments;
    (void)completion;
    return left_out(err);
}

enum refit_status refit_cuda_digest(const struct refit_cuda_stream *stream, const struct refit_arena *arena,
                                    struct refit_walk walk, struct refit_segments *segments,
                                    struct refit_completion *completion, struct refit_error *err)
{
    (void)stream;
    (void)arena;
    (void)walk;
    (void)segments;
    (void)completion;
    return left_out(err);
}

enum refit_status refit_cuda_pinned_create(int device, size_t bytes, struct refit_cuda_pinned **out, uint8_t **memory,
                                           struct refit_error *err)
{
    (void)device;
    (void)bytes;
    (void)out;
    (void)memory;
    return left_out(err);
}

void refit_cuda_pinned_drop(struct refit_cuda_pinned *pinned)
{
    (void)pinned;
}
