/* SPDX-License-Identifier: Apache-2.0
 *
 * Refits that go well, words that are repeated, and digests that differ.
 */
#include "world.h"

#include <stdio.h>

static struct world world;
static struct holder holders[WORLD_RANKS];

static int set_up(void **state)
{
    world_init(&world, 64);
    world_start(&world);
    memset(holders, 0, sizeof holders);
    return 0;
}

static int tear_down(void **state)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    world_close(&world);
    return 0;
}

/* Begun, with both holders dialling. */
static struct refit_ticket start(const struct refit_request *request, uint64_t seed)
{
    struct refit_ticket ticket = world_begin(&world, request);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&holders[rank], &world, &ticket, request->transport, rank, seed);
    return ticket;
}

static struct refit_request ready_request(uint64_t version)
{
    char publish_id[32];
    snprintf(publish_id, sizeof publish_id, "p%llu", (unsigned long long)version);
    world_lead(&world);
    world_put_source(&world);
    return world_request(&world, version, publish_id);
}

static void commit(const struct refit_ticket *ticket, uint64_t version, uint64_t seed)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_error err;
    world_digest(&world, seed, digest);
    if (refit_receiver_commit(world.receiver, ticket->id, version, digest, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void refits_over_tcp_and_local(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "local");
    world_publish(&world, 3, 3, "tcp");
    struct refit_receiver_snapshot snapshot;
    refit_receiver_read(world.receiver, &snapshot);
    assert_int_equal(snapshot.committed, 3);
    assert_int_equal(snapshot.aborted, 0);
    assert_int_equal(snapshot.plan_misses, 1);
    assert_int_equal(snapshot.plan_hits, 2);
    assert_true(snapshot.bytes_landed > 0);
    assert_string_equal(snapshot.layout, refit_layout_digest(world.destination));
}

static void auto_commit_needs_no_word(void **state)
{
    struct refit_request request = ready_request(1);
    request.commit = REFIT_COMMIT_AUTO;
    struct refit_ticket ticket = start(&request, 5);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    char digest[REFIT_SHA256_HEX_MAX];
    world_digest(&world, 5, digest);
    assert_string_equal(end.digest, digest);
    world.served_version = 1;
    world.served_seed = 5;
    world_assert_served(&world);
    ticket_release(&ticket);
}

static void holders_tally_is_the_replicas_digest(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_request request = ready_request(1);
    struct refit_ticket ticket = start(&request, 5);
    struct refit_session_snapshot staged = world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    struct refit_tally *sum = refit_tally_create(refit_layout_tensor_count(world.destination));
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        for (uint32_t id = 0; id < refit_tally_count(sum); id++)
            refit_tally_add(sum, id, refit_tally_get(holders[rank].tally, id));
    assert_int_equal(refit_model_digest(world.destination, sum, "exact", digest, NULL), REFIT_OK);
    assert_string_equal(staged.digest, digest);
    refit_tally_destroy(sum);
    ticket_release(&ticket);
}

static void same_words_find_the_same_refit(void **state)
{
    struct refit_request request = ready_request(1);
    struct refit_ticket first = start(&request, 1);
    struct refit_ticket again = world_begin(&world, &request);
    assert_false(first.existing);
    assert_true(again.existing);
    assert_string_equal(first.id, again.id);
    assert_memory_equal(first.token, again.token, sizeof first.token);
    ticket_release(&again);
    world_wait_phase(&world, first.id, REFIT_PHASE_STAGED);
    commit(&first, 1, 1);
    world_wait_phase(&world, first.id, REFIT_PHASE_COMMITTED);
    commit(&first, 1, 1);
    again = world_begin(&world, &request);
    assert_string_equal(first.id, again.id);
    ticket_release(&again);
    ticket_release(&first);
}

static void same_identity_with_another_body_is_refused(void **state)
{
    struct refit_request request = ready_request(1);
    struct refit_ticket first = start(&request, 1), again;
    struct refit_error err;
    refit_sha256_hex("other", 5, request.body_digest);
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &again, &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, first.id));
    world_wait_phase(&world, first.id, REFIT_PHASE_STAGED);
    commit(&first, 1, 1);
    world_wait_phase(&world, first.id, REFIT_PHASE_COMMITTED);
    ticket_release(&first);
}

static void version_must_be_newer(void **state)
{
    world_publish(&world, 5, 1, "tcp");
    struct refit_ticket ticket;
    struct refit_error err;
    for (uint64_t version = 4; version <= 5; version++) {
        struct refit_request request = ready_request(version);
        snprintf(request.publish_id, sizeof request.publish_id, "new");
        assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
        assert_non_null(strstr(err.text, "not newer"));
    }
    world_assert_survives(&world);
}

