/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike of libnccl.so.2 is strict: what the real one would do wrongly, or not at all, ends the process with
 * the call's name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/standins/nccl_ranks.h"
#include "tests/standins/standin_cuda.h"
#include "tests/standins/standin_nccl.h"

static void use_no_stream(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclSend(memory, 16, ncclUint8, 0, rank_up(rank), NULL);
}

static void the_default_stream_is_refused(void **state)
{
    ranks_die(1, use_no_stream, "libcuda: ncclSend: not a live stream");
}

static void use_other_device(struct rank *rank)
{
    CUcontext second;
    void *memory = device_memory(16, 0);
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS && cuCtxPushCurrent(second) == CUDA_SUCCESS);
    ncclSend(memory, 16, ncclUint8, 0, rank_up(rank), rank->stream);
}

static void a_stream_of_another_device_is_refused(void **state)
{
    setenv("STANDIN_CUDA_DEVICES", "2", 1);
    ranks_die(1, use_other_device, "ncclSend: a stream of device 0, and the communicator is on device 1");
    unsetenv("STANDIN_CUDA_DEVICES");
}

static void use_two_streams(struct rank *rank)
{
    CUstream second = stream_new();
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    ncclGroupStart();
    ncclSend(memory, 16, ncclUint8, 0, comm, rank->stream);
    ncclRecv(memory, 16, ncclUint8, 0, comm, second);
}

static void a_second_stream_in_a_group_is_refused(void **state)
{
    ranks_die(1, use_two_streams, "ncclRecv: a second stream in the group");
}

static void have_no_context(struct rank *rank)
{
    CUcontext popped;
    CHECK(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    rank_begin(rank);
}

static void a_communicator_needs_a_device(void **state)
{
    ranks_die(1, have_no_context, "ncclCommInitRankConfig: no context");
}

static void use_after_destroy(struct rank *rank)
{
    ncclResult_t error;
    ncclComm_t comm = rank_up(rank);
    rank_down(comm);
    ncclCommGetAsyncError(comm, &error);
}

static void a_destroyed_communicator_is_not_used(void **state)
{
    ranks_die(1, use_after_destroy, "ncclCommGetAsyncError: not a live communicator: it was destroyed or aborted");
}

static void abort_twice(struct rank *rank)
{
    ncclComm_t comm = rank_up(rank);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    ncclCommAbort(comm);
}

static void an_aborted_communicator_is_not_aborted_again(void **state)
{
    ranks_die(1, abort_twice, "ncclCommAbort: not a live communicator: it was destroyed or aborted");
}

static void use_after_finalize(struct rank *rank)
{
    ncclComm_t comm = rank_up(rank);
    CHECK(ncclCommFinalize(comm) == ncclInProgress && rank_settle(comm) == ncclSuccess);
    ncclSend(device_memory(16, 0), 16, ncclUint8, 0, comm, rank->stream);
}

static void a_finalized_communicator_is_not_used(void **state)
{
    ranks_die(1, use_after_finalize, "ncclSend: the communicator is finalized");
}

static void send_more(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        CHECK(send_one(rank, comm, memory, 16, 1) == ncclSuccess);
    rank_down(comm);
}

static void a_send_that_nobody_receives_is_found_at_the_end(void **state)
{
    ranks_die(2, send_more, "ncclCommFinalize: 16 bytes from rank 0 are unmatched");
}

static void receive_more(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        CHECK(recv_one(rank, comm, memory, 16, 1) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void a_receive_that_nobody_sends_is_found_at_the_end(void **state)
{
    ranks_die(2, receive_more, "ncclRecv: 16 bytes from rank 1 are unmatched: it is finalized");
}

static void send_to_self(struct rank *rank)
{
    send_one(rank, rank_up(rank), device_memory(16, 0), 16, 0);
}

static void a_send_to_itself_is_matched_in_the_group(void **state)
{
    ranks_die(1, send_to_self, "ncclGroupEnd: 16 bytes to itself are unmatched");
}

static void receive_from_self(struct rank *rank)
{
    recv_one(rank, rank_up(rank), device_memory(16, 0), 16, 0);
}

static void a_receive_from_itself_is_matched_in_the_group(void **state)
{
    ranks_die(1, receive_from_self, "ncclGroupEnd: a receive from itself is unmatched");
}

static void differ_in_size(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        send_one(rank, comm, memory, 12, 1);
    else
        recv_one(rank, comm, memory, 16, 0);
    stream_wait(rank->stream);
    rank_meet(rank, 0);
}

static void sizes_that_differ_are_found(void **state)
{
    ranks_die(2, differ_in_size, "ncclRecv: 16 bytes of type 1 from rank 0 do not match its 12 bytes of type 1");
}

static void differ_in_type(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        ncclSend(memory, 4, ncclFloat, 1, comm, rank->stream);
    else
        ncclRecv(memory, 16, ncclUint8, 0, comm, rank->stream);
    rank_settle(comm);
    stream_wait(rank->stream);
    rank_meet(rank, 0);
}

static void types_that_differ_are_found(void **state)
{
    ranks_die(2, differ_in_type, "ncclRecv: 16 bytes of type 1 from rank 0 do not match its 16 bytes of type 7");
}

static void overfill(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    ncclGroupStart();
    for (int i = 0; i <= STANDIN_NCCL_GROUP_MAX; i++)
        CHECK(ncclRecv(memory, 1, ncclUint8, 0, comm, rank->stream) == ncclSuccess);
}

static void a_group_over_its_bound_is_refused(void **state)
{
    ranks_die(1, overfill, "ncclRecv: more than 2048 operations in a group");
}

static void run_two(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t first = rank_up(rank);
    rank_meet(rank, 0);
    if (rank->rank == 0)
        CHECK(ncclGetUniqueId(&rank->meeting->id) == ncclSuccess);
    rank_meet(rank, 1);
    ncclComm_t second = rank_up(rank);
    recv_one(rank, first, memory, 16, 1 - rank->rank);
    recv_one(rank, second, memory, 16, 1 - rank->rank);
}

static void two_communicators_at_once_on_a_device_are_refused(void **state)
{
    ranks_die(2, run_two, "ncclGroupEnd: another communicator has operations in flight on device 0");
}

static void send_host_memory(struct rank *rank)
{
    static char memory[16];
    send_one(rank, rank_up(rank), memory, sizeof memory, 1 - rank->rank);
    stream_wait(rank->stream);
}

static void memory_that_is_not_the_device_s_is_refused(void **state)
{
    ranks_die(2, send_host_memory, "libcuda: ncclSend: 16 bytes at");
}

/* Mapped by another process for reading, as an engine does. */
static CUdeviceptr map_read_only(size_t bytes)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CHECK(cuMemCreate(&handle, bytes, &prop, 0) == CUDA_SUCCESS);
    CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
    CHECK(cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemSetAccess(address, bytes, &access, 1) == CUDA_SUCCESS);
    return address;
}

static void receive_read_only(struct rank *rank)
{
    void *memory = (void *)(uintptr_t)map_read_only((size_t)2 << 20);
    recv_one(rank, rank_up(rank), memory, 16, 1 - rank->rank);
    stream_wait(rank->stream);
}

static void memory_that_is_read_only_is_not_received_into(void **state)
{
    ranks_die(2, receive_read_only, "may not be written");
}

static void *open_group(void *context)
{
    ncclGroupStart();
    return context;
}

static void end_in_group(struct rank *rank)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_group, rank) == 0);
    pthread_join(thread, NULL);
}

