/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that can be checked byte by byte: every unit of every tensor is a function of (tensor name, version, index), so a
 * reader can tell from its own layout what each byte of a version must be, whatever path it took.
 */
#ifndef TESTS_SYSTEM_PATTERN_H
#define TESTS_SYSTEM_PATTERN_H

#include "layouts/layout.h"

/* Write one rank's arena space (memory[offset] for each region). */
void pattern_fill(const struct refit_layout *layout, uint32_t rank, uint8_t *memory, uint64_t version);

/* 0 when every region and every fill of the rank is as version `version` has it; otherwise 1 and a text. */
int pattern_check(const struct refit_layout *layout, uint32_t rank, const uint8_t *memory, uint64_t version, char *text,
                  size_t text_len);

#endif
