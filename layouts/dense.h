/* SPDX-License-Identifier: Apache-2.0
 *
 * A model whole and dense: one rank, one contiguous buffer for each tensor, named after it, in the order of ids. Made from
 * any layout, it is what gathering that layout's ranks comes to. Also its division into buckets, for moving it part by part.
 */
#ifndef REFIT_LAYOUTS_DENSE_H
#define REFIT_LAYOUTS_DENSE_H

#include "layouts/layout.h"

/* The tensors of `layout`, under its ids; its aliases and excused names go with them. Equal layouts give equal ones. *out is
 * new. */
REFIT_MUST_CHECK enum refit_status refit_layout_dense(const struct refit_layout *layout, struct refit_layout **out,
                                                      struct refit_error *err);

/* Consecutive tensors of a dense layout, and their part of its arena space. */
struct refit_bucket {
    uint32_t first, count; /* tensor ids */
    uint64_t begin, bytes; /* 0 bytes: all its tensors are empty */
};

/* A pure function of the layout: both ends of a connection find the same. */
struct refit_buckets {
    struct refit_layout *dense; /* retained */
    struct refit_bucket *items; /* owned */
    uint32_t count;
    uint64_t bytes_max;         /* of the largest */
};

/* As many tensors as fit into a bucket's size, which grows with the model from REFIT_BUCKET_BYTES_MIN to
 * REFIT_BUCKET_BYTES_MAX, so that filling and emptying the pipeline costs little; a tensor that is larger is alone.
 * REFIT_INVALID: the layout is not dense. */
#define REFIT_BUCKET_BYTES_MIN (2u << 20)
#define REFIT_BUCKET_BYTES_MAX (512u << 20)
REFIT_MUST_CHECK enum refit_status refit_buckets_create(struct refit_layout *dense, struct refit_buckets *out,
                                                        struct refit_error *err);
void refit_buckets_release(struct refit_buckets *buckets);
/* The mask of the bucket's tensors among `layout`'s, which are found by name (struct refit_plan_scope); new (free() it). NULL:
 * out of memory. */
uint8_t *refit_bucket_mask(const struct refit_buckets *buckets, uint32_t number, const struct refit_layout *layout);

#endif
