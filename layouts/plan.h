/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: who sends which box to whom. A pure function of (planner version, source layout, destination layout).
 *
 * Exact: every destination byte is in exactly one op (fills and derived buffers in none); no other byte is. A box that
 * several source ranks hold is given to the one with the least bytes so far (ties: the lowest rank), so replicated
 * sources share the load. Near-linear: boxes are indexed per tensor.
 *
 * An *edge* is one (source rank, destination rank) pair. Its ops in plan order, each box dense and row-major, form
 * one byte stream, the *edge stream*; both sides derive the same stream, each bound to its own memory. A *batch* is
 * a window of that stream (REFIT_BATCH_BYTES; the last one is shorter), so a batch is named by edge and number
 * alone and no address ever travels.
 *
 * A plan keeps only what its scope asks for, in compact form: a rank holds its own edges and its own side's memory
 * walk. Immutable once built; thread-safe.
 */
#ifndef REFIT_LAYOUTS_PLAN_H
#define REFIT_LAYOUTS_PLAN_H

#include "layouts/digest.h"
#include "layouts/layout.h"

#define REFIT_PLANNER_VERSION 1
#define REFIT_BATCH_BYTES (4u << 20)

enum refit_side { REFIT_SOURCE, REFIT_DESTINATION };

struct refit_plan_scope {
    enum refit_side side; /* whose memory the strips describe */
    uint32_t rank;        /* of that side, or REFIT_ALL_RANKS */
    bool totals_only;     /* edges with their bytes and ops, but no strips: for `refit plan` */
};

struct refit_edge {
    uint32_t source_rank;
    uint32_t destination_rank;
    uint64_t bytes;   /* of the edge stream */
    uint64_t ops;     /* boxes */
    uint32_t batches; /* ceil(bytes / REFIT_BATCH_BYTES) */
    uint64_t digest;  /* over the ops (tensor, box) in order: equal on both sides, or the edge is refused */
};

/* Part of an edge stream, bound to one side's memory: `count` runs of run_bytes, each contiguous both in the
 * rank's arena space and in the tensor's canonical bytes, at regular distances in both. */
struct refit_strip {
    uint64_t offset;       /* in the rank's arena space, bytes */
    int64_t stride;        /* bytes, between runs */
    uint64_t tensor_offset; /* in the tensor's canonical bytes */
    int64_t tensor_stride;
    uint64_t run_bytes;
    uint64_t count;
    uint32_t tensor;       /* id in the DESTINATION layout, on both sides */
    bool counted;          /* this copy counts for the model's digest (one of all copies in the replica does) */
};

struct refit_plan;

/* Checks everything of the preflight that is about layouts: dtypes and shapes agree, every destination byte has a
 * source, every source byte is wanted or its tensor's name excused (by either side). The error names tensor, box and
 * rank. *out is new (refit_plan_release); the plan retains both layouts. */
REFIT_MUST_CHECK enum refit_status refit_plan_build(struct refit_layout *source, struct refit_layout *destination,
                                                    struct refit_plan_scope scope, struct refit_plan **out,
                                                    struct refit_error *err);
struct refit_plan *refit_plan_retain(struct refit_plan *plan);
void refit_plan_release(struct refit_plan *plan); /* NULL is fine */

struct refit_layout *refit_plan_source(const struct refit_plan *plan);      /* borrowed */
struct refit_layout *refit_plan_destination(const struct refit_plan *plan); /* borrowed */

/* Edges of the scope that carry bytes, sorted by (destination rank, source rank). Borrowed. */
const struct refit_edge *refit_plan_edges(const struct refit_plan *plan, size_t *count);
const struct refit_edge *refit_plan_edge(const struct refit_plan *plan, uint32_t source_rank,
                                         uint32_t destination_rank);
/* Sum over the edges in the scope: the bytes needed. */
uint64_t refit_plan_bytes(const struct refit_plan *plan);
/* Heap the plan holds, bytes. */
size_t refit_plan_memory(const struct refit_plan *plan);

/* A walk over part of an edge stream. Plain data, no allocation; one thread each. */
struct refit_walk {
    const struct refit_plan *plan;
    size_t op;
    uint64_t op_offset; /* bytes of the op already walked */
    uint64_t left;      /* bytes of the window still to walk */
};

/* The window of batch `number` of `edge` (which must be one of refit_plan_edges). */
struct refit_walk refit_walk_batch(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number);
uint64_t refit_batch_bytes(const struct refit_edge *edge, uint32_t number);
/* The next strip of at most max_bytes; false at the end of the window. */
bool refit_walk_next(struct refit_walk *walk, uint64_t max_bytes, struct refit_strip *strip);

#endif
