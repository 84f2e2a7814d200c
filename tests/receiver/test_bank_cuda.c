/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots on devices, over the look-alike of libcuda.so.1 with two devices: made, counted, mapped by engines, taken back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/receiver/bank_world.h"

#include "tests/receiver/bank_model.h"
#include "tests/standins/standin_cuda.h"

#define BANK 8 /* index of the bank's process */
#define ADOPT "30000"
#define SLOT_BYTES (2 * RANK_BYTES)

static struct {
    __typeof__(standin_cuda_fail_call) *fail_call;
    __typeof__(standin_cuda_total) *total;
    __typeof__(standin_cuda_live) *live;
    __typeof__(standin_cuda_called) *called;
    __typeof__(standin_cuda_reset) *reset;
} standin;

#define RESOLVE(member) *(void **)(void *)&standin.member = gpu_switch("standin_cuda_" #member)

/* All NULL over a driver without switches. */
static int open_driver(void **state)
{
    gpu_open();
    RESOLVE(fail_call);
    RESOLVE(total);
    RESOLVE(live);
    RESOLVE(called);
    RESOLVE(reset);
    return 0;
}

static int alive(void)
{
    return standin.live ? standin.live() : 0;
}

/* As far as this driver has as many. */
static int device_of(int rank)
{
    return rank % gpu_devices();
}

static int setup(void **state)
{
    unsetenv("BANK_MEMORY");
    unsetenv("STANDIN_CUDA_ORDER");
    if (standin.reset) {
        standin.total((size_t)1 << 30);
        standin.reset();
    }
    return bank_world_setup(state);
}

static int teardown(void **state)
{
    bank_world_teardown(state);
    return alive() == 0 ? 0 : -1;
}

static void must_open(struct bank_world *world, uint32_t ranks, uint32_t slots, const int *devices)
{
    struct refit_error error = {0};
    if (bank_open_cuda(world, ranks, slots, devices, &error) != REFIT_OK)
        fail_msg("%s", error.text);
}

static void refused(struct bank_world *world, uint32_t ranks, uint32_t slots, const int *devices,
                    enum refit_status status, const char *text)
{
    struct refit_error error = {0};
    assert_int_equal(bank_open_cuda(world, ranks, slots, devices, &error), status);
    if (!strstr(error.text, text))
        fail_msg("\"%s\" expected in \"%s\"", text, error.text);
    assert_null(world->bank);
    assert_int_equal(alive(), 0);
}

static void put(struct bank_world *world, uint32_t ranks, uint64_t version)
{
    struct refit_error error = {0};
    if (model_put(world->bank, ranks, version, MODEL_WAIT_MS, &error) != REFIT_OK)
        fail_msg("version %llu: %s", (unsigned long long)version, error.text);
}

static void assert_reads(struct bank_world *world, unsigned at, uint64_t version)
{
    assert_int_equal(command(world, at, "acquire 0 %llu", (unsigned long long)(at == 0 ? 0 : version)), REFIT_OK);
    assert_int_equal(strtoull(world->answer, NULL, 10), version);
    assert_int_equal(command(world, at, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, at, "release 0"), REFIT_OK);
}

static void assert_memory(struct bank_world *world, unsigned at, const char *expected)
{
    assert_int_equal(command(world, at, "memory"), REFIT_OK);
    if (!strstr(world->answer, expected))
        fail_msg("\"%s\" expected, found \"%s\"", expected, world->answer);
}

/* --- made and read ----------------------------------------------------------------------------------------- */

static void engines_read_versions_on_a_device_each(void **state)
{
    gpu_need_devices(2);
    struct bank_world *world = *state;
    struct refit_version now;
    struct refit_error error;
    must_open(world, 2, 2, NULL);
    for (uint32_t rank = 0; rank < 2; rank++)
        attach_rank(world, rank, rank, 2);
    assert_memory(world, 0, standin.reset ? "cuda device=0 uuid=5a granularity=2097152 bytes=131072" : "cuda device=0");
    assert_memory(world, 1, standin.reset ? "cuda device=1 uuid=5b" : "cuda device=1");
    for (uint64_t version = 1; version < 6; version++) {
        put(world, 2, version);
        assert_reads(world, 0, version);
        assert_reads(world, 1, version);
    }
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", refit_deadline_in_ms(MODEL_WAIT_MS), &now, &error),
                     REFIT_OK);
    assert_reads(world, 0, 4);
    struct refit_bank_snapshot seen = bank_now(world);
    assert_int_equal(seen.memory, REFIT_ARENA_CUDA);
    assert_int_equal(seen.protection, REFIT_PROTECT_MAPPING);
    assert_int_equal(seen.rank[1].device, 1);
    if (standin.reset)
        assert_int_equal(seen.rank[1].uuid[0], 0x5b);
}

