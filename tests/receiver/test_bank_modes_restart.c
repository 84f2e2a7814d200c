/* SPDX-License-Identifier: Apache-2.0
 *
 * refitd is killed in each state of the swap modes that keep addresses constant, and started again: what it finds is a whole
 * version, or it says that there is none.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/receiver/bank_world.h"

#include "base/io.h"
#include "tests/receiver/bank_modes.h"

static void start_again(struct bank_world *world, uint32_t ranks, uint32_t slots)
{
    start_bank(world, BANK, ranks, world->swap == REFIT_SWAP_IN_PLACE ? 1 : slots,
               memory_kind(world), ADOPT);
    await_answer(world, BANK, "snapshot", "attached=2 adopting=0");
}

static void restart(struct bank_world *world, uint32_t ranks, uint32_t slots)
{
    kill_process(world, BANK);
    start_again(world, ranks, slots);
}

static void a_restart_finds_version_and_addresses(struct bank_world *world, enum refit_swap_mode mode)
{
    char before[2][128], after[128];
    start_mode(world, mode, 2, 2);
    put(world, 1);
    put(world, 2);
    for (unsigned rank = 0; rank < 2; rank++)
        where(world, rank, 2, before[rank]);
    restart(world, 2, 2);
    for (uint64_t version = 2; version < 5; version++) {
        await_acquire(world, REFIT_OK);
        for (unsigned rank = 0; rank < 2; rank++) {
            assert_reads(world, rank, version);
            where(world, rank, version, after);
            assert_string_equal(after, before[rank]);
        }
        put(world, version + 1);
        restart(world, 2, 2);
    }
    if (mode == REFIT_SWAP_IN_PLACE)
        return;
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK); /* before any refit of this process */
    assert_reads(world, 0, 4);
    assert_reads(world, 1, 4);
}
FOR_EACH_MODE(a_restart_finds_version_and_addresses)

static void a_kill_in_the_pause_before_bytes_move_keeps_the_old_version(struct bank_world *world,
                                                                        enum refit_swap_mode mode)
{
    start_mode(world, mode, 2, 2);
    put(world, 1);
    /* Both gates are closed, or about to be, and a pin keeps all else from happening. */
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    tell_process(world, BANK, "put 2");
    await_acquire(world, REFIT_BUSY);
    restart(world, 2, 2);
    assert_int_equal(command(world, 0, "check 3"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 0, "release 3"), REFIT_OK);
    await_acquire(world, REFIT_OK);
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
}
FOR_EACH_MODE(a_kill_in_the_pause_before_bytes_move_keeps_the_old_version)

/* Wherever the kill hits: a step reads one version, or there is none to read. */
static void a_kill_anywhere_serves_no_mixture(struct bank_world *world, enum refit_swap_mode mode)
{
    unsigned long seen[3], attempted = 1, now = 0, torn = 0;
    uint64_t seed = 0;
    const char *given = getenv("REFIT_SEED");
    refit_io_random(&seed, sizeof seed);
    seed = given ? strtoull(given, NULL, 0) : seed;
    print_message("REFIT_SEED=%#llx\n", (unsigned long long)seed);
    srand48((long)seed);
    world->rank_bytes = LARGE / 2;
    start_mode(world, mode, 2, 3);
    put(world, 1);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    for (int round = 0; round < 15; round++) {
        char text[32];
        int lost;
        snprintf(text, sizeof text, "put %lu", ++attempted);
        tell_process(world, BANK, text);
        for (long jitter = lrand48() % 400; jitter > 0; jitter--)
            assert_int_equal(command(world, 1, "in-swap"), REFIT_OK);
        restart(world, 2, 3);
        assert_int_equal(sscanf(world->answer, "active=%lu", &now), 1);
        assert_non_null(strstr(world->answer, "torn="));
        lost = strstr(world->answer, "torn=1") != NULL;
        assert_true(lost ? now == 0 : now >= 1);
        torn += (unsigned long)lost;
    }
    print_message("%lu of 15 refits were cut off with nothing left\n", torn);
    assert_true(torn == 0 || mode != REFIT_SWAP_REMAP);
    put(world, ++attempted);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "halt"), REFIT_OK);
        assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &seen[0], &seen[1], &seen[2]), 3);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1], 0);
    }
    assert_reads(world, 0, attempted);
    assert_reads(world, 1, attempted);
}
FOR_EACH_MODE(a_kill_anywhere_serves_no_mixture)

