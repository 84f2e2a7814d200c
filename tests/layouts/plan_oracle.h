/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of all ranks of a layout, filled and checked unit by unit, straight from the regions.
 */
#ifndef REFIT_TESTS_LAYOUTS_PLAN_ORACLE_H
#define REFIT_TESTS_LAYOUTS_PLAN_ORACLE_H

#include "layouts/plan.h"
#include "layouts/tally.h"

struct memory {
    const struct refit_layout *layout;
    uint32_t ranks;
    uint64_t *bytes;   /* of each arena */
    uint8_t **arena;
    uint8_t **touched; /* how often each byte was written by memory_write() */
};

/* All zero; fails the test when out of memory. */
struct memory memory_create(const struct refit_layout *layout);
void memory_destroy(struct memory *memory);
/* Every unit of every region gets the bytes that its tensor has there (a function of its name). */
void memory_fill(struct memory *memory);
/* Every unit of every region has those bytes and was written exactly once, and nothing else was. */
void memory_check_filled_once(const struct memory *memory);
/* Each tensor's digest as the bytes of its name give it. */
struct refit_digest content_digest(const struct refit_layout *layout, uint32_t tensor);

void strip_read(const struct memory *memory, uint32_t rank, const struct refit_strip *strip, uint8_t *stream);
void strip_write(struct memory *memory, uint32_t rank, const struct refit_strip *strip, const uint8_t *stream);
/* Adds the strip's bytes where they lie to the tally, if they count. */
void strip_tally(const struct memory *memory, uint32_t rank, const struct refit_strip *strip,
                 struct refit_tally *tally);

#endif