/* What is served changes while a request looks at it: version 5 is committed right behind its back. */
static _Thread_local const struct refit_ticket *commit_behind;

void __real_refit_bank_read(struct refit_bank *bank, struct refit_bank_snapshot *out);
void __wrap_refit_bank_read(struct refit_bank *bank, struct refit_bank_snapshot *out);
void __wrap_refit_bank_read(struct refit_bank *bank, struct refit_bank_snapshot *out)
{
    const struct refit_ticket *ticket = commit_behind;
    __real_refit_bank_read(bank, out);
    if (!ticket)
        return;
    commit_behind = NULL;
    commit(ticket, 5, 5);
    world_wait_phase(&world, ticket->id, REFIT_PHASE_COMMITTED);
}

static void an_older_version_never_follows_a_newer_one(void **state)
{
    struct refit_receiver_snapshot now;
    world_publish(&world, 1, 1, "tcp");
    struct refit_request request = ready_request(5), older = world_request(&world, 3, "p3");
    struct refit_ticket newer = start(&request, 5), late;
    struct refit_error err;
    world_wait_phase(&world, newer.id, REFIT_PHASE_STAGED);
    commit_behind = &newer;
    assert_int_equal(refit_receiver_begin(world.receiver, &older, &late, &err), REFIT_OK);
    struct refit_session_snapshot end = world_wait_aborted(&world, late.id, REFIT_CONFLICT);
    assert_int_equal(end.failed_in, REFIT_PHASE_PREFLIGHT);
    assert_non_null(strstr(end.error.text, "not newer"));
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.bank.slot[now.bank.active].version.version, 5);
    ticket_release(&late);
    ticket_release(&newer);
}

static void unknown_source_is_not_found(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    world_lead(&world);
    struct refit_request request = world_request(&world, 1, "p");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_NOT_FOUND);
    assert_non_null(strstr(err.text, request.source));
    world_assert_survives(&world);
}

static void source_of_another_digest_is_refused(void **state)
{
    struct refit_error err;
    size_t len;
    const char *text = refit_layout_text(world.source, &len);
    const char *other = refit_layout_digest(world.destination);
    assert_int_equal(refit_receiver_put_source(world.receiver, other, text, len, &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, refit_layout_digest(world.source)));
    assert_int_not_equal(refit_receiver_put_source(world.receiver, other, "{\"format\":", 10, &err), REFIT_OK);
}

static void dry_run_moves_nothing(void **state)
{
    struct refit_plan *plan;
    struct refit_error err;
    const char *digest = refit_layout_digest(world.source);
    assert_int_equal(refit_receiver_plan(world.receiver, digest, &plan, &err), REFIT_NOT_FOUND);
    world_put_source(&world);
    assert_int_equal(refit_receiver_plan(world.receiver, digest, &plan, &err), REFIT_OK);
    /* w in halves, b once although both ranks want it, e. */
    assert_int_equal(refit_plan_bytes(plan), 64 * 1024 + 300 * 4 + 130 * 32 * 2);
    assert_int_equal(refit_plan_written_bytes(plan), 64 * 1024 + 2 * 300 * 4 + 130 * 32 * 2);
    refit_plan_release(plan);
    struct refit_session_snapshot none;
    assert_int_equal(refit_receiver_session(world.receiver, "", &none, &err), REFIT_NOT_FOUND);
}

/* A bounded cache: the ninth layout pushes out the least recently used one. */
static _Thread_local uint64_t memory_left; /* 0: as it is */

uint64_t __real_refit_memory_available(const char **limit_path);
uint64_t __wrap_refit_memory_available(const char **limit_path);
uint64_t __wrap_refit_memory_available(const char **limit_path)
{
    uint64_t left = __real_refit_memory_available(limit_path);
    return memory_left ? memory_left : left;
}

/* A text of a few megabytes may be hundreds of them once it is parsed, and past the limit is a kill. */
static void source_layout_that_would_pass_the_memory_limit_is_not_parsed(void **state)
{
    static char text[1 << 20];
    struct refit_error err;
    char digest[REFIT_SHA256_HEX_MAX];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i == 0 ? '[' : i == sizeof text - 1 ? ']' : "{},"[i % 3 ? i % 3 - 1 : 2];
    refit_sha256_hex(text, sizeof text, digest);
    memory_left = 32 << 20;
    enum refit_status status = refit_receiver_put_source(world.receiver, digest, text, sizeof text, &err);
    memory_left = 0;
    assert_int_equal(status, REFIT_NO_MEMORY);
    assert_non_null(strstr(err.text, "source layout"));
    world_assert_survives(&world);
}

