/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan_oracle.h"

static uint64_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) {
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    }
    return hash;
}

static uint8_t content(uint64_t hash, uint64_t offset)
{
    uint64_t z = hash + offset * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint8_t)(z >> 56);
}

struct memory memory_create(const struct refit_layout *layout)
{
    struct memory memory = {.layout = layout, .ranks = refit_layout_ranks(layout)};
    memory.bytes = calloc(memory.ranks, sizeof(*memory.bytes));
    memory.arena = calloc(memory.ranks, sizeof(*memory.arena));
    memory.touched = calloc(memory.ranks, sizeof(*memory.touched));
    assert_true(memory.bytes && memory.arena && memory.touched);
    for (uint32_t rank = 0; rank < memory.ranks; rank++) {
        memory.bytes[rank] = refit_layout_arena_bytes(layout, rank);
        memory.arena[rank] = calloc(memory.bytes[rank] + 1, 1);
        memory.touched[rank] = calloc(memory.bytes[rank] + 1, 1);
        assert_true(memory.arena[rank] && memory.touched[rank]);
    }
    return memory;
}

void memory_destroy(struct memory *memory)
{
    for (uint32_t rank = 0; rank < memory->ranks; rank++) {
        free(memory->arena[rank]);
        free(memory->touched[rank]);
    }
    free(memory->bytes);
    free(memory->arena);
    free(memory->touched);
}

typedef void (*byte_fn)(const struct memory *memory, uint32_t rank, uint64_t at, uint8_t expected);

struct visit {
    const struct memory *memory;
    struct refit_tensor tensor;
    uint64_t hash;
    byte_fn fn;
};

static void visit_unit(const struct visit *v, const struct refit_region *region, const int64_t *index)
{
    uint64_t at = region->offset;
    uint64_t unit = 0;
    for (uint32_t d = 0; d < region->box.dims; d++) {
        at += (uint64_t)(index[d] * region->stride[d]);
        unit = unit * (uint64_t)v->tensor.shape_units[d] + (uint64_t)(region->box.start[d] + index[d]);
    }
    for (uint32_t i = 0; i < v->tensor.unit_bytes; i++) {
        assert_true(at + i < v->memory->bytes[region->rank]);
        v->fn(v->memory, region->rank, at + i, content(v->hash, unit * v->tensor.unit_bytes + i));
    }
}

static bool visit_region(void *ctx, const struct refit_region *region)
{
    int64_t index[REFIT_DIMS_MAX] = {0};
    for (;;) {
        visit_unit(ctx, region, index);
        uint32_t d = region->box.dims;
        while (d > 0 && ++index[d - 1] == region->box.extent[d - 1]) {
            index[--d] = 0;
        }
        if (d == 0) {
            return true;
        }
    }
}

static void visit_all(const struct memory *memory, const uint8_t *wanted, byte_fn fn)
{
    const uint32_t count = refit_layout_tensor_count(memory->layout);
    for (uint32_t id = 0; id < count; id++) {
        if (wanted && !wanted[id]) {
            continue;
        }
        struct visit v = {.memory = memory, .fn = fn};
        refit_layout_tensor(memory->layout, id, &v.tensor);
        v.hash = name_hash(v.tensor.name);
        assert_true(refit_layout_regions(memory->layout, id, REFIT_ALL_RANKS, visit_region, &v));
    }
}

static void set_byte(const struct memory *memory, uint32_t rank, uint64_t at, uint8_t expected)
{
    memory->arena[rank][at] = expected;
}

void memory_fill(struct memory *memory)
{
    visit_all(memory, NULL, set_byte);
}

static void check_byte(const struct memory *memory, uint32_t rank, uint64_t at, uint8_t expected)
{
    assert_int_equal(memory->arena[rank][at], expected);
    assert_int_equal(memory->touched[rank][at], 1);
    memory->touched[rank][at] = 0;
}

void memory_check_filled_once(const struct memory *memory, const uint8_t *wanted)
{
    visit_all(memory, wanted, check_byte);
    for (uint32_t rank = 0; rank < memory->ranks; rank++) {
        for (uint64_t at = 0; at < memory->bytes[rank]; at++) {
            assert_int_equal(memory->touched[rank][at], 0);
        }
    }
}

