/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/plan_internal.h"

uint64_t refit_batch_bytes(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number)
{
    const uint64_t begin = (uint64_t)number * plan->batch_bytes;
    if (begin >= edge->bytes) {
        return 0;
    }
    return edge->bytes - begin < plan->batch_bytes ? edge->bytes - begin : plan->batch_bytes;
}

/* Which column of the edge's ops is of `rank`. */
static uint32_t column_of(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t rank)
{
    if (plan->rank != REFIT_ALL_RANKS) {
        return rank == plan->rank ? 0 : REFIT_PLAN_NONE;
    }
    const uint32_t group = plan->side == REFIT_SOURCE ? edge->source_group : edge->destination_group;
    return refit_group_place(refit_plan_groups_at(&plan->groups[plan->side], group), rank);
}

struct refit_walk refit_walk_batch(const struct refit_plan *plan, const struct refit_edge *edge, uint32_t number,
                                   uint32_t rank)
{
    const uint64_t left = refit_batch_bytes(plan, edge, number);
    const uint32_t column = column_of(plan, edge, rank);
    if (left == 0 || plan->mark_count == 0 || column == REFIT_PLAN_NONE) {
        return (struct refit_walk){.plan = plan};
    }
    const size_t at = (size_t)(edge - plan->edges);
    const struct refit_plan_mark mark = plan->marks[plan->first_mark[at] + number / REFIT_PLAN_MARK_BATCHES];
    struct refit_walk walk = {.plan = plan, .left = left};
    walk.op = plan->first_op[at] + (size_t)column * edge->ops + mark.op;
    walk.op_offset = mark.op_offset + (uint64_t)(number % REFIT_PLAN_MARK_BATCHES) * plan->batch_bytes;
    for (;;) {
        const uint64_t bytes = plan->forms[plan->ops[walk.op].form];
        if (walk.op_offset < bytes) {
            return walk;
        }
        walk.op_offset -= bytes;
        walk.op++;
    }
}

/* Quotient and remainder; most numbers are small, and dividing those is several times cheaper. */
static inline uint64_t divide(uint64_t n, uint64_t by, uint64_t *rest)
{
    if ((n | by) <= UINT32_MAX) {
        *rest = (uint32_t)n % (uint32_t)by;
        return (uint32_t)n / (uint32_t)by;
    }
    *rest = n % by;
    return n / by;
}

/* Moves the strip to run number `run` of the form; returns how many runs follow at the innermost level from there. */
static uint64_t seek_run(const struct refit_form *form, uint64_t run, struct refit_strip *strip)
{
    uint64_t follow = 1;
    for (uint32_t i = 0; i < form->levels; i++) {
        const uint64_t *level = form->level + 3 * (size_t)i;
        uint64_t index = run;
        if (i + 1 < form->levels) {
            run = divide(run, level[0], &index);
        }
        strip->offset += index * level[1];
        strip->tensor_offset += index * level[2];
        if (i == 0) {
            strip->stride = (int64_t)level[1];
            strip->tensor_stride = (int64_t)level[2];
            follow = level[0] - index;
        }
    }
    return follow;
}

/* Shortens a strip of whole runs, or of one run's rest, to at most `limit` bytes. Returns its bytes. */
static uint64_t clip(struct refit_strip *strip, uint64_t limit)
{
    uint64_t rest;
    if (strip->run_bytes > limit) {
        strip->run_bytes = limit;
        strip->count = 1;
    } else if (strip->count > 1 && strip->count * strip->run_bytes > limit) {
        strip->count = divide(limit, strip->run_bytes, &rest);
    }
    return strip->run_bytes * strip->count;
}

bool refit_walk_next(struct refit_walk *walk, uint64_t max_bytes, struct refit_strip *strip)
{
    if (walk->left == 0 || max_bytes == 0) {
        return false;
    }
    const struct refit_plan_op *op = &walk->plan->ops[walk->op];
    const struct refit_form form = refit_form_at(walk->plan->forms + op->form);
    uint64_t within;
    *strip = (struct refit_strip){
        .offset = op->offset,
        .tensor_offset = form.tensor_offset,
        .run_bytes = form.run_bytes,
        .tensor = op->tensor,
        .counted = form.counted,
    };
    strip->count = seek_run(&form, divide(walk->op_offset, form.run_bytes, &within), strip);
    if (within > 0) { /* the rest of a run that an earlier window or strip began */
        strip->offset += within;
        strip->tensor_offset += within;
        strip->run_bytes -= within;
        strip->count = 1;
    }
    const uint64_t bytes = clip(strip, walk->left < max_bytes ? walk->left : max_bytes);
    walk->left -= bytes;
    walk->op_offset += bytes;
    if (walk->op_offset == form.bytes) {
        walk->op++;
        walk->op_offset = 0;
    }
    return true;
}
