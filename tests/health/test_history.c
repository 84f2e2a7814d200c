/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "health/health.h"

static struct refit_health_history history;

static int set_up(void **state)
{
    memset(&history, 0, sizeof history);
    return 0;
}

static struct refit_session_snapshot refit(int number, enum refit_phase phase)
{
    struct refit_session_snapshot session = {.version = (uint64_t)number, .phase = phase};
    snprintf(session.id, sizeof session.id, "r%d", number);
    session.phase_ns[REFIT_PHASE_TRANSFER] = 250000000;
    return session;
}

static bool observe(int number, enum refit_phase phase)
{
    struct refit_session_snapshot session = refit(number, phase);
    return refit_health_history_observe(&history, &session, 10000);
}

static void the_end_of_a_refit_is_seen_once(void **state)
{
    assert_false(observe(1, REFIT_PHASE_TRANSFER));
    assert_false(observe(1, REFIT_PHASE_STAGED));
    assert_true(observe(1, REFIT_PHASE_COMMITTED));
    assert_false(observe(1, REFIT_PHASE_COMMITTED));
    assert_true(observe(2, REFIT_PHASE_ABORTED)); /* seen only when it had ended */
    assert_int_equal(history.count, 2);
}

static void the_newest_stands_first_and_began_before_it_was_seen(void **state)
{
    observe(1, REFIT_PHASE_COMMITTED);
    observe(2, REFIT_PHASE_TRANSFER);
    json_t *out = refit_health_history_json(&history);
    assert_int_equal(json_array_size(out), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(out, 0), "version")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(out, 0), "began_ms")), 9750);
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 1), "phase")), "committed");
    json_decref(out);
}

static void the_oldest_makes_room(void **state)
{
    for (int i = 1; i <= REFIT_HEALTH_HISTORY + 3; i++)
        observe(i, REFIT_PHASE_COMMITTED);
    assert_int_equal(history.count, REFIT_HEALTH_HISTORY);
    assert_int_equal(history.past[0].session.version, REFIT_HEALTH_HISTORY + 3);
    assert_int_equal(history.past[REFIT_HEALTH_HISTORY - 1].session.version, 4);
}

static void one_that_was_replaced_is_asked_for_until_it_ended(void **state)
{
    observe(1, REFIT_PHASE_TRANSFER);
    assert_null(refit_health_history_unfinished(&history, "r1"));
    observe(2, REFIT_PHASE_REQUESTED);
    assert_string_equal(refit_health_history_unfinished(&history, "r2"), "r1");
    observe(1, REFIT_PHASE_ABORTED);
    assert_null(refit_health_history_unfinished(&history, "r2"));
    observe(3, REFIT_PHASE_REQUESTED);
    assert_string_equal(refit_health_history_unfinished(&history, "r3"), "r2");
    refit_health_history_forget(&history, "r2"); /* the receiver knows it no more */
    assert_null(refit_health_history_unfinished(&history, "r3"));
    refit_health_history_forget(&history, "r2");
    assert_int_equal(history.count, 2);
    assert_string_equal(history.past[1].session.id, "r1");
}

static void the_status_has_all_there_is(void **state)
{
    static struct refit_receiver_snapshot receiver;
    struct refit_session_snapshot session = refit(7, REFIT_PHASE_TRANSFER);
    struct refit_health_view view = {.started = true, .software = "0.1.0", .now_ms = 5};
    json_t *starting = refit_health_status_json(&view, &history);
    assert_true(json_is_null(json_object_get(starting, "weights")));
    assert_true(json_is_null(json_object_get(starting, "refit")));
    json_decref(starting);
    view.receiver = &receiver;
    view.session = &session;
    json_t *running = refit_health_status_json(&view, &history);
    assert_true(json_is_object(json_object_get(running, "weights")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(running, "refit"), "version")), 7);
    assert_true(json_is_array(json_object_get(json_object_get(running, "ready"), "checks")));
    assert_int_equal(json_integer_value(json_object_get(running, "now_ms")), 5);
    json_decref(running);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_end_of_a_refit_is_seen_once),
        TEST(the_newest_stands_first_and_began_before_it_was_seen),
        TEST(the_oldest_makes_room),
        TEST(one_that_was_replaced_is_asked_for_until_it_ended),
        TEST(the_status_has_all_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
