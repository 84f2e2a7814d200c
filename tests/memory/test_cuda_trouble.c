/* SPDX-License-Identifier: Apache-2.0
 *
 * A device that does not end its work in time, or whose work goes wrong after it was queued; whose context is whose; and
 * pinned memory, which a device may still read when the wait for it was given up.
 */
#include "tests/memory/cuda_fixture.h"

#include <cuda.h>
#include <dlfcn.h>

#include "memory/host_buffer.h"

static struct refit_arena *new_slot(struct fixture *f)
{
    struct refit_arena *slot;
    must(f, refit_cuda_slot_create(0, SPACE, &slot, &f->err));
    return slot;
}

/* ---- in time ---- */

#define PADDED LAYOUT("1", "[1]", TENSOR("w", "U8", "[61,64]", "\"pad\":{\"dim\":0,\"to\":64,\"value\":9}," ROWS))

static void a_fill_does_not_wait_for_ever(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_layout *layout;
    struct refit_arena *slot = new_slot(f);
    must(f, refit_layout_parse(PADDED, strlen(PADDED), "test", &layout, &f->err));
    standin.hold(1);
    refit_memory_set_patience(1);
    assert_int_equal(refit_memory_fill(slot, layout, 0, &f->err), REFIT_TIMEOUT);
    standin.hold(0);
    refit_memory_set_patience(20000);
    must(f, refit_memory_fill(slot, layout, 0, &f->err));
    uint8_t bytes[64 * 64];
    gpu_read(bytes, refit_arena_device_address(slot, 0, sizeof bytes), sizeof bytes);
    for (int i = 0; i < 64 * 64; i++)
        assert_int_equal(bytes[i], i < 61 * 64 ? 0 : 9);
    refit_layout_release(layout);
    refit_arena_release(slot);
}

static void large(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot;
    must(f, refit_cuda_slot_create(0, refit_arena_bytes(batch->destination), &slot, &f->err));
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    standin.hold(1);
    refit_memory_set_patience(1);
    /* More landings than a batch has room for, so that it would wait for itself. */
    assert_int_equal(refit_memory_pack(slot, batch->to, f->back, &f->found, &completion, &f->err), REFIT_TIMEOUT);
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(1), NULL), REFIT_TIMEOUT);
    standin.hold(0);
    refit_memory_set_patience(20000);
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(slot);
    f->batches++;
}

static void a_batch_that_waits_for_itself_does_not_do_so_for_ever(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, LAYOUT("1", "[1]", MANY(WHOLE)), WORLD_WHOLE, LAYOUT("1", "[1]", MANY(WHOLE)), WORLD_WHOLE);
    world_batches(&f->world, large, f);
    assert_true(f->batches > 0);
}

static void released(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot = new_slot(f), *other = new_slot(f);
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    standin.hold(1);
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    refit_memory_set_patience(1);
    refit_arena_release(slot); /* returns, and unmaps nothing that the device may still write */
    standin.hold(0);
    refit_memory_set_patience(20000);
    must(f, refit_memory_scatter(other, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(other);
    f->batches++;
}

static void a_slot_is_released_while_the_device_is_busy_and_given_back_later(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, released, f);
    assert_int_equal(f->batches, 1);
}

/* ---- contexts ---- */

static void *driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, name) : NULL;
    assert_non_null(function);
    return function;
}

struct contexts {
    __typeof__(cuDevicePrimaryCtxRetain) *retain;
    __typeof__(cuDevicePrimaryCtxRelease) *release;
    __typeof__(cuCtxPushCurrent) *push;
    __typeof__(cuCtxPopCurrent) *pop;
    __typeof__(cuCtxGetCurrent) *current;
};

static struct contexts contexts(void)
{
    struct contexts c;
    *(void **)(void *)&c.retain = driver("cuDevicePrimaryCtxRetain");
    *(void **)(void *)&c.release = driver("cuDevicePrimaryCtxRelease_v2");
    *(void **)(void *)&c.push = driver("cuCtxPushCurrent_v2");
    *(void **)(void *)&c.pop = driver("cuCtxPopCurrent_v2");
    *(void **)(void *)&c.current = driver("cuCtxGetCurrent");
    return c;
}