static void source_layouts_are_bounded(void **state)
{
    struct refit_plan *plan;
    world_put_source(&world);
    for (unsigned rows = 65; rows < 65 + 8; rows++) {
        char *text = world_source_text(rows, "");
        struct refit_layout *layout = world_layout(text);
        const char *digest = refit_layout_digest(layout);
        assert_int_equal(refit_receiver_put_source(world.receiver, digest, text, strlen(text), NULL), REFIT_OK);
        refit_layout_release(layout);
        free(text);
    }
    assert_int_equal(refit_receiver_plan(world.receiver, refit_layout_digest(world.source), &plan, NULL),
                     REFIT_NOT_FOUND);
    world_assert_survives(&world);
}

static void commit_too_early_is_busy_and_of_another_version_refused(void **state)
{
    struct refit_request request = ready_request(1);
    struct refit_ticket ticket = world_begin(&world, &request);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 1, "", NULL), REFIT_BUSY);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&holders[rank], &world, &ticket, "tcp", rank, 1);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, "", NULL), REFIT_MISMATCH);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 1, "", NULL), REFIT_INVALID);
    assert_int_equal(refit_receiver_commit(world.receiver, "r1-00", 1, "", NULL), REFIT_NOT_FOUND);
    assert_int_equal(refit_receiver_commit(world.receiver, "", 1, "", NULL), REFIT_NOT_FOUND);
    commit(&ticket, 1, 1);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    ticket_release(&ticket);
}

static void digest_that_differs_at_commit_aborts(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    struct refit_request request = ready_request(2);
    struct refit_ticket ticket = start(&request, 2);
    struct refit_error err;
    char wrong[REFIT_SHA256_HEX_MAX];
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    world_digest(&world, 3, wrong);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, wrong, &err), REFIT_CORRUPT);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    assert_int_equal(end.failed_in, REFIT_PHASE_STAGED);
    assert_non_null(strstr(end.error.text, wrong));
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, wrong, &err), REFIT_CONFLICT);
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void digest_that_was_expected_is_checked_before_staging(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    struct refit_request request = ready_request(2);
    world_digest(&world, 3, request.digest);
    struct refit_ticket ticket = start(&request, 2);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    assert_int_equal(end.failed_in, REFIT_PHASE_VERIFY);
    ticket_release(&ticket);
    world_assert_survives(&world);
}

/* With its digest in the request, the commit needs none. */
static void digest_that_was_expected_and_came_commits(void **state)
{
    struct refit_request request = ready_request(2);
    world_digest(&world, 2, request.digest);
    struct refit_ticket ticket = start(&request, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, NULL, NULL), REFIT_OK);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    ticket_release(&ticket);
}

/* For measurements: nothing is digested, so nothing can be compared. */
static void without_verification_there_is_no_digest(void **state)
{
    refit_receiver_close(world.receiver);
    world.config.verify = false;
    world_start(&world);
    struct refit_request request = ready_request(1);
    struct refit_ticket ticket = start(&request, 1);
    struct refit_session_snapshot staged = world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    assert_string_equal(staged.digest, "");
    commit(&ticket, 1, 1);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    world.served_version = world.served_seed = 1;
    world_assert_served(&world);
    ticket_release(&ticket);
}

/* What a trainer that goes on writing does: what landed is not what it had when it named the digest. */
static void trainer_that_writes_during_publish_is_caught(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    struct refit_request request = ready_request(2);
    struct refit_ticket ticket = world_begin(&world, &request);
    char before[REFIT_SHA256_HEX_MAX];
    world_digest(&world, 2, before);
    holder_start(&holders[0], &world, &ticket, "tcp", 0, 2);
    holder_start(&holders[1], &world, &ticket, "tcp", 1, 3); /* a step further already */
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, before, NULL), REFIT_CORRUPT);
    world_wait_aborted(&world, ticket.id, REFIT_CORRUPT);
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void quarantined_digest_is_refused(void **state)
{
    struct refit_error err;
    char digest[REFIT_SHA256_HEX_MAX];
    world_publish(&world, 1, 1, "tcp");
    world_digest(&world, 2, digest);
    assert_int_equal(refit_receiver_quarantine(world.receiver, digest, true, NULL), REFIT_OK);
    assert_int_equal(refit_receiver_quarantine(world.receiver, digest, true, NULL), REFIT_OK);
    assert_int_equal(refit_receiver_quarantine(world.receiver, "12", true, NULL), REFIT_INVALID);
    struct refit_request request = ready_request(2);
    struct refit_ticket ticket = start(&request, 2);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CONFLICT);
    assert_int_equal(end.failed_in, REFIT_PHASE_VERIFY);
    ticket_release(&ticket);
    request = ready_request(3);
    memcpy(request.digest, digest, sizeof digest);
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "quarantine"));
    world_assert_survives(&world);
    assert_int_equal(refit_receiver_quarantine(world.receiver, digest, false, NULL), REFIT_OK);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    world_publish(&world, 5000, 2, "tcp");
}