struct refit_digest content_digest(const struct refit_layout *layout, uint32_t tensor)
{
    struct refit_digest digest = {{0, 0}};
    struct refit_tensor facts;
    refit_layout_tensor(layout, tensor, &facts);
    const uint64_t hash = name_hash(facts.name);
    for (uint64_t at = 0; at < facts.bytes; at++) {
        const uint8_t byte = content(hash, at);
        refit_digest_add(&digest, &byte, 1, at);
    }
    return digest;
}

static uint8_t *run_at(const struct memory *memory, uint32_t rank, const struct refit_strip *strip, uint64_t i)
{
    const uint64_t at = strip->offset + i * (uint64_t)strip->stride;
    assert_true(at + strip->run_bytes <= memory->bytes[rank]);
    return memory->arena[rank] + at;
}

void strip_read(const struct memory *memory, uint32_t rank, const struct refit_strip *strip, uint8_t *stream)
{
    for (uint64_t i = 0; i < strip->count; i++) {
        memcpy(stream + i * strip->run_bytes, run_at(memory, rank, strip, i), strip->run_bytes);
    }
}

void strip_write(struct memory *memory, uint32_t rank, const struct refit_strip *strip, const uint8_t *stream)
{
    for (uint64_t i = 0; i < strip->count; i++) {
        uint8_t *at = run_at(memory, rank, strip, i);
        memcpy(at, stream + i * strip->run_bytes, strip->run_bytes);
        for (uint64_t b = 0; b < strip->run_bytes; b++) {
            memory->touched[rank][at - memory->arena[rank] + (ptrdiff_t)b]++;
        }
    }
}

void strip_tally(const struct memory *memory, uint32_t rank, const struct refit_strip *strip,
                 struct refit_tally *tally)
{
    struct refit_digest part = {{0, 0}};
    if (strip->counted) {
        (void)run_at(memory, rank, strip, strip->count - 1);
        refit_digest_add_rows(&part, memory->arena[rank] + strip->offset, strip->run_bytes, strip->count, strip->stride,
                              strip->tensor_offset, strip->tensor_stride);
        refit_tally_add(tally, strip->tensor, part);
    }
}

/* ---- holders ---- */

struct claim {
    struct tensor_holders *of;
    const struct refit_tensor *tensor;
    bool source;
};

static void claim_unit(const struct claim *claim, uint64_t unit, uint32_t bit)
{
    uint32_t copy = 0;
    if (claim->source) {
        claim->of->source[unit] |= bit;
        return;
    }
    while (claim->of->wanted[copy][unit] & bit) {
        assert_true(++copy < ORACLE_COPIES_MAX);
    }
    claim->of->wanted[copy][unit] |= bit;
}

static bool claim_region(void *ctx, const struct refit_region *region)
{
    const struct claim *claim = ctx;
    int64_t index[REFIT_DIMS_MAX] = {0};
    assert_true(region->rank < 32);
    for (;;) {
        uint64_t unit = 0;
        for (uint32_t d = 0; d < region->box.dims; d++) {
            unit = unit * (uint64_t)claim->tensor->shape_units[d] + (uint64_t)(region->box.start[d] + index[d]);
        }
        claim_unit(claim, unit, 1u << region->rank);
        uint32_t d = region->box.dims;
        while (d > 0 && ++index[d - 1] == region->box.extent[d - 1]) {
            index[--d] = 0;
        }
        if (d == 0) {
            return true;
        }
    }
}

static void find_holders(struct tensor_holders *of, const struct refit_layout *source,
                         const struct refit_layout *destination, uint32_t id)
{
    struct refit_tensor tensor;
    uint32_t source_id;
    refit_layout_tensor(destination, id, &tensor);
    assert_true(refit_layout_find(source, tensor.name, &source_id));
    of->unit_bytes = tensor.unit_bytes;
    of->units = tensor.bytes / tensor.unit_bytes;
    of->source = calloc(of->units + 1, sizeof(*of->source));
    of->seen = calloc(tensor.bytes + 1, 1);
    assert_true(of->source && of->seen);
    for (uint32_t copy = 0; copy < ORACLE_COPIES_MAX; copy++) {
        of->wanted[copy] = calloc(of->units + 1, sizeof(*of->wanted[copy]));
        assert_non_null(of->wanted[copy]);
    }
    struct claim claim = {.of = of, .tensor = &tensor, .source = true};
    assert_true(refit_layout_regions(source, source_id, REFIT_ALL_RANKS, claim_region, &claim));
    claim.source = false;
    assert_true(refit_layout_regions(destination, id, REFIT_ALL_RANKS, claim_region, &claim));
}

