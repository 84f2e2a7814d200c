/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "health/health.h"

static struct refit_session_snapshot session;

static int set_up(void **state)
{
    memset(&session, 0, sizeof session);
    strcpy(session.id, "r1");
    session.version = UINT64_MAX;
    session.phase = REFIT_PHASE_TRANSFER;
    session.sequence = 12;
    session.supplied = (struct refit_supplied){
        .origin_bytes = 7, .domain_bytes = 8, .fleet_bytes = 9, .excess_bytes = 3, .kept_bytes = 2};
    session.phase_ns[REFIT_PHASE_PREFLIGHT] = 812000;
    return 0;
}

static void a_running_refit_has_neither_error_nor_waiting(void **state)
{
    json_t *out = refit_health_session_json(&session);
    assert_string_equal(json_string_value(json_object_get(out, "phase")), "transfer");
    assert_string_equal(json_string_value(json_object_get(out, "version")), "18446744073709551615");
    assert_true(json_is_false(json_object_get(out, "terminal")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(out, "phase_us"), "preflight")), 812);
    assert_null(json_object_get(out, "error"));
    assert_null(json_object_get(out, "waiting"));
    const json_t *supplied = json_object_get(out, "supplied");
    assert_int_equal(json_integer_value(json_object_get(supplied, "origin_bytes")), 7);
    assert_int_equal(json_integer_value(json_object_get(supplied, "domain_bytes")), 8);
    assert_int_equal(json_integer_value(json_object_get(supplied, "fleet_bytes")), 9);
    assert_int_equal(json_integer_value(json_object_get(supplied, "excess_bytes")), 3);
    assert_int_equal(json_integer_value(json_object_get(supplied, "kept_bytes")), 2);
    json_decref(out);
}

static void a_waiting_refit_names_the_pin(void **state)
{
    session.phase = REFIT_PHASE_WAITING_FOR_READERS;
    session.waiting = (struct refit_bank_waiting){.rank = 1, .label = "minilm", .version = 6, .pins = 2, .age_ms = 12};
    json_t *out = refit_health_session_json(&session);
    const json_t *waiting = json_object_get(out, "waiting");
    assert_string_equal(json_string_value(json_object_get(waiting, "label")), "minilm");
    assert_int_equal(json_integer_value(json_object_get(waiting, "version")), 6);
    json_decref(out);
}

static void an_aborted_refit_says_why(void **state)
{
    session.phase = REFIT_PHASE_ABORTED;
    session.failed_in = REFIT_PHASE_VERIFY;
    session.error = (struct refit_error){.status = REFIT_CORRUPT, .text = "tensor w"};
    json_t *out = refit_health_session_json(&session);
    const json_t *error = json_object_get(out, "error");
    assert_true(json_is_true(json_object_get(out, "terminal")));
    assert_string_equal(json_string_value(json_object_get(error, "status")), "corrupt");
    assert_string_equal(json_string_value(json_object_get(error, "phase")), "verify");
    assert_string_equal(json_string_value(json_object_get(error, "text")), "tensor w");
    assert_true(json_is_true(json_object_get(error, "retryable")));
    json_decref(out);
    strcpy(session.error.text, "file \xff");
    out = refit_health_session_json(&session);
    assert_non_null(json_object_get(out, "error"));
    json_decref(out);
}

static void weights_name_what_is_active_staged_and_retained(void **state)
{
    static struct refit_receiver_snapshot receiver;
    receiver.bank = (struct refit_bank_snapshot){
        .ranks = 1, .slots = 3, .attached = 1, .active = 2, .rollback_available = true, .rollback_version = 6};
    receiver.bank.slot[0] = (struct refit_bank_slot){.state = REFIT_SLOT_RETAINED, .version = {.version = 6}};
    receiver.bank.slot[1] = (struct refit_bank_slot){.state = REFIT_SLOT_STAGED, .version = {.version = 8}};
    receiver.bank.slot[2] = (struct refit_bank_slot){.state = REFIT_SLOT_ACTIVE, .version = {.version = 7}};
    strcpy(receiver.bank.rank[0].label, "\xff");
    json_t *out = refit_health_weights_json(&receiver);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(out, "active"), "version")), 7);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(out, "staged"), "slot")), 1);
    assert_int_equal(json_array_size(json_object_get(out, "retained")), 1);
    assert_int_equal(json_integer_value(json_object_get(out, "rollback_version")), 6);
    assert_int_equal(json_array_size(json_object_get(out, "slots")), 3);
    assert_int_equal(json_array_size(json_object_get(out, "ranks")), 1);
    json_decref(out);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_running_refit_has_neither_error_nor_waiting),
        TEST(a_waiting_refit_names_the_pin),
        TEST(an_aborted_refit_says_why),
        TEST(weights_name_what_is_active_staged_and_retained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
