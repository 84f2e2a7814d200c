/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory to device memory, as a transport does it: pack, wire and unpack on streams of their own, ordered by
 * events; over a trainer's memory, bound by its addresses.
 */
#include "tests/memory/cuda_fixture.h"

struct lanes {
    struct refit_cuda_stream *pack, *unpack;
    struct refit_cuda_event *packed;
    struct refit_cuda_buffer *staging;
};

static void open_lanes(struct fixture *f, struct lanes *lanes)
{
    must(f, refit_cuda_stream_create(0, REFIT_CUDA_PRIORITY_LEAST, &lanes->pack, &f->err));
    must(f, refit_cuda_stream_create(0, REFIT_CUDA_PRIORITY_DEFAULT, &lanes->unpack, &f->err));
    must(f, refit_cuda_event_create(0, &lanes->packed, &f->err));
    must(f, refit_cuda_buffer_create(0, REFIT_BATCH_BYTES_MAX, &lanes->staging, &f->err));
}

static void close_lanes(struct lanes *lanes)
{
    refit_cuda_buffer_destroy(lanes->staging);
    refit_cuda_event_destroy(lanes->packed);
    refit_cuda_stream_destroy(lanes->unpack);
    refit_cuda_stream_destroy(lanes->pack);
}

/* The window's runs, put together, are the message. */
static void expect_runs(struct fixture *f, const struct world_batch *batch)
{
    struct refit_iov_cursor cursor;
    struct refit_device_run runs[7];
    uint64_t done = 0;
    int count;
    refit_iov_begin(&cursor, batch->from);
    for (;;) {
        must(f, refit_device_runs_next(&cursor, batch->source, runs, 7, 1000, &count, &f->err));
        for (int i = 0; i < count; i++) {
            gpu_read(f->back + done, runs[i].address, runs[i].bytes);
            done += runs[i].bytes;
        }
        if (count == 0)
            break;
    }
    assert_int_equal(done, batch->bytes);
    assert_memory_equal(f->back, f->message, done);
}

static void along_the_lanes(struct fixture *f, struct lanes *lanes, const struct world_batch *batch)
{
    struct refit_completion packed, unpacked;
    uint64_t at = refit_cuda_buffer_address(lanes->staging);
    must(f, refit_cuda_pack(lanes->pack, batch->source, batch->from, at, &f->expected, &packed, &f->err));
    must(f, refit_cuda_event_record(lanes->packed, lanes->pack, &f->err));
    must(f, refit_cuda_event_order(lanes->packed, lanes->unpack, &f->err));
    must(f, refit_cuda_scatter(lanes->unpack, batch->destination, batch->to, at, &f->found, &unpacked, &f->err));
    wait_for(f, &unpacked);
    must(f, refit_completion_poll(&packed, &f->err)); /* before it */
    expect_digests(f);
}

static void through_the_lanes(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct lanes lanes;
    open_lanes(f, &lanes);
    along_the_lanes(f, &lanes, batch);
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    expect_runs(f, batch);
    must(f, refit_cuda_digest(lanes.pack, batch->destination, batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    close_lanes(&lanes);
    f->batches++;
}

static void bytes_and_digests_go_from_device_to_device(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; cuda_pairs[i][0]; i++) {
        world_open(&f->world, cuda_pairs[i][0], WORLD_DEVICE, cuda_pairs[i][1], WORLD_DEVICE);
        world_batches(&f->world, through_the_lanes, f);
        world_check(&f->world);
        world_close(&f->world);
    }
    assert_true(f->batches > 10);
}

static void without_digests_dense_bytes_are_a_copy_engines(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    refit_segments_init(&f->expected, false);
    refit_segments_init(&f->found, false);
    world_open(&f->world, ONE, WORLD_DEVICE, ONE, WORLD_DEVICE);
    world_batches(&f->world, through_the_lanes, f);
    world_check(&f->world);
    assert_true(calls_of("cuMemcpyDtoDAsync_v2") > 0);
    assert_int_equal(calls_of("cuLaunchKernel"), 0);
}

static void more_tensors_than_a_table_of_digests_holds_go_at_once(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, LAYOUT("1", "[1]", MANY(WHOLE)), WORLD_DEVICE, LAYOUT("2", "[2]", MANY(COLUMNS)), WORLD_DEVICE);
    world_batches(&f->world, through_the_lanes, f);
    world_check(&f->world);
    assert_true(f->expected.count > 1000);
}

