/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/receiver/bank_world.h"

#include "tests/receiver/bank_model.h"

static bool attached_is(const struct refit_bank_snapshot *now, uint64_t value)
{
    return now->attached == value;
}

static bool died_is(const struct refit_bank_snapshot *now, uint64_t value)
{
    return now->readers_died == value;
}

static enum refit_status put(struct bank_world *world, uint32_t ranks, uint64_t version)
{
    struct refit_error error = {0};
    enum refit_status status = model_put(world->bank, ranks, version, MODEL_WAIT_MS, &error);
    snprintf(world->answer, sizeof world->answer, "%s", error.text);
    return status;
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

static void serves_what_was_committed_and_nothing_before(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_NOT_FOUND);
    assert_int_equal(command(world, 0, "wait 0"), REFIT_TIMEOUT);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(command(world, 0, "wait %d", MODEL_WAIT_MS), REFIT_OK);
    assert_reads(world, 0, 1);
    uint32_t slot;
    assert_int_equal(model_stage(world->bank, 1, 2, MODEL_WAIT_MS, &slot, NULL), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 0 2"), REFIT_STALE);
    assert_reads(world, 0, 1);
    assert_int_equal(refit_bank_commit(world->bank, slot, "r", "keep", refit_deadline_in_ms(MODEL_WAIT_MS), NULL),
                     REFIT_OK);
    assert_reads(world, 0, 2);
    await_answer(world, 0, "hooks", "2 2 2"); /* prepared twice, told twice, of version 2 */
    assert_int_equal(bank_now(world).swaps, 2);
}

static void a_rank_that_attaches_late_gets_what_is_served(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 3, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    kill_process(world, 0);
    bank_await(world, died_is, 1);
    assert_int_equal(put(world, 1, 3), REFIT_OK); /* nobody is attached: recorded, and given on attach */
    attach_rank(world, 1, 0, 1);
    assert_reads(world, 1, 3);
    assert_int_equal(command(world, 1, "hooks"), REFIT_OK);
    assert_string_equal(world->answer, "3 0 0"); /* its hook saw the active and the retained versions */
    struct refit_version now;
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", refit_deadline_in_ms(MODEL_WAIT_MS), &now, NULL),
                     REFIT_OK);
    assert_reads(world, 1, 2);
}

static void a_rank_that_attaches_while_staged_prepares_before_the_commit(void **state)
{
    struct bank_world *world = *state;
    uint32_t slot;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(model_stage(world->bank, 1, 5, MODEL_WAIT_MS, &slot, NULL), REFIT_OK);
    kill_process(world, 0);
    bank_await(world, died_is, 1);
    attach_rank(world, 1, 0, 1);
    assert_int_equal(refit_bank_commit(world->bank, slot, "r", "flush", refit_deadline_in_ms(MODEL_WAIT_MS), NULL),
                     REFIT_OK);
    assert_reads(world, 1, 5);
    assert_int_equal(command(world, 1, "hooks"), REFIT_OK);
    assert_true(strncmp(world->answer, "1 ", 2) == 0);
}

static void a_prepare_hook_that_refuses_keeps_the_old_version(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 2, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 2);
    attach_rank(world, 1, 1, 2);
    assert_int_equal(put(world, 2, 1), REFIT_OK);
    assert_int_equal(command(world, 1, "refuse-prepare kv heads do not fit"), REFIT_OK);
    assert_int_equal(put(world, 2, 2), REFIT_CONFLICT);
    assert_non_null(strstr(world->answer, "rank 1"));
    assert_non_null(strstr(world->answer, "kv heads do not fit"));
    assert_reads(world, 0, 1);
    assert_int_equal(command(world, 1, "refuse-prepare"), REFIT_OK);
    assert_int_equal(put(world, 2, 2), REFIT_OK);
    assert_reads(world, 0, 2);
}

static void a_swap_hook_that_refuses_leaves_the_slot_staged(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error;
    uint32_t slot;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(model_stage(world->bank, 1, 2, MODEL_WAIT_MS, &slot, &error), REFIT_OK);
    command(world, 0, "refuse-swap 1");
    assert_int_equal(refit_bank_commit(world->bank, slot, "r", "flush", refit_deadline_in_ms(MODEL_WAIT_MS), &error),
                     REFIT_CONFLICT);
    assert_int_equal(bank_now(world).slot[slot].state, REFIT_SLOT_STAGED);
    assert_reads(world, 0, 1);
    command(world, 0, "refuse-swap 0");
    assert_int_equal(refit_bank_commit(world->bank, slot, "r", "flush", refit_deadline_in_ms(MODEL_WAIT_MS), &error),
                     REFIT_OK);
    assert_reads(world, 0, 2);
}

