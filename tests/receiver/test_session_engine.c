/* SPDX-License-Identifier: Apache-2.0
 *
 * Refits under engines: two ranks attached from this process, whose hooks a test can hold or make refuse.
 */
#include "world.h"

#include <stdio.h>

#include <refit/engine.h>

enum hook { PREPARE, BEFORE_SWAP, HOOKS };

/* A hook that a test holds: it waits until it is let go. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool held[HOOKS];
    unsigned entered[HOOKS];
    bool refuses[HOOKS];
};

static struct world world;
static struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
static struct refit_engine *engines[WORLD_RANKS];
static struct holder holders[WORLD_RANKS];

static int pass(enum hook hook)
{
    pthread_mutex_lock(&gate.lock);
    gate.entered[hook]++;
    pthread_cond_broadcast(&gate.moved);
    while (gate.held[hook])
        pthread_cond_wait(&gate.moved, &gate.lock);
    int refused = gate.refuses[hook];
    pthread_mutex_unlock(&gate.lock);
    return refused;
}

static void set_gate(enum hook hook, bool held, bool refuses)
{
    pthread_mutex_lock(&gate.lock);
    gate.held[hook] = held;
    gate.refuses[hook] = refuses;
    gate.entered[hook] = 0;
    pthread_cond_broadcast(&gate.moved);
    pthread_mutex_unlock(&gate.lock);
}

static void wait_entered(enum hook hook)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.entered[hook] == 0)
        pthread_cond_wait(&gate.moved, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static int on_prepare(void *context, struct refit_engine *engine, const struct refit_version *version,
                      const struct refit_pin *pin, char *reason)
{
    int refused = pass(PREPARE);
    if (refused)
        snprintf(reason, 256, "no room for derived tensors");
    return refused;
}

static int on_before_swap(void *context, const struct refit_version *version, const char *kv)
{
    return pass(BEFORE_SWAP);
}

static void attach(uint32_t rank)
{
    struct refit_error err;
    size_t len;
    const char *layout = refit_layout_text(world.destination, &len);
    struct refit_engine_config config = {.socket_path = world.socket_path, .rank = rank, .ranks = WORLD_RANKS,
                                         .label = "reader", .layout = layout, .layout_len = len,
                                         .prepare = on_prepare, .before_swap = on_before_swap};
    if (refit_engine_attach(&config, WORLD_WAIT_MS, &engines[rank], &err) != REFIT_OK)
        fail_msg("rank %u: %s", rank, err.text);
}

static int set_up_slots(uint32_t slots)
{
    world_init(&world, 64);
    world.config.bank.slots = slots;
    world_start(&world);
    memset(holders, 0, sizeof holders);
    set_gate(PREPARE, false, false);
    set_gate(BEFORE_SWAP, false, false);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        attach(rank);
    world_publish(&world, 1, 1, "tcp");
    return 0;
}

static int set_up(void **state)
{
    return set_up_slots(2);
}

static int tear_down(void **state)
{
    set_gate(PREPARE, false, false);
    set_gate(BEFORE_SWAP, false, false);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        refit_engine_detach(engines[rank]);
    world_close(&world);
    return 0;
}

static struct refit_ticket begin(uint64_t version, int64_t deadline_ms)
{
    world_lead(&world);
    world_put_source(&world);
    struct refit_request request = world_request(&world, version, "p");
    request.deadline_ms = deadline_ms;
    return world_begin(&world, &request);
}

static struct refit_ticket start(uint64_t version, uint64_t seed, int64_t deadline_ms)
{
    struct refit_ticket ticket = begin(version, deadline_ms);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&holders[rank], &world, &ticket, "tcp", rank, seed);
    return ticket;
}

static void commit(const struct refit_ticket *ticket, uint64_t version, uint64_t seed)
{
    char digest[REFIT_SHA256_HEX_MAX];
    world_digest(&world, seed, digest);
    assert_int_equal(refit_receiver_commit(world.receiver, ticket->id, version, digest, NULL), REFIT_OK);
}

static void finish(struct refit_ticket *ticket)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    ticket_release(ticket);
}

static uint64_t latest(void)
{
    struct refit_pin pin;
    assert_int_equal(refit_engine_acquire(engines[0], REFIT_LATEST, &pin), REFIT_OK);
    refit_engine_release(engines[0], &pin);
    return pin.version;
}

static void engines_read_what_was_committed(void **state)
{
    world_publish(&world, 2, 2, "tcp");
    assert_int_equal(latest(), 2);
    world_publish(&world, 3, 3, "local");
    assert_int_equal(latest(), 3);
}

/* --- waiting for readers ---------------------------------------------------------------------------------------- */

