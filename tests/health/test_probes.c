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

static struct refit_receiver_snapshot receiver;
static struct refit_health_view view;

/* Two ranks attached, version 7 active in slot 1, version 8 being filled into slot 0. */
static int set_up(void **state)
{
    memset(&receiver, 0, sizeof receiver);
    receiver.bank = (struct refit_bank_snapshot){.ranks = 2, .slots = 2, .attached = 2, .active = 1};
    receiver.bank.slot[0].state = REFIT_SLOT_FILLING;
    receiver.bank.slot[1].state = REFIT_SLOT_ACTIVE;
    receiver.bank.slot[1].since_ms = 1234;
    receiver.bank.slot[1].version.version = 7;
    strcpy(receiver.bank.slot[1].version.label, "step-7");
    memset(receiver.bank.slot[1].version.digest, 'a', 64);
    view = (struct refit_health_view){.started = true, .receiver = &receiver, .software = "0"};
    return 0;
}

/* Takes the verdict; its only reason, if it is not ok, must hold `why`. */
static void assert_verdict(struct refit_health_verdict verdict, const char *why)
{
    assert_non_null(verdict.body);
    const json_t *reasons = json_object_get(verdict.body, "reasons");
    assert_int_equal(verdict.ok, why == NULL);
    assert_int_equal(json_array_size(reasons), why ? 1 : 0);
    if (why && !strstr(json_string_value(json_array_get(reasons, 0)), why))
        fail_msg("expected \"%s\" in \"%s\"", why, json_string_value(json_array_get(reasons, 0)));
    assert_string_equal(json_string_value(json_object_get(verdict.body, "status")), why ? "unavailable" : "ok");
    /* What fails is among the checks, and nothing else is. */
    size_t i, failed = 0;
    json_t *one;
    json_array_foreach(json_object_get(verdict.body, "checks"), i, one)
        failed += json_is_false(json_object_get(one, "ok"));
    assert_int_equal(failed, json_array_size(reasons));
    assert_true(json_array_size(json_object_get(verdict.body, "checks")) > 0);
    json_decref(verdict.body);
}

static void ready_with_a_version_on_every_rank(void **state)
{
    struct refit_health_verdict verdict = refit_health_ready(&view);
    assert_int_equal(verdict.version, 7);
    assert_int_equal(json_integer_value(json_object_get(verdict.body, "version")), 7);
    assert_int_equal(json_integer_value(json_object_get(verdict.body, "slot")), 1);
    assert_int_equal(json_integer_value(json_object_get(verdict.body, "since_ms")), 1234);
    assert_string_equal(json_string_value(json_object_get(verdict.body, "state")), "active");
    assert_int_equal(strlen(json_string_value(json_object_get(verdict.body, "digest"))), 64);
    assert_verdict(verdict, NULL);
}

static void ready_while_a_newer_version_is_staged(void **state)
{
    receiver.bank.slot[0].state = REFIT_SLOT_STAGED;
    receiver.bank.slot[0].version.version = 8;
    assert_verdict(refit_health_ready(&view), NULL);
}

static void not_ready_without_an_engine(void **state)
{
    receiver.bank.attached = 1;
    assert_verdict(refit_health_ready(&view), "1 of 2 engine ranks");
}

/* One over HTTP never attaches; after a restart of refitd it has a version that no slot holds. */
static void a_driven_engine_is_ready_while_it_is_whole(void **state)
{
    struct refit_health_engine engine = {.kind = "vllm", .whole = true, .version.version = 7};
    view.engine = &engine;
    view.ready_min_version = 7;
    receiver.bank.attached = 0;
    receiver.bank.active = REFIT_SLOT_NONE;
    struct refit_health_verdict verdict = refit_health_ready(&view);
    assert_true(verdict.ok);
    assert_int_equal(verdict.version, 7);
    json_decref(verdict.body);
    engine.whole = false;
    strcpy(engine.reason, "half-written");
    verdict = refit_health_ready(&view);
    assert_false(verdict.ok);
    assert_string_equal(json_string_value(json_array_get(json_object_get(verdict.body, "reasons"), 0)),
                        "engine vllm: half-written");
    json_decref(verdict.body);
}

static void not_ready_without_a_version(void **state)
{
    receiver.bank.active = REFIT_SLOT_NONE;
    assert_verdict(refit_health_ready(&view), "no version is served");
    receiver.bank.adopting = true;
    assert_verdict(refit_health_ready(&view), "hand their slots back");
}

static void not_ready_below_the_minimum(void **state)
{
    view.ready_min_version = 8;
    assert_verdict(refit_health_ready(&view), "at least 8");
    view.ready_min_version = 7;
    assert_verdict(refit_health_ready(&view), NULL);
}

static void draining_is_live_and_not_ready(void **state)
{
    view.draining = true;
    assert_verdict(refit_health_ready(&view), "shutting down");
    assert_verdict(refit_health_live(&view), NULL);
}

static void live_needs_nothing(void **state)
{
    view = (struct refit_health_view){.failure = "no memory", .software = "0"};
    assert_verdict(refit_health_live(&view), NULL);
    assert_verdict(refit_health_started(&view), "no memory");
    assert_verdict(refit_health_ready(&view), "no memory");
}

static void started_waits_for_weights_only_when_told(void **state)
{
    receiver.bank.active = REFIT_SLOT_NONE;
    receiver.bank.attached = 0;
    assert_verdict(refit_health_started(&view), NULL);
    view.startup_needs_weights = true;
    assert_verdict(refit_health_started(&view), "no version is served");
    view = (struct refit_health_view){.software = "0"};
    assert_verdict(refit_health_started(&view), "being reserved");
}

static void a_failure_that_is_not_utf8_is_still_a_failure(void **state)
{
    view = (struct refit_health_view){.failure = "can't open \xff", .software = "0"};
    assert_verdict(refit_health_started(&view), "can't open ?");
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ready_with_a_version_on_every_rank),
        TEST(ready_while_a_newer_version_is_staged),
        TEST(not_ready_without_an_engine),
        TEST(a_driven_engine_is_ready_while_it_is_whole),
        TEST(not_ready_without_a_version),
        TEST(not_ready_below_the_minimum),
        TEST(draining_is_live_and_not_ready),
        TEST(live_needs_nothing),
        TEST(started_waits_for_weights_only_when_told),
        TEST(a_failure_that_is_not_utf8_is_still_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
