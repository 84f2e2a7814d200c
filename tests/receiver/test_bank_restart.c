/* SPDX-License-Identifier: Apache-2.0
 *
 * The bank is a process that is killed and started again while engines stay.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/receiver/bank_world.h"

#include "base/io.h"
#include "base/json.h"
#include "tests/receiver/bank_model.h"

#define BANK 8 /* index of the bank's process */
#define ADOPT "30000"

static void put(struct bank_world *world, uint64_t version)
{
    if (command(world, BANK, "put %llu", (unsigned long long)version) != REFIT_OK)
        fail_msg("version %llu: %s", (unsigned long long)version, world->answer);
}

static void assert_reads(struct bank_world *world, unsigned at, uint64_t version)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)version);
    assert_int_equal(command(world, at, "acquire 0 0"), REFIT_OK);
    assert_string_equal(world->answer, expected);
    assert_int_equal(command(world, at, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, at, "release 0"), REFIT_OK);
}

static unsigned long inode(struct bank_world *world, unsigned slot, unsigned rank)
{
    assert_int_equal(command(world, BANK, "inode %u %u", slot, rank), REFIT_OK);
    return strtoul(world->answer, NULL, 10);
}

static void start_replica(struct bank_world *world, uint32_t ranks, uint32_t slots, const char *protection)
{
    start_bank(world, BANK, ranks, slots, protection, ADOPT);
    for (uint32_t rank = 0; rank < ranks; rank++)
        attach_rank(world, rank, rank, ranks);
}

static void restart_bank(struct bank_world *world, uint32_t ranks, uint32_t slots, const char *protection)
{
    kill_process(world, BANK);
    start_bank(world, BANK, ranks, slots, protection, ADOPT);
}

static void take_back(struct bank_world *world, const char *protection)
{
    bool uid = strcmp(protection, "uid") == 0;
    unsigned long before[2][2], after[2][2];
    start_replica(world, 2, 2, protection);
    put(world, 1);
    put(world, 2);
    assert_int_equal(command(world, 0, "acquire 5 1"), REFIT_OK); /* a pin that outlives refitd */
    for (unsigned i = 0; i < 4; i++)
        before[i / 2][i % 2] = inode(world, i / 2, i % 2);
    kill_process(world, BANK);
    assert_reads(world, 0, 2);
    start_bank(world, BANK, 2, 2, protection, ADOPT);
    await_answer(world, BANK, "snapshot", "active=2 attached=2 adopting=0 rollback=1");
    assert_non_null(strstr(world->answer, uid ? "writable=1 label=step-2" : "writable=0 label=step-2"));
    for (unsigned i = 0; i < 4; i++)
        after[i / 2][i % 2] = inode(world, i / 2, i % 2);
    assert_memory_equal(before, after, sizeof before);
    assert_reads(world, 0, 2);
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK);
    assert_reads(world, 0, 1);
    assert_int_equal(command(world, 0, "check 5"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 0, "release 5"), REFIT_OK);
    for (uint64_t version = 3; version < 7; version++) {
        put(world, version);
        assert_reads(world, 0, version);
        assert_int_equal(command(world, 1, "acquire 0 %llu", (unsigned long long)version), REFIT_OK);
        assert_int_equal(command(world, 1, "check 0"), REFIT_OK);
        assert_string_equal(world->answer, "0");
        assert_int_equal(command(world, 1, "release 0"), REFIT_OK);
    }
    assert_true((inode(world, 0, 0) == before[0][0]) == uid); /* sealed memory was replaced, the other reused */
}

static void slots_are_taken_back_under_uid(void **state)
{
    take_back(*state, "uid");
}

static void slots_are_taken_back_under_seal(void **state)
{
    take_back(*state, "seal");
}

static void steps_go_on_while_refitd_is_killed_again_and_again(void **state)
{
    struct bank_world *world = *state;
    unsigned long seen[3];
    start_replica(world, 2, 3, "uid");
    put(world, 1);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    for (uint64_t version = 2; version < 12; version++) {
        put(world, version);
        restart_bank(world, 2, 3, "uid");
        await_answer(world, BANK, "snapshot", "attached=2 adopting=0");
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "halt"), REFIT_OK);
        assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &seen[0], &seen[1], &seen[2]), 3);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1], 0);
        assert_int_equal(seen[2], 0);
    }
}

