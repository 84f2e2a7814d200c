/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for a device: memory that has no host address and does its work, in order, only when it is waited for. It
 * shows that the table of operations and the completions serve a kind that queues.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "memory/arena_ops.h"
#include "memory/host.h"
#include "tests/memory/world.h"

#define SPACE 8192
#define QUEUE_MAX 256

enum work { LOAD, STORE, SUM };

struct queued {
    enum work work;
    struct refit_rows rows;
    uint8_t *dst;
    const uint8_t *src;
    int64_t stride;
    struct refit_digest *digest;
};

/* One device with one stream. */
static struct device {
    struct refit_pending pending;
    uint8_t memory[SPACE];
    struct queued queue[QUEUE_MAX];
    size_t queued;
    size_t waits;
    size_t fail_after; /* queue no more than this; SIZE_MAX: never fail */
} device;

static uint8_t *device_at(const struct refit_rows *rows)
{
    return device.memory + rows->piece->fd_offset + rows->offset;
}

static enum refit_status enqueue(struct queued item, struct refit_error *err)
{
    if (device.queued == device.fail_after || device.queued == QUEUE_MAX)
        return refit_fail(err, REFIT_SYSTEM, "device: launch failed");
    device.queue[device.queued++] = item;
    return REFIT_OK;
}

static enum refit_status device_load(const struct refit_arena *arena, const struct refit_rows *rows, uint8_t *dst,
                                     int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    return enqueue((struct queued){.work = LOAD, .rows = *rows, .dst = dst, .stride = dst_stride, .digest = digest},
                   err);
}

static enum refit_status device_store(struct refit_arena *arena, const struct refit_rows *rows, const uint8_t *src,
                                      int64_t src_stride, struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    return enqueue((struct queued){.work = STORE, .rows = *rows, .src = src, .stride = src_stride, .digest = digest},
                   err);
}

static enum refit_status device_sum(const struct refit_arena *arena, const struct refit_rows *rows,
                                    struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    return enqueue((struct queued){.work = SUM, .rows = *rows, .digest = digest}, err);
}

static void perform(const struct queued *item)
{
    const struct refit_rows *rows = &item->rows;
    if (item->work == LOAD)
        refit_host_move(item->dst, item->stride, device_at(rows), rows->stride, rows, REFIT_STORE_CACHED, item->digest);
    else if (item->work == STORE)
        refit_host_move(device_at(rows), rows->stride, item->src, item->stride, rows, REFIT_STORE_CACHED, item->digest);
    else
        refit_host_sum(device_at(rows), rows->stride, rows, item->digest);
}

static enum refit_status device_wait(struct refit_pending *pending, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    assert_ptr_equal(pending, &device.pending);
    device.waits++;
    size_t queued = device.queued;
    device.queued = 0;
    if (refit_deadline_passed(deadline))
        return refit_fail(err, REFIT_TIMEOUT, "device: deadline passed");
    for (size_t i = 0; i < queued; i++)
        perform(&device.queue[i]);
    return REFIT_OK;
}

static enum refit_status device_finish(const struct refit_arena *arena, struct refit_completion *completion,
                                       struct refit_error *err)
{
    (void)arena;
    (void)err;
    completion->pending = &device.pending;
    return REFIT_OK;
}

static const struct refit_arena_ops device_ops = {
    .name = "stand-in",
    .load = device_load,
    .store = device_store,
    .sum = device_sum,
    .finish = device_finish,
};

/* ---- */

struct fixture {
    struct world world;
    struct refit_arena *arena;
    struct refit_segments segments;
    struct refit_segments expected;
    struct refit_error err;
    uint8_t message[SPACE];
    size_t batches;
};

#define ONE                                                                                                      \
    "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"a\"],\"shape\":[1]}},\"entries\":[" \
    "{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[64,64],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"       \
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}"
#define TURNED                                                                                                   \
    "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"a\"],\"shape\":[1]}},\"entries\":[" \
    "{\"tensor\":\"v\",\"dtype\":\"U8\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"         \
    "{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[64,64],\"mesh\":\"m\",\"order\":[1,0],"                       \
    "\"placements\":[\"Replicate\"]}]}"

static int setup(void **state)
{
    static struct fixture f;
    struct refit_error err;
    memset(&f, 0, sizeof f);
    memset(&device, 0, sizeof device);
    device.pending.wait = device_wait;
    device.fail_after = SIZE_MAX;
    refit_segments_init(&f.segments, true);
    refit_segments_init(&f.expected, true);
    *state = &f;
    if (refit_arena_create(REFIT_ARENA_HOST, SPACE, &f.arena, &err) != REFIT_OK ||
        refit_arena_bind_host(f.arena, 0, device.memory, SPACE, -1, 0, &err) != REFIT_OK)
        return -1;
    f.arena->kind = REFIT_ARENA_CUDA;
    f.arena->ops = &device_ops;
    f.arena->pieces[0].host = NULL;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    world_close(&f->world);
    refit_arena_release(f->arena);
    refit_segments_release(&f->segments);
    refit_segments_release(&f->expected);
    return 0;
}

static void must(const struct fixture *f, enum refit_status status)
{
    if (status != REFIT_OK)
        fail_msg("%s", f->err.text);
}

static void expect_digests(const struct fixture *f)
{
    assert_int_equal(f->segments.count, f->expected.count);
    for (size_t i = 0; i < f->segments.count; i++)
        assert_true(refit_digest_equal(f->segments.items[i].digest, f->expected.items[i].digest));
}

