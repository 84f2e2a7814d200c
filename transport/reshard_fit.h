/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors of a plan one collective call can move from the source's mesh to the destination's (docs/gpu.md): those
 * of which each rank has one dense box, and that are whole everywhere or evenly cut in one dimension at each end. A pure
 * function of the plan's layouts and its destination ranks, so both ends find the same.
 *
 * The collective's ranks are all source ranks, then the plan's destination ranks. A tensor is described as bytes with at
 * most three dimensions: those that are cut at either end stay apart, whatever is between them is joined.
 */
#ifndef REFIT_TRANSPORT_RESHARD_FIT_H
#define REFIT_TRANSPORT_RESHARD_FIT_H

#include "layouts/plan.h"

#define REFIT_RESHARD_DIMS_MAX 3
#define REFIT_RESHARD_MESH_MAX 2
#define REFIT_RESHARD_WHOLE (-1) /* a placement: every index of the mesh's axis has the same */

/* The library's arrays: shards that flow into one, and ranks that one flows to. */
#define REFIT_RESHARD_FAN_IN_MAX 16
#define REFIT_RESHARD_FAN_OUT_MAX 64

enum refit_reshard_fit {
    REFIT_RESHARD_FITS,
    REFIT_RESHARD_UNWANTED, /* not part of the plan, or of no bytes */
    REFIT_RESHARD_ABSENT,   /* nobody on a side has it */
    REFIT_RESHARD_TYPES,    /* element types differ */
    REFIT_RESHARD_PIECES,   /* a rank has several boxes of it */
    REFIT_RESHARD_STRIDED,  /* a rank's box is not dense, row-major */
    REFIT_RESHARD_UNEVEN,   /* shards differ in size */
    REFIT_RESHARD_AXES,     /* cut in more than one dimension */
    REFIT_RESHARD_MESH,     /* ranks do not follow each other as shards do */
    REFIT_RESHARD_SHARDS,   /* more shards than the library takes */
};
const char *refit_reshard_fit_text(enum refit_reshard_fit fit);

struct refit_reshard_side {
    int start;       /* of the collective's ranks */
    int mesh_dims;   /* 1 or 2 */
    int mesh[REFIT_RESHARD_MESH_MAX];
    int placement[REFIT_RESHARD_MESH_MAX]; /* the dimension that the axis cuts, or REFIT_RESHARD_WHOLE */
    size_t shape[REFIT_RESHARD_DIMS_MAX];  /* of one rank's part */
};

struct refit_reshard_tensor {
    uint32_t id[2]; /* by enum refit_side, in that side's layout */
    int dims;
    struct refit_reshard_side sides[2];
    uint64_t bytes; /* of the whole tensor */
};

struct refit_reshard_list {
    struct refit_reshard_tensor *tensors; /* owned; by rising destination id */
    size_t count;
    uint8_t *fits; /* owned: by destination id, of enum refit_reshard_fit */
    uint32_t sources, destinations; /* ranks of the collective */
    uint64_t bytes;                 /* of all tensors */
    uint64_t digest; /* of what both ends have to have found alike */
};

/* What becomes of one tensor of the destination layout; *out is set when it fits. */
REFIT_MUST_CHECK enum refit_status refit_reshard_fit(const struct refit_plan *plan, uint32_t destination_tensor,
                                                     enum refit_reshard_fit *fit, struct refit_reshard_tensor *out,
                                                     struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_reshard_list_build(const struct refit_plan *plan,
                                                            struct refit_reshard_list *out, struct refit_error *err);
void refit_reshard_list_release(struct refit_reshard_list *list);
/* Every tensor of the batch is on the list. `edge` is one of the plan's, whose scope is REFIT_DESTINATION. */
bool refit_reshard_covers(const struct refit_reshard_list *list, const struct refit_plan *plan,
                          const struct refit_edge *edge, uint32_t batch);

#endif
