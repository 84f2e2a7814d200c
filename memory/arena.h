/* SPDX-License-Identifier: Apache-2.0
 *
 * An arena: a rank's arena space (layouts/layout.h) bound to real memory of one kind.
 *
 * Everything above memory/ speaks of (arena, offset), never of pointers. An arena is made of pieces, each binding a
 * range of the space to memory: one piece for a serving slot, one per registered buffer for a trainer, one per tensor
 * range of a file for a checkpoint. Pieces don't overlap; space between them is unbound, and touching it is an error
 * that an operation reports before it moves a byte. Binding no bytes binds nothing.
 *
 *   kind   memory                                made by
 *   host   mapped bytes: a memfd, or a borrowed  refit_arena_create_slot, refit_arena_open_slot, refit_arena_bind_host
 *          pointer
 *   file   a range of a regular file, pread      refit_arena_bind_file
 *   cuda   memory of a GPU: a slot, or another's  refit_cuda_slot_create, refit_cuda_slot_open; refit_cuda_bind
 *
 * What an arena can do is a table of operations (struct refit_arena_ops in arena_ops.h) with completions: host and file
 * complete at once, cuda completes by an event. Callers that want to do socket I/O straight on the memory ask
 * refit_arena_host(); where it returns NULL they go through pack and scatter.
 *
 * An arena is reference-counted. Binding is done before it is shared; after that all functions are thread-safe
 * (the bytes themselves are the caller's to order).
 */
#ifndef REFIT_MEMORY_ARENA_H
#define REFIT_MEMORY_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum refit_arena_kind { REFIT_ARENA_HOST, REFIT_ARENA_FILE, REFIT_ARENA_CUDA };

struct refit_arena;

/* An empty arena of `kind` over a space of `bytes`; bind pieces to it. */
REFIT_MUST_CHECK enum refit_status refit_arena_create(enum refit_arena_kind kind, uint64_t bytes,
                                                      struct refit_arena **out, struct refit_error *err);
/* Memory at `pointer` (borrowed: it must stay until the arena is released) becomes [offset, offset + bytes).
 * `shareable_fd` >= 0 (borrowed) is a descriptor that holds the same bytes from `fd_offset` on, so that
 * `local` transport can hand them to a receiver without a copy; -1 for ordinary heap. */
REFIT_MUST_CHECK enum refit_status refit_arena_bind_host(struct refit_arena *arena, uint64_t offset, void *pointer,
                                                         uint64_t bytes, int shareable_fd, uint64_t fd_offset,
                                                         struct refit_error *err);
/* Bytes [file_offset, + bytes) of an open regular file (fd is duplicated; `path` is copied for messages). */
REFIT_MUST_CHECK enum refit_status refit_arena_bind_file(struct refit_arena *arena, uint64_t offset, int fd,
                                                         uint64_t file_offset, uint64_t bytes, const char *path,
                                                         struct refit_error *err);
struct refit_arena *refit_arena_retain(struct refit_arena *arena);
void refit_arena_release(struct refit_arena *arena); /* NULL is fine */

enum refit_arena_kind refit_arena_kind(const struct refit_arena *arena);
uint64_t refit_arena_bytes(const struct refit_arena *arena);
/* The mapped bytes at `offset`, when [offset, offset + len) lies in one host piece; else NULL. */
void *refit_arena_host(const struct refit_arena *arena, uint64_t offset, uint64_t len);
/* The number of the GPU that holds the arena, in this process; -1: none does. */
int refit_arena_device(const struct refit_arena *arena);
/* The address on that GPU (a CUdeviceptr), when [offset, offset + len) lies in one cuda piece; else 0. */
uint64_t refit_arena_device_address(const struct refit_arena *arena, uint64_t offset, uint64_t len);

/* The piece that holds `offset`; false when the space is unbound there. */
struct refit_piece {
    uint64_t offset;    /* start in the space */
    uint64_t bytes;
    void *host;         /* NULL unless host */
    int fd;             /* borrowed; -1 for ordinary heap */
    uint64_t fd_offset; /* of the piece's first byte */
    const char *path;   /* of a file; NULL otherwise */
};
bool refit_arena_piece(const struct refit_arena *arena, uint64_t offset, struct refit_piece *piece);
size_t refit_arena_piece_count(const struct refit_arena *arena);
void refit_arena_piece_at(const struct refit_arena *arena, size_t index, struct refit_piece *piece);

#endif