static void request_pins_stay_on_their_version_with_three_slots(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 3, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 7), REFIT_OK);
    command(world, 0, "acquire 3 0");
    assert_int_equal(put(world, 1, 8), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 4 7"), REFIT_OK); /* the next token of that sequence */
    assert_reads(world, 0, 8);
    assert_int_equal(put(world, 1, 9), REFIT_OK);
    command(world, 0, "check 3");
    assert_string_equal(world->answer, "0");
    command(world, 0, "check 4");
    assert_string_equal(world->answer, "0");
    assert_reads(world, 0, 9);
    command(world, 0, "release 3");
    command(world, 0, "release 4");
    assert_int_equal(put(world, 1, 10), REFIT_OK); /* takes the slot of 7 */
    assert_int_equal(command(world, 0, "acquire 1 7"), REFIT_STALE);
    assert_int_equal(command(world, 0, "acquire 1 8"), REFIT_OK);
    command(world, 0, "release 1");
}

static void count_wait(void *context, const struct refit_bank_waiting *who)
{
    struct refit_bank_waiting *last = context;
    *last = *who;
}

static void a_pinned_slot_times_out_by_name_and_stays_the_rollback(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    struct refit_bank_waiting who = {0};
    uint32_t slot;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    command(world, 0, "acquire 2 0");
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    assert_int_equal(refit_bank_begin(world->bank, refit_deadline_in_ms(50), NULL, count_wait, &who, &slot, &error),
                     REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "slot-pinned"));
    assert_non_null(strstr(error.text, "a test's rank"));
    assert_non_null(strstr(error.text, "version 1"));
    assert_true(who.version == 1 && who.pins == 1 && strcmp(who.label, "a test's rank") == 0);
    assert_int_equal(bank_now(world).rollback_version, 1);
    atomic_bool cancel = true;
    assert_int_equal(refit_bank_begin(world->bank, refit_deadline_in_ms(MODEL_WAIT_MS), &cancel, NULL, NULL, &slot,
                                      &error),
                     REFIT_ABORTED);
    command(world, 0, "check 2");
    assert_string_equal(world->answer, "0");
    command(world, 0, "release 2");
    assert_int_equal(put(world, 1, 3), REFIT_OK);
}

/* The leader is long done with that version: a request goes on at the follower alone. */
static void a_followers_pin_alone_keeps_the_slot(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    bank_open(world, 2, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 2);
    attach_rank(world, 1, 1, 2);
    assert_int_equal(put(world, 2, 1), REFIT_OK);
    assert_int_equal(command(world, 1, "wait %d", MODEL_WAIT_MS), REFIT_OK); /* followers are flipped, too */
    assert_int_equal(command(world, 1, "acquire 0 1"), REFIT_OK);
    assert_int_equal(put(world, 2, 2), REFIT_OK);
    assert_int_equal(model_put(world->bank, 2, 3, 300, &error), REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "rank 1"));
    assert_int_equal(command(world, 1, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 1, "release 0"), REFIT_OK);
    assert_int_equal(put(world, 2, 3), REFIT_OK);
    assert_reads(world, 0, 3);
}

static void rollback_needs_no_transfer_and_says_when_it_cannot(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    struct refit_version now;
    uint32_t slot;
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", deadline, &now, &error), REFIT_NOT_FOUND);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_false(bank_now(world).rollback_available);
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    assert_int_equal(refit_bank_rollback(world->bank, 9, "flush", deadline, &now, &error), REFIT_NOT_FOUND);
    assert_non_null(strstr(error.text, "retained: 1"));
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", deadline, &now, &error), REFIT_OK);
    assert_int_equal(now.version, 1);
    assert_reads(world, 0, 1);
    assert_false(bank_now(world).rollback_available); /* 2 is retained, and was gone back from */
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", deadline, &now, &error), REFIT_NOT_FOUND);
    assert_non_null(strstr(error.text, "only 2"));
    assert_reads(world, 0, 1);
    assert_int_equal(refit_bank_rollback(world->bank, 2, "flush", deadline, &now, &error), REFIT_OK);
    assert_reads(world, 0, 2);
    assert_int_equal(refit_bank_begin(world->bank, deadline, NULL, NULL, NULL, &slot, &error), REFIT_OK);
    assert_false(bank_now(world).rollback_available);
    assert_int_equal(refit_bank_rollback(world->bank, 0, "flush", deadline, &now, &error), REFIT_NOT_FOUND);
    refit_bank_discard(world->bank, slot);
    assert_int_equal(bank_now(world).rollbacks, 2);
}

static void a_dead_readers_pins_are_dropped(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    command(world, 0, "acquire 0 0");
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    kill_process(world, 0);
    assert_int_equal(put(world, 1, 3), REFIT_OK);
    assert_int_equal(bank_now(world).readers_died, 1);
}

static void a_forked_child_that_keeps_the_socket_does_not_keep_the_pins(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    command(world, 0, "acquire 0 0");
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    assert_int_equal(command(world, 0, "fork"), REFIT_OK);
    world->stray = atoi(world->answer);
    kill_process(world, 0);
    bank_await(world, died_is, 1);
    assert_int_equal(put(world, 1, 3), REFIT_OK);
    assert_int_equal(kill(world->stray, 0), 0);
    attach_rank(world, 1, 0, 1);
    assert_reads(world, 1, 3);
}