static void a_thread_that_ends_in_a_group_is_found(void **state)
{
    ranks_die(1, end_in_group, "ncclGroupStart: the thread ended and the group is open");
}

static void exit_in_group(struct rank *rank)
{
    ncclGroupStart();
}

static void a_group_that_is_open_at_exit_is_found(void **state)
{
    ranks_die(1, exit_in_group, "ncclGroupStart: a group is open at exit");
}

static void end_no_group(struct rank *rank)
{
    ncclGroupEnd();
}

static void an_end_without_a_start_is_refused(void **state)
{
    ranks_die(1, end_no_group, "ncclGroupEnd: no group is open");
}

static void hurry(struct rank *rank)
{
    standin_nccl_init_hangs(1);
    ncclComm_t comm = rank_begin(rank);
    ncclSend(device_memory(16, 0), 16, ncclUint8, 0, comm, rank->stream);
}

static void a_communicator_in_progress_is_not_used(void **state)
{
    ranks_die(1, hurry, "ncclSend: the communicator is in progress");
}

static void destroy_in_progress(struct rank *rank)
{
    standin_nccl_init_hangs(1);
    ncclCommDestroy(rank_begin(rank));
}

static void a_communicator_in_progress_is_not_destroyed(void **state)
{
    ranks_die(1, destroy_in_progress, "ncclCommDestroy: the communicator is in progress");
}

static void destroy_broken(struct rank *rank)
{
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    standin_nccl_error_after_groups(0, ncclSystemError);
    recv_one(rank, comm, memory, 16, 1 - rank->rank);
    CHECK(rank_error(comm) == ncclSystemError);
    ncclCommDestroy(comm);
}

static void a_communicator_with_an_error_is_not_destroyed(void **state)
{
    ranks_die(2, destroy_broken, "ncclCommAbort frees a communicator with an error");
}

static void leave_it(struct rank *rank)
{
    rank_up(rank);
}

static void a_communicator_that_is_left_is_found_at_exit(void **state)
{
    ranks_die(1, leave_it, "libnccl: 1 communicators, registrations or allocations still alive at exit");
}

