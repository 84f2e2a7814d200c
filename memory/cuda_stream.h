/* SPDX-License-Identifier: Apache-2.0
 *
 * Work of a GPU in order and beside other work: streams, events, memory to stage in, and the operations of ops.h between
 * an arena's window and such memory, queued on a stream of the caller's. For transports that move bytes from device
 * memory to device memory: pack, wire and unpack are three streams, events order them, and nothing waits for a device.
 *
 * All of one device's are in its primary context, which is what CUDA's runtime uses: handles and addresses are good for
 * it and for NCCL in the same process. A thread's current context is left as it was. All functions are thread-safe, but
 * two threads that queue on one stream at once have no order. Built in or not, the functions are there; without CUDA at
 * build or run time they are REFIT_UNSUPPORTED with the reason.
 *
 * An error that CUDA finds in work that was queued (a bad address in a kernel of anybody's in this process) is told by
 * the next call that asks, and by all after it: the context is lost, and the error says so.
 */
#ifndef REFIT_MEMORY_CUDA_STREAM_H
#define REFIT_MEMORY_CUDA_STREAM_H

#include "memory/cuda.h"
#include "memory/ops.h"

enum refit_cuda_priority { REFIT_CUDA_PRIORITY_DEFAULT, REFIT_CUDA_PRIORITY_LEAST };

struct refit_cuda_stream;

/* Does not wait for the default stream, nor that for it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_stream_create(int device, enum refit_cuda_priority priority,
                                                            struct refit_cuda_stream **out, struct refit_error *err);
/* What is queued is done all the same; its completions must have been waited for. NULL is fine. */
void refit_cuda_stream_destroy(struct refit_cuda_stream *stream);
/* The CUstream, which is a cudaStream_t. */
void *refit_cuda_stream_handle(const struct refit_cuda_stream *stream);
int refit_cuda_stream_device(const struct refit_cuda_stream *stream);
/* Of its device, the same for all processes. */
void refit_cuda_stream_uuid(const struct refit_cuda_stream *stream, uint8_t uuid[REFIT_CUDA_UUID_BYTES]);
/* The device becomes the calling thread's, for libraries that ask which it is; `leave` puts back what was. Not nested
 * deeper than a few; nothing else of the library's needs it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_stream_enter(const struct refit_cuda_stream *stream,
                                                           struct refit_error *err);
void refit_cuda_stream_leave(const struct refit_cuda_stream *stream);
/* REFIT_OK when all that is queued is done, REFIT_BUSY when not. Does not block. */
REFIT_MUST_CHECK enum refit_status refit_cuda_stream_poll(const struct refit_cuda_stream *stream,
                                                          struct refit_error *err);
/* Until all that is queued is done; REFIT_TIMEOUT. */
REFIT_MUST_CHECK enum refit_status refit_cuda_stream_wait(const struct refit_cuda_stream *stream,
                                                          struct refit_deadline deadline, struct refit_error *err);

struct refit_cuda_event;

REFIT_MUST_CHECK enum refit_status refit_cuda_event_create(int device, struct refit_cuda_event **out,
                                                           struct refit_error *err);
/* Also while it is queued. NULL is fine. */
void refit_cuda_event_destroy(struct refit_cuda_event *event);
/* Marks what is queued on the stream so far; may be recorded again, which forgets the last mark. */
REFIT_MUST_CHECK enum refit_status refit_cuda_event_record(struct refit_cuda_event *event,
                                                           const struct refit_cuda_stream *stream,
                                                           struct refit_error *err);
/* The same on a stream of others of the event's device, by its handle (a CUstream); NULL: the default one. */
REFIT_MUST_CHECK enum refit_status refit_cuda_event_record_on(struct refit_cuda_event *event, void *stream,
                                                              struct refit_error *err);
/* What is queued on `stream` after this waits for the mark (of any stream and device). Does not block. */
REFIT_MUST_CHECK enum refit_status refit_cuda_event_order(const struct refit_cuda_event *event,
                                                          const struct refit_cuda_stream *stream,
                                                          struct refit_error *err);
/* As for streams. An event that was never recorded is done. */
REFIT_MUST_CHECK enum refit_status refit_cuda_event_poll(const struct refit_cuda_event *event, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_event_wait(const struct refit_cuda_event *event,
                                                         struct refit_deadline deadline, struct refit_error *err);

/* Memory of the device, for staging; not zeroed, aligned to 256 bytes. */
struct refit_cuda_buffer;

/* REFIT_NO_MEMORY with the numbers when it does not fit. May wait for the device: make it before work begins. */
REFIT_MUST_CHECK enum refit_status refit_cuda_buffer_create(int device, uint64_t bytes, struct refit_cuda_buffer **out,
                                                            struct refit_error *err);
/* No queued work may name it any more; may wait for the device. NULL is fine. */
void refit_cuda_buffer_destroy(struct refit_cuda_buffer *buffer);
uint64_t refit_cuda_buffer_address(const struct refit_cuda_buffer *buffer);
uint64_t refit_cuda_buffer_bytes(const struct refit_cuda_buffer *buffer);

/* The operations of ops.h on a stream, between the window of a cuda arena and memory at a device address (dense, the
 * window's bytes). The arena, the address and the stream are of one device. They return when the work is queued; the
 * completion ends it (refit_completion_poll, refit_completion_wait) and only then are the segments' digests there.
 * Before that, other streams may be ordered behind it by an event. After REFIT_TIMEOUT of a wait, and after an error,
 * the device may still be at work: on the address given, too, until the stream is idle. */
REFIT_MUST_CHECK enum refit_status refit_cuda_pack(const struct refit_cuda_stream *stream,
                                                   const struct refit_arena *source, struct refit_walk walk,
                                                   uint64_t out, struct refit_segments *segments,
                                                   struct refit_completion *completion, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_scatter(const struct refit_cuda_stream *stream,
                                                      struct refit_arena *destination, struct refit_walk walk,
                                                      uint64_t in, struct refit_segments *segments,
                                                      struct refit_completion *completion, struct refit_error *err);
/* In place: of what was received straight into the arena, or is sent straight from it. */
REFIT_MUST_CHECK enum refit_status refit_cuda_digest(const struct refit_cuda_stream *stream,
                                                     const struct refit_arena *arena, struct refit_walk walk,
                                                     struct refit_segments *segments,
                                                     struct refit_completion *completion, struct refit_error *err);

#endif
