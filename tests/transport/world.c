/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "memory/cuda.h"
#include "tests/support/gpu.h"

#define REFIT_ID "refit-test-1"
#define WORLD_WAIT_MS 60000

const char world_rows_source[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[3]}},\"entries\":["
    "{\"tensor\":\"a.weight\",\"dtype\":\"F32\",\"shape\":[3300,2048],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"b.weight\",\"dtype\":\"BF16\",\"shape\":[37,4096],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"norm\",\"dtype\":\"F32\",\"shape\":[2047],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
    "{\"tensor\":\"c.{l}.weight\",\"for\":{\"l\":[0,20]},\"dtype\":\"U8\",\"shape\":[5,1001],\"mesh\":\"m\","
    "\"placements\":[\"Shard(0)\"]}]}";
const char world_rows_destination[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"a.weight\",\"dtype\":\"F32\",\"shape\":[3300,2048],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
    "{\"tensor\":\"b.weight\",\"dtype\":\"BF16\",\"shape\":[37,4096],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
    "{\"tensor\":\"norm\",\"dtype\":\"F32\",\"shape\":[2047],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
    "{\"tensor\":\"c.{l}.weight\",\"for\":{\"l\":[0,20]},\"dtype\":\"U8\",\"shape\":[5,1001],\"mesh\":\"m\","
    "\"placements\":[\"Shard(1)\"]}]}";
const char world_tiny_source[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":3,\"meshes\":{\"m\":{\"axes\":[\"s\"],\"shape\":[3]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[200000,32],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[3001,7],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}";
const char world_tiny_destination[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"BF16\",\"shape\":[200000,32],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[3001,7],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"],"
    "\"order\":[1,0]}]}";

void must(enum refit_status status, const struct refit_error *err)
{
    if (status != REFIT_OK)
        fail_msg("%s: %s", refit_status_name(status), err->text);
}

/* ---- the pattern ---- */

static uint64_t name_seed(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}

__attribute__((no_sanitize("thread")))
static uint8_t pattern(uint64_t seed, uint64_t offset)
{
    uint64_t x = (seed + offset) * 0x9e3779b97f4a7c15u;
    return (uint8_t)(x >> 56);
}

struct visit {
    uint8_t *bytes;   /* of the rank's space */
    uint8_t *touched; /* of the same size; NULL while filling */
    struct refit_tensor tensor;
    uint64_t seed;
};

/* Only this thread has the memory while it is filled or checked, so that ThreadSanitizer need not watch. */
__attribute__((no_sanitize("thread")))
static void visit_run(struct visit *v, uint64_t memory, uint64_t canonical, uint64_t bytes)
{
    for (uint64_t b = 0; b < bytes; b++) {
        uint8_t value = pattern(v->seed, canonical + b);
        if (!v->touched) {
            v->bytes[memory + b] = value;
            continue;
        }
        if (v->bytes[memory + b] != value)
            fail_msg("tensor %s: byte %llu is %02x, expected %02x", v->tensor.name,
                     (unsigned long long)(canonical + b), v->bytes[memory + b], value);
        v->touched[memory + b] = 1;
    }
}

/* The last dimension as one run where it is dense in memory, as it is in the canonical bytes. */
static void visit_row(struct visit *v, const struct refit_region *region, uint64_t memory, uint64_t canonical)
{
    uint32_t unit = v->tensor.unit_bytes, last = region->box.dims - 1;
    uint64_t units = region->box.dims ? (uint64_t)region->box.extent[last] : 1;
    if (region->box.dims == 0 || region->stride[last] == (int64_t)unit) {
        visit_run(v, memory, canonical * unit, units * unit);
        return;
    }
    for (uint64_t i = 0; i < units; i++)
        visit_run(v, memory + i * (uint64_t)region->stride[last], (canonical + i) * unit, unit);
}

static bool visit_region(void *ctx, const struct refit_region *region)
{
    struct visit *v = ctx;
    uint32_t outer = region->box.dims ? region->box.dims - 1 : 0;
    int64_t at[REFIT_DIMS_MAX] = {0};
    for (;;) {
        uint64_t memory = region->offset, canonical = 0;
        for (uint32_t d = 0; d < region->box.dims; d++) {
            memory += (uint64_t)(at[d] * region->stride[d]);
            canonical = canonical * (uint64_t)v->tensor.shape_units[d] + (uint64_t)(region->box.start[d] + at[d]);
        }
        visit_row(v, region, memory, canonical);
        uint32_t d = outer;
        while (d > 0 && ++at[d - 1] == region->box.extent[d - 1])
            at[--d] = 0;
        if (d == 0)
            return true;
    }
}

static void visit_rank(const struct refit_layout *layout, uint32_t rank, uint8_t *bytes, uint8_t *touched)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        struct visit v = {.bytes = bytes, .touched = touched};
        refit_layout_tensor(layout, id, &v.tensor);
        v.seed = name_seed(v.tensor.name);
        refit_layout_regions(layout, id, rank, visit_region, &v);
    }
}

