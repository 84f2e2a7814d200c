/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes that regions and fills of one buffer touch, and whether they touch each byte once. (Internal.)
 */
#ifndef REFIT_LAYOUTS_FOOTPRINT_H
#define REFIT_LAYOUTS_FOOTPRINT_H

#include "base/error.h"
#include "layouts/box.h"

/* Runs of bytes at regular distances, one level per dimension, the smallest distance first. */
struct refit_footprint {
    uint64_t offset;
    uint64_t run_bytes;
    uint32_t dims;
    uint32_t item; /* who touches them: the caller's number */
    int64_t extent[REFIT_DIMS_MAX];
    int64_t stride[REFIT_DIMS_MAX];
};

struct refit_footprints {
    struct refit_footprint *list;
    size_t count, capacity;
};

/* The first byte, from the buffer's start, that is touched other than once. */
struct refit_cover_fault {
    bool found;
    bool twice;      /* else left out */
    uint64_t byte;
    uint64_t end;    /* of the hole, when left out */
    uint32_t item;   /* that touches it (the second time), or comes after the hole */
    uint32_t before; /* the item that touched it first */
    bool at_end;     /* the hole reaches the buffer's end: no item comes after it */
};

/* Adds a strided box of `unit_bytes` units; none of its extents is 0. */
REFIT_MUST_CHECK enum refit_status refit_footprints_add(struct refit_footprints *prints, uint64_t offset,
                                                        uint32_t unit_bytes, uint32_t dims, const int64_t *extent,
                                                        const int64_t *stride, uint32_t item, struct refit_error *err);
/* Do they touch each of `bytes` bytes exactly once? Merges `prints` as it goes, unless something is wrong. */
REFIT_MUST_CHECK enum refit_status refit_footprints_check(struct refit_footprints *prints, uint64_t bytes,
                                                          struct refit_cover_fault *fault, struct refit_error *err);

#endif