static void what_is_staged_when_it_is_quarantined_is_aborted(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_error err;
    world_publish(&world, 1, 1, "tcp");
    world_digest(&world, 2, digest);
    struct refit_request request = ready_request(2);
    struct refit_ticket ticket = start(&request, 2);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    assert_int_equal(refit_receiver_quarantine(world.receiver, digest, true, NULL), REFIT_OK);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 2, digest, &err), REFIT_CONFLICT);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CONFLICT);
    assert_non_null(strstr(end.error.text, "quarantine"));
    ticket_release(&ticket);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    world_assert_survives(&world);
}

static void rollback(uint64_t version, enum refit_status expected)
{
    struct refit_version now;
    struct refit_error err;
    enum refit_status status = refit_receiver_rollback(world.receiver, &(struct refit_rollback){.version = version},
                                                       refit_deadline_in_ms(WORLD_WAIT_MS), &now, &err);
    if (status != expected)
        fail_msg("%s", err.text);
    if (status == REFIT_OK)
        world.served_version = now.version;
}

static void rollback_holds_until_release(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    rollback(0, REFIT_OK);
    assert_int_equal(world.served_version, 1);
    world.served_seed = 1;
    world_assert_served(&world);
    struct refit_request request = ready_request(3);
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "held"));
    refit_receiver_release_hold(world.receiver);
    world_publish(&world, 3, 3, "tcp");
}

/* The same words again, because their answer was lost, must not bring back what was rolled back from. */
static void repeated_rollback_is_the_same(void **state)
{
    struct refit_receiver_snapshot first, last;
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    rollback(0, REFIT_OK);
    refit_receiver_read(world.receiver, &first);
    rollback(0, REFIT_OK);
    rollback(1, REFIT_OK);
    assert_int_equal(world.served_version, 1);
    world.served_seed = 1;
    world_assert_served(&world);
    refit_receiver_read(world.receiver, &last);
    assert_int_equal(last.bank.rollbacks, first.bank.rollbacks);
    assert_true(last.held);
    rollback(2, REFIT_OK); /* by name it goes on */
    assert_int_equal(world.served_version, 2);
    refit_receiver_release_hold(world.receiver);
    rollback(0, REFIT_OK);
    assert_int_equal(world.served_version, 1);
}

/* To hold newer versions off is the first thing to do about a bad one; then one goes back. */
static void rollback_after_a_hold_goes_back(void **state)
{
    struct refit_receiver_snapshot now;
    struct refit_version to;
    char bad[REFIT_SHA256_HEX_MAX];
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    world_digest(&world, 2, bad);
    refit_receiver_hold(world.receiver);
    for (int i = 0; i < 2; i++) { /* and its repeat finds it done */
        assert_int_equal(refit_receiver_rollback(world.receiver, &(struct refit_rollback){.quarantine = true},
                                                 refit_deadline_in_ms(WORLD_WAIT_MS), &to, NULL), REFIT_OK);
        assert_int_equal(to.version, 1);
    }
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.bank.rollbacks, 1);
    assert_true(now.held);
    world.served_version = world.served_seed = 1;
    world_assert_served(&world);
    /* What was left behind is refused, and nothing else. */
    assert_int_equal(now.quarantined, 1);
    struct refit_ticket ticket;
    struct refit_error err;
    refit_receiver_release_hold(world.receiver);
    struct refit_request request = ready_request(3);
    memcpy(request.digest, bad, sizeof bad);
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "quarantine"));
}

/* By name, where nothing was gone back from: what is retained is older, and nothing is wrong with it. */
static void staying_quarantines_nothing(void **state)
{
    struct refit_receiver_snapshot now;
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    const struct refit_rollback stay = {.version = 2, .open = true, .quarantine = true};
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    assert_int_equal(refit_receiver_rollback(world.receiver, &stay, deadline, NULL, NULL), REFIT_OK);
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.quarantined, 0);
}

