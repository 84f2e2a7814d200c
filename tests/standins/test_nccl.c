/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike of libnccl.so.2 behaves: what it moves, how it ends, and what can be made to go wrong.
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

#define BIG ((size_t)3 << 20) /* more than a socket holds */

static size_t size_between(int from, int to, int number)
{
    static const size_t sizes[] = {0, 1, 100001, BIG};
    return sizes[(from + to + number) % 4];
}

static int fill_between(int from, int to, int number)
{
    return 1 + from * 50 + to * 10 + number;
}

static void check_filled(const uint8_t *memory, size_t bytes, int fill)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(memory[i] == fill);
}

/* Every rank sends two messages to every rank, itself too, in one group. */
static void exchange(const struct rank *rank, ncclComm_t comm)
{
    void *out[RANKS_IN_TEST][2], *in[RANKS_IN_TEST][2];
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < rank->ranks; peer++) {
        for (int n = 0; n < 2; n++) {
            out[peer][n] = device_memory(BIG, fill_between(rank->rank, peer, n));
            in[peer][n] = device_memory(BIG, 0);
            CHECK(ncclSend(out[peer][n], size_between(rank->rank, peer, n), ncclInt8, peer, comm, rank->stream) == 0);
            CHECK(ncclRecv(in[peer][n], size_between(peer, rank->rank, n), ncclInt8, peer, comm, rank->stream) == 0);
        }
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
    ncclResult_t result = ncclGroupEnd();
    CHECK(result == ncclSuccess || (result == ncclInProgress && rank_settle(comm) == ncclSuccess));
    stream_wait(rank->stream);
    for (int peer = 0; peer < rank->ranks; peer++) {
        for (int n = 0; n < 2; n++) {
            size_t bytes = size_between(peer, rank->rank, n);
            check_filled(in[peer][n], bytes, fill_between(peer, rank->rank, n));
            check_filled((uint8_t *)in[peer][n] + bytes, BIG - bytes, 0);
            device_free(out[peer][n]);
            device_free(in[peer][n]);
        }
    }
}

static void exchange_twice(struct rank *rank)
{
    int count, self, device;
    ncclComm_t comm = rank_up(rank);
    CHECK(ncclCommCount(comm, &count) == ncclSuccess && count == rank->ranks);
    CHECK(ncclCommUserRank(comm, &self) == ncclSuccess && self == rank->rank);
    CHECK(ncclCommCuDevice(comm, &device) == ncclSuccess && device == 0);
    exchange(rank, comm);
    exchange(rank, comm);
    rank_down(comm);
    CHECK(standin_nccl_live() == 0);
}

static void ranks_in_processes_exchange_exactly_what_they_say(void **state)
{
    ranks_succeed(3, exchange_twice);
}