static CUcontext watched; /* what the thread's context must be after each step */

static void expect_context(void)
{
    CUcontext now;
    assert_int_equal(contexts().current(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, watched);
}

static void every_step(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_cuda_stream *stream;
    struct refit_arena *slot = new_slot(f);
    expect_context();
    must(f, refit_memory_copy(slot, batch->to, batch->source, batch->from, &f->expected, &completion, &f->err));
    expect_context();
    wait_for(f, &completion);
    expect_context();
    must(f, refit_memory_fill(slot, f->world.destination.layout, 0, &f->err));
    must(f, refit_cuda_stream_create(0, REFIT_CUDA_PRIORITY_LEAST, &stream, &f->err));
    expect_context();
    must(f, refit_cuda_digest(stream, slot, batch->to, &f->found, &completion, &f->err));
    expect_context();
    wait_for(f, &completion);
    expect_digests(f);
    must(f, refit_cuda_stream_wait(stream, refit_deadline_in_ms(20000), &f->err));
    refit_cuda_stream_destroy(stream);
    bool made_to_fail = gpu_switch("standin_cuda_fail_call") != NULL;
    standin.fail_call("cuMemsetD8Async", 1);
    assert_int_equal(refit_memory_digest(slot, batch->to, &f->found, &completion, &f->err) == REFIT_OK, !made_to_fail);
    (void)!refit_completion_wait(&completion, refit_deadline_in_ms(20000), NULL);
    expect_context();
    refit_arena_release(slot);
    expect_context();
    f->batches++;
}

static void the_callers_context_is_left_as_it_was(void **state)
{
    struct fixture *f = *state;
    struct contexts c = contexts();
    CUcontext popped;
    gpu_need_devices(2);
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    watched = NULL;
    world_batches(&f->world, every_step, f);
    assert_int_equal(c.retain(&watched, 1), CUDA_SUCCESS);
    assert_int_equal(c.push(watched), CUDA_SUCCESS);
    world_batches(&f->world, every_step, f);
    assert_int_equal(c.pop(&popped), CUDA_SUCCESS);
    assert_int_equal(c.release(1), CUDA_SUCCESS);
    assert_int_equal(f->batches, 2);
}

/* ---- errors that come later ---- */

static void faulty(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot = new_slot(f), *other;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    standin.hold(1);
    standin.fault(2);
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err)); /* it is queued */
    standin.hold(0);
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(20000), &f->err), REFIT_SYSTEM);
    assert_non_null(strstr(f->err.text, "cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700); this process can use the device"));
    /* From now on whatever is asked. */
    assert_int_equal(refit_memory_digest(slot, batch->to, &f->found, &completion, &f->err), REFIT_SYSTEM);
    assert_non_null(strstr(f->err.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(20000), NULL), REFIT_SYSTEM);
    assert_int_equal(refit_cuda_slot_create(0, SPACE, &other, &f->err), REFIT_SYSTEM);
    must(f, refit_cuda_slot_create(1, SPACE, &other, &f->err)); /* another device is not concerned */
    refit_arena_release(other);
    refit_arena_release(slot);
    assert_int_equal(standin.live(), 0);
    /* Only because nobody in this process uses the device any more. */
    slot = new_slot(f);
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(slot);
    f->batches++;
}

static void work_that_goes_wrong_later_is_an_error_of_everything_after_it(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, faulty, f);
    assert_int_equal(f->batches, 1);
}

/* ---- pinned memory ---- */