static void ranks_may_share_a_device(void **state)
{
    const int devices[] = {device_of(1), device_of(1)};
    struct bank_world *world = *state;
    char expected[32];
    must_open(world, 2, 3, devices);
    for (uint32_t rank = 0; rank < 2; rank++)
        attach_rank(world, rank, rank, 2);
    snprintf(expected, sizeof expected, "cuda device=%d", devices[0]);
    assert_memory(world, 0, expected);
    assert_memory(world, 1, expected);
    put(world, 2, 1);
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
}

static void steps_are_whole_while_versions_are_swapped(void **state)
{
    const int devices[] = {device_of(0), device_of(1)};
    struct bank_world *world = *state;
    unsigned long seen[3];
    must_open(world, 2, 2, devices);
    for (uint32_t rank = 0; rank < 2; rank++)
        attach_rank(world, rank, rank, 2);
    put(world, 2, 1);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    for (uint64_t version = 2; version < 40; version++)
        put(world, 2, version);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "halt"), REFIT_OK);
        assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &seen[0], &seen[1], &seen[2]), 3);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1] + seen[2], 0);
    }
}

static void a_device_is_found_by_its_uuid_whatever_its_number(void **state)
{
    gpu_need_switches();
    struct bank_world *world = *state;
    setenv("STANDIN_CUDA_ORDER", "1,0", 1); /* of the engines: refitd's own look-alike has been asked already */
    start_rank(world, 0, 0, 1, "w", 0);
    unsetenv("STANDIN_CUDA_ORDER");
    must_open(world, 1, 2, NULL);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_OK);
    assert_memory(world, 0, "cuda device=1 uuid=5a");
    put(world, 1, 1);
    assert_reads(world, 0, 1);
}

static void an_engine_that_does_not_see_the_device_is_told_which_it_is(void **state)
{
    gpu_need_switches();
    struct bank_world *world = *state;
    setenv("STANDIN_CUDA_ORDER", "3,4", 1);
    start_rank(world, 0, 0, 1, "w", 0);
    unsetenv("STANDIN_CUDA_ORDER");
    must_open(world, 1, 2, NULL);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    assert_non_null(strstr(world->answer, "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a is not among the devices"));
    assert_non_null(strstr(world->answer, "GPU-5d5d5d5d"));
}

static void an_engine_gets_the_kind_of_memory_that_it_takes_or_a_reason(void **state)
{
    struct bank_world *world = *state;
    must_open(world, 1, 2, NULL);
    setenv("BANK_MEMORY", "host", 1);
    start_rank(world, 0, 0, 1, "w", 0);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    assert_non_null(strstr(world->answer, "this engine reads host memory"));
    setenv("BANK_MEMORY", "cuda", 1);
    attach_rank(world, 1, 0, 1);
    kill_process(world, 1);
    refit_bank_close(world->bank);
    world->bank = NULL;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    start_rank(world, 0, 0, 1, "w", 0);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    assert_non_null(strstr(world->answer, "start refitd with --memory cuda"));
    unsetenv("BANK_MEMORY");
    attach_rank(world, 1, 0, 1);
    assert_memory(world, 1, "host device=-1");
}

/* --- refused ----------------------------------------------------------------------------------------------- */

static void a_device_that_is_not_there_is_an_error_at_the_start(void **state)
{
    gpu_need_switches();
    static const int devices[] = {0, 2};
    refused(*state, 2, 2, devices, REFIT_NOT_FOUND, "slots of rank 1: CUDA device 2: the driver has 2");
}

static void memory_is_counted_for_all_slots_before_any_is_made(void **state)
{
    gpu_need_switches();
    static const int devices[] = {0, 0};
    struct bank_world *world = *state;
    int made = 0;
    standin.total((size_t)10 << 20);
    refused(world, 2, 4, devices, REFIT_NO_MEMORY, "4 slots of 4194304 bytes need 16777216");
    refused(world, 1, 6, NULL, REFIT_NO_MEMORY, "which is room for 4");
    for (int i = 0, times; standin.called(i, &times); i++)
        made += strcmp(standin.called(i, &times), "cuMemCreate") == 0 ? times : 0;
    assert_int_equal(made, 0);
    must_open(world, 1, 4, NULL);
}

