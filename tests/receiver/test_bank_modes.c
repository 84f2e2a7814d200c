/* SPDX-License-Identifier: Apache-2.0
 *
 * The swap modes that keep an engine's addresses constant: what is read, where, and what becomes of a swap that fails.
 */
#include <signal.h>
#include <sys/wait.h>

#include "tests/receiver/bank_world.h"

#include "tests/receiver/bank_modes.h"

static bool keeps_old(enum refit_swap_mode mode)
{
    return mode != REFIT_SWAP_IN_PLACE;
}

/* --- what every mode promises ------------------------------------------------------------------------------ */

static void addresses_are_constant(struct bank_world *world, enum refit_swap_mode mode)
{
    char first[2][128], found[128];
    start_mode(world, mode, 2, 3);
    put(world, 1);
    for (unsigned rank = 0; rank < 2; rank++)
        where(world, rank, 1, first[rank]);
    for (uint64_t version = 2; version < 7; version++) {
        put(world, version);
        for (unsigned rank = 0; rank < 2; rank++) {
            assert_reads(world, rank, version);
            where(world, rank, version, found);
            assert_string_equal(found, first[rank]);
            assert_no_hook_saw_a_mixture(world, rank);
        }
    }
    await_answer(world, 0, "hooks", "6 6 6"); /* prepared, told, of version 6 */
    if (!keeps_old(mode)) {
        assert_int_equal(command(world, BANK, "rollback 0"), REFIT_NOT_FOUND);
        return;
    }
    for (unsigned rank = 0; rank < 2; rank++)
        assert_int_equal(command(world, rank, "acquire 0 5"), REFIT_STALE); /* only what is served has a place */
    assert_int_equal(command(world, BANK, "rollback 4"), REFIT_OK);
    for (unsigned rank = 0; rank < 2; rank++) {
        assert_reads(world, rank, 4);
        where(world, rank, 4, found);
        assert_string_equal(found, first[rank]);
    }
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_NOT_FOUND); /* back is not forward */
    assert_int_equal(command(world, BANK, "rollback 6"), REFIT_OK);
    assert_reads(world, 0, 6);
    assert_int_equal(command(world, BANK, "rollback 5"), REFIT_OK);
    assert_reads(world, 1, 5);
    put(world, 7);
    assert_reads(world, 0, 7);
}
FOR_EACH_MODE(addresses_are_constant)

static void no_step_reads_two_versions(struct bank_world *world, enum refit_swap_mode mode)
{
    unsigned long seen[3];
    uint64_t version = 0;
    start_mode(world, mode, 2, 2);
    put(world, ++version);
    for (uint32_t rank = 2; rank-- > 0;)
        assert_int_equal(command(world, rank, "run"), REFIT_OK);
    struct refit_deadline end = refit_deadline_in_ms(1500);
    do {
        put(world, ++version);
        if (keeps_old(mode) && version % 3 == 0)
            assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK);
    } while (!refit_deadline_passed(end));
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "halt"), REFIT_OK);
        assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &seen[0], &seen[1], &seen[2]), 3);
        print_message("rank %u: %llu versions, %lu steps\n", rank, (unsigned long long)version, seen[0]);
        assert_true(seen[0] > 0);
        assert_int_equal(seen[1], 0);
        assert_int_equal(seen[2], 0);
    }
}
FOR_EACH_MODE(no_step_reads_two_versions)

