/* SPDX-License-Identifier: Apache-2.0
 *
 * Refits that end early: by word, by deadline, by a newer one, by holders that die, by layouts that do not fit. Each
 * time the old version stays, byte for byte, and the next refit succeeds.
 */
#include "world.h"

#include <stdio.h>

#define BIG_ROWS 24576 /* 24 MiB: six batches over four edges, so that a transfer can be met half way */

static struct world world;
static struct holder holders[WORLD_RANKS];

static int open_world(unsigned rows)
{
    world_init(&world, rows);
    memset(holders, 0, sizeof holders);
    return 0;
}

static int set_up(void **state)
{
    open_world(64);
    world_start(&world);
    world_publish(&world, 1, 1, "tcp");
    return 0;
}

static int tear_down(void **state)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    world_close(&world);
    return 0;
}

static struct refit_request ready_request(uint64_t version, const char *publish_id)
{
    world_lead(&world);
    world_put_source(&world);
    return world_request(&world, version, publish_id);
}

static struct refit_ticket begin(uint64_t version, int64_t deadline_ms)
{
    struct refit_request request = ready_request(version, "p");
    request.deadline_ms = deadline_ms;
    return world_begin(&world, &request);
}

static void hold(const struct refit_ticket *ticket, uint32_t rank, uint64_t seed)
{
    holder_start(&holders[rank], &world, ticket, "tcp", rank, seed);
}

static void stop_holders(void)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
}

static void abort_refit(const struct refit_ticket *ticket)
{
    struct refit_error err;
    if (refit_receiver_abort(world.receiver, ticket->id, "a test", &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void ends(struct refit_ticket *ticket, enum refit_status status, enum refit_phase phase, const char *because)
{
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket->id, status);
    assert_int_equal(end.failed_in, phase);
    if (!strstr(end.error.text, because))
        fail_msg("expected '%s' in: %s", because, end.error.text);
    ticket_release(ticket);
    stop_holders();
    world_assert_survives(&world);
}

/* --- abort ------------------------------------------------------------------------------------------------------ */

static void abort_at_once(void **state)
{
    struct refit_ticket ticket = begin(2, 0);
    abort_refit(&ticket);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    assert_non_null(strstr(end.error.text, "a test"));
    abort_refit(&ticket); /* may be repeated */
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void abort_in_transfer(void **state)
{
    struct refit_ticket ticket = begin(2, 0);
    hold(&ticket, 0, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_TRANSFER);
    abort_refit(&ticket);
    ends(&ticket, REFIT_ABORTED, REFIT_PHASE_TRANSFER, "a test");
}

static void abort_when_staged(void **state)
{
    struct refit_ticket ticket = begin(2, 0);
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    abort_refit(&ticket);
    ends(&ticket, REFIT_ABORTED, REFIT_PHASE_STAGED, "a test");
}

static void abort_after_commit_is_refused(void **state)
{
    struct refit_session_snapshot last;
    struct refit_error err;
    assert_int_equal(refit_receiver_session(world.receiver, "", &last, &err), REFIT_OK);
    assert_int_equal(refit_receiver_abort(world.receiver, last.id, "", &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "committed"));
    assert_int_equal(refit_receiver_abort(world.receiver, "r9-0", "", &err), REFIT_NOT_FOUND);
    world_assert_survives(&world);
}

static void closing_ends_a_refit(void **state)
{
    struct refit_ticket ticket = begin(2, 0);
    hold(&ticket, 0, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_TRANSFER);
    world_restart(&world);
    world.served_version = 0; /* no engine kept the slots */
    ticket_release(&ticket);
    stop_holders();
    world_assert_survives(&world);
}

/* --- deadlines -------------------------------------------------------------------------------------------------- */

static void deadline_names_the_rank_that_never_came(void **state)
{
    struct refit_ticket ticket = begin(2, 2000);
    hold(&ticket, 0, 2);
    ends(&ticket, REFIT_TIMEOUT, REFIT_PHASE_TRANSFER, "source rank 1 never connected");
}

static void deadline_without_any_holder(void **state)
{
    struct refit_ticket ticket = begin(2, 500);
    ends(&ticket, REFIT_TIMEOUT, REFIT_PHASE_TRANSFER, "source rank 0, 1 never connected");
}

static void deadline_when_staged(void **state)
{
    struct refit_ticket ticket = begin(2, 3000);
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    ends(&ticket, REFIT_TIMEOUT, REFIT_PHASE_STAGED, "nobody committed");
}

static void staged_refit_has_a_time_to_live(void **state)
{
    refit_receiver_close(world.receiver);
    world.config.staged_ttl_ms = 50;
    world_start(&world);
    world.served_version = 0;
    struct refit_ticket ticket = begin(2, 10 * WORLD_WAIT_MS);
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_int_equal(end.failed_in, REFIT_PHASE_STAGED);
    ticket_release(&ticket);
    world_assert_served(&world);
}

/* --- a newer publish -------------------------------------------------------------------------------------------- */

static void newer_publish_supersedes(void **state)
{
    struct refit_ticket first = begin(2, 0);
    hold(&first, 0, 2);
    world_wait_phase(&world, first.id, REFIT_PHASE_TRANSFER);
    struct refit_request request = world_request(&world, 3, "newer");
    struct refit_ticket second = world_begin(&world, &request);
    struct refit_session_snapshot end = world_wait_aborted(&world, first.id, REFIT_ABORTED);
    assert_non_null(strstr(end.error.text, "superseded by a publish of version 3"));
    holder_stop(&holders[0]);
    hold(&second, 0, 3);
    hold(&second, 1, 3);
    world_wait_phase(&world, second.id, REFIT_PHASE_STAGED);
    struct refit_receiver_snapshot snapshot;
    refit_receiver_read(world.receiver, &snapshot);
    assert_int_equal(snapshot.superseded, 1);
    assert_string_equal(snapshot.session, second.id);
    abort_refit(&second);
    ticket_release(&first);
    ends(&second, REFIT_ABORTED, REFIT_PHASE_STAGED, "a test");
}

static void older_publish_does_not_supersede(void **state)
{
    struct refit_ticket first = begin(5, 0), second;
    struct refit_error err;
    struct refit_request request = world_request(&world, 4, "older");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &second, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, first.id));
    abort_refit(&first);
    struct refit_session_snapshot end = world_wait_aborted(&world, first.id, REFIT_ABORTED);
    assert_non_null(strstr(end.error.text, "a test"));
    ticket_release(&first);
    world_assert_survives(&world);
}

static void staged_refit_is_not_superseded(void **state)
{
    struct refit_ticket first = begin(2, 0), second;
    struct refit_error err;
    hold(&first, 0, 2);
    hold(&first, 1, 2);
    world_wait_phase(&world, first.id, REFIT_PHASE_STAGED);
    struct refit_request request = world_request(&world, 3, "newer");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &second, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, first.id));
    abort_refit(&first);
    ends(&first, REFIT_ABORTED, REFIT_PHASE_STAGED, "a test");
}

