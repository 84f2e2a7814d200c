/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena kind cuda, over the look-alike of libcuda.so.1 (tests/standins): every operation, queued on a stream that
 * runs by itself; every call of the driver made to fail.
 */
#include "tests/memory/cuda_fixture.h"

/* First of all: the driver is opened once in a process. */
static void a_driver_that_did_not_start_is_started_by_the_next(void **state)
{
    gpu_need_switches();
    static const char *const starting[] = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount"};
    struct fixture *f = *state;
    struct refit_arena *slot;
    for (size_t i = 0; i < 3; i++) {
        standin.fail_call(starting[i], 1);
        assert_int_equal(refit_cuda_slot_create(0, 1, &slot, &f->err), REFIT_SYSTEM);
        assert_non_null(strstr(f->err.text, starting[i]));
    }
    must(f, refit_cuda_slot_create(0, 1, &slot, &f->err));
    refit_arena_release(slot);
}

/* ---- all operations ---- */

/* Each batch through a slot of the device, by every operation, and on to the destination, which world_check looks at. */
static void through_the_device(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot;
    must(f, refit_cuda_slot_create(0, refit_arena_bytes(batch->destination), &slot, &f->err));
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    must(f, refit_memory_digest(slot, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    must(f, refit_memory_pack(slot, batch->to, f->back, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    assert_memory_equal(f->message, f->back, batch->bytes);
    refit_arena_release(slot);

    must(f, refit_cuda_slot_create(0, refit_arena_bytes(batch->destination), &slot, &f->err));
    if (refit_arena_kind(batch->source) == REFIT_ARENA_HOST)
        must(f, refit_memory_copy(slot, batch->to, batch->source, batch->from, &f->found, &completion, &f->err));
    else
        must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    must(f, refit_memory_copy(batch->destination, batch->to, slot, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(slot);
    f->batches++;
}

static void every_operation_gives_the_bytes_and_digests_of_the_cpu(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; cuda_pairs[i][0]; i++) {
        for (int from_file = 0; from_file < 2; from_file++) {
            f->batches = 0;
            world_open(&f->world, cuda_pairs[i][0], from_file ? WORLD_FILE : WORLD_PIECES, cuda_pairs[i][1], WORLD_PIECES);
            world_batches(&f->world, through_the_device, f);
            world_check(&f->world);
            world_close(&f->world);
            assert_true(f->batches > 0);
        }
    }
}

/* More tensors in a batch than it has room for: it waits for itself. */
static void a_batch_of_more_tensors_than_it_has_room_for_waits_for_itself(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, LAYOUT("1", "[1]", MANY(WHOLE)), WORLD_WHOLE, LAYOUT("2", "[2]", MANY(COLUMNS)), WORLD_WHOLE);
    world_batches(&f->world, through_the_device, f);
    world_check(&f->world);
    assert_true(f->expected.count > 1000);
}

/* ---- random rows ---- */

static uint32_t next_random(uint32_t *random)
{
    *random = *random * 1664525 + 1013904223;
    return *random >> 8;
}

static void strips_of_any_shape_have_the_digests_of_the_cpu(void **state)
{
    struct fixture *f = *state;
    uint32_t random = 7;
    for (int round = 0; round < 60; round++) {
        char text[2][512];
        uint32_t a = 1 + next_random(&random) % 40, b = 1 + next_random(&random) % 3000, ranks = 1 + next_random(&random) % 3;
        static const char *const types[] = {"U8", "BF16", "F32", "F64"};
        static const char *const cuts[] = {"Shard(0)", "Shard(1)", "Replicate"};
        for (int side = 0; side < 2; side++)
            snprintf(text[side], sizeof text[side],
                     LAYOUT("%u", "[%u]", TENSOR("w", "%s", "[%u,%u]", "\"order\":%s,\"placements\":[\"%s\"]")), ranks,
                     ranks, types[round % 4], a, b, next_random(&random) % 2 ? "[0,1]" : "[1,0]",
                     cuts[next_random(&random) % 3]);
        world_open(&f->world, text[0], WORLD_WHOLE, text[1], WORLD_WHOLE);
        world_batches(&f->world, through_the_device, f);
        world_check(&f->world);
        world_close(&f->world);
    }
}

/* ---- slots ---- */

static void shared(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot, *view;
    struct refit_cuda_slot_info info;
    int fd = -1;
    must(f, refit_cuda_slot_create(0, SPACE, &slot, &f->err));
    refit_cuda_slot_info(slot, &info);
    assert_int_equal(info.bytes % info.granularity, 0);
    assert_int_equal(info.uuid[0], 0x5A);
    must(f, refit_cuda_slot_export(slot, &fd, &f->err));
    must(f, refit_cuda_slot_open(0, fd, SPACE, true, &view, &f->err));
    close(fd);
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    refit_arena_release(slot); /* the view holds the memory */
    must(f, refit_memory_digest(view, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    assert_int_equal(refit_memory_scatter(view, batch->to, f->message, &f->found, &completion, &f->err), REFIT_INVALID);
    assert_null(refit_arena_host(view, 0, 1));
    refit_arena_release(view);
    f->batches++;
}

static void an_exported_slot_is_read_elsewhere_and_not_written(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, shared, f);
    assert_int_equal(f->batches, 1);
}

static void a_slot_that_does_not_fit_is_refused_with_the_numbers(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_arena *slot;
    standin.total((size_t)8 << 20);
    assert_int_equal(refit_cuda_slot_create(0, (uint64_t)64 << 20, &slot, &f->err), REFIT_NO_MEMORY);
    assert_non_null(strstr(f->err.text, "a slot of 69206016 bytes"));
    assert_non_null(strstr(f->err.text, "of 8388608 bytes are free"));
    assert_int_equal(refit_cuda_slot_create(2, 1, &slot, &f->err), REFIT_NOT_FOUND);
}

/* ---- time ---- */

static void held(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    must(f, refit_cuda_slot_create(0, SPACE, &slot, &f->err));
    standin.hold(1);
    must(f, refit_memory_scatter(slot, batch->to, f->message, &f->found, &completion, &f->err));
    assert_non_null(completion.pending);
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    /* The message may be reused at once: the device knows only staging of the slot's own. */
    memset(f->message, 0, batch->bytes);
    standin.hold(0);
    must(f, refit_memory_digest(slot, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(slot);
    f->batches++;
}

static void a_deadline_that_passes_leaves_the_message_to_the_caller(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, held, f);
    assert_int_equal(f->batches, 1);
}

/* ---- failures ---- */

static const struct world_batch *failing; /* what all_calls is about */

/* All that the library asks of the driver for a slot, from opening a device to closing it. */
static enum refit_status all_calls(struct fixture *f)
{
    struct refit_completion completion = {.status = REFIT_OK};
    struct refit_cuda_slot_info info = {.device = 0};
    struct refit_arena *slot = NULL, *view = NULL;
    int fd = -1;
    enum refit_status status = refit_cuda_slot_create(0, SPACE, &slot, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_slot_export(slot, &fd, &f->err);
    if (status == REFIT_OK)
        refit_cuda_slot_info(slot, &info);
    if (status == REFIT_OK)
        status = refit_cuda_slot_adopt(0, fd, SPACE, info.id, &view, &f->err);
    if (fd >= 0)
        close(fd);
    if (status == REFIT_OK)
        status = refit_memory_fill(view, f->world.destination.layout, 0, &f->err);
    for (int way = 0; status == REFIT_OK && way < 3; way++) {
        status = way == 0   ? refit_memory_scatter(slot, failing->to, f->message, &f->found, &completion, &f->err)
                 : way == 1 ? refit_memory_copy(view, failing->to, slot, failing->to, &f->found, &completion, &f->err)
                            : refit_memory_pack(view, failing->to, f->back, &f->found, &completion, &f->err);
        enum refit_status waited = refit_completion_wait(&completion, refit_deadline_in_ms(20000),
                                                         status == REFIT_OK ? &f->err : NULL);
        status = status == REFIT_OK ? waited : status;
        if (status == REFIT_OK)
            expect_digests(f);
    }
    refit_arena_release(view);
    refit_arena_release(slot);
    return status;
}

static void failures(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    failing = batch;
    assert_true(fail_each_call(f, all_calls) >= 30);
    f->batches++;
}

static void any_call_that_fails_is_an_error_that_leaks_nothing_and_the_next_succeeds(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, failures, f);
    assert_int_equal(f->batches, 1);
}

static void the_description_tells_what_was_found(void **state)
{
    char text[REFIT_CUDA_DESCRIPTION_MAX], devices[32];
    refit_cuda_describe(text, sizeof text);
    snprintf(devices, sizeof devices, "%d device", gpu_devices());
    assert_non_null(strstr(text, devices));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_driver_that_did_not_start_is_started_by_the_next),
        CASE(every_operation_gives_the_bytes_and_digests_of_the_cpu),
        CASE(a_batch_of_more_tensors_than_it_has_room_for_waits_for_itself),
        CASE(strips_of_any_shape_have_the_digests_of_the_cpu),
        CASE(an_exported_slot_is_read_elsewhere_and_not_written),
        CASE(a_slot_that_does_not_fit_is_refused_with_the_numbers),
        CASE(a_deadline_that_passes_leaves_the_message_to_the_caller),
        CASE(any_call_that_fails_is_an_error_that_leaks_nothing_and_the_next_succeeds),
        CASE(the_description_tells_what_was_found),
    };
    return cmocka_run_group_tests_name("memory/cuda", tests, cuda_open, NULL);
}