static void a_pin_held_in_the_pause_is_named_and_nothing_changes(struct bank_world *world, enum refit_swap_mode mode)
{
    start_mode(world, mode, 2, 2);
    put(world, 1);
    assert_int_equal(command(world, 1, "acquire 3 1"), REFIT_OK); /* a follower's, the leader is done with it */
    assert_int_equal(command(world, BANK, "put-within 2 2000"), REFIT_TIMEOUT);
    assert_non_null(strstr(world->answer, "slot-pinned"));
    assert_non_null(strstr(world->answer, "rank 1"));
    assert_non_null(strstr(world->answer, "version 1"));
    assert_int_equal(command(world, 1, "check 3"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
    assert_int_equal(command(world, 1, "release 3"), REFIT_OK);
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
}
FOR_EACH_MODE(a_pin_held_in_the_pause_is_named_and_nothing_changes)

static void acquire_is_busy_until_the_last_pin_is_gone(struct bank_world *world, enum refit_swap_mode mode)
{
    start_mode(world, mode, 1, 2);
    put(world, 1);
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    tell_process(world, BANK, "put 2");
    await_acquire(world, REFIT_BUSY);
    assert_int_equal(command(world, 0, "check 3"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 0, "release 3"), REFIT_OK);
    assert_int_equal(hear_process(world, BANK), REFIT_OK);
    assert_reads(world, 0, 2);
}
FOR_EACH_MODE(acquire_is_busy_until_the_last_pin_is_gone)

static void a_rank_that_refuses_keeps_the_old_version(struct bank_world *world, enum refit_swap_mode mode)
{
    start_mode(world, mode, 2, 2);
    put(world, 1);
    assert_int_equal(command(world, 1, "refuse-swap 1"), REFIT_OK);
    assert_int_equal(command(world, BANK, "put 2"), REFIT_CONFLICT);
    assert_non_null(strstr(world->answer, "rank 1"));
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
    assert_int_equal(command(world, 1, "refuse-swap 0"), REFIT_OK);
    put(world, 2);
    assert_reads(world, 1, 2);
}
FOR_EACH_MODE(a_rank_that_refuses_keeps_the_old_version)

static void an_engine_that_dies_in_the_pause_holds_nothing_up(struct bank_world *world, enum refit_swap_mode mode)
{
    start_mode(world, mode, 2, 2);
    put(world, 1);
    assert_int_equal(command(world, 1, "acquire 3 1"), REFIT_OK);
    assert_int_equal(command(world, 1, "hold-swap 1"), REFIT_OK);
    tell_process(world, BANK, "put 2");
    await_answer(world, 1, "in-swap", "2.");
    kill_process(world, 1);
    assert_int_equal(hear_process(world, BANK), REFIT_OK);
    assert_reads(world, 0, 2);
    attach_rank(world, 1, 1, 2);
    assert_reads(world, 1, 2);
    put(world, 3);
    assert_reads(world, 0, 3);
    assert_reads(world, 1, 3);
}
FOR_EACH_MODE(an_engine_that_dies_in_the_pause_holds_nothing_up)

static void a_new_process_gets_what_is_served(struct bank_world *world, enum refit_swap_mode mode)
{
    start_mode(world, mode, 2, 3);
    put(world, 1);
    put(world, 2);
    for (unsigned rank = 0; rank < 2; rank++) {
        kill_process(world, rank);
        attach_rank(world, rank, rank, 2);
    }
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
    if (keeps_old(mode)) {
        assert_int_equal(command(world, BANK, "rollback 1"), REFIT_OK); /* its hook sees it now at the latest */
        assert_reads(world, 0, 1);
        assert_reads(world, 1, 1);
    }
    put(world, 3);
    assert_reads(world, 0, 3);
    assert_no_hook_saw_a_mixture(world, 0);
}
FOR_EACH_MODE(a_new_process_gets_what_is_served)

/* --- copy -------------------------------------------------------------------------------------------------- */

static void start_large_copy(struct bank_world *world)
{
    world->rank_bytes = LARGE;
    start_mode(world, REFIT_SWAP_COPY, 2, 2);
    put(world, 1);
}

static void an_exchange_that_fails_is_undone(void **state)
{
    struct bank_world *world = *state;
    start_large_copy(world);
    for (int chunk = 1; chunk < 10; chunk += 2) { /* of about ten on both ranks */
        assert_int_equal(command(world, BANK, "chunk %d 1 0", part(chunk)), REFIT_OK);
        assert_int_equal(command(world, BANK, "put 2"), REFIT_SYSTEM);
        assert_non_null(strstr(world->answer, "a chunk that fails"));
        assert_reads(world, 0, 1);
        assert_reads(world, 1, 1);
    }
    put(world, 2);
    assert_reads(world, 1, 2);
    assert_int_equal(command(world, BANK, "chunk %d 1 0", part(3)), REFIT_OK);
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_SYSTEM);
    assert_reads(world, 1, 2);
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK);
    assert_reads(world, 0, 1);
}

static void what_cannot_be_undone_is_never_served(void **state)
{
    struct bank_world *world = *state;
    start_large_copy(world);
    assert_int_equal(command(world, BANK, "chunk %d 1000 0", part(6)), REFIT_OK);
    assert_int_equal(command(world, BANK, "put 2"), REFIT_SYSTEM);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    for (int version = 1; version < 3; version++)
        assert_int_equal(command(world, 1, "acquire 0 %d", version), REFIT_STALE);
    await_answer(world, BANK, "snapshot", "active=0 attached=2 adopting=0 rollback=0 writable=0 label=- torn=1");
}

