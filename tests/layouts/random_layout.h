/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeded random models and layouts of them, as documents, for tests of the planner.
 */
#ifndef REFIT_TESTS_LAYOUTS_RANDOM_LAYOUT_H
#define REFIT_TESTS_LAYOUTS_RANDOM_LAYOUT_H

#include "layouts/layout.h"

struct random {
    uint64_t state;
};

uint64_t random_next(struct random *r);
uint32_t random_below(struct random *r, uint32_t n);

#define MODEL_TENSORS_MAX 12

/* A tensor, or a family of `layers` x `experts` of them (0: no such number in the name). */
struct model_tensor {
    char name[64]; /* with {l} and {e} */
    enum refit_dtype dtype;
    uint32_t dims;
    int64_t shape[REFIT_DIMS_MAX];
    uint32_t layers;
    uint32_t experts;
};

struct model {
    uint32_t count;
    struct model_tensor tensors[MODEL_TENSORS_MAX];
};

struct model random_model(struct random *r);

/* A layout of the whole model on up to `ranks_max` ranks: meshes, strided, transposed, stacked and cut families, listed
 * boxes with replicas, flat ranges; in random order. Boxes that overlap without being equal when `overlaps`. New. */
struct refit_layout *random_layout(struct random *r, const struct model *model, uint32_t ranks_max, bool overlaps);

#endif