static void leave_registered(struct rank *rank)
{
    void *handle;
    ncclComm_t comm = rank_up(rank);
    CHECK(ncclCommRegister(comm, device_memory(16, 0), 16, &handle) == ncclSuccess);
    ncclCommDestroy(comm);
}

static void a_buffer_that_is_registered_holds_its_communicator(void **state)
{
    ranks_die(1, leave_registered, "ncclCommDestroy: a buffer is still registered");
}

static void use_id_twice(struct rank *rank)
{
    rank_down(rank_up(rank));
    rank_begin(rank);
}

static void a_unique_id_serves_once(void **state)
{
    ranks_die(1, use_id_twice, "the unique id was used for rank 0 before");
}

static void begin_without_initializer(struct rank *rank)
{
    ncclComm_t comm;
    ncclConfig_t config = {.blocking = 0};
    ncclCommInitRankConfig(&comm, 1, rank_id(rank), 0, &config);
}

static void a_configuration_needs_its_initializer(void **state)
{
    ranks_die(1, begin_without_initializer, "was not begun with NCCL_CONFIG_INITIALIZER");
}

static void disagree(struct rank *rank)
{
    struct rank other = *rank;
    other.ranks = rank->rank == 0 ? 2 : 3;
    rank_up(&other);
    rank_meet(rank, 0);
}

static void ranks_that_count_differently_are_found(void **state)
{
    ranks_die(2, disagree, "is one of 2, rank");
}

static void shrink_oneself(struct rank *rank)
{
    ncclComm_t smaller;
    int excluded = 0;
    ncclComm_t comm = rank_up(rank);
    ncclCommShrink(comm, &excluded, 1, &smaller, NULL, NCCL_SHRINK_ABORT);
    rank_meet(rank, 0);
}

static void an_excluded_rank_does_not_shrink(void **state)
{
    ranks_die(2, shrink_oneself, "ncclCommShrink: rank 0 is excluded and may not take part");
}

static void shrink_in_flight(struct rank *rank)
{
    ncclComm_t smaller;
    int excluded = 1 - rank->rank;
    void *memory = device_memory(16, 0);
    ncclComm_t comm = rank_up(rank);
    recv_one(rank, comm, memory, 16, 1 - rank->rank);
    ncclCommShrink(comm, &excluded, 1, &smaller, NULL, NCCL_SHRINK_DEFAULT);
}

static void a_communicator_in_use_does_not_shrink(void **state)
{
    ranks_die(2, shrink_in_flight, "ncclCommShrink: the communicator has operations in flight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_stream_is_refused),
        cmocka_unit_test(a_stream_of_another_device_is_refused),
        cmocka_unit_test(a_second_stream_in_a_group_is_refused),
        cmocka_unit_test(a_communicator_needs_a_device),
        cmocka_unit_test(a_destroyed_communicator_is_not_used),
        cmocka_unit_test(an_aborted_communicator_is_not_aborted_again),
        cmocka_unit_test(a_finalized_communicator_is_not_used),
        cmocka_unit_test(a_send_that_nobody_receives_is_found_at_the_end),
        cmocka_unit_test(a_receive_that_nobody_sends_is_found_at_the_end),
        cmocka_unit_test(a_send_to_itself_is_matched_in_the_group),
        cmocka_unit_test(a_receive_from_itself_is_matched_in_the_group),
        cmocka_unit_test(sizes_that_differ_are_found),
        cmocka_unit_test(types_that_differ_are_found),
        cmocka_unit_test(a_group_over_its_bound_is_refused),
        cmocka_unit_test(two_communicators_at_once_on_a_device_are_refused),
        cmocka_unit_test(memory_that_is_not_the_device_s_is_refused),
        cmocka_unit_test(memory_that_is_read_only_is_not_received_into),
        cmocka_unit_test(a_thread_that_ends_in_a_group_is_found),
        cmocka_unit_test(a_group_that_is_open_at_exit_is_found),
        cmocka_unit_test(an_end_without_a_start_is_refused),
        cmocka_unit_test(a_communicator_in_progress_is_not_used),
        cmocka_unit_test(a_communicator_in_progress_is_not_destroyed),
        cmocka_unit_test(a_communicator_with_an_error_is_not_destroyed),
        cmocka_unit_test(a_communicator_that_is_left_is_found_at_exit),
        cmocka_unit_test(a_buffer_that_is_registered_holds_its_communicator),
        cmocka_unit_test(a_unique_id_serves_once),
        cmocka_unit_test(a_configuration_needs_its_initializer),
        cmocka_unit_test(ranks_that_count_differently_are_found),
        cmocka_unit_test(an_excluded_rank_does_not_shrink),
        cmocka_unit_test(a_communicator_in_use_does_not_shrink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