/* At the nth chunk of about ten, on whichever rank. */
static void a_kill_in_the_middle_of_an_exchange_is_torn(void **state)
{
    struct bank_world *world = *state;
    char before[128], after[128];
    world->rank_bytes = LARGE;
    start_mode(world, REFIT_SWAP_COPY, 2, 2);
    put(world, 1);
    where(world, 0, 1, before);
    uint64_t version = 1;
    for (int chunk = 1; chunk < 10; chunk += 4) {
        assert_int_equal(command(world, BANK, "chunk %d 0 %d", part(chunk), SIGKILL), REFIT_OK);
        char text[32];
        snprintf(text, sizeof text, "put %llu", (unsigned long long)++version);
        tell_process(world, BANK, text);
        waitpid(world->process[BANK].pid, NULL, 0);
        assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_BUSY); /* nobody is there to say more */
        refit_io_close(&world->process[BANK].sock);
        world->process[BANK].pid = 0;
        start_again(world, 2, 2);
        assert_non_null(strstr(world->answer, "active=0"));
        assert_non_null(strstr(world->answer, "rollback=0"));
        assert_non_null(strstr(world->answer, "torn=1"));
        assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
        assert_int_equal(command(world, 1, "acquire 0 1"), REFIT_STALE);
        restart(world, 2, 2); /* and it stays so */
        assert_non_null(strstr(world->answer, "torn=1"));
        put(world, ++version);
        assert_reads(world, 0, version);
        assert_reads(world, 1, version);
        where(world, 0, version, after);
        assert_string_equal(before, after);
    }
}

static void a_kill_in_the_middle_keeps_what_lies_elsewhere(void **state)
{
    struct bank_world *world = *state;
    world->rank_bytes = LARGE;
    start_mode(world, REFIT_SWAP_COPY, 2, 3);
    put(world, 1);
    put(world, 2);
    assert_int_equal(command(world, BANK, "chunk %d 0 %d", part(4), SIGKILL), REFIT_OK);
    tell_process(world, BANK, "put 3");
    waitpid(world->process[BANK].pid, NULL, 0);
    refit_io_close(&world->process[BANK].sock);
    world->process[BANK].pid = 0;
    start_again(world, 2, 3);
    assert_non_null(strstr(world->answer, "torn=1"));
    assert_int_equal(command(world, BANK, "rollback 1"), REFIT_OK);
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
}

static void a_kill_in_a_refit_in_place_leaves_nothing(void **state)
{
    struct bank_world *world = *state;
    char before[128], after[128];
    start_mode(world, REFIT_SWAP_IN_PLACE, 2, 1);
    put(world, 1);
    where(world, 0, 1, before);
    assert_int_equal(command(world, BANK, "fill 2"), REFIT_OK);
    restart(world, 2, 1);
    assert_non_null(strstr(world->answer, "torn=1"));
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    put(world, 3);
    assert_reads(world, 0, 3);
    assert_reads(world, 1, 3);
    where(world, 0, 3, after);
    assert_string_equal(before, after);
}

/* Its memory of everything is gone: new slots, and they appear where the old ones were. */
static void without_its_state_the_addresses_are_the_same(struct bank_world *world, enum refit_swap_mode mode)
{
    char before[128], after[128];
    start_mode(world, mode, 2, 2);
    put(world, 1);
    where(world, 0, 1, before);
    kill_process(world, BANK);
    unlink(world->state_path);
    start_again(world, 2, 2);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_NOT_FOUND);
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
    where(world, 0, 2, after);
    assert_string_equal(before, after);
}
FOR_EACH_MODE(without_its_state_the_addresses_are_the_same)

static void an_engine_of_another_mode_is_not_taken_back(void **state)
{
    struct bank_world *world = *state;
    world->swap = REFIT_SWAP_POINTER;
    start_bank(world, BANK, 1, 2, memory_kind(world), ADOPT);
    attach_rank(world, 0, 0, 1);
    put(world, 1);
    kill_process(world, BANK);
    world->swap = REFIT_SWAP_COPY;
    start_bank(world, BANK, 1, 2, memory_kind(world), "300");
    await_answer(world, BANK, "snapshot", "active=0 attached=0 adopting=0");
    assert_reads(world, 0, 1); /* it goes on as it is */
    kill_process(world, 0);
    attach_rank(world, 0, 0, 1);
    put(world, 2);
    assert_reads(world, 0, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_EACH_MODE(a_restart_finds_version_and_addresses),
        TEST_EACH_MODE(a_kill_in_the_pause_before_bytes_move_keeps_the_old_version),
        TEST_EACH_MODE(a_kill_anywhere_serves_no_mixture),
        TEST(a_kill_in_the_middle_of_an_exchange_is_torn),
        TEST(a_kill_in_the_middle_keeps_what_lies_elsewhere),
        TEST(a_kill_in_a_refit_in_place_leaves_nothing),
        TEST_EACH_MODE(without_its_state_the_addresses_are_the_same),
        TEST(an_engine_of_another_mode_is_not_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
