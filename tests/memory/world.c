/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/cuda.h"
#include "tests/memory/world.h"
#include "tests/support/gpu.h"
#include "tests/support/safetensors_writer.h"

#define UNTOUCHED 0xEE
#define OWNED_MAX 16384

static void must(enum refit_status status, const struct refit_error *err)
{
    if (status != REFIT_OK)
        fail_msg("%s", err->text);
}

uint8_t *world_content(const struct refit_tensor *tensor)
{
    uint8_t *bytes = malloc(tensor->bytes + 1);
    assert_non_null(bytes);
    safetensors_content(5, tensor->name, 0, bytes, tensor->bytes);
    return bytes;
}

/* Calls back with the memory offset and the canonical offset of every unit of a region. */
typedef void (*unit_body)(void *ctx, uint64_t memory, uint64_t canonical, uint32_t unit_bytes);

static void each_unit(const struct refit_tensor *tensor, const struct refit_region *region, unit_body body, void *ctx)
{
    int64_t at[REFIT_DIMS_MAX] = {0};
    uint64_t volume = refit_box_volume(&region->box);
    for (uint64_t n = 0; n < volume; n++) {
        uint64_t memory = region->offset, canonical = 0;
        for (uint32_t d = 0; d < tensor->dims; d++) {
            memory += (uint64_t)(at[d] * region->stride[d]);
            canonical = canonical * (uint64_t)tensor->shape_units[d] + (uint64_t)(region->box.start[d] + at[d]);
        }
        body(ctx, memory, canonical * tensor->unit_bytes, tensor->unit_bytes);
        for (uint32_t d = tensor->dims; d-- > 0;) {
            if (++at[d] < region->box.extent[d])
                break;
            at[d] = 0;
        }
    }
}

struct shadow_pass {
    const struct refit_layout *layout;
    struct refit_tensor tensor;
    uint8_t *content;
    uint8_t *shadow;
};

static void put_unit(void *ctx, uint64_t memory, uint64_t canonical, uint32_t unit_bytes)
{
    struct shadow_pass *pass = ctx;
    memcpy(pass->shadow + memory, pass->content + canonical, unit_bytes);
}

static bool put_region(void *ctx, const struct refit_region *region)
{
    struct shadow_pass *pass = ctx;
    each_unit(&pass->tensor, region, put_unit, pass);
    return true;
}

static bool put_fill(void *ctx, const struct refit_fill *fill)
{
    uint8_t *shadow = ctx;
    for (uint64_t i = 0; i < fill->count; i++)
        memset(shadow + fill->offset + i * fill->stride, fill->value, fill->row_bytes);
    return true;
}

/* A rank's arena space as it is when it holds the model. */
static uint8_t *ideal(const struct refit_layout *layout, uint32_t rank, bool fills)
{
    uint64_t bytes = refit_layout_arena_bytes(layout, rank);
    struct shadow_pass pass = {.layout = layout, .shadow = malloc(bytes + 1)};
    assert_non_null(pass.shadow);
    memset(pass.shadow, UNTOUCHED, bytes);
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        refit_layout_tensor(layout, id, &pass.tensor);
        pass.content = world_content(&pass.tensor);
        refit_layout_regions(layout, id, rank, put_region, &pass);
        free(pass.content);
    }
    if (fills)
        refit_layout_fills(layout, rank, put_fill, pass.shadow);
    return pass.shadow;
}

struct bind_pass {
    struct world_side *side;
    uint32_t rank;
    int fd;
};

/* Exactly as long as it says, so that a sanitizer sees a step beyond. */
static uint8_t *own_copy(struct world_side *side, const uint8_t *bytes, uint64_t len)
{
    size_t room = len + (len == 0);
    bool device = side->memory == WORLD_DEVICE;
    uint8_t *memory = device ? (void *)(uintptr_t)gpu_allocate(0, room) : malloc(room);
    assert_non_null(memory);
    assert_true(side->owned_count < OWNED_MAX);
    side->owned[side->owned_count++] = memory;
    if (device)
        gpu_write((uint64_t)(uintptr_t)memory, bytes, len);
    else
        memcpy(memory, bytes, len);
    return memory;
}

static bool bind_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct bind_pass *pass = ctx;
    struct refit_error err;
    struct refit_arena *arena = pass->side->arenas[pass->rank];
    const uint8_t *shadow = pass->side->shadow[pass->rank] + buffer->offset;
    if (pass->side->memory == WORLD_FILE) {
        must(refit_arena_bind_file(arena, buffer->offset, pass->fd, buffer->offset, buffer->bytes, "world", &err),
             &err);
        return true;
    }
    bool device = pass->side->memory == WORLD_DEVICE;
    uint64_t pieces = device || pass->side->memory == WORLD_PIECES ? 3 : 1;
    for (uint64_t i = 0; i < pieces; i++) {
        uint64_t begin = buffer->bytes * i / pieces, end = buffer->bytes * (i + 1) / pieces;
        uint8_t *memory = own_copy(pass->side, shadow + begin, end - begin);
        if (device)
            must(refit_cuda_bind(arena, buffer->offset + begin, (uint64_t)(uintptr_t)memory, end - begin, &err), &err);
        else
            must(refit_arena_bind_host(arena, buffer->offset + begin, memory, end - begin, -1, 0, &err), &err);
    }
    return true;
}

