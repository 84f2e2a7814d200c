/* SPDX-License-Identifier: Apache-2.0
 *
 * What need not be moved: tensors that a publish names as unchanged, and what had landed when a refit broke off.
 */
#include "world.h"

#include <stdio.h>

#include "layouts/wanted.h"

#define ROWS 16384 /* 16 MiB */
#define W_BYTES (ROWS * UINT64_C(1024))

static struct world world;
static struct holder holders[WORLD_RANKS];
static json_t *names;
static uint8_t *mask;

static int open_world(void **state)
{
    memset(holders, 0, sizeof holders);
    world_init(&world, ROWS);
    world.config.bank.slots = 2;
    world.config.streams = 1;
    names = json_pack("[s]", "w*");
    assert_int_equal(refit_wanted_without(world.destination, names, &mask, NULL), REFIT_OK);
    return 0;
}

static void stop_holders(void)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
}

static int close_world(void **state)
{
    stop_holders();
    free(mask);
    json_decref(names);
    world_close(&world);
    return 0;
}

static struct refit_ticket begin(uint64_t version, uint64_t since, const char *resume)
{
    char id[32];
    static unsigned count;
    snprintf(id, sizeof id, "p-%u", count++);
    world_lead(&world);
    world_put_source(&world);
    struct refit_request request = world_request(&world, version, id);
    request.unchanged_since = since;
    request.unchanged = since ? names : NULL;
    snprintf(request.resume, sizeof request.resume, "%s", resume);
    return world_begin(&world, &request);
}

static void hold(const struct refit_ticket *ticket, uint64_t seed)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&holders[rank], &world, ticket, "tcp", rank, seed);
}

static struct refit_session_snapshot commit(struct refit_ticket *ticket, uint64_t version, uint64_t seed)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_error err;
    world_wait_phase(&world, ticket->id, REFIT_PHASE_STAGED);
    world_digest(&world, seed, digest);
    if (refit_receiver_commit(world.receiver, ticket->id, version, digest, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket->id, REFIT_PHASE_COMMITTED);
    stop_holders();
    ticket_release(ticket);
    world.served_version = version;
    world.served_seed = seed;
    world_assert_served(&world);
    return end;
}

static void publish_first(void)
{
    world_start(&world);
    world_publish(&world, 1, 1, "tcp");
}

/* --- unchanged tensors ------------------------------------------------------------------------------------------ */

static void keep_unchanged(void)
{
    publish_first();
    for (uint64_t version = 2; version < 5; version++) {
        struct refit_ticket ticket = begin(version, version - 1, "");
        assert_true(ticket.unchanged);
        world.mask = mask;
        hold(&ticket, 1);
        struct refit_session_snapshot end = commit(&ticket, version, 1);
        assert_int_equal(end.supplied.kept_bytes, W_BYTES);
        assert_int_equal(end.supplied.origin_bytes, 300 * 4 + 130 * 32 * 2);
        assert_int_equal(end.bytes_done, end.bytes_due);
    }
    struct refit_receiver_snapshot now;
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.supplied.kept_bytes, 3 * W_BYTES);
}

static void unchanged_tensors_are_not_moved(void **state)
{
    keep_unchanged();
}

/* There the versions change slots with each commit, and with a rollback. */
static void unchanged_tensors_are_not_moved_in_mode_copy(void **state)
{
    const struct refit_rollback back = {.version = 3, .open = true};
    struct refit_version now;
    struct refit_error err;
    world.config.bank.swap = REFIT_SWAP_COPY;
    keep_unchanged();
    world_assert_served(&world);
    assert_int_equal(refit_receiver_rollback(world.receiver, &back, refit_deadline_in_ms(WORLD_WAIT_MS), &now, &err), REFIT_OK);
    assert_int_equal(now.version, 3);
    struct refit_ticket ticket = begin(5, 3, "");
    assert_true(ticket.unchanged);
    hold(&ticket, 1);
    assert_int_equal(commit(&ticket, 5, 1).supplied.kept_bytes, W_BYTES);
}

/* What would be copied is what is overwritten. */
static void nothing_is_kept_in_mode_in_place(void **state)
{
    world.config.bank.swap = REFIT_SWAP_IN_PLACE;
    world.config.bank.slots = 1;
    publish_first();
    struct refit_ticket ticket = begin(2, 1, "");
    assert_false(ticket.unchanged);
    hold(&ticket, 2);
    assert_int_equal(commit(&ticket, 2, 2).supplied.kept_bytes, 0);
}