static void a_torn_replica_is_filled_by_the_next_refit(void **state)
{
    struct bank_world *world = *state;
    char before[128], after[128];
    start_large_copy(world);
    where(world, 0, 1, before);
    assert_int_equal(command(world, BANK, "chunk %d 1000 0", part(6)), REFIT_OK);
    assert_int_equal(command(world, BANK, "put 2"), REFIT_SYSTEM);
    kill_process(world, 1);
    attach_rank(world, 1, 1, 2);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    assert_int_equal(command(world, BANK, "chunk 0 0 0"), REFIT_OK);
    put(world, 3);
    assert_reads(world, 0, 3);
    assert_reads(world, 1, 3);
    where(world, 0, 3, after);
    assert_string_equal(before, after);
    await_answer(world, BANK, "snapshot", "torn=0");
    put(world, 4);
    assert_int_equal(command(world, BANK, "rollback 0"), REFIT_OK);
    assert_reads(world, 1, 3);
}

/* Version 1 lies in a third slot, whole. */
static void a_torn_replica_can_go_back_to_what_is_whole(void **state)
{
    struct bank_world *world = *state;
    world->rank_bytes = LARGE;
    start_mode(world, REFIT_SWAP_COPY, 2, 3);
    put(world, 1);
    put(world, 2);
    assert_int_equal(command(world, BANK, "chunk %d 1000 0", part(6)), REFIT_OK);
    assert_int_equal(command(world, BANK, "put 3"), REFIT_SYSTEM);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    assert_int_equal(command(world, BANK, "chunk 0 0 0"), REFIT_OK);
    assert_int_equal(command(world, BANK, "rollback 1"), REFIT_OK);
    assert_reads(world, 0, 1);
    assert_reads(world, 1, 1);
    put(world, 4);
    assert_reads(world, 0, 4);
}

/* Stopped in the middle of it, so that there is time to look. */
static void nothing_is_read_while_bytes_move(void **state)
{
    struct bank_world *world = *state;
    int wstatus;
    start_large_copy(world);
    assert_int_equal(command(world, BANK, "chunk %d 0 %d", part(5), SIGSTOP), REFIT_OK);
    tell_process(world, BANK, "put 2");
    assert_int_equal(waitpid(world->process[BANK].pid, &wstatus, WUNTRACED), world->process[BANK].pid);
    assert_true(WIFSTOPPED(wstatus));
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_BUSY);
    for (int version = 1; version < 3; version++) {
        assert_int_equal(command(world, 0, "acquire 0 %d", version), REFIT_STALE);
        assert_int_equal(command(world, 1, "acquire 0 %d", version), REFIT_STALE);
    }
    assert_int_equal(kill(world->process[BANK].pid, SIGCONT), 0);
    assert_int_equal(hear_process(world, BANK), REFIT_OK);
    assert_reads(world, 0, 2);
}

static void retained_versions_have_no_place_of_their_own(void **state)
{
    struct bank_world *world = *state;
    world->swap = REFIT_SWAP_COPY;
    bank_open(world, 1, 3, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    for (uint64_t version = 1; version < 5; version++)
        assert_int_equal(model_put(world->bank, 1, version, MODEL_WAIT_MS, NULL), REFIT_OK);
    struct refit_bank_snapshot now = bank_now(world);
    assert_int_equal(now.active, 0);
    assert_int_equal(now.slot[0].version.version, 4);
    assert_int_equal(now.rollback_version, 3);
    assert_true(now.slot[1].version.version + now.slot[2].version.version == 5); /* 2 and 3 */
}

/* Replicas that fetch a version from here are asked to end before its bytes move. */
static void give_up(void *context, uint32_t slot)
{
    struct bank_world *world = context;
    refit_bank_unpin(world->bank, slot);
    refit_bank_set_evict(world->bank, NULL, NULL);
}

static void who_reads_the_slot_for_others_is_evicted(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    uint32_t slot;
    world->swap = REFIT_SWAP_COPY;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(model_put(world->bank, 1, 1, MODEL_WAIT_MS, &error), REFIT_OK);
    assert_int_equal(refit_bank_pin(world->bank, 1, &slot, &error), REFIT_OK);
    assert_int_equal(model_put(world->bank, 1, 2, 200, &error), REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "replicas that are served"));
    assert_reads(world, 0, 1);
    refit_bank_set_evict(world->bank, give_up, world);
    assert_int_equal(model_put(world->bank, 1, 2, MODEL_WAIT_MS, &error), REFIT_OK);
    assert_reads(world, 0, 2);
    assert_int_equal(refit_bank_pin(world->bank, 1, &slot, &error), REFIT_OK); /* where it went */
    assert_int_equal(slot, 1);
    refit_bank_unpin(world->bank, slot);
}

