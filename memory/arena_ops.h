/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: what an arena is inside, and the table of operations that makes a kind of memory.
 *
 * A kind is one row of the table, `struct refit_arena_ops`. ops.c drives all kinds alike: it walks the window, cuts
 * it into rows that lie in one piece each, and calls the kind's functions; all has been checked to be bound before
 * the first call. A function may finish its work at once (host, file) or queue it in order (a device stream);
 * `finish` ends the batch and, for a device, leaves a pending completion. Digest pointers stay valid until the
 * batch has completed.
 */
#ifndef REFIT_MEMORY_ARENA_OPS_H
#define REFIT_MEMORY_ARENA_OPS_H

#include <stdatomic.h>

#include "memory/arena.h"
#include "memory/ops.h"

/* Kept small: a checkpoint has one per tensor. */
struct refit_arena_piece {
    uint64_t offset;
    uint64_t bytes;
    uint8_t *host;      /* NULL unless the memory is mapped */
    uint64_t address;   /* on a GPU; 0 unless it is there */
    uint64_t fd_offset;
    int fd;             /* of host memory, borrowed; -1 */
    uint32_t file;      /* index in the arena's files; only of kind file */
};

/* Pieces of one file share one descriptor. */
struct refit_arena_file {
    uint64_t device;
    uint64_t inode;
    char *path; /* owned */
    int fd;     /* owned */
};

/* `count` equal runs of one piece, of one tensor. */
struct refit_rows {
    const struct refit_arena_piece *piece;
    uint64_t offset; /* of the first run, from the piece's first byte */
    int64_t stride;
    uint64_t run_bytes;
    uint64_t count;
    uint64_t tensor_offset;
    int64_t tensor_stride;
};

/* `digest` is NULL when nothing is to be verified. Strides of dst and src may be negative. */
struct refit_arena_ops {
    const char *name;
    /* From the arena to host memory. */
    enum refit_status (*load)(const struct refit_arena *arena, const struct refit_rows *rows, uint8_t *dst,
                              int64_t dst_stride, struct refit_digest *digest, struct refit_error *err);
    /* From host memory to the arena; NULL: can't be written. */
    enum refit_status (*store)(struct refit_arena *arena, const struct refit_rows *rows, const uint8_t *src,
                               int64_t src_stride, struct refit_digest *digest, struct refit_error *err);
    /* Digest in place. */
    enum refit_status (*sum)(const struct refit_arena *arena, const struct refit_rows *rows,
                             struct refit_digest *digest, struct refit_error *err);
    /* From an arena of the kind whose memory it reaches; `to` and `from` have runs alike. NULL: there is none. */
    enum refit_status (*copy)(struct refit_arena *destination, const struct refit_rows *to,
                              const struct refit_arena *source, const struct refit_rows *from,
                              struct refit_digest *digest, struct refit_error *err);
    /* `copy` can do it: the destination's device reads the source's memory. */
    bool (*reaches)(const struct refit_arena *destination, const struct refit_arena *source);
    /* Constant bytes; NULL: can't be written. */
    enum refit_status (*fill)(struct refit_arena *arena, const struct refit_rows *rows, uint8_t value,
                              struct refit_error *err);
    /* Ends a batch of the calls above; NULL: they complete before they return. */
    enum refit_status (*finish)(const struct refit_arena *arena, struct refit_completion *completion,
                                struct refit_error *err);
    /* With the arena's last reference: gives back arena->device; NULL: there is none. */
    void (*release)(struct refit_arena *arena);
};

extern const struct refit_arena_ops refit_arena_ops_host;
extern const struct refit_arena_ops refit_arena_ops_file;

/* What refit_completion.pending points to. `wait` frees it, whatever it returns; `poll` unless it returns REFIT_BUSY. */
struct refit_pending {
    enum refit_status (*wait)(struct refit_pending *pending, struct refit_deadline deadline, struct refit_error *err);
    enum refit_status (*poll)(struct refit_pending *pending, struct refit_error *err);
};

struct refit_arena {
    atomic_uint references;
    enum refit_arena_kind kind;
    bool read_only;
    const struct refit_arena_ops *ops;
    uint64_t bytes;
    struct refit_arena_piece *pieces; /* owned, by rising offset */
    size_t piece_count;
    size_t piece_capacity;
    struct refit_arena_file *files; /* owned */
    size_t file_count;
    size_t file_capacity;
    void *mapping; /* owned, of a slot; NULL */
    size_t mapping_bytes;
    int mapping_fd; /* owned; -1 */
    void *device;   /* owned by a kind with a `release` */
    int ordinal;    /* of the GPU; -1 */
};

/* An empty arena of a kind that refit_arena_create does not make. */
REFIT_MUST_CHECK enum refit_status refit_arena_create_kind(enum refit_arena_kind kind,
                                                           const struct refit_arena_ops *ops, uint64_t bytes,
                                                           struct refit_arena **out, struct refit_error *err);
/* [offset, offset + bytes) lies in the space. */
REFIT_MUST_CHECK enum refit_status refit_arena_check_range(const struct refit_arena *arena, uint64_t offset,
                                                           uint64_t bytes, struct refit_error *err);
/* Adds a piece that overlaps no other; the caller has checked its range. */
REFIT_MUST_CHECK enum refit_status refit_arena_insert(struct refit_arena *arena, struct refit_arena_piece piece,
                                                      struct refit_error *err);

/* The piece that holds `offset`, or NULL. */
const struct refit_arena_piece *refit_arena_find(const struct refit_arena *arena, uint64_t offset);
int refit_arena_piece_fd(const struct refit_arena *arena, const struct refit_arena_piece *piece);
const char *refit_arena_piece_path(const struct refit_arena *arena, const struct refit_arena_piece *piece);

#endif