static void copy_inside(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    wait_for(f, &completion);
    standin.reset();
    must(f, refit_memory_copy(batch->destination, batch->to, batch->source, batch->from, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    assert_int_equal(calls_of("cuMemcpyHtoDAsync_v2"), 0);
    f->batches++;
}

static void a_copy_inside_a_device_stays_there(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; cuda_pairs[i][0]; i++) {
        world_open(&f->world, cuda_pairs[i][0], WORLD_DEVICE, cuda_pairs[i][1], WORLD_DEVICE);
        world_batches(&f->world, copy_inside, f);
        world_check(&f->world);
        world_close(&f->world);
    }
}

static void a_range_has_the_digest_of_the_cpu(void **state)
{
    struct fixture *f = *state;
    struct refit_digest cpu = {{0}}, device = {{0}};
    struct refit_arena *arena;
    static uint8_t bytes[70001];
    uint64_t memory = gpu_allocate(0, sizeof bytes);
    for (int i = 0; i < 70001; i++)
        bytes[i] = (uint8_t)(i * 31 >> 3);
    gpu_write(memory, bytes, sizeof bytes);
    must(f, refit_cuda_arena_create(0, 80000, &arena, &f->err));
    must(f, refit_cuda_bind(arena, 5000, memory, 70001, &f->err));
    must(f, refit_memory_digest_range(arena, 5003, 66666, 12345, &device, &f->err));
    refit_digest_add(&cpu, bytes + 3, 66666, 12345);
    assert_true(refit_digest_equal(cpu, device));
    assert_int_equal(refit_memory_digest_range(arena, 4999, 10, 0, &device, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_device_address(arena, 5003, 1), memory + 3);
    assert_int_equal(refit_arena_device_address(arena, 5003, 70001), 0);
    refit_arena_release(arena);
    gpu_free(memory);
}

/* ---- time ---- */

static void polled(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct lanes lanes;
    open_lanes(f, &lanes);
    standin.hold(1);
    must(f, refit_cuda_pack(lanes.pack, batch->source, batch->from, refit_cuda_buffer_address(lanes.staging), &f->expected,
                            &completion, &f->err));
    must(f, refit_cuda_event_record(lanes.packed, lanes.pack, &f->err));
    assert_int_equal(refit_completion_poll(&completion, &f->err), REFIT_BUSY);
    assert_int_equal(refit_cuda_event_poll(lanes.packed, &f->err), REFIT_BUSY);
    assert_int_equal(refit_cuda_stream_poll(lanes.pack, &f->err), REFIT_BUSY);
    must(f, refit_cuda_stream_poll(lanes.unpack, &f->err)); /* nothing is queued there */
    assert_int_equal(refit_cuda_event_wait(lanes.packed, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    assert_int_equal(refit_cuda_stream_wait(lanes.pack, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    standin.hold(0);
    must(f, refit_cuda_event_wait(lanes.packed, refit_deadline_in_ms(20000), &f->err));
    must(f, refit_cuda_stream_wait(lanes.pack, refit_deadline_in_ms(20000), &f->err));
    must(f, refit_completion_poll(&completion, &f->err));
    must(f, refit_completion_poll(&completion, &f->err)); /* done stays done */
    close_lanes(&lanes);
    f->batches++;
}

static void nothing_blocks_that_only_asks(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_DEVICE, TURNED, WORLD_DEVICE);
    world_batches(&f->world, polled, f);
    assert_int_equal(f->batches, 1);
}

/* Each item of a stream takes a while: without the event, what is unpacked would be old. */
static void an_event_orders_streams(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    standin.delay(3000);
    world_open(&f->world, ONE, WORLD_DEVICE, TURNED, WORLD_DEVICE);
    world_batches(&f->world, through_the_lanes, f);
    world_check(&f->world);
}

/* ---- what is refused ---- */

static void bound_memory_is_the_devices(void **state)
{
    struct fixture *f = *state;
    struct refit_arena *arena, *host;
    static uint8_t heap[64];
    gpu_need_switches(); /* a real driver rounds allocations up */
    uint64_t mine = gpu_allocate(0, 4096), other = gpu_allocate(1, 4096);
    must(f, refit_cuda_arena_create(0, 8192, &arena, &f->err));
    assert_int_equal(refit_cuda_bind(arena, 0, (uint64_t)(uintptr_t)heap, sizeof heap, &f->err), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "host memory"));
    assert_int_equal(refit_cuda_bind(arena, 0, other, 4096, &f->err), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "memory of CUDA device 1, that of device 0"));
    assert_int_equal(refit_cuda_bind(arena, 0, mine, 4097, &f->err), REFIT_INVALID); /* its last byte is nobody's */
    assert_int_equal(refit_cuda_bind(arena, 8000, mine, 4096, &f->err), REFIT_INVALID);
    assert_int_equal(refit_cuda_bind(arena, 0, UINT64_MAX - 8, 64, &f->err), REFIT_INVALID);
    must(f, refit_cuda_bind(arena, 0, mine, 4096, &f->err));
    must(f, refit_cuda_bind(arena, 4096, 0, 0, &f->err)); /* nothing */
    assert_int_equal(refit_cuda_bind(arena, 4000, mine, 4096, &f->err), REFIT_INVALID); /* overlaps */
    must(f, refit_arena_create(REFIT_ARENA_HOST, 4096, &host, &f->err));
    assert_int_equal(refit_cuda_bind(host, 0, mine, 4096, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_device(host), -1);
    assert_int_equal(refit_arena_device_address(host, 0, 0), 0);
    int fd;
    assert_int_equal(refit_cuda_slot_export(arena, &fd, &f->err), REFIT_INVALID);
    assert_int_equal(refit_cuda_arena_create(2, 1, &arena, &f->err), REFIT_NOT_FOUND);
    refit_arena_release(host);
    refit_arena_release(arena);
    gpu_free(mine);
    gpu_free(other);
}

static void foreign(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_cuda_stream *stream;
    must(f, refit_cuda_stream_create(1, REFIT_CUDA_PRIORITY_LEAST, &stream, &f->err));
    assert_int_equal(refit_cuda_stream_device(stream), 1);
    assert_non_null(refit_cuda_stream_handle(stream));
    assert_int_equal(refit_cuda_digest(stream, batch->source, batch->from, &f->found, &completion, &f->err), REFIT_INVALID);
    assert_null(completion.pending);
    refit_cuda_stream_destroy(stream);
    f->batches++;
}

static void a_stream_of_another_device_is_refused(void **state)
{
    struct fixture *f = *state;
    gpu_need_devices(2);
    world_open(&f->world, ONE, WORLD_DEVICE, TURNED, WORLD_DEVICE);
    world_batches(&f->world, foreign, f);
    assert_int_equal(f->batches, 1);
}

static void staging_that_does_not_fit_is_refused_with_the_numbers(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_cuda_buffer *buffer;
    standin.total((size_t)1 << 20);
    assert_int_equal(refit_cuda_buffer_create(0, 4 << 20, &buffer, &f->err), REFIT_NO_MEMORY);
    assert_non_null(strstr(f->err.text, "staging of 4194304 bytes"));
}

/* ---- failures ---- */

static const struct world_batch *failing;

static enum refit_status open_some(struct fixture *f, struct lanes *lanes)
{
    enum refit_status status = refit_cuda_stream_create(0, REFIT_CUDA_PRIORITY_LEAST, &lanes->pack, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_stream_create(0, REFIT_CUDA_PRIORITY_LEAST, &lanes->unpack, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_event_create(0, &lanes->packed, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_buffer_create(0, REFIT_BATCH_BYTES_MAX, &lanes->staging, &f->err);
    return status;
}

static enum refit_status ended(struct refit_completion *completion, enum refit_status status, struct refit_error *err)
{
    enum refit_status waited =
        refit_completion_wait(completion, refit_deadline_in_ms(20000), status == REFIT_OK ? err : NULL);
    return status == REFIT_OK ? waited : status;
}

/* The staging must not go before. The call that fails may be one of these: then it is tried again. */
static void quiet(const struct refit_cuda_stream *stream)
{
    for (int i = 0; stream && i < 2; i++)
        if (refit_cuda_stream_wait(stream, refit_deadline_in_ms(20000), NULL) == REFIT_OK)
            return;
}

static enum refit_status all_calls(struct fixture *f)
{
    struct refit_completion packed = {.status = REFIT_OK}, unpacked = {.status = REFIT_OK};
    struct lanes lanes = {.pack = NULL};
    enum refit_status status = open_some(f, &lanes);
    uint64_t at = status == REFIT_OK ? refit_cuda_buffer_address(lanes.staging) : 0;
    if (status == REFIT_OK)
        status = refit_cuda_pack(lanes.pack, failing->source, failing->from, at, &f->expected, &packed, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_event_record(lanes.packed, lanes.pack, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_event_order(lanes.packed, lanes.unpack, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_scatter(lanes.unpack, failing->destination, failing->to, at, &f->found, &unpacked, &f->err);
    status = ended(&packed, status, &f->err);
    status = ended(&unpacked, status, &f->err);
    if (status == REFIT_OK)
        expect_digests(f);
    quiet(lanes.pack);
    quiet(lanes.unpack);
    close_lanes(&lanes);
    return status;
}

static void failures(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    failing = batch;
    assert_int_equal(all_calls(f), REFIT_OK); /* batches and tables are there from now on */
    assert_true(fail_each_call(f, all_calls) >= 15);
    f->batches++;
}

static void any_call_that_fails_is_an_error_that_leaks_nothing(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    world_open(&f->world, ONE, WORLD_DEVICE, TURNED, WORLD_DEVICE);
    world_batches(&f->world, failures, f);
    assert_int_equal(f->batches, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(bytes_and_digests_go_from_device_to_device),
        CASE(without_digests_dense_bytes_are_a_copy_engines),
        CASE(more_tensors_than_a_table_of_digests_holds_go_at_once),
        CASE(a_copy_inside_a_device_stays_there),
        CASE(a_range_has_the_digest_of_the_cpu),
        CASE(nothing_blocks_that_only_asks),
        CASE(an_event_orders_streams),
        CASE(bound_memory_is_the_devices),
        CASE(a_stream_of_another_device_is_refused),
        CASE(staging_that_does_not_fit_is_refused_with_the_numbers),
        CASE(any_call_that_fails_is_an_error_that_leaks_nothing),
    };
    return cmocka_run_group_tests_name("memory/cuda_stream", tests, cuda_open, NULL);
}