/* --- remap ------------------------------------------------------------------------------------------------- */

static void a_rank_that_cannot_map_keeps_the_old_version_on_all(void **state)
{
    struct bank_world *world = *state;
    char before[128], after[128];
    start_mode(world, REFIT_SWAP_REMAP, 2, 2);
    put(world, 1);
    where(world, 0, 1, before);
    for (unsigned rank = 0; rank < 2; rank++) {
        assert_int_equal(command(world, rank, "map-fails 1"), REFIT_OK);
        assert_int_equal(command(world, BANK, "put 2"), REFIT_CONFLICT);
        assert_non_null(strstr(world->answer, "could not map"));
        assert_reads(world, 0, 1);
        assert_reads(world, 1, 1);
    }
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
    where(world, 0, 2, after);
    assert_string_equal(before, after);
}

static void a_rank_with_an_empty_window_comes_back(void **state)
{
    struct bank_world *world = *state;
    start_mode(world, REFIT_SWAP_REMAP, 2, 2);
    put(world, 1);
    assert_int_equal(command(world, 1, "map-fails 3"), REFIT_OK); /* the new slot, the old one, and once more */
    assert_int_equal(command(world, BANK, "put 2"), REFIT_CONFLICT);
    await_answer(world, BANK, "snapshot", "active=1 attached=2");
    await_answer(world, 1, "acquire 0 1", "1");
    assert_int_equal(command(world, 1, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 1, "release 0"), REFIT_OK);
    await_acquire(world, REFIT_OK);
    assert_reads(world, 0, 1);
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
}

/* --- in place ---------------------------------------------------------------------------------------------- */

static void a_refit_in_place_that_fails_leaves_nothing(void **state)
{
    struct bank_world *world = *state;
    char before[128], after[128];
    start_mode(world, REFIT_SWAP_IN_PLACE, 2, 1);
    put(world, 1);
    where(world, 0, 1, before);
    assert_int_equal(command(world, BANK, "fill 2"), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_BUSY);
    assert_int_equal(command(world, 1, "acquire 0 1"), REFIT_STALE);
    assert_int_equal(command(world, BANK, "drop 0"), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    await_answer(world, BANK, "snapshot", "active=0 attached=2 adopting=0 rollback=0 writable=0 label=- torn=1");
    assert_int_equal(command(world, 1, "refuse-prepare not this one"), REFIT_OK);
    assert_int_equal(command(world, BANK, "put 2"), REFIT_CONFLICT);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_CORRUPT);
    assert_int_equal(command(world, 1, "refuse-prepare"), REFIT_OK);
    put(world, 2);
    assert_reads(world, 0, 2);
    assert_reads(world, 1, 2);
    where(world, 0, 2, after);
    assert_string_equal(before, after);
}

/* Without a record of it a restart would take a mixture for a version: then not a byte moves. */
static void what_cannot_be_announced_is_not_begun(struct bank_world *world, enum refit_swap_mode mode)
{
    char away[80], before[128], after[128];
    snprintf(away, sizeof away, "%s.away", world->dir);
    world->swap = mode;
    bank_open(world, 1, mode == REFIT_SWAP_IN_PLACE ? 1 : 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(model_put(world->bank, 1, 1, MODEL_WAIT_MS, NULL), REFIT_OK);
    where(world, 0, 1, before);
    assert_int_equal(rename(world->dir, away), 0);
    enum refit_status status = model_put(world->bank, 1, 2, MODEL_WAIT_MS, NULL);
    assert_int_equal(rename(away, world->dir), 0);
    assert_int_equal(status, REFIT_SYSTEM);
    await_acquire(world, REFIT_OK);
    assert_reads(world, 0, 1);
    assert_int_equal(model_put(world->bank, 1, 2, MODEL_WAIT_MS, NULL), REFIT_OK);
    assert_reads(world, 0, 2);
    where(world, 0, 2, after);
    assert_string_equal(before, after);
}

static void an_exchange_that_cannot_be_announced_is_not_begun(void **state)
{
    what_cannot_be_announced_is_not_begun(*state, REFIT_SWAP_COPY);
}

static void a_refit_in_place_that_cannot_be_announced_is_not_begun(void **state)
{
    what_cannot_be_announced_is_not_begun(*state, REFIT_SWAP_IN_PLACE);
}

/* --- what does not fit ------------------------------------------------------------------------------------- */

static void an_engine_that_needs_its_addresses_says_so(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    start_rank(world, 0, 0, 1, "w", 0);
    assert_int_equal(command(world, 0, "stable"), REFIT_OK);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    assert_non_null(strstr(world->answer, "--swap copy"));
    refit_bank_close(world->bank);
    world->bank = NULL;
    world->swap = REFIT_SWAP_COPY;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_OK);
}

