/* SPDX-License-Identifier: Apache-2.0
 *
 * A layout: what one side (a trainer mesh, a serving replica, a checkpoint) holds or wants, free of addresses.
 *
 * The document is JSON (docs/layouts.md has the format); this is its compiled form. It stays compact: repeated
 * tensors are families that are expanded on the fly, never stored. A layout is immutable and reference-counted;
 * every function is thread-safe on it. Equal documents have equal digests (SHA-256 of the canonical text).
 *
 * Memory is described per rank as named *buffers* (what a framework calls a parameter: `layers.3.qkv.weight`),
 * packed in document order into one *arena space* per rank: each buffer starts at a multiple of 256 bytes. A region
 * says where a box of a logical tensor lies in that space. A serving slot is that space, byte for byte; a trainer
 * binds each buffer to memory of its own (memory/arena.h).
 */
#ifndef REFIT_LAYOUTS_LAYOUT_H
#define REFIT_LAYOUTS_LAYOUT_H

#include <stddef.h>

#include "base/json.h"
#include "layouts/box.h"
#include "layouts/dtype.h"

#define REFIT_NAME_MAX 256        /* of a tensor or buffer, with its NUL */
#define REFIT_BUFFER_ALIGN 256    /* bytes */
#define REFIT_RANKS_MAX 65536
#define REFIT_ALL_RANKS UINT32_MAX
#define REFIT_LAYOUT_TEXT_MAX (64u << 20) /* bytes of JSON accepted */

struct refit_layout;

struct refit_tensor {
    char name[REFIT_NAME_MAX];
    enum refit_dtype dtype;
    uint32_t dims;
    int64_t shape[REFIT_DIMS_MAX];       /* in elements, as the checkpoint has it */
    int64_t shape_units[REFIT_DIMS_MAX]; /* the last dimension divided by the dtype's unit */
    uint32_t unit_bytes;
    uint64_t bytes;                      /* of its dense canonical form */
};

/* A box of a tensor bound to a rank's arena space. */
struct refit_region {
    uint32_t tensor;                /* id in its layout */
    uint32_t rank;
    struct refit_box box;           /* in units; never empty */
    uint64_t offset;                /* of the box's first unit, in the rank's arena space, bytes */
    int64_t stride[REFIT_DIMS_MAX]; /* bytes from one index to the next, per dimension of the tensor */
};

struct refit_buffer {
    char name[REFIT_NAME_MAX];
    uint64_t offset; /* in the rank's arena space, a multiple of REFIT_BUFFER_ALIGN */
    uint64_t bytes;  /* 0 where the rank's part is empty; the buffer is listed all the same */
    bool derived;    /* filled by the engine's prepare hook, not by a refit */
};

/* A rectangle of constant bytes: `count` rows of `row_bytes`, `stride` apart. */
struct refit_fill {
    uint32_t rank;
    uint64_t offset;
    uint64_t row_bytes;
    uint64_t count;
    uint64_t stride;
    uint8_t value;
};

/* Parses and validates: known members only, names well formed, sizes without overflow, placements that fit their
 * mesh, `Partial` refused by name, regions inside their buffers, no two tensors of one name. `what` names the
 * document in errors. *out is new (refit_layout_release). */
REFIT_MUST_CHECK enum refit_status refit_layout_parse(const void *text, size_t len, const char *what,
                                                      struct refit_layout **out, struct refit_error *err);
/* The same from a parsed document; borrows `document`. */
REFIT_MUST_CHECK enum refit_status refit_layout_from_json(const json_t *document, const char *what,
                                                          struct refit_layout **out, struct refit_error *err);
/* The layouts of a mesh's ranks as one. All equal: that one. Otherwise each must describe its own rank only
 * (entries with "rank"), and the union is taken. Borrows `parts`. */
REFIT_MUST_CHECK enum refit_status refit_layout_merge(struct refit_layout *const *parts, size_t count,
                                                      struct refit_layout **out, struct refit_error *err);
struct refit_layout *refit_layout_retain(struct refit_layout *layout);
void refit_layout_release(struct refit_layout *layout); /* NULL is fine */

const char *refit_layout_text(const struct refit_layout *layout, size_t *len); /* canonical JSON, borrowed */
const char *refit_layout_digest(const struct refit_layout *layout);            /* 64 hex digits, borrowed */
uint32_t refit_layout_ranks(const struct refit_layout *layout);

/* Logical tensors are numbered 0..count-1 by their first mention, families expanded with the last index in the name
 * fastest. */
uint32_t refit_layout_tensor_count(const struct refit_layout *layout);
void refit_layout_tensor(const struct refit_layout *layout, uint32_t id, struct refit_tensor *out);
/* False: no tensor or alias of that name. An alias finds the tensor it stands for. */
bool refit_layout_find(const struct refit_layout *layout, const char *name, uint32_t *id);
/* The name is excused: listed (a trailing '*' matches any rest), so nobody has to use or provide it. */
bool refit_layout_excuses(const struct refit_layout *layout, const char *name);
/* Sum over all tensors of their canonical bytes. */
uint64_t refit_layout_model_bytes(const struct refit_layout *layout);

/* Sinks return false to stop early; the walker then returns false. Pointers are valid during the call only. */
typedef bool (*refit_region_sink)(void *ctx, const struct refit_region *region);
typedef bool (*refit_buffer_sink)(void *ctx, const struct refit_buffer *buffer);
typedef bool (*refit_fill_sink)(void *ctx, const struct refit_fill *fill);
typedef bool (*refit_alias_sink)(void *ctx, const char *name, const char *target);

/* Regions of one tensor on one rank or REFIT_ALL_RANKS, by rising rank; on a rank those of entries on meshes, then
 * listed ones, each in document order. */
bool refit_layout_regions(const struct refit_layout *layout, uint32_t tensor, uint32_t rank, refit_region_sink sink,
                          void *ctx);
bool refit_layout_buffers(const struct refit_layout *layout, uint32_t rank, refit_buffer_sink sink, void *ctx);
bool refit_layout_buffer_find(const struct refit_layout *layout, uint32_t rank, const char *name,
                              struct refit_buffer *out);
bool refit_layout_fills(const struct refit_layout *layout, uint32_t rank, refit_fill_sink sink, void *ctx);
bool refit_layout_aliases(const struct refit_layout *layout, refit_alias_sink sink, void *ctx);
/* Size of a rank's arena space in bytes: the end of its last buffer, rounded up to REFIT_BUFFER_ALIGN. */
uint64_t refit_layout_arena_bytes(const struct refit_layout *layout, uint32_t rank);

#endif