static void storm_of_publishes_ends_with_the_last(void **state)
{
    struct refit_ticket ticket = {.card = NULL};
    world_lead(&world);
    world_put_source(&world);
    for (uint64_t version = 2; version < 40; version++) {
        char publish_id[32];
        struct refit_error err;
        snprintf(publish_id, sizeof publish_id, "storm-%llu", (unsigned long long)version);
        struct refit_request request = world_request(&world, version, publish_id);
        enum refit_status status;
        ticket_release(&ticket);
        /* Busy: too many are unwinding; each ends by itself. */
        while ((status = refit_receiver_begin(world.receiver, &request, &ticket, &err)) == REFIT_BUSY)
            sched_yield();
        if (status != REFIT_OK)
            fail_msg("%s", err.text);
    }
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    abort_refit(&ticket);
    ends(&ticket, REFIT_ABORTED, REFIT_PHASE_STAGED, "a test");
}

/* --- holders that die ------------------------------------------------------------------------------------------- */

static bool is_half_way(const struct refit_session_snapshot *snapshot, void *context)
{
    if (snapshot->phase == REFIT_PHASE_COMMITTED || snapshot->phase == REFIT_PHASE_ABORTED)
        fail_msg("the refit ended before it was met half way: %s", snapshot->error.text);
    return snapshot->bytes_done > 0 && snapshot->bytes_done < snapshot->bytes_due;
}

static void lost_holder_that_comes_back_goes_on(void **state)
{
    world.config.rate_bytes_per_s = 24 << 20; /* a second for the whole */
    world.config.streams = 1;
    world_start(&world);
    struct refit_ticket ticket = begin(2, 0);
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    world_wait(&world, ticket.id, is_half_way, NULL);
    holder_stop(&holders[1]);
    hold(&ticket, 1, 2);
    struct refit_session_snapshot staged = world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    char digest[REFIT_SHA256_HEX_MAX];
    world_digest(&world, 2, digest);
    assert_string_equal(staged.digest, digest);
    assert_int_equal(staged.bytes_done, staged.bytes_due);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, digest, NULL), REFIT_OK);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    world.served_version = 2;
    world.served_seed = 2;
    world_assert_served(&world);
    ticket_release(&ticket);
}