static void *thread_of_rank(void *context)
{
    ncclComm_t comm;
    struct rank *rank = context;
    CUcontext cuda;
    CHECK(cuDevicePrimaryCtxRetain(&cuda, 0) == CUDA_SUCCESS && cuCtxPushCurrent(cuda) == CUDA_SUCCESS);
    rank->stream = stream_new();
    CHECK(ncclCommInitRankConfig(&comm, rank->ranks, rank->meeting->id, rank->rank, NULL) == ncclSuccess);
    exchange(rank, comm);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(cuStreamDestroy(rank->stream) == CUDA_SUCCESS);
    CHECK(cuCtxPopCurrent(&cuda) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    return NULL;
}

static void be_threads(struct rank *rank)
{
    pthread_t threads[2];
    struct rank ranks[2];
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    rank_id(rank);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.rank = i, .ranks = 2, .meeting = rank->meeting};
        CHECK(pthread_create(&threads[i], NULL, thread_of_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void ranks_in_threads_exchange_blocking(void **state)
{
    ranks_succeed(1, be_threads);
}

/* Both ranks of a communicator come up in one thread. */
static void begin_both(const struct rank *rank, ncclComm_t comms[2], ncclResult_t expected)
{
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; i++)
        CHECK(ncclCommInitRankConfig(&comms[i], 2, rank_id(rank), i, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == expected);
}

static void be_both(struct rank *rank)
{
    ncclComm_t comms[2];
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    begin_both(rank, comms, ncclSuccess);
    for (int i = 0; i < 2; i++)
        CHECK(ncclCommAbort(comms[i]) == ncclSuccess);
}

static void one_thread_brings_up_two_ranks_in_a_group(void **state)
{
    ranks_succeed(1, be_both);
}

static void be_both_unasked(struct rank *rank)
{
    ncclComm_t comms[2];
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    begin_both(rank, comms, ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comms[0]), "on one GPU"));
    for (int i = 0; i < 2; i++)
        CHECK(ncclCommAbort(comms[i]) == ncclSuccess);
}

static void two_ranks_on_a_gpu_are_refused_unless_asked_for(void **state)
{
    ranks_succeed(1, be_both_unasked);
}

static void wait_alone(struct rank *rank)
{
    ncclResult_t state;
    if (rank->rank != 0)
        return;
    ncclComm_t comm = rank_begin(rank);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void an_init_that_misses_a_rank_is_aborted(void **state)
{
    ranks_succeed(2, wait_alone);
}

static void hang_in_init(struct rank *rank)
{
    ncclResult_t state;
    if (rank->rank == 0)
        standin_nccl_init_hangs(1);
    ncclComm_t comm = rank_begin(rank);
    rank_meet(rank, 0);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void an_init_that_hangs_is_aborted(void **state)
{
    ranks_succeed(2, hang_in_init);
}

static void *abort_it(void *comm)
{
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    return NULL;
}

/* A group that waits for a peer is over when the abort of another thread is, and nothing is written then. */
static void abort_by_thread(struct rank *rank)
{
    pthread_t thread;
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0) {
        uint8_t *memory = device_memory(BIG, 7);
        CHECK(recv_one(rank, comm, memory, BIG, 1) == ncclSuccess);
        CHECK(pthread_create(&thread, NULL, abort_it, comm) == 0);
        pthread_join(thread, NULL);
        check_filled(memory, BIG, 7);
        stream_wait(rank->stream);
        device_free(memory);
        rank_meet(rank, 0);
        return;
    }
    rank_meet(rank, 0);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void abort_from_any_thread_ends_a_group(void **state)
{
    ranks_succeed(2, abort_by_thread);
}

static void abort_queued(struct rank *rank)
{
    uint8_t *memory = device_memory(16, 7);
    ncclComm_t comm = rank_up(rank);
    standin_cuda_hold(1);
    CHECK(recv_one(rank, comm, memory, 16, 1 - rank->rank) == ncclSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    device_free(memory); /* nobody comes back to it */
    standin_cuda_hold(0);
}

static void abort_ends_a_group_that_is_still_queued(void **state)
{
    ranks_succeed(2, abort_queued);
}

/* The error may come before the group is in the stream. */
static void expect_or_lose(ncclResult_t result)
{
    CHECK(result == ncclSuccess || result == ncclRemoteError);
}

static void notice_abort(struct rank *rank)
{
    uint8_t *memory = device_memory(BIG, 7);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0) {
        expect_or_lose(recv_one(rank, comm, memory, BIG, 1));
        CHECK(rank_error(comm) == ncclRemoteError);
        CHECK(strstr(ncclGetLastError(comm), "rank 1 closed the connection"));
        CHECK(send_one(rank, comm, memory, BIG, 1) == ncclRemoteError);
    }
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    stream_wait(rank->stream);
    device_free(memory);
}

static void a_peer_that_aborts_is_a_remote_error(void **state)
{
    ranks_succeed(2, notice_abort);
}

static void notice_nothing(struct rank *rank)
{
    ncclResult_t state;
    uint8_t *memory = device_memory(BIG, 7);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0) {
        standin_nccl_silent(1);
        CHECK(recv_one(rank, comm, memory, BIG, 1) == ncclSuccess);
        rank_meet(rank, 0);
        usleep(20000); /* long enough to notice what must not be noticed */
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
        CHECK(ncclCommAbort(comm) == ncclSuccess);
    } else {
        CHECK(ncclCommAbort(comm) == ncclSuccess);
        rank_meet(rank, 0);
    }
    stream_wait(rank->stream);
    device_free(memory);
}

static void a_silent_death_lasts_until_abort(void **state)
{
    ranks_succeed(2, notice_nothing);
}

static void lose_rank_1(struct rank *rank)
{
    uint8_t *memory = device_memory(BIG, 7);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 1)
        standin_nccl_die_in_group(2);
    for (int i = 0; i < 2; i++) {
        if (rank->rank == 1)
            CHECK(send_one(rank, comm, memory, BIG, 0) == ncclSuccess);
        else
            expect_or_lose(recv_one(rank, comm, memory, BIG, 1));
    }
    CHECK(rank_error(comm) == ncclRemoteError);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    stream_wait(rank->stream);
    device_free(memory);
}

static void a_peer_that_dies_in_a_group_is_a_remote_error(void **state)
{
    ranks_lose(2, lose_rank_1, 1);
}

static void break_half(struct rank *rank)
{
    uint8_t *memory = device_memory(64, rank->rank == 0 ? 9 : 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        standin_nccl_error_after_groups(2, ncclUnhandledCudaError);
    for (size_t i = 0; i < 3; i++) {
        if (rank->rank == 0)
            CHECK(send_one(rank, comm, memory + i * 16, 16, 1) == ncclSuccess || i == 2);
        else
            CHECK(recv_one(rank, comm, memory + i * 16, 16, 0) == ncclSuccess);
        if (i == 1)
            stream_wait(rank->stream);
    }
    CHECK(rank->rank == 1 || rank_error(comm) == ncclUnhandledCudaError);
    rank_meet(rank, 0);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    stream_wait(rank->stream);
    if (rank->rank == 1) {
        check_filled(memory, 32, 9);
        check_filled(memory + 32, 32, 0);
    }
    device_free(memory);
}

static void an_asynchronous_error_comes_after_so_many_groups(void **state)
{
    ranks_succeed(2, break_half);
}

static void corrupt_second(struct rank *rank)
{
    size_t wrong = 0;
    uint8_t *memory = device_memory(3000, rank->rank == 0 ? 9 : 0);
    ncclComm_t comm = rank_up(rank);
    if (rank->rank == 0)
        standin_nccl_corrupt(2);
    for (size_t i = 0; i < 3; i++) {
        if (rank->rank == 0)
            CHECK(send_one(rank, comm, memory + i * 1000, 1000, 1) == ncclSuccess);
        else
            CHECK(recv_one(rank, comm, memory + i * 1000, 1000, 0) == ncclSuccess);
    }
    stream_wait(rank->stream);
    for (size_t i = 0; i < 3000; i++)
        wrong += memory[i] != 9 ? 1 : 0;
    CHECK(wrong == (rank->rank == 0 ? 0 : 1) && (memory[1500] != 9) == (rank->rank == 1));
    rank_down(comm);
    device_free(memory);
}

static void one_byte_is_corrupted_on_the_wire(void **state)
{
    ranks_succeed(2, corrupt_second);
}

static void delay_for_ever(struct rank *rank)
{
    CUevent event;
    uint8_t *memory = device_memory(16, 7);
    ncclComm_t comm = rank_up(rank);
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    standin_nccl_delay_us(rank->rank == 0 ? 1000000000 : 0);
    CHECK(rank->rank == 0 ? send_one(rank, comm, memory, 16, 1) == 0 : recv_one(rank, comm, memory, 16, 0) == 0);
    CHECK(cuEventRecord(event, rank->stream) == CUDA_SUCCESS);
    rank_meet(rank, 0);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    rank_meet(rank, 1);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    stream_wait(rank->stream);
    CHECK(cuEventDestroy(event) == CUDA_SUCCESS);
    device_free(memory);
}

static void a_delay_holds_a_message_back_and_abort_ends_it(void **state)
{
    ranks_succeed(2, delay_for_ever);
}

static void differ_in_version(struct rank *rank)
{
    int version;
    standin_nccl_version(rank->rank == 0 ? 23203 : 22809);
    CHECK(ncclGetVersion(&version) == ncclSuccess && version == (rank->rank == 0 ? 23203 : 22809));
    ncclComm_t comm = rank_begin(rank);
    CHECK(rank_settle(comm) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "23203") && strstr(ncclGetLastError(comm), "22809"));
    rank_meet(rank, 0);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

static void versions_that_differ_do_not_come_up(void **state)
{
    ranks_succeed(2, differ_in_version);
}

/* Rank 1 is gone, the others go on without it. */
static void shrink_by_1(struct rank *rank)
{
    ncclComm_t smaller;
    int excluded = 1;
    uint8_t *memory = device_memory(16, 7);
    ncclComm_t comm = rank_up(rank);
    rank_meet(rank, 0);
    if (rank->rank == 1) {
        CHECK(ncclCommAbort(comm) == ncclSuccess);
    } else {
        expect_or_lose(recv_one(rank, comm, memory, 16, 1));
        if (rank->rank == 0)
            CHECK(ncclCommRevoke(comm, 0) == ncclInProgress && rank_settle(comm) == ncclSuccess);
        CHECK(ncclCommShrink(comm, &excluded, 1, &smaller, NULL, rank->rank == 0 ? 0 : NCCL_SHRINK_ABORT) ==
              ncclInProgress);
        CHECK(rank_settle(smaller) == ncclSuccess);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
        struct rank now = {.rank = rank->rank / 2, .ranks = 2, .stream = rank->stream};
        exchange(&now, smaller);
        rank_down(smaller);
    }
    stream_wait(rank->stream);
    device_free(memory);
}

static void ranks_that_are_left_shrink(void **state)
{
    ranks_succeed(3, shrink_by_1);
}

static void grow_to_3(struct rank *rank)
{
    ncclComm_t comm = NULL, larger;
    ncclUniqueId *id = &rank->meeting->id, first;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (rank->rank < 2) {
        rank_id(rank);
        CHECK(ncclCommInitRankConfig(&comm, 2, *id, rank->rank, NULL) == ncclSuccess);
    }
    rank_meet(rank, 0);
    if (rank->rank == 0) {
        CHECK(ncclCommGetUniqueId(comm, id) == ncclSuccess);
        CHECK(ncclCommGetUniqueId(comm, &first) == ncclInvalidUsage);
    }
    rank_meet(rank, 1);
    CHECK(ncclCommGrow(comm, 3, rank->rank == 1 ? NULL : id, rank->rank == 2 ? 2 : -1, &larger, &config) ==
          ncclInProgress);
    CHECK(rank_settle(larger) == ncclSuccess);
    if (comm)
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    exchange(rank, larger);
    rank_down(larger);
}

static void a_communicator_grows(void **state)
{
    ranks_succeed(3, grow_to_3);
}

static void hold_buffers(struct rank *rank)
{
    void *memory, *handle;
    ncclComm_t comm = rank_up(rank);
    CHECK(ncclMemAlloc(&memory, 4096) == ncclSuccess);
    CHECK(ncclCommRegister(comm, memory, 4096, &handle) == ncclSuccess);
    CHECK(standin_nccl_live() == 3);
    CHECK(ncclCommDeregister(comm, handle) == ncclSuccess);
    CHECK(ncclCommRegister(comm, memory, 4096, &handle) == ncclSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess); /* takes registrations back */
    CHECK(ncclMemFree(memory) == ncclSuccess);
    CHECK(standin_nccl_live() == 0);
}

static void buffers_are_allocated_and_registered(void **state)
{
    ranks_succeed(1, hold_buffers);
}

static bool failed;

static bool went(ncclResult_t result)
{
    failed = failed || result == ncclInternalError;
    return result == ncclSuccess;
}

static bool send_to_itself(const struct rank *rank, ncclComm_t comm, void *memory)
{
    if (!went(ncclGroupStart()))
        return false;
    bool sent = went(ncclSend(memory, 16, ncclUint8, 0, comm, rank->stream)) &&
                went(ncclRecv((char *)memory + 16, 16, ncclUint8, 0, comm, rank->stream));
    return went(ncclGroupEnd()) && sent;
}

/* One rank that talks to itself, and gives everything back whatever fails. */
static void talk(const struct rank *rank)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclResult_t state;
    void *handle = NULL, *memory = NULL;
    int number;
    bool talked = went(ncclGetVersion(&number)) && went(ncclMemAlloc(&memory, 4096)) && went(ncclGetUniqueId(&id)) &&
                  went(ncclCommInitRankConfig(&comm, 1, id, 0, NULL)) && went(ncclCommCount(comm, &number)) &&
                  went(ncclCommUserRank(comm, &number)) && went(ncclCommCuDevice(comm, &number)) &&
                  went(ncclCommRegister(comm, memory, 4096, &handle)) && send_to_itself(rank, comm, memory);
    stream_wait(rank->stream);
    if (talked && went(ncclCommDeregister(comm, handle)) && went(ncclCommGetAsyncError(comm, &state)) &&
        went(ncclCommFinalize(comm))) {
        went(ncclCommDestroy(comm)); /* gives it back also when it fails */
        comm = NULL;
    }
    if (comm)
        went(ncclCommAbort(comm));
    if (memory)
        went(ncclMemFree(memory));
}

static void fail_each(struct rank *rank)
{
    static const char *const calls[] = {
        "ncclGetVersion", "ncclMemAlloc", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommCount",
        "ncclCommUserRank", "ncclCommCuDevice", "ncclCommRegister", "ncclGroupStart", "ncclSend", "ncclRecv",
        "ncclGroupEnd", "ncclCommDeregister", "ncclCommGetAsyncError", "ncclCommFinalize", "ncclCommDestroy",
        "ncclMemFree",
    };
    int times;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        failed = false;
        standin_nccl_fail_call(calls[i], 1, ncclInternalError);
        talk(rank);
        CHECK(failed && standin_nccl_live() == 0);
    }
    standin_nccl_reset();
    failed = false;
    talk(rank);
    CHECK(!failed);
    CHECK(strcmp(standin_nccl_called(0, &times), "ncclGetVersion") == 0 && times == 1);
}