static void a_detached_rank_can_attach_again(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(command(world, 0, "detach"), REFIT_OK);
    bank_await(world, attached_is, 0);
    assert_int_equal(bank_now(world).readers_died, 0);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_OK);
    assert_reads(world, 0, 1);
}

static void a_second_process_of_a_rank_waits_for_the_first(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    start_rank(world, 1, 0, 1, "w", 0);
    assert_int_equal(command(world, 1, "attach 100"), REFIT_TIMEOUT);
    assert_non_null(strstr(world->answer, "attached already"));
    kill_process(world, 0);
    assert_int_equal(command(world, 1, "attach %d", MODEL_WAIT_MS), REFIT_OK);
}

static void ranks_with_different_layouts_are_refused(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 2, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 2);
    start_rank(world, 1, 1, 2, "another", 0);
    assert_int_equal(command(world, 1, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    assert_non_null(strstr(world->answer, "layout"));
    start_rank(world, 1, 2, 3, "w", 0);
    assert_int_equal(command(world, 1, "attach %d", MODEL_WAIT_MS), REFIT_MISMATCH);
    attach_rank(world, 1, 1, 2);
    assert_int_equal(bank_now(world).attached, 2);
}

/* Fills a stopped process's socket until it is cut off. */
static void cut_off(struct bank_world *world)
{
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    uint64_t version = 1000;
    while (bank_now(world).attached > 0) {
        uint32_t slot;
        assert_false(refit_deadline_passed(deadline));
        if (model_stage(world->bank, 1, version++, 1, &slot, NULL) == REFIT_OK)
            refit_bank_discard(world->bank, slot);
    }
}

static void a_stopped_process_that_was_cut_off_keeps_its_pins_and_catches_up(void **state)
{
    struct bank_world *world = *state;
    struct refit_error error = {0};
    bank_open(world, 1, 3, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 3 0"), REFIT_OK);
    assert_int_equal(kill(world->process[0].pid, SIGSTOP), 0);
    cut_off(world);
    assert_int_equal(put(world, 1, 2), REFIT_OK); /* nobody to ask */
    assert_int_equal(put(world, 1, 3), REFIT_OK);
    assert_int_equal(model_put(world->bank, 1, 4, 50, &error), REFIT_TIMEOUT); /* it lives: its page counts */
    assert_non_null(strstr(error.text, "version 1"));
    assert_int_equal(kill(world->process[0].pid, SIGCONT), 0);
    bank_await(world, attached_is, 1);
    await_answer(world, 0, "hooks", " 3"); /* told that version 3 is served */
    assert_reads(world, 0, 3);
    assert_int_equal(command(world, 0, "check 3"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 0, "release 3"), REFIT_OK);
    assert_int_equal(put(world, 1, 4), REFIT_OK);
    assert_reads(world, 0, 4);
    assert_int_equal(bank_now(world).readers_died, 0);
}

static void a_state_file_that_cannot_be_written_stops_no_refit(void **state)
{
    struct bank_world *world = *state;
    char away[80];
    snprintf(away, sizeof away, "%s.away", world->dir);
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(put(world, 1, 1), REFIT_OK);
    assert_int_equal(rename(world->dir, away), 0);
    assert_int_equal(put(world, 1, 2), REFIT_OK);
    assert_reads(world, 0, 2);
    assert_int_equal(rename(away, world->dir), 0);
}

static void only_the_leader_acquires_latest(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 2, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 2);
    attach_rank(world, 1, 1, 2);
    assert_int_equal(put(world, 2, 1), REFIT_OK);
    assert_int_equal(command(world, 1, "acquire 0 0"), REFIT_INVALID);
    assert_int_equal(command(world, 1, "acquire 0 1"), REFIT_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_world_setup, bank_world_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(serves_what_was_committed_and_nothing_before),
        TEST(a_rank_that_attaches_late_gets_what_is_served),
        TEST(a_rank_that_attaches_while_staged_prepares_before_the_commit),
        TEST(a_prepare_hook_that_refuses_keeps_the_old_version),
        TEST(a_swap_hook_that_refuses_leaves_the_slot_staged),
        TEST(request_pins_stay_on_their_version_with_three_slots),
        TEST(a_pinned_slot_times_out_by_name_and_stays_the_rollback),
        TEST(a_followers_pin_alone_keeps_the_slot),
        TEST(rollback_needs_no_transfer_and_says_when_it_cannot),
        TEST(a_dead_readers_pins_are_dropped),
        TEST(a_forked_child_that_keeps_the_socket_does_not_keep_the_pins),
        TEST(a_detached_rank_can_attach_again),
        TEST(a_second_process_of_a_rank_waits_for_the_first),
        TEST(ranks_with_different_layouts_are_refused),
        TEST(only_the_leader_acquires_latest),
        TEST(a_stopped_process_that_was_cut_off_keeps_its_pins_and_catches_up),
        TEST(a_state_file_that_cannot_be_written_stops_no_refit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