/* Wherever the kill hits, from the first byte filled to the last line of the state file. */
static void a_kill_anywhere_in_a_refit_tears_nothing(void **state)
{
    struct bank_world *world = *state;
    unsigned long seen[3], attempted = 1, now = 0, taken = 0;
    uint64_t seed = 0;
    const char *given = getenv("REFIT_SEED");
    refit_io_random(&seed, sizeof seed);
    seed = given ? strtoull(given, NULL, 0) : seed;
    print_message("REFIT_SEED=%#llx\n", (unsigned long long)seed);
    srand48((long)seed);
    start_replica(world, 2, 3, "uid");
    put(world, 1);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    for (int round = 0; round < 25; round++) {
        char text[32];
        unsigned long before = now;
        snprintf(text, sizeof text, "put %lu", ++attempted);
        tell_process(world, BANK, text);
        for (long jitter = lrand48() % 8000; jitter > 0; jitter--)
            assert_int_equal(command(world, 1, "hooks"), REFIT_OK);
        restart_bank(world, 2, 3, "uid");
        await_answer(world, BANK, "snapshot", "attached=2 adopting=0");
        assert_int_equal(sscanf(world->answer, "active=%lu", &now), 1);
        assert_true(now == attempted || (now >= 1 && now >= before));
        taken += now == attempted;
    }
    print_message("%lu of 25 refits took place\n", taken);
    put(world, ++attempted);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "halt"), REFIT_OK);
        assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &seen[0], &seen[1], &seen[2]), 3);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1], 0);
        assert_int_equal(seen[2], 0);
    }
    assert_reads(world, 0, attempted);
}

static void filling_and_staged_slots_are_not_taken_for_versions(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 1, 3, "uid");
    put(world, 1);
    assert_int_equal(command(world, BANK, "stage 2"), REFIT_OK);
    assert_int_equal(command(world, BANK, "fill 3"), REFIT_OK);
    restart_bank(world, 1, 3, "uid");
    await_answer(world, BANK, "snapshot", "active=1 attached=1 adopting=0 rollback=0");
    assert_int_equal(command(world, 0, "acquire 1 2"), REFIT_STALE);
    put(world, 4);
    put(world, 5);
    assert_reads(world, 0, 5);
}

/* What the file says after a crash in the middle of a swap to `slot`. */
static void announce_swap(struct bank_world *world, const char *kept, size_t kept_len, int slot)
{
    json_t *document = NULL;
    size_t len = 0;
    assert_int_equal(refit_json_parse(kept, kept_len, "state", &document, NULL), REFIT_OK);
    json_object_set_new(json_object_get(document, "bank"), "swap_to", json_integer(slot));
    char *text = refit_json_canonical(document, &len);
    assert_int_equal(refit_io_replace_file(world->state_path, text, len, 0600, NULL), REFIT_OK);
    free(text);
    json_decref(document);
}

static void crash_around_flip(struct bank_world *world, bool flipped)
{
    struct refit_error error = {0};
    struct refit_bank_config config = {.ranks = 1, .slots = 2, .socket_path = world->socket_path,
                                       .adopt_ms = MODEL_WAIT_MS};
    uint32_t slot;
    char *kept = NULL;
    size_t kept_len = 0;
    assert_int_equal(refit_bank_open(&config, &world->bank, &error), REFIT_OK);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(model_put(world->bank, 1, 1, MODEL_WAIT_MS, &error), REFIT_OK);
    assert_int_equal(model_stage(world->bank, 1, 2, MODEL_WAIT_MS, &slot, &error), REFIT_OK);
    assert_int_equal(refit_io_read_file(world->state_path, 1 << 20, &kept, &kept_len, &error), REFIT_OK);
    if (flipped)
        assert_int_equal(refit_bank_commit(world->bank, slot, "r", "keep", refit_deadline_in_ms(MODEL_WAIT_MS),
                                           &error),
                         REFIT_OK);
    refit_bank_close(world->bank);
    world->bank = NULL;
    announce_swap(world, kept, kept_len, (int)slot);
    free(kept);
    start_bank(world, BANK, 1, 2, "uid", ADOPT);
    await_answer(world, BANK, "snapshot",
                 flipped ? "active=2 attached=1 adopting=0 rollback=1" : "active=1 attached=1 adopting=0 rollback=0");
    assert_reads(world, 0, flipped ? 2 : 1);
    put(world, 3);
    assert_reads(world, 0, 3);
}

static void a_crash_after_the_flip_finds_the_new_version_committed(void **state)
{
    crash_around_flip(*state, true);
}

static void a_crash_before_the_flip_finds_the_old_version_active(void **state)
{
    crash_around_flip(*state, false);
}

static void edit_memory(struct bank_world *world, const char *state)
{
    char *text = NULL;
    size_t len = 0, i;
    json_t *document = NULL, *slot;
    assert_int_equal(refit_io_read_file(world->state_path, 1 << 20, &text, &len, NULL), REFIT_OK);
    assert_int_equal(refit_json_parse(text, len, "state", &document, NULL), REFIT_OK);
    free(text);
    json_array_foreach(json_object_get(json_object_get(document, "bank"), "slots"), i, slot) {
        if (strcmp(json_string_value(json_object_get(slot, "state")), state) == 0)
            json_object_set_new(slot, "memory", json_pack("[[i,i]]", 1, 1));
    }
    text = refit_json_canonical(document, &len);
    assert_int_equal(refit_io_replace_file(world->state_path, text, len, 0600, NULL), REFIT_OK);
    free(text);
    json_decref(document);
}

