/* SPDX-License-Identifier: Apache-2.0
 *
 * From the memory of one device to that of another: read there where the driver gives access, by way of the host where not.
 */
#include "tests/memory/cuda_fixture.h"

/* A batch's source on device 0, its destination on device 1. */
struct two {
    struct refit_arena *source, *destination;
};

static enum refit_status fill(struct fixture *f, struct two *two, const struct world_batch *batch)
{
    struct refit_completion completion;
    enum refit_status status =
        refit_memory_copy(two->source, batch->from, batch->source, batch->from, &f->expected, &completion, &f->err);
    return refit_completion_end(&completion, status, refit_deadline_in_ms(20000), &f->err);
}

static enum refit_status open_two(struct fixture *f, struct two *two, const struct world_batch *batch)
{
    *two = (struct two){.source = NULL};
    enum refit_status status =
        refit_cuda_slot_create(0, refit_arena_bytes(batch->source), &two->source, &f->err);
    if (status == REFIT_OK)
        status = refit_cuda_slot_create(1, refit_arena_bytes(batch->destination), &two->destination, &f->err);
    return status == REFIT_OK ? fill(f, two, batch) : status;
}

static void close_two(struct two *two)
{
    refit_arena_release(two->source);
    refit_arena_release(two->destination);
}

/* The destination holds what the host's source does. */
static void expect_bytes(struct fixture *f, struct refit_arena *destination, const struct world_batch *batch)
{
    struct refit_completion completion;
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    must(f, refit_memory_pack(destination, batch->to, f->back, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    assert_memory_equal(f->message, f->back, batch->bytes);
    expect_digests(f);
}

static struct refit_memory_between_devices moved_since(struct refit_memory_between_devices before)
{
    struct refit_memory_between_devices now;
    refit_memory_between_devices(&now);
    now.direct_bytes -= before.direct_bytes;
    now.by_host_bytes -= before.by_host_bytes;
    return now;
}

static bool direct; /* as expected */

static void from_one_to_the_other(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_memory_between_devices before;
    struct two two;
    must(f, open_two(f, &two, batch));
    refit_memory_between_devices(&before);
    assert_int_equal(refit_memory_reaches(two.destination, two.source), direct);
    must(f, refit_memory_copy(two.destination, batch->to, two.source, batch->from, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    struct refit_memory_between_devices moved = moved_since(before);
    assert_int_equal(moved.direct_bytes, direct ? batch->bytes : 0);
    assert_int_equal(moved.by_host_bytes, direct ? 0 : batch->bytes);
    expect_bytes(f, two.destination, batch);
    close_two(&two);
    f->batches++;
}

/* Megabytes are for where they are moved straight, which is soon done. */
static void all_pairs(struct fixture *f)
{
    for (size_t i = 0; cuda_pairs[i][0]; i++) {
        if (!direct && (i == 1 || i == 2))
            continue;
        world_open(&f->world, cuda_pairs[i][0], WORLD_WHOLE, cuda_pairs[i][1], WORLD_WHOLE);
        world_batches(&f->world, from_one_to_the_other, f);
        world_close(&f->world);
    }
    assert_true(f->batches > 8);
}

static void one_batch(struct fixture *f, const char *source, const char *destination, world_body body)
{
    world_open(&f->world, source, WORLD_BUFFERS, destination, WORLD_WHOLE);
    world_batches(&f->world, body, f);
    assert_int_equal(f->batches, 1);
}

static void bytes_and_digests_go_straight_to_another_device(void **state)
{
    struct fixture *f = *state;
    gpu_need_devices(2);
    direct = refit_cuda_peers(1, 0, &f->err) == REFIT_OK;
    all_pairs(f);
}

static void without_peer_access_they_go_by_the_host(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    standin.peers(0);
    assert_int_equal(refit_cuda_peers(1, 0, &f->err), REFIT_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "device 1 can't read the memory of device 0"));
    must(f, refit_cuda_peers(1, 1, &f->err));
    direct = false;
    all_pairs(f);
}

/* The driver said yes, and then did not do it. */
static void access_that_is_not_given_is_no_failure(void **state)
{
    gpu_need_switches();
    standin.fail_call("cuMemSetAccess", 3); /* each slot's own come first */
    direct = false;
    one_batch(*state, ONE, TURNED, from_one_to_the_other);
}

static void dense(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct two two;
    must(f, open_two(f, &two, batch));
    standin.reset();
    must(f, refit_memory_copy(two.destination, batch->to, two.source, batch->from, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    assert_true(calls_of("cuMemcpyDtoDAsync_v2") > 0);
    assert_int_equal(calls_of("cuMemcpyHtoDAsync_v2"), 0);
    expect_bytes(f, two.destination, batch);
    close_two(&two);
    f->batches++;
}

static void dense_bytes_are_a_copy_engines_and_digested_where_they_landed(void **state)
{
    gpu_need_switches();
    one_batch(*state, ONE, ONE, dense);
}

/* Nobody waits for what fills the source. */
static void unawaited(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion filled, copied;
    struct two two;
    must(f, open_two(f, &two, batch));
    must(f, refit_memory_copy(two.destination, batch->to, two.source, batch->from, &f->found, &copied, &f->err));
    wait_for(f, &copied); /* the way is open */
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &filled, &f->err));
    for (uint64_t i = 0; i < batch->bytes; i++)
        f->message[i] = (uint8_t)~f->message[i];
    standin.delay(3000);
    must(f, refit_memory_scatter(two.source, batch->from, f->message, &f->expected, &filled, &f->err));
    must(f, refit_memory_copy(two.destination, batch->to, two.source, batch->from, &f->found, &copied, &f->err));
    wait_for(f, &copied);
    wait_for(f, &filled);
    expect_digests(f);
    must(f, refit_memory_pack(two.destination, batch->to, f->back, &f->found, &copied, &f->err));
    wait_for(f, &copied);
    assert_memory_equal(f->message, f->back, batch->bytes);
    close_two(&two);
    f->batches++;
}

static void an_event_orders_the_reader_behind_what_was_queued_on_the_owner(void **state)
{
    gpu_need_switches();
    one_batch(*state, ONE, TURNED, unawaited);
}

static void given_up(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct two two;
    must(f, open_two(f, &two, batch));
    standin.hold(1);
    must(f, refit_memory_copy(two.destination, batch->to, two.source, batch->from, &f->found, &completion, &f->err));
    assert_int_equal(refit_completion_wait(&completion, refit_deadline_in_ms(1), &f->err), REFIT_TIMEOUT);
    refit_memory_set_patience(1);
    int before = standin.live();
    refit_arena_release(two.source);
    assert_int_equal(standin.live(), before); /* unmapped later: device 1 reads it */
    standin.hold(0);
    refit_memory_set_patience(20000);
    must(f, refit_memory_pack(two.destination, batch->to, f->back, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    refit_arena_release(two.destination);
    f->batches++;
}

static void a_slot_that_another_device_still_reads_is_given_back_later(void **state)
{
    gpu_need_switches();
    one_batch(*state, ONE, TURNED, given_up);
}

/* ---- slots of others ---- */

static void shared(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *view;
    struct two two;
    int fd;
    must(f, open_two(f, &two, batch));
    must(f, refit_cuda_slot_export(two.source, &fd, &f->err));
    for (int device = 0; device < 2; device++) {
        must(f, refit_cuda_slot_open(device, fd, refit_arena_bytes(two.source), true, &view, &f->err));
        assert_int_equal(refit_arena_device(view), device);
        must(f, refit_memory_copy(two.destination, batch->to, view, batch->from, &f->found, &completion, &f->err));
        wait_for(f, &completion);
        expect_digests(f);
        expect_bytes(f, two.destination, batch);
        refit_arena_release(view);
    }
    close(fd);
    close_two(&two);
    f->batches++;
}

static void a_slot_of_another_process_is_read_where_it_lies(void **state)
{
    struct fixture *f = *state;
    gpu_need_devices(2);
    if (refit_cuda_peers(1, 0, &f->err) != REFIT_OK) {
        print_message("skipped: %s\n", f->err.text);
        skip();
    }
    one_batch(f, ONE, TURNED, shared);
}

static void out_of_reach(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_arena *view;
    struct two two;
    uint64_t bytes = refit_arena_bytes(batch->source);
    int fd;
    must(f, open_two(f, &two, batch));
    must(f, refit_cuda_slot_export(two.source, &fd, &f->err));
    standin.peers(0);
    must(f, refit_cuda_slot_open(0, fd, bytes, true, &view, &f->err));
    refit_arena_release(view);
    assert_int_equal(refit_cuda_slot_open(1, fd, bytes, true, &view, &f->err), REFIT_SYSTEM);
    assert_non_null(strstr(f->err.text, "cuMemSetAccess"));
    standin.peers(1);
    setenv("STANDIN_CUDA_ORDER", "5,6", 1); /* as in a container that was given others */
    assert_int_equal(refit_cuda_slot_open(1, fd, bytes, true, &view, &f->err), REFIT_SYSTEM);
    unsetenv("STANDIN_CUDA_ORDER");
    assert_non_null(strstr(f->err.text, "cuMemImportFromShareableHandle"));
    close(fd);
    close_two(&two);
    f->batches++;
}

static void a_slot_that_is_out_of_reach_is_an_error(void **state)
{
    gpu_need_switches();
    one_batch(*state, ONE, TURNED, out_of_reach);
}

/* ---- failures ---- */

static const struct world_batch *failing;

static enum refit_status all_calls(struct fixture *f)
{
    struct refit_completion completion = {.status = REFIT_OK};
    struct two two;
    enum refit_status status = open_two(f, &two, failing);
    if (status == REFIT_OK) {
        status = refit_memory_copy(two.destination, failing->to, two.source, failing->from, &f->found, &completion,
                                   &f->err);
        status = refit_completion_end(&completion, status, refit_deadline_in_ms(20000), &f->err);
    }
    if (status == REFIT_OK)
        expect_digests(f);
    close_two(&two);
    return status;
}

static void failures(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct two kept;
    failing = batch;
    must(f, open_two(f, &kept, batch)); /* both devices stay open: their lists are not made anew */
    assert_int_equal(all_calls(f), REFIT_OK);
    assert_true(fail_each_call(f, all_calls) >= 15);
    close_two(&kept);
    f->batches++;
}

static void any_call_that_fails_is_an_error_or_another_way_and_leaks_nothing(void **state)
{
    gpu_need_switches();
    one_batch(*state, ONE, TURNED, failures);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(bytes_and_digests_go_straight_to_another_device),
        CASE(without_peer_access_they_go_by_the_host),
        CASE(access_that_is_not_given_is_no_failure),
        CASE(dense_bytes_are_a_copy_engines_and_digested_where_they_landed),
        CASE(an_event_orders_the_reader_behind_what_was_queued_on_the_owner),
        CASE(a_slot_that_another_device_still_reads_is_given_back_later),
        CASE(a_slot_of_another_process_is_read_where_it_lies),
        CASE(a_slot_that_is_out_of_reach_is_an_error),
        CASE(any_call_that_fails_is_an_error_or_another_way_and_leaks_nothing),
    };
    return cmocka_run_group_tests_name("memory/cuda_peer", tests, cuda_open, NULL);
}
