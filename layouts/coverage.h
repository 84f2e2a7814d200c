/* SPDX-License-Identifier: Apache-2.0
 *
 * Proof that a destination layout describes each rank's memory exactly: within every buffer, regions and fills
 * touch every byte exactly once (derived buffers: not at all), and every tensor's box is inside its shape.
 * Interleaved, strided and transposed regions included. Together with refit_plan_build, which finds a source for every byte of every
 * region, this is the coverage half of the preflight: every destination byte written exactly once or declared.
 * Cost: near-linear in the number of runs that can't be merged, one buffer at a time.
 */
#ifndef REFIT_LAYOUTS_COVERAGE_H
#define REFIT_LAYOUTS_COVERAGE_H

#include "layouts/layout.h"

/* The error names the buffer, the rank, the tensor (or fill) and the first byte left out or written twice. */
REFIT_MUST_CHECK enum refit_status refit_coverage_check(const struct refit_layout *destination,
                                                        struct refit_error *err);

#endif
