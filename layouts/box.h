/* SPDX-License-Identifier: Apache-2.0
 *
 * A box: an N-dimensional interval of a logical tensor, start and extent per dimension, in units (see dtype.h).
 * Rank 0 (a scalar) is a box with no dimensions and volume 1. A box with an extent of 0 is empty.
 */
#ifndef REFIT_LAYOUTS_BOX_H
#define REFIT_LAYOUTS_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REFIT_DIMS_MAX 8

struct refit_box {
    uint32_t dims;
    int64_t start[REFIT_DIMS_MAX];
    int64_t extent[REFIT_DIMS_MAX];
};

/* The whole of a shape. */
struct refit_box refit_box_of_shape(uint32_t dims, const int64_t *shape);
bool refit_box_empty(const struct refit_box *box);
bool refit_box_equal(const struct refit_box *a, const struct refit_box *b);
bool refit_box_contains(const struct refit_box *outer, const struct refit_box *inner);
/* Number of units; layouts are validated so that it can't overflow. */
uint64_t refit_box_volume(const struct refit_box *box);
/* False (and *out empty) when they share nothing. Both have the same dims. */
bool refit_box_intersect(const struct refit_box *a, const struct refit_box *b, struct refit_box *out);
/* What is left of `a` without `b`: at most 2 * dims disjoint boxes in `out`; returns how many. */
size_t refit_box_subtract(const struct refit_box *a, const struct refit_box *b,
                          struct refit_box out[static 2 * REFIT_DIMS_MAX]);
/* A half-open range of a shape's flat row-major units as boxes, in row-major order; at most 2 * dims - 1 (1 for
 * a scalar); returns how many. FSDP1's flat parameters are such ranges. */
size_t refit_box_from_flat(uint32_t dims, const int64_t *shape, uint64_t begin, uint64_t end,
                           struct refit_box out[static 2 * REFIT_DIMS_MAX]);
/* "[0:128, 64:96]" for messages; always terminates, returns `text`. */
char *refit_box_format(const struct refit_box *box, char *text, size_t len);
#define REFIT_BOX_TEXT_MAX (REFIT_DIMS_MAX * 42 + 3)

#endif