static void rollback_ends_a_refit_that_runs(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    struct refit_request request = ready_request(3);
    struct refit_ticket ticket = world_begin(&world, &request);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_TRANSFER);
    /* Three slots: 2 is active, 1 is retained, 3 fills the third. */
    rollback(1, REFIT_OK);
    world.served_seed = 1;
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CONFLICT);
    assert_non_null(strstr(end.error.text, "held"));
    ticket_release(&ticket);
    refit_receiver_release_hold(world.receiver);
    world_assert_survives(&world);
}

static void rollback_that_fails_does_not_hold(void **state)
{
    struct refit_receiver_snapshot snapshot;
    world_publish(&world, 1, 1, "tcp");
    rollback(77, REFIT_NOT_FOUND);
    refit_receiver_read(world.receiver, &snapshot);
    assert_false(snapshot.held);
    world_assert_survives(&world);
}

static void retained_version_is_not_filled_twice(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    rollback(1, REFIT_OK);
    world.served_seed = 1;
    refit_receiver_release_hold(world.receiver);
    struct refit_request request = ready_request(2);
    snprintf(request.publish_id, sizeof request.publish_id, "again");
    struct refit_ticket ticket = world_begin(&world, &request);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_CONFLICT);
    assert_non_null(strstr(end.error.text, "retained"));
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void refits_of_before_a_restart_are_unknown(void **state)
{
    struct refit_session_snapshot snapshot;
    struct refit_error err;
    char instance[REFIT_INSTANCE_MAX];
    struct refit_request request = ready_request(1);
    struct refit_ticket ticket = start(&request, 1);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    snprintf(instance, sizeof instance, "%s", refit_receiver_instance(world.receiver));
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    world_restart(&world);
    assert_string_not_equal(instance, refit_receiver_instance(world.receiver));
    assert_int_equal(refit_receiver_session(world.receiver, ticket.id, &snapshot, &err), REFIT_NOT_FOUND);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket.id, 1, "", &err), REFIT_NOT_FOUND);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "", &err), REFIT_NOT_FOUND);
    ticket_release(&ticket);
    world_assert_survives(&world);
}

static void last_refits_are_remembered(void **state)
{
    struct refit_session_snapshot snapshot;
    char first[REFIT_REFIT_ID_MAX] = "", last[REFIT_REFIT_ID_MAX] = "";
    world_lead(&world);
    world_put_source(&world);
    for (uint64_t version = 1; version <= 33; version++) {
        char publish_id[32];
        snprintf(publish_id, sizeof publish_id, "p%llu", (unsigned long long)version);
        struct refit_request request = world_request(&world, version, publish_id);
        struct refit_ticket ticket = world_begin(&world, &request);
        snprintf(version == 1 ? first : last, sizeof first, "%s", ticket.id);
        assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "test", NULL), REFIT_OK);
        world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
        ticket_release(&ticket);
    }
    assert_int_equal(refit_receiver_session(world.receiver, first, &snapshot, NULL), REFIT_NOT_FOUND);
    assert_int_equal(refit_receiver_session(world.receiver, NULL, &snapshot, NULL), REFIT_OK);
    assert_string_equal(snapshot.id, last);
    world_assert_survives(&world);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(refits_over_tcp_and_local),
        TEST(auto_commit_needs_no_word),
        TEST(holders_tally_is_the_replicas_digest),
        TEST(same_words_find_the_same_refit),
        TEST(same_identity_with_another_body_is_refused),
        TEST(version_must_be_newer),
        TEST(an_older_version_never_follows_a_newer_one),
        TEST(unknown_source_is_not_found),
        TEST(source_of_another_digest_is_refused),
        TEST(dry_run_moves_nothing),
        TEST(source_layout_that_would_pass_the_memory_limit_is_not_parsed),
        TEST(source_layouts_are_bounded),
        TEST(commit_too_early_is_busy_and_of_another_version_refused),
        TEST(digest_that_differs_at_commit_aborts),
        TEST(digest_that_was_expected_is_checked_before_staging),
        TEST(digest_that_was_expected_and_came_commits),
        TEST(without_verification_there_is_no_digest),
        TEST(trainer_that_writes_during_publish_is_caught),
        TEST(quarantined_digest_is_refused),
        TEST(what_is_staged_when_it_is_quarantined_is_aborted),
        TEST(rollback_holds_until_release),
        TEST(repeated_rollback_is_the_same),
        TEST(rollback_after_a_hold_goes_back),
        TEST(staying_quarantines_nothing),
        TEST(rollback_ends_a_refit_that_runs),
        TEST(rollback_that_fails_does_not_hold),
        TEST(retained_version_is_not_filled_twice),
        TEST(refits_of_before_a_restart_are_unknown),
        TEST(last_refits_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
