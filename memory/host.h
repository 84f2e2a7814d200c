/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: moving and digesting rows of host memory, also used where a file's bytes end up in it.
 */
#ifndef REFIT_MEMORY_HOST_H
#define REFIT_MEMORY_HOST_H

#include "layouts/digest.h"
#include "memory/arena_ops.h"

/* rows' runs from src to dst, with strides of their own; fused with the digest when there is one. `rows` gives the
 * shape and the place in the tensor; its piece is not looked at. `store` is for copies with a digest. */
void refit_host_move(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride,
                     const struct refit_rows *rows, enum refit_digest_store store, struct refit_digest *digest);
void refit_host_sum(const uint8_t *data, int64_t stride, const struct refit_rows *rows, struct refit_digest *digest);

#endif