/* ---- memory ---- */

static int open_backing(enum world_memory memory, uint64_t size)
{
    char path[] = "/tmp/refit-world-XXXXXX";
    int fd = memory == WORLD_FILE ? mkstemp(path) : memfd_create("world", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    if (memory == WORLD_FILE)
        unlink(path);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    if (memory == WORLD_SEALED || memory == WORLD_MIXED)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return fd;
}

struct binding {
    struct world_rank *rank;
    enum world_memory memory;
    unsigned turn;
};

/* Its own piece per buffer, as a trainer registers them. */
static bool bind_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct binding *b = ctx;
    struct world_rank *rank = b->rank;
    struct refit_error err;
    bool shared = b->memory == WORLD_SEALED || b->memory == WORLD_UNSEALED ||
                  (b->memory == WORLD_MIXED && b->turn++ % 2 == 0);
    if (b->memory == WORLD_FILE)
        must(refit_arena_bind_file(rank->arena, buffer->offset, rank->fd, buffer->offset, buffer->bytes, "world", &err),
             &err);
    else
        must(refit_arena_bind_host(rank->arena, buffer->offset, rank->bytes + buffer->offset, buffer->bytes,
                                   shared ? rank->fd : -1, shared ? buffer->offset : 0, &err),
             &err);
    return true;
}

/* ---- memory of a device ---- */

static int next_device;

bool world_on_devices(void)
{
    return getenv("REFIT_TEST_DEVICES") != NULL;
}

void world_next_device(int device)
{
    next_device = device;
}

/* The host's copy is the memory itself where that is the look-alike's. */
static void upload(const struct world_rank *rank)
{
    if (rank->address && rank->bytes != (void *)(uintptr_t)rank->address)
        gpu_write(rank->address, rank->bytes, rank->size);
}

static void download(const struct world_rank *rank)
{
    if (rank->address && rank->bytes != (void *)(uintptr_t)rank->address)
        gpu_read(rank->bytes, rank->address, rank->size);
}

static bool bind_device_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct world_rank *rank = ctx;
    struct refit_error err;
    must(refit_cuda_bind(rank->arena, buffer->offset, rank->address + buffer->offset, buffer->bytes, &err), &err);
    return true;
}

/* As a trainer has it. */
static void open_allocation(const struct refit_layout *layout, uint32_t number, int device, struct world_rank *rank)
{
    struct refit_error err;
    must(refit_cuda_arena_create(device, rank->size, &rank->arena, &err), &err);
    rank->address = rank->allocation = gpu_allocate(device, rank->size ? rank->size : 1);
    refit_layout_buffers(layout, number, bind_device_buffer, rank);
}

/* As refitd has it. */
static void open_device_slot(int device, struct world_rank *rank)
{
    struct refit_error err;
    uint64_t bytes = rank->size > 0 ? rank->size : 1;
    must(refit_cuda_slot_create(device, bytes, &rank->arena, &err), &err);
    rank->address = refit_arena_device_address(rank->arena, 0, bytes);
}

static void open_device_rank(const struct refit_layout *layout, uint32_t number, bool slot, int guard,
                             struct world_rank *rank)
{
    int device = next_device++ % gpu_devices();
    rank->fd = -1;
    rank->on_device = true;
    rank->size = refit_layout_arena_bytes(layout, number);
    if (slot)
        open_device_slot(device, rank);
    else
        open_allocation(layout, number, device, rank);
    bool seen = gpu_switch("standin_cuda_allocate") != NULL;
    rank->bytes = seen ? (uint8_t *)(uintptr_t)rank->address : malloc(rank->size + 1);
    assert_non_null(rank->bytes);
    memset(rank->bytes, guard, rank->size);
    upload(rank);
}

static void close_device_rank(struct world_rank *rank)
{
    if (rank->bytes != (void *)(uintptr_t)rank->address)
        free(rank->bytes);
    refit_arena_release(rank->arena);
    if (rank->allocation)
        gpu_free(rank->allocation);
}

