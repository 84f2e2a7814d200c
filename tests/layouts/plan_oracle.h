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
/* Every unit of every region of the tensors wanted (by id; NULL: all) has those bytes and was written exactly once, and
 * nothing else was. */
void memory_check_filled_once(const struct memory *memory, const uint8_t *wanted);
/* Each tensor's digest as the bytes of its name give it. */
struct refit_digest content_digest(const struct refit_layout *layout, uint32_t tensor);

void strip_read(const struct memory *memory, uint32_t rank, const struct refit_strip *strip, uint8_t *stream);
void strip_write(struct memory *memory, uint32_t rank, const struct refit_strip *strip, const uint8_t *stream);
/* Adds the strip's bytes where they lie to the tally, if they count. */
void strip_tally(const struct memory *memory, uint32_t rank, const struct refit_strip *strip,
                 struct refit_tally *tally);

/* Who holds each unit of each tensor of the destination, on both sides, as bits by rank. */
#define ORACLE_COPIES_MAX 8
struct holders {
    uint32_t tensors;
    struct tensor_holders {
        uint64_t units;
        uint32_t unit_bytes;
        uint32_t *source;                    /* by unit */
        uint32_t *wanted[ORACLE_COPIES_MAX]; /* by unit: ranks that have a first copy, a second, ... */
        uint8_t *seen;                       /* by byte: copies planned so far */
    } *of;
};

struct holders holders_create(const struct refit_layout *source, const struct refit_layout *destination);
void holders_destroy(struct holders *holders);
/* A rank has some unit twice. */
bool holders_have_copies(const struct holders *holders);
/* Each byte of the strip is held by exactly the ranks of the edge's source group, wanted by exactly those of its
 * destination group among the plan's, and in no op that was seen before. */
void holders_check_strip(struct holders *holders, const struct refit_plan *plan, const struct refit_edge *edge,
                         const struct refit_strip *strip);
/* Each byte that the plan's ranks want of tensors wanted has been seen; forgets what was seen. */
void holders_check_all_seen(struct holders *holders, const struct refit_plan *plan, const uint8_t *wanted);

#endif
