/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: what must move, and who can send it. A pure function of (planner version, source layout, destination
 * layout, destination ranks planned for, tensors wanted); it says nothing of who *will* send it: that is the
 * receiver's choice when it grants.
 *
 * The destination ranks of a plan are those of one receiver (one `refitd`): a byte that several of them want crosses
 * the network once and is copied to the others as it lands. So:
 *
 * - a *source group* is a set of source ranks that all hold the same boxes: any of them may send them (replicas of the
 *   trainer: HSDP, DP);
 * - a *destination group* is a set of the plan's destination ranks that all want the same boxes;
 * - an *edge* is one (source group, destination group) pair with every box that has exactly these two groups.
 *
 * Exact: every destination byte that is wanted is in exactly one op of one edge (fills and derived buffers in none), and a
 * unit that several ranks want is in one op, whatever the ranks' boxes look like (boxes that overlap in part are cut; a
 * second copy on one rank is in an op of its own).
 * Near-linear: boxes are indexed per tensor.
 *
 * An edge's ops in plan order, each box dense and row-major, form one byte stream, the *edge stream*; everyone derives
 * the same stream, each bound to memory of its own. A *batch* is a window of that stream (refit_plan_batch_bytes; the
 * last one is shorter). A batch is named by its edge's digest and its number alone: by what it is, never by who has it.
 * So whoever holds these boxes can send it: any rank of the source group, and any receiver of a plan that has the
 * same edge, once the batch has landed there. No address ever travels.
 *
 * A plan keeps only what its scope asks for, in compact form. Immutable once built; thread-safe.
 */
#ifndef REFIT_LAYOUTS_PLAN_H
#define REFIT_LAYOUTS_PLAN_H

#include "layouts/digest.h"
#include "layouts/layout.h"

#define REFIT_PLANNER_VERSION 2
#define REFIT_BATCH_BYTES_MIN (64u << 10)
#define REFIT_BATCH_BYTES_MAX (4u << 20)

enum refit_side { REFIT_SOURCE, REFIT_DESTINATION };

struct refit_plan_scope {
    enum refit_side side; /* whose memory the strips describe */
    uint32_t rank;        /* SOURCE: edges whose source group has this rank, or REFIT_ALL_RANKS. DESTINATION:
                           * REFIT_ALL_RANKS (of those planned for) */
    bool totals_only;     /* edges with their bytes and ops, but no strips: for `refit plan` */
    /* The destination ranks planned for: count 0 is all of them. The same on both sides, or edges differ. */
    uint32_t first_rank, rank_count;
    /* By destination tensor id, one byte each, 0: not wanted (its bytes are already there). NULL: all. Borrowed until
     * refit_plan_build returns. The same on both sides. */
    const uint8_t *wanted;
};

struct refit_edge {
    uint32_t source_group;      /* see refit_plan_group */
    uint32_t destination_group;
    uint64_t bytes;   /* of the edge stream */
    uint64_t ops;     /* boxes */
    uint32_t batches; /* ceil(bytes / refit_plan_batch_bytes) */
    uint64_t digest;  /* over batch size and ops (tensor's name, type, shape; box) in order, not ranks: names the edge */
};

/* Rising ranks of one side's layout. */
struct refit_group {
    const uint32_t *ranks; /* borrowed from the plan */
    uint32_t count;        /* >= 1 */
};

/* Part of an edge stream, bound to one rank's memory: `count` runs of run_bytes, each contiguous both in the
 * rank's arena space and in the tensor's canonical bytes, at regular distances in both. */
struct refit_strip {
    uint64_t offset;       /* in the rank's arena space, bytes */
    int64_t stride;        /* bytes, between runs */
    uint64_t tensor_offset; /* in the tensor's canonical bytes */
    int64_t tensor_stride;
    uint64_t run_bytes;
    uint64_t count;
    uint32_t tensor;       /* id in the DESTINATION layout, on both sides */
    bool counted;          /* this edge counts for the model's digest: its boxes' only copy that does */
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
/* What it was built for; `wanted` is the plan's own. */
struct refit_plan_scope refit_plan_scope_of(const struct refit_plan *plan);

/* Edges of the scope that carry bytes, sorted by (ranks of the destination group, ranks of the source group). Borrowed. */
const struct refit_edge *refit_plan_edges(const struct refit_plan *plan, size_t *count);
/* By its digest; NULL: not in the scope. */
const struct refit_edge *refit_plan_edge(const struct refit_plan *plan, uint64_t digest);
/* Two plans of the same edges, whatever their ranks, are of one class: each can serve the other all it wants. Of the
 * edges in the scope, so compare plans of REFIT_DESTINATION scope. */
uint64_t refit_plan_class(const struct refit_plan *plan);
struct refit_group refit_plan_group(const struct refit_plan *plan, enum refit_side side, uint32_t number);
bool refit_group_has(struct refit_group group, uint32_t rank);
/* Bytes of a batch but the last of an edge: a power of two that grows with what the destination ranks hold, from
 * REFIT_BATCH_BYTES_MIN to REFIT_BATCH_BYTES_MAX, so that a small model still has enough batches to share among holders. */
uint32_t refit_plan_batch_bytes(const struct refit_plan *plan);
/* The rank of the edge's destination group that a batch lands at first; batches go round the group, beginning where
 * least has landed of the edges before, so that what comes over the network is shared by a group's ranks, over all its
 * edges, evenly to one batch. Of a plan with all edges, so not of one source rank. */
uint32_t refit_plan_landing_rank(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number);
/* Sum over the edges in the scope: the bytes that must cross the network. */
uint64_t refit_plan_bytes(const struct refit_plan *plan);
/* The same with every rank's copy: the bytes that are written. */
uint64_t refit_plan_written_bytes(const struct refit_plan *plan);
/* Of the destination ranks planned for. */
uint32_t refit_plan_first_rank(const struct refit_plan *plan);
uint32_t refit_plan_rank_count(const struct refit_plan *plan);
/* Heap the plan holds, bytes. */
size_t refit_plan_memory(const struct refit_plan *plan);

/* A walk over part of an edge stream. Plain data, no allocation; one thread each. */
struct refit_walk {
    const struct refit_plan *plan;
    size_t op;
    uint64_t op_offset; /* bytes of the op already walked */
    uint64_t left;      /* bytes of the window still to walk */
};

/* The window of batch `number` of `edge` (which must be one of refit_plan_edges), in the memory of `rank`, which must be in
 * the edge's group on the scope's side. */
struct refit_walk refit_walk_batch(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number,
                                   uint32_t rank);
uint64_t refit_batch_bytes(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number);
/* The next strip of at most max_bytes; false at the end of the window. */
bool refit_walk_next(struct refit_walk *walk, uint64_t max_bytes, struct refit_strip *strip);

#endif