/* Two slots: version 1 stays pinned while 2 is served, so that 3 has nowhere to go. */
static struct refit_pin pin_the_retained(void)
{
    struct refit_pin pin;
    assert_int_equal(refit_engine_acquire(engines[0], REFIT_LATEST, &pin), REFIT_OK);
    world_publish(&world, 2, 2, "tcp");
    return pin;
}

static void pinned_slot_is_waited_for_and_named(void **state)
{
    struct refit_pin pin = pin_the_retained();
    struct refit_ticket ticket = start(3, 3, 0);
    struct refit_session_snapshot waiting = world_wait_phase(&world, ticket.id, REFIT_PHASE_WAITING_FOR_READERS);
    assert_int_equal(waiting.waiting.version, 1);
    assert_string_equal(waiting.waiting.label, "reader");
    assert_int_equal(waiting.waiting.rank, 0);
    refit_engine_release(engines[0], &pin);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    commit(&ticket, 3, 3);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    world.served_version = 3;
    world.served_seed = 3;
    world_assert_served(&world);
    finish(&ticket);
}

static void abort_while_waiting(void **state)
{
    struct refit_pin pin = pin_the_retained();
    struct refit_ticket ticket = begin(3, 0);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_WAITING_FOR_READERS);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "enough", NULL), REFIT_OK);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    assert_int_equal(end.failed_in, REFIT_PHASE_WAITING_FOR_READERS);
    assert_non_null(strstr(end.error.text, "enough"));
    assert_non_null(strstr(end.error.text, "reader"));
    ticket_release(&ticket);
    world_assert_served(&world);
    refit_engine_release(engines[0], &pin);
    world_assert_survives(&world);
}

static void deadline_while_waiting_names_the_pin(void **state)
{
    struct refit_pin pin = pin_the_retained();
    struct refit_ticket ticket = begin(3, 1000);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_int_equal(end.failed_in, REFIT_PHASE_WAITING_FOR_READERS);
    assert_non_null(strstr(end.error.text, "slot-pinned"));
    assert_non_null(strstr(end.error.text, "reader"));
    ticket_release(&ticket);
    refit_engine_release(engines[0], &pin);
    world_assert_survives(&world);
}

static void holder_that_dials_too_early_is_placed_later(void **state)
{
    struct refit_pin pin = pin_the_retained();
    struct refit_ticket ticket = start(3, 3, 0);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_WAITING_FOR_READERS);
    /* As long as the listener parks a connection; then the holder dials again. */
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    while (atomic_load(&holders[0].turned_away) == 0 || atomic_load(&holders[1].turned_away) == 0) {
        assert_false(refit_deadline_passed(deadline));
        sched_yield();
    }
    refit_engine_release(engines[0], &pin);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    commit(&ticket, 3, 3);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    finish(&ticket);
    assert_int_equal(latest(), 3);
}

static void newer_publish_supersedes_a_waiting_one(void **state)
{
    struct refit_pin pin = pin_the_retained();
    struct refit_ticket first = begin(3, 0);
    world_wait_phase(&world, first.id, REFIT_PHASE_WAITING_FOR_READERS);
    struct refit_ticket second = start(4, 4, 0);
    world_wait_aborted(&world, first.id, REFIT_ABORTED);
    refit_engine_release(engines[0], &pin);
    world_wait_phase(&world, second.id, REFIT_PHASE_STAGED);
    assert_int_equal(refit_receiver_abort(world.receiver, second.id, "", NULL), REFIT_OK);
    world_wait_aborted(&world, second.id, REFIT_ABORTED);
    ticket_release(&first);
    finish(&second);
    world_assert_survives(&world);
}

/* --- prepare ---------------------------------------------------------------------------------------------------- */

static void engine_that_refuses_aborts_with_its_reason(void **state)
{
    set_gate(PREPARE, false, true);
    struct refit_ticket ticket = start(2, 2, 0);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket.id, REFIT_PHASE_ABORTED);
    assert_int_equal(end.failed_in, REFIT_PHASE_PREPARE);
    assert_non_null(strstr(end.error.text, "no room for derived tensors"));
    finish(&ticket);
    set_gate(PREPARE, false, false);
    world_assert_survives(&world);
}

static void abort_while_engines_prepare(void **state)
{
    set_gate(PREPARE, true, false);
    struct refit_ticket ticket = start(2, 2, 0);
    wait_entered(PREPARE);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_PREPARE);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "", NULL), REFIT_OK);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    assert_int_equal(end.failed_in, REFIT_PHASE_PREPARE);
    finish(&ticket);
    world_assert_served(&world);
    set_gate(PREPARE, false, false);
    world_assert_survives(&world);
}