static void staging_in_host_memory_needs_an_exchange(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    struct refit_bank *bank = NULL;
    struct refit_bank_config config = {.ranks = 1, .slots = 2, .swap = REFIT_SWAP_REMAP, .memory = REFIT_ARENA_CUDA,
                                       .host_staging = true, .socket_path = world->socket_path};
    assert_int_equal(refit_bank_open(&config, &bank, &error), REFIT_INVALID);
    assert_non_null(strstr(error.text, "swap mode copy"));
    config.swap = REFIT_SWAP_COPY;
    config.memory = REFIT_ARENA_HOST;
    assert_int_equal(refit_bank_open(&config, &bank, &error), REFIT_INVALID);
}

static void modes_take_as_many_slots_as_they_need(void **state)
{
    static const struct {
        enum refit_swap_mode swap;
        uint32_t slots;
        enum refit_protection protection;
        const char *expected;
    } wrong[] = {
        {REFIT_SWAP_POINTER, 1, REFIT_PROTECT_UID, "takes 2 to 16"},
        {REFIT_SWAP_COPY, 1, REFIT_PROTECT_UID, "takes 2 to 16"},
        {REFIT_SWAP_REMAP, 17, REFIT_PROTECT_UID, "takes 2 to 16"},
        {REFIT_SWAP_IN_PLACE, 2, REFIT_PROTECT_UID, "takes 1 to 1"},
        {REFIT_SWAP_COPY, 2, REFIT_PROTECT_SEAL, "protection seal"},
        {REFIT_SWAP_IN_PLACE, 1, REFIT_PROTECT_SEAL, "protection seal"},
    };
    struct bank_world *world = *state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct refit_error error = {0};
        struct refit_bank *bank = NULL;
        struct refit_bank_config config = {.ranks = 1, .slots = wrong[i].slots, .swap = wrong[i].swap,
                                           .protection = wrong[i].protection, .socket_path = world->socket_path};
        assert_int_equal(refit_bank_open(&config, &bank, &error), REFIT_INVALID);
        assert_non_null(strstr(error.text, wrong[i].expected));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_EACH_MODE(addresses_are_constant),
        TEST_EACH_MODE(no_step_reads_two_versions),
        TEST_EACH_MODE(a_pin_held_in_the_pause_is_named_and_nothing_changes),
        TEST_EACH_MODE(acquire_is_busy_until_the_last_pin_is_gone),
        TEST_EACH_MODE(a_rank_that_refuses_keeps_the_old_version),
        TEST_EACH_MODE(an_engine_that_dies_in_the_pause_holds_nothing_up),
        TEST_EACH_MODE(a_new_process_gets_what_is_served),
        TEST(an_exchange_that_fails_is_undone),
        TEST(what_cannot_be_undone_is_never_served),
        TEST(a_torn_replica_is_filled_by_the_next_refit),
        TEST(a_torn_replica_can_go_back_to_what_is_whole),
        TEST(nothing_is_read_while_bytes_move),
        TEST(retained_versions_have_no_place_of_their_own),
        TEST(who_reads_the_slot_for_others_is_evicted),
        TEST(a_rank_that_cannot_map_keeps_the_old_version_on_all),
        TEST(a_rank_with_an_empty_window_comes_back),
        TEST(a_refit_in_place_that_fails_leaves_nothing),
        TEST(an_exchange_that_cannot_be_announced_is_not_begun),
        TEST(a_refit_in_place_that_cannot_be_announced_is_not_begun),
        TEST(an_engine_that_needs_its_addresses_says_so),
        TEST(staging_in_host_memory_needs_an_exchange),
        TEST(modes_take_as_many_slots_as_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