/* Who fills what: trainers' memory has no descriptor, a replica's has. */
static bool is_slot(enum world_memory memory, int guard)
{
    return guard == WORLD_GUARD || (memory != WORLD_HEAP && memory != WORLD_DEVICE);
}

static void open_rank(const struct refit_layout *layout, uint32_t number, enum world_memory memory, int guard,
                      struct world_rank *rank)
{
    struct refit_error err;
    uint64_t size = refit_layout_arena_bytes(layout, number);
    if (memory == WORLD_DEVICE || world_on_devices()) {
        open_device_rank(layout, number, is_slot(memory, guard), guard, rank);
        return;
    }
    rank->size = size;
    uint64_t mapped = size ? size : 1;
    rank->fd = memory == WORLD_HEAP ? -1 : open_backing(memory, mapped);
    rank->bytes = rank->fd < 0 ? malloc(mapped) : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, rank->fd, 0);
    assert_true(rank->bytes && rank->bytes != MAP_FAILED);
    memset(rank->bytes, guard, mapped);
    enum refit_arena_kind kind = memory == WORLD_FILE ? REFIT_ARENA_FILE : REFIT_ARENA_HOST;
    must(refit_arena_create(kind, size, &rank->arena, &err), &err);
    struct binding binding = {.rank = rank, .memory = memory};
    refit_layout_buffers(layout, number, bind_buffer, &binding);
}

static void close_rank(struct world_rank *rank)
{
    refit_plan_release(rank->plan);
    refit_tally_destroy(rank->tally);
    if (rank->on_device) {
        close_device_rank(rank);
        return;
    }
    refit_arena_release(rank->arena);
    if (rank->fd < 0)
        free(rank->bytes);
    else
        munmap(rank->bytes, rank->size ? rank->size : 1);
    refit_io_close(&rank->fd);
}

/* ---- the world ---- */

void world_open_layouts(struct world *world, struct refit_layout *source, struct refit_layout *destination,
                        enum world_memory memory)
{
    struct refit_error err;
    if (memory == WORLD_DEVICE) /* one each: both ends of NCCL are in this process */
        gpu_need_devices((int)(refit_layout_ranks(source) + refit_layout_ranks(destination)));
    memset(world, 0, sizeof *world);
    world->source = source;
    world->destination = destination;
    world->sources = refit_layout_ranks(source);
    world->destinations = refit_layout_ranks(destination);
    assert_true(world->sources <= WORLD_RANKS_MAX && world->destinations <= WORLD_RANKS_MAX);
    struct refit_plan_scope all = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS};
    must(refit_plan_build(source, destination, all, &world->plan, &err), &err);
    must(refit_inbox_create(1024, &world->inbox, &err), &err);
    must(refit_landed_create(world->plan, &world->landed, &err), &err);
    uint32_t tensors = refit_layout_tensor_count(destination);
    world->tally = refit_tally_create(tensors);
    refit_io_random(world->token, sizeof world->token);
    for (uint32_t i = 0; i < world->sources; i++) {
        struct world_rank *rank = &world->source_ranks[i];
        struct refit_plan_scope own = {.side = REFIT_SOURCE, .rank = i};
        open_rank(source, i, memory, 0, rank);
        visit_rank(source, i, rank->bytes, NULL);
        upload(rank);
        must(refit_plan_build(source, destination, own, &rank->plan, &err), &err);
        rank->tally = refit_tally_create(tensors);
    }
    for (uint32_t i = 0; i < world->destinations; i++) {
        open_rank(destination, i, memory == WORLD_DEVICE ? WORLD_DEVICE : WORLD_HEAP, WORLD_GUARD, &world->destination_ranks[i]);
        world->arenas[i] = world->destination_ranks[i].arena;
    }
}

void world_open(struct world *world, const char *source, const char *destination, enum world_memory memory)
{
    struct refit_error err;
    struct refit_layout *from, *to;
    must(refit_layout_parse(source, strlen(source), "source", &from, &err), &err);
    must(refit_layout_parse(destination, strlen(destination), "destination", &to, &err), &err);
    world_open_layouts(world, from, to, memory);
}

void world_close(struct world *world)
{
    for (uint32_t i = 0; i < world->sources; i++)
        close_rank(&world->source_ranks[i]);
    for (uint32_t i = 0; i < world->destinations; i++)
        close_rank(&world->destination_ranks[i]);
    refit_inbox_destroy(world->inbox);
    refit_landed_release(world->landed);
    refit_plan_release(world->plan);
    refit_tally_destroy(world->tally);
    refit_layout_release(world->source);
    refit_layout_release(world->destination);
}