static void pinned(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_host_buffer *buffer;
    struct refit_arena *slot;
    must(f, refit_cuda_slot_create(0, refit_arena_bytes(batch->destination), &slot, &f->err));
    must(f, refit_host_buffer_create(0, batch->bytes, &buffer, &f->err));
    uint8_t *bytes = refit_host_buffer_bytes(buffer);
    must(f, refit_memory_pack(batch->source, batch->from, bytes, &f->expected, &completion, &f->err));
    memcpy(f->message, bytes, batch->bytes);
    must(f, refit_memory_scatter(slot, batch->to, bytes, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    memset(bytes, 0, batch->bytes);
    must(f, refit_memory_pack(slot, batch->to, bytes, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    assert_memory_equal(bytes, f->message, batch->bytes);
    must(f, refit_memory_copy(batch->destination, batch->to, slot, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    refit_host_buffer_destroy(buffer);
    refit_arena_release(slot);
    f->batches++;
}

static void pinned_memory_gives_the_same_bytes_and_digests(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; cuda_pairs[i][0]; i++) {
        world_open(&f->world, cuda_pairs[i][0], WORLD_WHOLE, cuda_pairs[i][1], WORLD_WHOLE);
        world_batches(&f->world, pinned, f);
        world_check(&f->world);
        world_close(&f->world);
    }
    assert_true(f->batches > 10);
}

/* Memory of ours is taken where the caller's is ordinary, and not where it is pinned. */
static void straight(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_host_buffer *buffers[2];
    struct refit_arena *slot = new_slot(f);
    refit_segments_init(&f->found, false);
    int before = calls_of("cuMemHostAlloc");
    for (int kind = 0; kind < 2; kind++) {
        must(f, refit_host_buffer_create(kind == 0 ? 0 : -1, batch->bytes, &buffers[kind], &f->err));
        memset(refit_host_buffer_bytes(buffers[kind]), 1, batch->bytes);
        must(f, refit_memory_scatter(slot, batch->to, refit_host_buffer_bytes(buffers[kind]), &f->found, &completion,
                                     &f->err));
        wait_for(f, &completion);
        /* The slot has staged its name already: a chunk is at hand, and only one batch takes it. */
        assert_int_equal(calls_of("cuMemHostAlloc") - before, 1);
    }
    for (int kind = 0; kind < 2; kind++)
        refit_host_buffer_destroy(buffers[kind]);
    refit_arena_release(slot);
    f->batches++;
}

static void pinned_memory_is_not_staged(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, ONE, WORLD_WHOLE);
    world_batches(&f->world, straight, f);
    assert_int_equal(f->batches, 1);
}

static void kept(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_host_buffer *buffer;
    struct refit_arena *slot = new_slot(f);
    must(f, refit_host_buffer_create(0, batch->bytes, &buffer, &f->err));
    standin.hold(1);
    must(f, refit_memory_scatter(slot, batch->to, refit_host_buffer_bytes(buffer), &f->found, &completion, &f->err));
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    refit_host_buffer_destroy(buffer); /* the device still reads it */
    standin.hold(0);
    must(f, refit_memory_digest(slot, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    refit_arena_release(slot);
    f->batches++;
}

static void pinned_memory_stays_until_the_device_is_done_with_it(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, ONE, WORLD_WHOLE);
    world_batches(&f->world, kept, f);
    assert_int_equal(f->batches, 1);
}

static enum refit_status make_buffer(struct fixture *f)
{
    struct refit_host_buffer *buffer;
    enum refit_status status = refit_host_buffer_create(0, 4096, &buffer, &f->err);
    if (status == REFIT_OK)
        refit_host_buffer_destroy(buffer);
    return status;
}

static void pinned_memory_that_is_refused_leaks_nothing(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    assert_true(fail_each_call(f, make_buffer) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_fill_does_not_wait_for_ever),
        CASE(a_batch_that_waits_for_itself_does_not_do_so_for_ever),
        CASE(a_slot_is_released_while_the_device_is_busy_and_given_back_later),
        CASE(the_callers_context_is_left_as_it_was),
        CASE(work_that_goes_wrong_later_is_an_error_of_everything_after_it),
        CASE(pinned_memory_gives_the_same_bytes_and_digests),
        CASE(pinned_memory_is_not_staged),
        CASE(pinned_memory_stays_until_the_device_is_done_with_it),
        CASE(pinned_memory_that_is_refused_leaks_nothing),
    };
    return cmocka_run_group_tests_name("memory/cuda_trouble", tests, cuda_open, NULL);
}