static void bind_rank(struct world_side *side, uint32_t rank)
{
    struct refit_error err;
    uint64_t bytes = refit_layout_arena_bytes(side->layout, rank);
    enum refit_arena_kind kind = side->memory == WORLD_FILE ? REFIT_ARENA_FILE : REFIT_ARENA_HOST;
    struct bind_pass pass = {.side = side, .rank = rank, .fd = -1};
    if (side->memory == WORLD_DEVICE)
        must(refit_cuda_arena_create(0, bytes, &side->arenas[rank], &err), &err);
    else
        must(refit_arena_create(kind, bytes, &side->arenas[rank], &err), &err);
    if (side->memory == WORLD_WHOLE) {
        must(refit_arena_bind_host(side->arenas[rank], 0, side->shadow[rank], bytes, -1, 0, &err), &err);
        return;
    }
    if (side->memory == WORLD_FILE) {
        pass.fd = memfd_create("world", MFD_CLOEXEC);
        assert_true(pass.fd >= 0);
        assert_int_equal(pwrite(pass.fd, side->shadow[rank], bytes, 0), bytes);
    }
    refit_layout_buffers(side->layout, rank, bind_buffer, &pass);
    if (pass.fd >= 0)
        close(pass.fd);
}

static void open_side(struct world_side *side, const char *text, enum world_memory memory, bool filled)
{
    struct refit_error err;
    *side = (struct world_side){.memory = memory};
    must(refit_layout_parse(text, strlen(text), "test", &side->layout, &err), &err);
    side->ranks = refit_layout_ranks(side->layout);
    side->arenas = calloc(side->ranks, sizeof *side->arenas);
    side->shadow = calloc(side->ranks, sizeof *side->shadow);
    side->owned = calloc(OWNED_MAX, sizeof *side->owned);
    assert_true(side->arenas && side->shadow && side->owned);
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        side->shadow[rank] = ideal(side->layout, rank, false);
        if (!filled)
            memset(side->shadow[rank], UNTOUCHED, refit_layout_arena_bytes(side->layout, rank));
        bind_rank(side, rank);
    }
}

void world_open(struct world *world, const char *source, enum world_memory source_memory, const char *destination,
                enum world_memory destination_memory)
{
    open_side(&world->source, source, source_memory, true);
    open_side(&world->destination, destination, destination_memory, false);
}

static void close_side(struct world_side *side)
{
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        refit_arena_release(side->arenas[rank]);
        free(side->shadow[rank]);
    }
    for (size_t i = 0; i < side->owned_count; i++) {
        if (side->memory == WORLD_DEVICE)
            gpu_free((uint64_t)(uintptr_t)side->owned[i]);
        else
            free(side->owned[i]);
    }
    free(side->arenas);
    free(side->shadow);
    free(side->owned);
    refit_layout_release(side->layout);
    *side = (struct world_side){.ranks = 0};
}

void world_close(struct world *world)
{
    close_side(&world->source);
    close_side(&world->destination);
}

struct check_pass {
    const struct refit_arena *arena;
    const uint8_t *ideal;
};

static bool check_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct check_pass *pass = ctx;
    uint64_t end = buffer->offset + buffer->bytes;
    for (uint64_t at = buffer->offset; at < end;) {
        struct refit_piece piece;
        assert_true(refit_arena_piece(pass->arena, at, &piece));
        uint64_t piece_end = piece.offset + piece.bytes, len = (piece_end < end ? piece_end : end) - at;
        bool device = refit_arena_kind(pass->arena) == REFIT_ARENA_CUDA;
        uint8_t *read = device ? malloc(len + 1) : NULL;
        if (device)
            gpu_read(read, refit_arena_device_address(pass->arena, at, len), len);
        assert_memory_equal(device ? read : refit_arena_host(pass->arena, at, len), pass->ideal + at, len);
        free(read);
        at += len;
    }
    return true;
}

void world_check(const struct world *world)
{
    const struct world_side *side = &world->destination;
    for (uint32_t rank = 0; rank < side->ranks; rank++) {
        uint8_t *expected = ideal(side->layout, rank, false);
        struct check_pass pass = {.arena = side->arenas[rank], .ideal = expected};
        refit_layout_buffers(side->layout, rank, check_buffer, &pass);
        free(expected);
    }
}

static void run_edge(const struct world *world, const struct refit_plan *to, const struct refit_edge *to_edge,
                     world_body body, void *ctx)
{
    struct refit_error err;
    struct refit_plan *from = NULL;
    uint32_t sender = refit_plan_group(to, REFIT_SOURCE, to_edge->source_group).ranks[0];
    uint32_t taker = refit_plan_first_rank(to);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = sender, .first_rank = taker, .rank_count = 1};
    must(refit_plan_build(world->source.layout, world->destination.layout, scope, &from, &err), &err);
    const struct refit_edge *edge = refit_plan_edge(from, to_edge->digest);
    assert_non_null(edge);
    for (uint32_t number = 0; number < edge->batches; number++) {
        struct world_batch batch = {
            .from = refit_walk_batch(from, edge, number, sender),
            .to = refit_walk_batch(to, to_edge, number, taker),
            .source = world->source.arenas[sender],
            .destination = world->destination.arenas[taker],
            .bytes = refit_batch_bytes(from, edge, number),
        };
        body(ctx, &batch);
    }
    refit_plan_release(from);
}

void world_batches(const struct world *world, world_body body, void *ctx)
{
    for (uint32_t rank = 0; rank < world->destination.ranks; rank++) {
        struct refit_error err;
        struct refit_plan *to = NULL;
        struct refit_plan_scope scope = {
            .side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = rank, .rank_count = 1};
        size_t count;
        must(refit_plan_build(world->source.layout, world->destination.layout, scope, &to, &err), &err);
        const struct refit_edge *edges = refit_plan_edges(to, &count);
        for (size_t i = 0; i < count; i++)
            run_edge(world, to, &edges[i], body, ctx);
        refit_plan_release(to);
    }
}