static void each_call_fails_once(void **state)
{
    ranks_succeed(1, fail_each);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_processes_exchange_exactly_what_they_say),
        cmocka_unit_test(ranks_in_threads_exchange_blocking),
        cmocka_unit_test(one_thread_brings_up_two_ranks_in_a_group),
        cmocka_unit_test(two_ranks_on_a_gpu_are_refused_unless_asked_for),
        cmocka_unit_test(an_init_that_misses_a_rank_is_aborted),
        cmocka_unit_test(an_init_that_hangs_is_aborted),
        cmocka_unit_test(abort_from_any_thread_ends_a_group),
        cmocka_unit_test(abort_ends_a_group_that_is_still_queued),
        cmocka_unit_test(a_peer_that_aborts_is_a_remote_error),
        cmocka_unit_test(a_silent_death_lasts_until_abort),
        cmocka_unit_test(a_peer_that_dies_in_a_group_is_a_remote_error),
        cmocka_unit_test(an_asynchronous_error_comes_after_so_many_groups),
        cmocka_unit_test(one_byte_is_corrupted_on_the_wire),
        cmocka_unit_test(a_delay_holds_a_message_back_and_abort_ends_it),
        cmocka_unit_test(versions_that_differ_do_not_come_up),
        cmocka_unit_test(ranks_that_are_left_shrink),
        cmocka_unit_test(a_communicator_grows),
        cmocka_unit_test(buffers_are_allocated_and_registered),
        cmocka_unit_test(each_call_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
