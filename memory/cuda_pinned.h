/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: pinned host memory that callers fill and read, found again by its address.
 */
#ifndef REFIT_MEMORY_CUDA_PINNED_H
#define REFIT_MEMORY_CUDA_PINNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct refit_cuda_pinned;

REFIT_MUST_CHECK enum refit_status refit_cuda_pinned_create(int device, size_t bytes, struct refit_cuda_pinned **out,
                                                            uint8_t **memory, struct refit_error *err);
/* What holds [at, at + bytes), retained; NULL: none does. */
struct refit_cuda_pinned *refit_cuda_pinned_find(const void *at, uint64_t bytes);
/* Does it, of one that is retained. */
bool refit_cuda_pinned_holds(const struct refit_cuda_pinned *pinned, const void *at, uint64_t bytes);
/* With the last reference the memory is given back. */
void refit_cuda_pinned_drop(struct refit_cuda_pinned *pinned);

#endif