__attribute__((no_sanitize("thread")))
void world_check_landed(const struct world *world)
{
    for (uint32_t i = 0; i < world->destinations; i++) {
        const struct world_rank *rank = &world->destination_ranks[i];
        uint8_t *touched = calloc(1, rank->size + 1);
        assert_non_null(touched);
        download(rank);
        visit_rank(world->destination, i, rank->bytes, touched);
        for (uint64_t at = 0; at < rank->size; at++)
            if (!touched[at] && rank->bytes[at] != WORLD_GUARD)
                fail_msg("rank %u: byte %llu belongs to no tensor and was written", i, (unsigned long long)at);
        free(touched);
    }
}

void world_check_tallies(const struct world *world)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(world->destination); id++) {
        struct refit_digest sum = {{0, 0}};
        for (uint32_t i = 0; i < world->sources; i++)
            refit_digest_merge(&sum, refit_tally_get(world->source_ranks[i].tally, id));
        if (!refit_digest_equal(sum, refit_tally_get(world->tally, id)))
            fail_msg("tensor %u: the sides' tallies differ", id);
    }
}

uint8_t *world_snapshot(const struct world *world)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < world->destinations; i++)
        total += world->destination_ranks[i].size;
    uint8_t *copy = malloc(total + 1), *at = copy;
    assert_non_null(copy);
    for (uint32_t i = 0; i < world->destinations; i++) {
        download(&world->destination_ranks[i]);
        memcpy(at, world->destination_ranks[i].bytes, world->destination_ranks[i].size);
        at += world->destination_ranks[i].size;
    }
    return copy;
}

bool world_unchanged(const struct world *world, const uint8_t *snapshot)
{
    for (uint32_t i = 0; i < world->destinations; i++) {
        download(&world->destination_ranks[i]);
        if (memcmp(snapshot, world->destination_ranks[i].bytes, world->destination_ranks[i].size) != 0)
            return false;
        snapshot += world->destination_ranks[i].size;
    }
    return true;
}

struct refit_endpoint_config world_receiver(struct world *world, struct refit_listener *listener, unsigned streams)
{
    struct refit_endpoint_config config = {
        .role = REFIT_RECEIVER,
        .refit_id = REFIT_ID,
        .plan = world->plan,
        .holder = WORLD_HOLDERS,
        .arenas = world->arenas,
        .arena_count = world->destinations,
        .landed = world->landed,
        .inbox = world->inbox,
        .listener = listener,
        .tally = world->tally,
        .verify = true,
        .streams = streams,
    };
    memcpy(config.token, world->token, sizeof config.token);
    return config;
}

struct refit_endpoint_config world_holder(struct world *world, uint32_t rank, unsigned streams)
{
    struct refit_endpoint_config config = {
        .role = REFIT_HOLDER,
        .refit_id = REFIT_ID,
        .plan = world->source_ranks[rank].plan,
        .holder = rank,
        .arenas = &world->source_ranks[rank].arena,
        .arena_count = 1,
        .tally = world->source_ranks[rank].tally,
        .verify = true,
        .streams = streams,
    };
    memcpy(config.token, world->token, sizeof config.token);
    return config;
}

struct refit_endpoint_config world_relay(struct world *world, const struct world *to, uint32_t holder,
                                         unsigned streams)
{
    struct refit_endpoint_config config = {
        .role = REFIT_HOLDER,
        .refit_id = REFIT_ID,
        .plan = world->plan,
        .holder = holder,
        .arenas = world->arenas,
        .arena_count = world->destinations,
        .landed = world->landed,
        .verify = true,
        .streams = streams,
    };
    memcpy(config.token, to->token, sizeof config.token);
    return config;
}

static bool is_only(struct refit_group group, uint32_t rank)
{
    return group.count == 1 && group.ranks[0] == rank;
}

const struct refit_edge *world_edge(const struct world *world, uint32_t source, uint32_t destination)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(world->plan, &count);
    for (size_t i = 0; i < count; i++)
        if (is_only(refit_plan_group(world->plan, REFIT_SOURCE, edges[i].source_group), source) &&
            is_only(refit_plan_group(world->plan, REFIT_DESTINATION, edges[i].destination_group), destination))
            return &edges[i];
    fail_msg("no edge from rank %u to rank %u", source, destination);
    return NULL;
}

struct refit_transfer_completion world_completion(struct world *world)
{
    struct refit_transfer_completion done;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    while (refit_inbox_take(world->inbox, &done, 1, deadline) == 0)
        assert_false(refit_deadline_passed(deadline));
    return done;
}
