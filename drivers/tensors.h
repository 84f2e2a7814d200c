/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensors of a layout in the order in which a safetensors file holds them, dense, under their checkpoint names.
 * (Internal.)
 */
#ifndef REFIT_DRIVERS_TENSORS_H
#define REFIT_DRIVERS_TENSORS_H

#include "base/buf.h"
#include "layouts/layout.h"

struct refit_tensor_place {
    uint32_t id;
    uint32_t unit_bytes;
    uint64_t begin, bytes; /* in the file's data */
};
struct refit_tensors {
    const struct refit_layout *layout; /* borrowed */
    struct refit_tensor_place *items;  /* owned; the largest units first, then by name: every tensor is aligned */
    uint32_t count;
    uint64_t bytes;                    /* of the data */
};

REFIT_MUST_CHECK enum refit_status refit_tensors_order(const struct refit_layout *layout, struct refit_tensors *out,
                                                       struct refit_error *err);
void refit_tensors_release(struct refit_tensors *tensors);
/* The 8 bytes of length and the JSON, padded with spaces to a multiple of 8. */
REFIT_MUST_CHECK enum refit_status refit_tensors_header(const struct refit_tensors *tensors, struct refit_buf *out,
                                                        struct refit_error *err);

#endif