static bool is_part_of_starting(const char *call)
{
    return strstr("cuInit cuDriverGetVersion cuDeviceGetCount", call) != NULL;
}

/* Each call that opening makes, at its first and second time. */
static void every_call_may_fail_once(void **state)
{
    gpu_need_switches();
    struct bank_world *world = *state;
    struct refit_error error;
    char names[64][48];
    int count = 0, times, failures = 0;
    must_open(world, 1, 2, NULL);
    refit_bank_close(world->bank);
    world->bank = NULL;
    for (int i = 0; count < 64 && standin.called(i, &times); i++)
        snprintf(names[count++], sizeof names[0], "%s", standin.called(i, &times));
    for (int i = 0; i < 2 * count; i++) {
        if (is_part_of_starting(names[i / 2]))
            continue;
        standin.reset();
        standin.fail_call(names[i / 2], 1 + i % 2);
        enum refit_status status = bank_open_cuda(world, 1, 2, NULL, &error);
        failures += status != REFIT_OK;
        refit_bank_close(world->bank);
        world->bank = NULL;
        if (standin.live() != 0)
            fail_msg("%s, time %d: %d objects left", names[i / 2], 1 + i % 2, standin.live());
    }
    assert_true(failures > count / 2);
    standin.reset();
    must_open(world, 1, 2, NULL);
    attach_rank(world, 0, 0, 1);
    put(world, 1, 1);
    assert_reads(world, 0, 1);
}

/* --- restarts ---------------------------------------------------------------------------------------------- */

static unsigned long long id_of(struct bank_world *world, unsigned slot)
{
    assert_int_equal(command(world, BANK, "inode %u 0", slot), REFIT_OK);
    return strtoull(world->answer, NULL, 10);
}

static void put_there(struct bank_world *world, uint64_t version)
{
    if (command(world, BANK, "put %llu", (unsigned long long)version) != REFIT_OK)
        fail_msg("version %llu: %s", (unsigned long long)version, world->answer);
}

static void slots_are_taken_back_by_their_ids(void **state)
{
    gpu_need_devices(2);
    struct bank_world *world = *state;
    unsigned long long before[2];
    start_bank(world, BANK, 2, 2, "cuda", ADOPT);
    for (uint32_t rank = 0; rank < 2; rank++)
        attach_rank(world, rank, rank, 2);
    put_there(world, 1);
    put_there(world, 2);
    for (unsigned i = 0; i < 2; i++)
        before[i] = id_of(world, i);
    kill_process(world, BANK);
    assert_reads(world, 0, 2);
    start_bank(world, BANK, 2, 2, "cuda", ADOPT);
    await_answer(world, BANK, "snapshot", "active=2 attached=2 adopting=0 rollback=1 writable=1");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(id_of(world, i), before[i]);
    assert_reads(world, 0, 2);
    for (uint64_t version = 3; version < 6; version++) {
        put_there(world, version);
        assert_reads(world, 0, version);
        assert_reads(world, 1, version);
    }
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK);
    assert_reads(world, 0, 4);
}

static void an_engine_that_restarts_reads_what_is_served(void **state)
{
    struct bank_world *world = *state;
    must_open(world, 1, 2, NULL);
    attach_rank(world, 0, 0, 1);
    put(world, 1, 1);
    kill_process(world, 0);
    put(world, 1, 2);
    attach_rank(world, 0, 0, 1);
    assert_reads(world, 0, 2);
}

static void host_slots_that_come_back_to_devices_are_not_taken(void **state)
{
    struct bank_world *world = *state;
    start_bank(world, BANK, 1, 2, "uid", ADOPT);
    attach_rank(world, 0, 0, 1);
    put_there(world, 1);
    kill_process(world, BANK);
    start_bank(world, BANK, 1, 2, "cuda", ADOPT);
    await_answer(world, BANK, "snapshot", "active=0 attached=0 adopting=0");
    /* It goes on with the version it has. */
    kill_process(world, 0);
    attach_rank(world, 0, 0, 1);
    assert_memory(world, 0, "cuda device=0");
    put_there(world, 2);
    assert_reads(world, 0, 2);
}

/* --- pins that a device ends ------------------------------------------------------------------------------- */

static void tell_device(struct bank_world *world, unsigned at, const char *order)
{
    assert_int_equal(command(world, at, "device %s", order), REFIT_OK);
}

static enum refit_status try_put(struct bank_world *world, uint64_t version, struct refit_error *error)
{
    return model_put(world->bank, 1, version, 300, error);
}