static void deadline_while_engines_prepare(void **state)
{
    set_gate(PREPARE, true, false);
    struct refit_ticket ticket = start(2, 2, 2000);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_int_equal(end.failed_in, REFIT_PHASE_PREPARE);
    finish(&ticket);
    world_assert_served(&world);
    set_gate(PREPARE, false, false);
    world_assert_survives(&world);
}

/* --- the swap --------------------------------------------------------------------------------------------------- */

static void refused_swap_aborts(void **state)
{
    struct refit_ticket ticket = start(2, 2, 0);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    set_gate(BEFORE_SWAP, false, true);
    commit(&ticket, 2, 2);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket.id, REFIT_PHASE_ABORTED);
    assert_int_equal(end.failed_in, REFIT_PHASE_COMMITTING);
    finish(&ticket);
    set_gate(BEFORE_SWAP, false, false);
    assert_int_equal(latest(), 1);
    world_assert_survives(&world);
}

static void swap_under_way_can_not_be_aborted(void **state)
{
    set_gate(BEFORE_SWAP, true, false);
    struct refit_ticket ticket = start(2, 2, 0);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    commit(&ticket, 2, 2);
    wait_entered(BEFORE_SWAP);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTING);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "", NULL), REFIT_BUSY);
    commit(&ticket, 2, 2); /* may be repeated meanwhile */
    set_gate(BEFORE_SWAP, false, false);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    assert_int_equal(refit_receiver_abort(world.receiver, ticket.id, "", NULL), REFIT_CONFLICT);
    finish(&ticket);
    assert_int_equal(latest(), 2);
}

static void deadline_in_the_swap_leaves_the_old_version(void **state)
{
    struct refit_ticket ticket = start(2, 2, 3000);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    set_gate(BEFORE_SWAP, true, false);
    commit(&ticket, 2, 2);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_TIMEOUT);
    assert_int_equal(end.failed_in, REFIT_PHASE_COMMITTING);
    finish(&ticket);
    assert_int_equal(latest(), 1);
    set_gate(BEFORE_SWAP, false, false);
    world_assert_survives(&world);
}

static void *roll_back(void *arg)
{
    struct refit_version *now = arg;
    struct refit_error err;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    if (refit_receiver_rollback(world.receiver, &(struct refit_rollback){.kv = "keep"}, deadline, now, &err) != REFIT_OK)
        now->version = 0;
    return NULL;
}

static void rollback_waits_for_a_commit_under_way(void **state)
{
    struct refit_version now = {.version = 0};
    pthread_t thread;
    set_gate(BEFORE_SWAP, true, false);
    struct refit_ticket ticket = start(2, 2, 0);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_STAGED);
    commit(&ticket, 2, 2);
    wait_entered(BEFORE_SWAP);
    assert_int_equal(pthread_create(&thread, NULL, roll_back, &now), 0);
    set_gate(BEFORE_SWAP, false, false);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    pthread_join(thread, NULL);
    assert_int_equal(now.version, 1);
    assert_int_equal(latest(), 1);
    finish(&ticket);
}

static void restarted_receiver_goes_on_without_a_transfer(void **state)
{
    world.config.bank.adopt_ms = WORLD_WAIT_MS;
    world_publish(&world, 2, 2, "tcp");
    world_restart(&world);
    struct refit_bank_snapshot bank;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    pthread_mutex_lock(&world.lock);
    for (;;) {
        uint64_t seen = world.moves;
        pthread_mutex_unlock(&world.lock);
        refit_bank_read(refit_receiver_bank(world.receiver), &bank);
        pthread_mutex_lock(&world.lock);
        if (!bank.adopting && bank.active != REFIT_SLOT_NONE)
            break;
        struct timespec until = refit_deadline_timespec(deadline);
        while (world.moves == seen && !refit_deadline_passed(deadline))
            pthread_cond_timedwait(&world.moved, &world.lock, &until);
        assert_false(refit_deadline_passed(deadline));
    }
    pthread_mutex_unlock(&world.lock);
    world_assert_served(&world);
    assert_int_equal(latest(), 2);
    world_assert_survives(&world);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(engines_read_what_was_committed),
        TEST(pinned_slot_is_waited_for_and_named),
        TEST(abort_while_waiting),
        TEST(deadline_while_waiting_names_the_pin),
        TEST(holder_that_dials_too_early_is_placed_later),
        TEST(newer_publish_supersedes_a_waiting_one),
        TEST(engine_that_refuses_aborts_with_its_reason),
        TEST(abort_while_engines_prepare),
        TEST(deadline_while_engines_prepare),
        TEST(refused_swap_aborts),
        TEST(swap_under_way_can_not_be_aborted),
        TEST(deadline_in_the_swap_leaves_the_old_version),
        TEST(rollback_waits_for_a_commit_under_way),
        TEST(restarted_receiver_goes_on_without_a_transfer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