static void lost_holder_that_stays_away_is_named(void **state)
{
    world.config.rate_bytes_per_s = 24 << 20;
    world.config.streams = 1;
    world_start(&world);
    struct refit_ticket ticket = begin(2, 9000);
    hold(&ticket, 0, 2);
    hold(&ticket, 1, 2);
    world_wait(&world, ticket.id, is_half_way, NULL);
    holder_stop(&holders[1]);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_non_null(strstr(end.error.text, "source rank 1"));
    ticket_release(&ticket);
    world_assert_served(&world);
}

static void stranger_with_another_token_moves_nothing(void **state)
{
    struct refit_ticket ticket = begin(2, 400), forged = ticket;
    forged.token[3] ^= 1;
    hold(&forged, 0, 9);
    hold(&forged, 1, 9);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_int_equal(end.bytes_done, 0);
    ticket_release(&ticket);
    stop_holders();
    world_assert_survives(&world);
}

/* --- layouts that do not fit ------------------------------------------------------------------------------------ */

static void use_source(const char *text)
{
    refit_layout_release(world.source);
    world.source = world_layout(text);
}

/* The refit ends before a holder is needed; the error names the tensor. */
static void misfit_is_named(const char *text, const char *because)
{
    struct refit_layout *good = refit_layout_retain(world.source);
    use_source(text);
    struct refit_ticket ticket = begin(2, 0);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket.id, REFIT_PHASE_ABORTED);
    assert_int_equal(end.failed_in, REFIT_PHASE_PREFLIGHT);
    if (!strstr(end.error.text, because))
        fail_msg("expected '%s' in: %s", because, end.error.text);
    ticket_release(&ticket);
    refit_layout_release(world.source);
    world.source = good;
    world_assert_survives(&world);
}

#define SOURCE(entries) \
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[2]}},\"entries\":[" \
    entries "]}"
#define ENTRY(name, dtype, shape) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"mesh\":\"m\"," \
    "\"placements\":[\"Shard(0)\"]}"

static void source_that_lacks_a_tensor(void **state)
{
    misfit_is_named(SOURCE(ENTRY("w", "F32", "64,256") "," ENTRY("e", "BF16", "130,32")), "tensor \"b\"");
}

static void source_with_a_tensor_that_nobody_wants(void **state)
{
    misfit_is_named(SOURCE(ENTRY("w", "F32", "64,256") "," ENTRY("b", "F32", "300") "," ENTRY("e", "BF16", "130,32") ","
                           ENTRY("extra", "F32", "4")), "extra");
}

static void source_of_another_shape(void **state)
{
    misfit_is_named(SOURCE(ENTRY("w", "F32", "64,255") "," ENTRY("b", "F32", "300") "," ENTRY("e", "BF16", "130,32")),
                    "\"w\"");
}

static void source_of_another_dtype(void **state)
{
    misfit_is_named(SOURCE(ENTRY("w", "BF16", "64,256") "," ENTRY("b", "F32", "300") "," ENTRY("e", "BF16", "130,32")),
                    "\"w\"");
}

static void replica_without_a_layout_is_busy(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    refit_receiver_close(world.receiver);
    world.config.bank.layout = NULL;
    world.config.bank.slot_bytes = 1 << 20;
    world_start(&world);
    struct refit_request request = ready_request(2, "p");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_BUSY);
    assert_non_null(strstr(err.text, "no engine"));
}

static int set_up_big(void **state)
{
    return open_world(BIG_ROWS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define BIG_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_big, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(abort_at_once),
        TEST(abort_in_transfer),
        TEST(abort_when_staged),
        TEST(abort_after_commit_is_refused),
        TEST(closing_ends_a_refit),
        TEST(deadline_names_the_rank_that_never_came),
        TEST(deadline_without_any_holder),
        TEST(deadline_when_staged),
        TEST(staged_refit_has_a_time_to_live),
        TEST(newer_publish_supersedes),
        TEST(older_publish_does_not_supersede),
        TEST(staged_refit_is_not_superseded),
        TEST(storm_of_publishes_ends_with_the_last),
        BIG_TEST(lost_holder_that_comes_back_goes_on),
        BIG_TEST(lost_holder_that_stays_away_is_named),
        TEST(stranger_with_another_token_moves_nothing),
        TEST(source_that_lacks_a_tensor),
        TEST(source_with_a_tensor_that_nobody_wants),
        TEST(source_of_another_shape),
        TEST(source_of_another_dtype),
        TEST(replica_without_a_layout_is_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