static void a_slot_that_is_not_taken_back_names_no_version(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 1, 3, "uid");
    put(world, 1);
    put(world, 2);
    assert_int_equal(command(world, 0, "acquire 1 1"), REFIT_OK);
    assert_int_equal(command(world, 0, "release 1"), REFIT_OK);
    kill_process(world, BANK);
    edit_memory(world, "retained");
    start_bank(world, BANK, 1, 3, "uid", ADOPT);
    await_answer(world, BANK, "snapshot", "active=2 attached=1 adopting=0 rollback=0");
    /* The engine's page is the one it had, and its memory is another. */
    assert_int_equal(command(world, 0, "acquire 1 1"), REFIT_STALE);
    assert_reads(world, 0, 2);
    put(world, 3);
    assert_reads(world, 0, 3);
}

static void a_version_is_lost_with_one_of_its_ranks(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 2, 2, "uid");
    put(world, 1);
    kill_process(world, BANK);
    kill_process(world, 1);
    start_bank(world, BANK, 2, 2, "uid", ADOPT);
    attach_rank(world, 1, 1, 2); /* a new process: nobody can hand the old memory back, so nobody is waited for */
    await_answer(world, BANK, "snapshot", "active=0 attached=2 adopting=0");
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_NOT_FOUND);
    put(world, 2);
    assert_reads(world, 0, 2);
}

static void without_engines_it_starts_empty_when_the_time_is_over(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 1, 2, "uid");
    put(world, 1);
    kill_process(world, BANK);
    kill_process(world, 0);
    start_bank(world, BANK, 1, 2, "uid", "50");
    await_answer(world, BANK, "snapshot", "active=0 attached=0 adopting=0");
    attach_rank(world, 0, 0, 1);
    put(world, 2);
    assert_reads(world, 0, 2);
}

/* Until the new refitd has seen the engine. */
static void await_nothing_served(struct bank_world *world)
{
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    while (command(world, 0, "acquire 1 0") == REFIT_OK) {
        assert_false(refit_deadline_passed(deadline));
        assert_int_equal(command(world, 0, "release 1"), REFIT_OK);
    }
}

static void an_engine_that_comes_back_too_late_gets_the_next_version(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 1, 2, "uid");
    put(world, 1);
    assert_int_equal(command(world, 0, "acquire 7 0"), REFIT_OK);
    kill_process(world, BANK);
    unlink(world->state_path); /* its memory of the slots is gone */
    start_bank(world, BANK, 1, 2, "uid", ADOPT);
    await_nothing_served(world);
    assert_int_equal(command(world, 0, "check 7"), REFIT_OK);
    assert_string_equal(world->answer, "0"); /* but what is pinned stays */
    assert_int_equal(command(world, 0, "release 7"), REFIT_OK);
    await_answer(world, BANK, "snapshot", "attached=1");
    put(world, 2);
    assert_reads(world, 0, 2);
}

/* More claim pages than have a place beside the engine; each earlier one is as good as gone. */
static void an_engine_outlives_any_number_of_forgetful_refitds(void **state)
{
    struct bank_world *world = *state;
    start_replica(world, 1, 2, "uid");
    for (uint64_t version = 1; version <= 12; version++) {
        put(world, version);
        assert_reads(world, 0, version);
        kill_process(world, BANK);
        unlink(world->state_path);
        start_bank(world, BANK, 1, 2, "uid", ADOPT);
        await_nothing_served(world);
        await_answer(world, BANK, "snapshot", "attached=1");
    }
    put(world, 13);
    assert_reads(world, 0, 13);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_world_setup, bank_world_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(slots_are_taken_back_under_uid),
        TEST(slots_are_taken_back_under_seal),
        TEST(steps_go_on_while_refitd_is_killed_again_and_again),
        TEST(a_kill_anywhere_in_a_refit_tears_nothing),
        TEST(filling_and_staged_slots_are_not_taken_for_versions),
        TEST(a_crash_after_the_flip_finds_the_new_version_committed),
        TEST(a_crash_before_the_flip_finds_the_old_version_active),
        TEST(a_slot_that_is_not_taken_back_names_no_version),
        TEST(a_version_is_lost_with_one_of_its_ranks),
        TEST(without_engines_it_starts_empty_when_the_time_is_over),
        TEST(an_engine_that_comes_back_too_late_gets_the_next_version),
        TEST(an_engine_outlives_any_number_of_forgetful_refitds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