/* What the lead calls unchanged and is not comes out at the commit: the digests differ. */
static void wrong_word_of_the_lead_is_caught(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    publish_first();
    struct refit_ticket ticket = begin(2, 1, "");
    world.mask = mask;
    hold(&ticket, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    world_digest(&world, 2, digest);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, digest, NULL), REFIT_CORRUPT);
    world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    ticket_release(&ticket);
    stop_holders();
    world.mask = NULL;
    world_assert_survives(&world);
}

static void kept_tensor_that_changed_in_memory_is_named(void **state)
{
    struct refit_bank_snapshot bank;
    publish_first();
    refit_bank_read(refit_receiver_bank(world.receiver), &bank);
    struct refit_arena *arena = refit_bank_arenas(refit_receiver_bank(world.receiver), bank.active)[1];
    uint8_t *byte = refit_arena_host(arena, refit_arena_bytes(arena) - 4096, 1); /* w is the last tensor */
    *byte ^= 1;
    struct refit_ticket ticket = begin(2, 1, "");
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    assert_non_null(strstr(end.error.text, "\"w\""));
    *byte ^= 1;
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void nothing_is_kept_of_a_version_that_is_not_served(void **state)
{
    publish_first();
    struct refit_ticket ticket = begin(3, 2, "");
    assert_false(ticket.unchanged);
    hold(&ticket, 3); /* plans with all */
    assert_int_equal(commit(&ticket, 3, 3).supplied.kept_bytes, 0);
}

/* --- a retry ---------------------------------------------------------------------------------------------------- */

static bool is_half_way(const struct refit_session_snapshot *snapshot, void *context)
{
    return snapshot->bytes_done > snapshot->bytes_due / 4 || snapshot->phase == REFIT_PHASE_STAGED;
}

static void break_off(char id[static REFIT_REFIT_ID_MAX], uint64_t version, uint64_t seed)
{
    struct refit_ticket ticket = begin(version, 0, "");
    hold(&ticket, seed);
    world_wait(&world, ticket.id, is_half_way, NULL);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "a test", NULL), REFIT_OK);
    world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    memcpy(id, ticket.id, REFIT_REFIT_ID_MAX);
    ticket_release(&ticket);
    stop_holders();
}

static void retry_moves_only_what_is_missing(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    world.config.rate_bytes_per_s = 24 << 20;
    publish_first();
    break_off(id, 2, 2);
    struct refit_ticket ticket = begin(2, 0, id);
    hold(&ticket, 2);
    struct refit_session_snapshot end = commit(&ticket, 2, 2);
    assert_true(end.supplied.kept_bytes > end.bytes_due / 8);
    assert_int_equal(end.supplied.kept_bytes + end.supplied.origin_bytes, end.bytes_due);
}

static void retry_that_does_not_say_so_moves_all(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    world.config.rate_bytes_per_s = 24 << 20;
    publish_first();
    break_off(id, 2, 2);
    struct refit_ticket ticket = begin(2, 0, "");
    hold(&ticket, 3);
    assert_int_equal(commit(&ticket, 2, 3).supplied.kept_bytes, 0);
}

/* The other attempt's bytes were others: found at the commit, and not kept again. */
static void retry_with_other_contents_is_caught(void **state)
{
    char id[REFIT_REFIT_ID_MAX], digest[REFIT_SHA256_HEX_MAX];
    world.config.rate_bytes_per_s = 24 << 20;
    publish_first();
    break_off(id, 2, 2);
    struct refit_ticket ticket = begin(2, 0, id);
    hold(&ticket, 3);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    world_digest(&world, 3, digest);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, digest, NULL), REFIT_CORRUPT);
    world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    memcpy(id, ticket.id, sizeof id);
    ticket_release(&ticket);
    stop_holders();
    ticket = begin(2, 0, id);
    hold(&ticket, 3);
    assert_int_equal(commit(&ticket, 2, 3).supplied.kept_bytes, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_world, close_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unchanged_tensors_are_not_moved),
        TEST(unchanged_tensors_are_not_moved_in_mode_copy),
        TEST(nothing_is_kept_in_mode_in_place),
        TEST(wrong_word_of_the_lead_is_caught),
        TEST(kept_tensor_that_changed_in_memory_is_named),
        TEST(nothing_is_kept_of_a_version_that_is_not_served),
        TEST(retry_moves_only_what_is_missing),
        TEST(retry_that_does_not_say_so_moves_all),
        TEST(retry_with_other_contents_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