struct holders holders_create(const struct refit_layout *source, const struct refit_layout *destination)
{
    struct holders holders = {.tensors = refit_layout_tensor_count(destination)};
    holders.of = calloc(holders.tensors + 1, sizeof(*holders.of));
    assert_non_null(holders.of);
    for (uint32_t id = 0; id < holders.tensors; id++) {
        find_holders(&holders.of[id], source, destination, id);
    }
    return holders;
}

void holders_destroy(struct holders *holders)
{
    for (uint32_t id = 0; id < holders->tensors; id++) {
        free(holders->of[id].source);
        free(holders->of[id].seen);
        for (uint32_t copy = 0; copy < ORACLE_COPIES_MAX; copy++) {
            free(holders->of[id].wanted[copy]);
        }
    }
    free(holders->of);
}

bool holders_have_copies(const struct holders *holders)
{
    for (uint32_t id = 0; id < holders->tensors; id++) {
        for (uint64_t unit = 0; unit < holders->of[id].units; unit++) {
            if (holders->of[id].wanted[1][unit]) {
                return true;
            }
        }
    }
    return false;
}

static uint32_t bits_of(struct refit_group group)
{
    uint32_t bits = 0;
    assert_true(group.count > 0);
    for (uint32_t i = 0; i < group.count; i++) {
        assert_true(i == 0 || group.ranks[i] > group.ranks[i - 1]);
        bits |= 1u << group.ranks[i];
    }
    return bits;
}

static uint32_t planned_bits(const struct refit_plan *plan)
{
    return (uint32_t)((((uint64_t)1 << refit_plan_rank_count(plan)) - 1) << refit_plan_first_rank(plan));
}

static void check_byte_of_strip(struct tensor_holders *of, uint64_t at, uint32_t senders, uint32_t takers,
                                uint32_t planned)
{
    const uint64_t unit = at / of->unit_bytes;
    assert_true(unit < of->units);
    assert_int_equal(of->source[unit], senders);
    for (uint32_t copy = 0; copy < ORACLE_COPIES_MAX; copy++) {
        if ((of->wanted[copy][unit] & planned) == takers && !(of->seen[at] & 1u << copy)) {
            of->seen[at] = (uint8_t)(of->seen[at] | 1u << copy);
            return;
        }
    }
    fail_msg("byte %llu of a tensor goes to other ranks than want it, or twice", (unsigned long long)at);
}

void holders_check_strip(struct holders *holders, const struct refit_plan *plan, const struct refit_edge *edge,
                         const struct refit_strip *strip)
{
    const uint32_t senders = bits_of(refit_plan_group(plan, REFIT_SOURCE, edge->source_group));
    const uint32_t takers = bits_of(refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group));
    for (uint64_t i = 0; i < strip->count; i++) {
        const uint64_t at = strip->tensor_offset + i * (uint64_t)strip->tensor_stride;
        for (uint64_t b = 0; b < strip->run_bytes; b++) {
            check_byte_of_strip(&holders->of[strip->tensor], at + b, senders, takers, planned_bits(plan));
        }
    }
}

void holders_check_all_seen(struct holders *holders, const struct refit_plan *plan, const uint8_t *wanted)
{
    for (uint32_t id = 0; id < holders->tensors; id++) {
        struct tensor_holders *of = &holders->of[id];
        for (uint64_t at = 0; at < of->units * of->unit_bytes; at++) {
            for (uint32_t copy = 0; copy < ORACLE_COPIES_MAX; copy++) {
                const bool expected =
                    (!wanted || wanted[id]) && (of->wanted[copy][at / of->unit_bytes] & planned_bits(plan)) != 0;
                assert_int_equal(of->seen[at] >> copy & 1, expected);
            }
            of->seen[at] = 0;
        }
    }
}