/* Two slots and version 1 of 2 pinned, by an engine whose device stands still. */
static void pin_with_a_device_that_stands_still(struct bank_world *world)
{
    must_open(world, 1, 2, NULL);
    attach_rank(world, 0, 0, 1);
    put(world, 1, 1);
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    tell_device(world, 0, "hold 1");
    assert_int_equal(command(world, 0, "release-on-stream 3"), REFIT_OK);
    put(world, 1, 2);
}

static void a_slot_is_filled_again_when_the_device_has_read_it_and_not_before(void **state)
{
    gpu_need_switches();
    struct bank_world *world = *state;
    struct refit_error error = {0};
    pin_with_a_device_that_stands_still(world);
    assert_reads(world, 0, 2); /* acquiring waits for no device */
    assert_int_equal(try_put(world, 3, &error), REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "holds 1 pins on version 1"));
    assert_int_equal(command(world, 0, "check 3"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    tell_device(world, 0, "hold 0");
    put(world, 1, 3);
    assert_reads(world, 0, 3);
    for (uint64_t version = 4; version < 8; version++) {
        assert_int_equal(command(world, 0, "acquire 1 0"), REFIT_OK);
        assert_int_equal(command(world, 0, "release-on-stream 1"), REFIT_OK);
        put(world, 1, version);
    }
    assert_int_equal(command(world, 0, "detach"), REFIT_OK);
}

static void a_process_that_dies_with_pins_on_a_device_is_dropped(void **state)
{
    gpu_need_switches();
    struct bank_world *world = *state;
    struct refit_error error = {0};
    pin_with_a_device_that_stands_still(world);
    assert_int_equal(try_put(world, 3, &error), REFIT_TIMEOUT);
    kill_process(world, 0);
    put(world, 1, 3);
    attach_rank(world, 0, 0, 1);
    assert_reads(world, 0, 3);
}

static void a_release_that_could_not_be_queued_leaves_the_pin(void **state)
{
    gpu_need_switches();
    static const char *const calls[] = {"cuEventCreate", "cuEventRecord", "cuCtxPushCurrent_v2"};
    static const char *const named[] = {"cuEventCreate", "cuEventRecord", "cuCtxPushCurrent"};
    struct bank_world *world = *state;
    struct refit_error error = {0};
    char order[64];
    must_open(world, 1, 2, NULL);
    attach_rank(world, 0, 0, 1);
    put(world, 1, 1);
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(order, sizeof order, "fail %s 1", calls[i]);
        tell_device(world, 0, order);
        if (command(world, 0, "release-on-stream 3") != REFIT_SYSTEM)
            fail_msg("%s: %s", calls[i], world->answer);
        assert_non_null(strstr(world->answer, named[i]));
    }
    put(world, 1, 2);
    assert_int_equal(try_put(world, 3, &error), REFIT_TIMEOUT);
    assert_int_equal(command(world, 0, "release-on-stream 3"), REFIT_OK);
    put(world, 1, 3);
}

static void pins_of_host_memory_are_released_by_the_caller(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    put(world, 1, 1);
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    assert_int_equal(command(world, 0, "release-on-stream 3"), REFIT_UNSUPPORTED);
    assert_int_equal(command(world, 0, "release 3"), REFIT_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(engines_read_versions_on_a_device_each),
        CASE(ranks_may_share_a_device),
        CASE(steps_are_whole_while_versions_are_swapped),
        CASE(a_device_is_found_by_its_uuid_whatever_its_number),
        CASE(an_engine_that_does_not_see_the_device_is_told_which_it_is),
        CASE(an_engine_gets_the_kind_of_memory_that_it_takes_or_a_reason),
        CASE(a_device_that_is_not_there_is_an_error_at_the_start),
        CASE(memory_is_counted_for_all_slots_before_any_is_made),
        CASE(every_call_may_fail_once),
        CASE(slots_are_taken_back_by_their_ids),
        CASE(an_engine_that_restarts_reads_what_is_served),
        CASE(a_slot_is_filled_again_when_the_device_has_read_it_and_not_before),
        CASE(a_process_that_dies_with_pins_on_a_device_is_dropped),
        CASE(a_release_that_could_not_be_queued_leaves_the_pin),
        CASE(pins_of_host_memory_are_released_by_the_caller),
        CASE(host_slots_that_come_back_to_devices_are_not_taken),
    };
    return cmocka_run_group_tests_name("receiver/bank_cuda", tests, open_driver, NULL);
}
