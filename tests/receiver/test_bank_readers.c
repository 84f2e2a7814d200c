/* SPDX-License-Identifier: Apache-2.0
 *
 * Torn reads and mixed versions are searched for: ranks check every word of every step while versions are swapped as
 * fast as they come, and are killed in between. REFIT_SEED repeats the choice of victims.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/receiver/bank_world.h"

#include "base/io.h"
#include "tests/receiver/bank_model.h"

#define SWAP_MS 2500
#define KILL_MS 6000
#define KILLS 250

static void steps_of(struct bank_world *world, unsigned at, const char *ask, unsigned long out[3])
{
    assert_int_equal(command(world, at, "%s", ask), REFIT_OK);
    assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &out[0], &out[1], &out[2]), 3);
}

static void put(struct bank_world *world, uint32_t ranks, uint64_t version)
{
    struct refit_error error = {0};
    if (model_put(world->bank, ranks, version, MODEL_WAIT_MS, &error) != REFIT_OK)
        fail_msg("version %llu: %s", (unsigned long long)version, error.text);
}

static void search(struct bank_world *world, uint32_t ranks, uint32_t slots)
{
    unsigned long seen[3];
    uint64_t version = 0;
    bank_open(world, ranks, slots, REFIT_PROTECT_UID);
    for (uint32_t rank = 0; rank < ranks; rank++)
        attach_rank(world, rank, rank, ranks);
    put(world, ranks, ++version);
    for (uint32_t rank = ranks; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    struct refit_deadline end = refit_deadline_in_ms(SWAP_MS);
    while (!refit_deadline_passed(end))
        put(world, ranks, ++version);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        steps_of(world, rank, "halt", seen);
        print_message("rank %u: %llu versions, %lu steps\n", rank, (unsigned long long)version, seen[0]);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1], 0); /* torn */
        assert_int_equal(seen[2], 0); /* stale: the leader named what the follower did not have */
    }
}

static void no_step_reads_two_versions_on_one_rank(void **state)
{
    search(*state, 1, 2);
}

static void no_step_reads_two_versions_on_two_ranks(void **state)
{
    search(*state, 2, 2);
}

static void no_step_reads_two_versions_on_two_ranks_with_four_slots(void **state)
{
    search(*state, 2, 4);
}

static void kills_leave_no_pin_and_tear_nothing(void **state)
{
    struct bank_world *world = *state;
    unsigned long seen[3];
    unsigned long kills = 0;
    uint64_t version = 0, seed = 0;
    const char *given = getenv("REFIT_SEED");
    refit_io_random(&seed, sizeof seed);
    seed = given ? strtoull(given, NULL, 0) : seed;
    print_message("REFIT_SEED=%#llx\n", (unsigned long long)seed);
    srand48((long)seed);
    bank_open(world, 2, 2, REFIT_PROTECT_UID);
    for (uint32_t rank = 0; rank < 2; rank++)
        attach_rank(world, rank, rank, 2);
    put(world, 2, ++version);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    struct refit_deadline end = refit_deadline_in_ms(KILL_MS);
    while (kills < KILLS && !refit_deadline_passed(end)) {
        uint32_t victim = (uint32_t)(lrand48() % 2);
        steps_of(world, victim, "steps", seen);
        assert_int_equal(seen[1], 0);
        kill_process(world, victim);
        kills++;
        if (victim == 1) /* the answer that the leader may be waiting for */
            assert_int_equal(send(world->steps[1], "k", 1, MSG_NOSIGNAL), 1);
        put(world, 2, ++version); /* its pins do not hold this up, whatever it held */
        attach_rank(world, victim, victim, 2);
        assert_int_equal(command(world, victim, "run"), REFIT_OK);
        put(world, 2, ++version);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        steps_of(world, rank, "halt", seen);
        assert_int_equal(seen[1], 0);
    }
    print_message("%lu kills, %llu versions\n", kills, (unsigned long long)version);
    assert_true(kills > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_world_setup, bank_world_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(no_step_reads_two_versions_on_one_rank),
        TEST(no_step_reads_two_versions_on_two_ranks),
        TEST(no_step_reads_two_versions_on_two_ranks_with_four_slots),
        TEST(kills_leave_no_pin_and_tear_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
