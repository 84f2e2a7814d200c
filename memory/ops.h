/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on arenas, driven by plan walks. One batch at a time; each is a pass over a window of an edge stream
 * (layouts/plan.h) and digests what it touches on the way, so that nothing is read twice.
 *
 * A batch's digests come as *segments*: one partial per maximal run of the stream that belongs to one tensor and one
 * `counted` flag. Both sides derive the same segments; the sender's travel with the message.
 *
 * Completions: an operation takes a `struct refit_completion`. Host and file arenas complete before returning; a device
 * arena returns with the completion pending, and refit_completion_wait() ends it. Callers always wait, so that the
 * table serves both; also after a failure, for a device may have begun. When an operation fails, its digests mean
 * nothing and destination bytes may have been written in part; bounds are checked first, so an unbound or
 * read-only range fails with nothing written.
 */
#ifndef REFIT_MEMORY_OPS_H
#define REFIT_MEMORY_OPS_H

#include "base/clock.h"
#include "layouts/plan.h"
#include "layouts/tally.h"
#include "memory/arena.h"

struct refit_segment {
    uint32_t tensor; /* id in the destination layout */
    bool counted;
    struct refit_digest digest;
};

/* A growable array that is reused from batch to batch. */
struct refit_segments {
    struct refit_segment *items; /* owned */
    size_t count;
    size_t capacity;
    bool digesting; /* false: count and name segments, leave digests zero (verification off) */
};

void refit_segments_init(struct refit_segments *segments, bool digesting);
void refit_segments_release(struct refit_segments *segments);
/* Segments for the window without touching memory: how many and which. Sets digests to zero. */
REFIT_MUST_CHECK enum refit_status refit_segments_of(struct refit_segments *segments, struct refit_walk walk,
                                                     struct refit_error *err);
/* Adds the counted ones to the tally. */
void refit_segments_tally(const struct refit_segments *segments, struct refit_tally *tally);

struct refit_completion {
    enum refit_status status; /* once done */
    void *pending;            /* of the arena's kind; NULL when done */
};
REFIT_MUST_CHECK enum refit_status refit_completion_wait(struct refit_completion *completion,
                                                         struct refit_deadline deadline, struct refit_error *err);
/* After an operation that returned `status`: waits also when it failed. The first of the two that is not REFIT_OK. */
REFIT_MUST_CHECK enum refit_status refit_completion_end(struct refit_completion *completion, enum refit_status status,
                                                        struct refit_deadline deadline, struct refit_error *err);
/* Like the wait, but does not block: REFIT_BUSY when the completion is still pending. */
REFIT_MUST_CHECK enum refit_status refit_completion_poll(struct refit_completion *completion, struct refit_error *err);

/* How long operations that are given no deadline wait for a device: fill, one that outgrows its staging, the release of an
 * arena whose work is not done. 10 s unless set; for the whole process. */
void refit_memory_set_patience(int64_t ms);
struct refit_deadline refit_memory_patience(void);

/* Stream order from strided memory into `out` (host, dense, the window's bytes). */
REFIT_MUST_CHECK enum refit_status refit_memory_pack(const struct refit_arena *source, struct refit_walk walk,
                                                     void *out, struct refit_segments *segments,
                                                     struct refit_completion *completion, struct refit_error *err);
/* The reverse. */
REFIT_MUST_CHECK enum refit_status refit_memory_scatter(struct refit_arena *destination, struct refit_walk walk,
                                                        const void *in, struct refit_segments *segments,
                                                        struct refit_completion *completion, struct refit_error *err);
/* From one arena to another: the same window walked by both sides. Straight where one is host memory, or the
 * destination's device reads the source's memory (its own, or another's slot that it reaches); else by way of a message
 * in host memory, and it is done when it returns. */
REFIT_MUST_CHECK enum refit_status refit_memory_copy(struct refit_arena *destination, struct refit_walk to,
                                                     const struct refit_arena *source, struct refit_walk from,
                                                     struct refit_segments *segments,
                                                     struct refit_completion *completion, struct refit_error *err);
/* refit_memory_copy would go straight. Asks the driver, and opens the source's memory to the device, at the first time. */
bool refit_memory_reaches(const struct refit_arena *destination, const struct refit_arena *source);
/* What refit_memory_copy has moved in this process from a GPU to another one, and which way. */
struct refit_memory_between_devices {
    uint64_t direct_bytes;
    uint64_t by_host_bytes;
};
void refit_memory_between_devices(struct refit_memory_between_devices *out);
/* Digest what lies in the arena under the window (bytes that other means put there, or a re-check). */
REFIT_MUST_CHECK enum refit_status refit_memory_digest(const struct refit_arena *arena, struct refit_walk walk,
                                                       struct refit_segments *segments,
                                                       struct refit_completion *completion, struct refit_error *err);
/* Digest one range that lies in one piece, without a plan: whole tensors of a checkpoint, say. `tensor_offset` is
 * where the range begins in its tensor. Adds to *digest. Complete when it returns. */
REFIT_MUST_CHECK enum refit_status refit_memory_digest_range(const struct refit_arena *arena, uint64_t offset,
                                                             uint64_t bytes, uint64_t tensor_offset,
                                                             struct refit_digest *digest, struct refit_error *err);
/* Constant bytes of one rank's fills; complete when it returns. */
REFIT_MUST_CHECK enum refit_status refit_memory_fill(struct refit_arena *destination, const struct refit_layout *layout,
                                                     uint32_t rank, struct refit_error *err);

/* Direct I/O: the window's host runs as iovecs, for writev and readv straight on the memory. Incremental, since a
 * batch of short rows has more runs than one call takes. */
struct refit_iov_cursor {
    struct refit_walk walk;
    struct refit_strip strip; /* being handed out */
    uint64_t next_run;
    uint64_t run_done;        /* bytes of that run already handed out */
};
struct iovec;
void refit_iov_begin(struct refit_iov_cursor *cursor, struct refit_walk walk);
/* Up to `max` iovecs of at most max_bytes in all; *count 0 at the end. REFIT_UNSUPPORTED when the arena is not host,
 * REFIT_INVALID when a run is unbound. */
REFIT_MUST_CHECK enum refit_status refit_iov_next(struct refit_iov_cursor *cursor, const struct refit_arena *arena,
                                                  struct iovec *iov, int max, uint64_t max_bytes, int *count,
                                                  struct refit_error *err);
/* The same for memory of a GPU: runs that touch are one. REFIT_UNSUPPORTED when the arena is not cuda. */
struct refit_device_run {
    uint64_t address;
    uint64_t bytes;
};
REFIT_MUST_CHECK enum refit_status refit_device_runs_next(struct refit_iov_cursor *cursor,
                                                          const struct refit_arena *arena,
                                                          struct refit_device_run *runs, int max, uint64_t max_bytes,
                                                          int *count, struct refit_error *err);
/* Digest the next `bytes` of a window in place, continuing where the last call stopped: for bytes that arrive by
 * pieces and are digested while they are in cache. `cursor` is a walk that this advances; it is not the one of
 * refit_iov_next, which runs ahead. At a fresh cursor the segments start anew. REFIT_INVALID past the window's end,
 * REFIT_UNSUPPORTED for memory whose work is queued. */
REFIT_MUST_CHECK enum refit_status refit_segments_advance(struct refit_segments *segments,
                                                          struct refit_iov_cursor *cursor,
                                                          const struct refit_arena *arena, uint64_t bytes,
                                                          struct refit_error *err);

#endif