static void wait_for(struct fixture *f, struct refit_completion *completion)
{
    assert_non_null(completion->pending);
    must(f, refit_completion_wait(completion, refit_deadline_in_ms(10000), &f->err));
    assert_null(completion->pending);
}

static void there_and_back(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    static const uint8_t zeros[SPACE];
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    assert_null(completion.pending);

    must(f, refit_memory_scatter(f->arena, batch->to, f->message, &f->segments, &completion, &f->err));
    assert_memory_equal(device.memory, zeros, SPACE);
    wait_for(f, &completion);
    expect_digests(f);

    must(f, refit_memory_digest(f->arena, batch->to, &f->segments, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);

    memset(f->message, 0, sizeof f->message);
    must(f, refit_memory_copy(batch->destination, batch->to, f->arena, batch->to, &f->segments, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);

    memset(device.memory, 0, SPACE);
    must(f, refit_memory_copy(f->arena, batch->to, batch->source, batch->from, &f->segments, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);

    must(f, refit_memory_pack(f->arena, batch->to, f->message, &f->segments, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    f->batches++;
}

static void bytes_move_when_the_completion_is_waited_for(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, there_and_back, f);
    assert_int_equal(f->batches, 1);
    world_check(&f->world);
}

static void too_late(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_deadline passed = {0};
    must(f, refit_memory_scatter(f->arena, batch->to, f->message, &f->segments, &completion, &f->err));
    assert_int_equal(refit_completion_wait(&completion, passed, &f->err), REFIT_TIMEOUT);
    assert_int_equal(completion.status, REFIT_TIMEOUT);
    /* Once waited for, it is done. */
    assert_int_equal(refit_completion_wait(&completion, passed, &f->err), REFIT_TIMEOUT);
    assert_int_equal(device.waits, 1);
    f->batches++;
}

static void a_wait_has_a_deadline(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, too_late, f);
    assert_int_equal(f->batches, 1);
}

static void half_launched(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    device.fail_after = 1;
    assert_int_equal(refit_memory_scatter(f->arena, batch->to, f->message, &f->segments, &completion, &f->err),
                     REFIT_SYSTEM);
    assert_string_equal(f->err.text, "device: launch failed");
    /* What was launched still reads the message: it must be waited for. */
    assert_non_null(completion.pending);
    must(f, refit_completion_wait(&completion, refit_deadline_in_ms(10000), NULL));
    assert_int_equal(device.queued, 0);
    f->batches++;
}

static void what_was_launched_before_a_failure_is_waited_for(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, half_launched, f);
    assert_int_equal(f->batches, 1);
}

static void carried(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    must(f, refit_memory_copy(f->arena, batch->to, batch->source, batch->from, &f->segments, &completion, &f->err));
    assert_null(completion.pending);
    expect_digests(f);
    must(f, refit_memory_digest(f->arena, batch->to, &f->segments, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    /* From one such memory to another. */
    must(f, refit_memory_copy(f->arena, batch->to, f->arena, batch->to, &f->segments, &completion, &f->err));
    expect_digests(f);
    device.fail_after = 0;
    assert_int_equal(refit_memory_copy(f->arena, batch->to, batch->source, batch->from, &f->segments, &completion,
                                       &f->err), REFIT_SYSTEM);
    assert_int_equal(device.queued, 0);
    f->batches++;
}

static void a_file_comes_to_a_device_through_a_message(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_FILE, TURNED, WORLD_WHOLE);
    world_batches(&f->world, carried, f);
    assert_int_equal(f->batches, 1);
}

static void unreachable(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_iov_cursor cursor;
    struct iovec iov;
    int count;
    assert_null(refit_arena_host(f->arena, 0, 1));
    refit_iov_begin(&cursor, batch->to);
    assert_int_equal(refit_iov_next(&cursor, f->arena, &iov, 1, 100, &count, &f->err), REFIT_UNSUPPORTED);
    assert_int_equal(refit_segments_advance(&f->segments, &cursor, f->arena, 1, &f->err), REFIT_UNSUPPORTED);
    assert_int_equal(refit_memory_fill(f->arena, f->world.destination.layout, 0, &f->err), REFIT_INVALID);
    assert_int_equal(device.queued, 0);
    f->batches++;
}

static void what_needs_an_address_is_refused(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_FILE, TURNED, WORLD_WHOLE);
    world_batches(&f->world, unreachable, f);
    assert_int_equal(f->batches, 1);
}

static void a_range_is_digested_where_it_is(void **state)
{
    struct fixture *f = *state;
    struct refit_digest cpu = {{0, 0}}, digest = {{0, 0}};
    for (int i = 0; i < 100; i++)
        device.memory[10 + i] = (uint8_t)(3 * i);
    refit_digest_add(&cpu, device.memory + 10, 100, 7);
    must(f, refit_memory_digest_range(f->arena, 10, 100, 7, &digest, &f->err));
    assert_true(refit_digest_equal(cpu, digest));
    assert_int_equal(device.queued, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(bytes_move_when_the_completion_is_waited_for),
        CASE(a_file_comes_to_a_device_through_a_message),
        CASE(a_wait_has_a_deadline),
        CASE(what_was_launched_before_a_failure_is_waited_for),
        CASE(what_needs_an_address_is_refused),
        CASE(a_range_is_digested_where_it_is),
    };
    return cmocka_run_group_tests_name("memory/device", tests, NULL, NULL);
}
