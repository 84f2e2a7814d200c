/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine's words are taken for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "drivers/call.h"
#include "drivers/engine.h"

static void engines_are_named_with_their_url(void **state)
{
    const struct refit_driver_engine *engine = NULL;
    struct refit_http_url url;
    struct refit_error error;
    assert_int_equal(refit_driver_engine_parse("vllm=http://127.0.0.1:8000", &engine, &url, &error), REFIT_OK);
    assert_ptr_equal(engine, &refit_driver_vllm);
    assert_int_equal(url.port, 8000);
    assert_int_equal(refit_driver_engine_parse("sglang=http://[::1]:30000/prefix", &engine, &url, &error), REFIT_OK);
    assert_ptr_equal(engine, &refit_driver_sglang);
    const char *const bad[] = {"", "vllm", "vllm=", "=http://h:1", "vllmx=http://h:1", "native", "trt=http://h:1",
                               "vllm=ftp://h:1", "vllm=http://h:0", "vllm=http://u@h:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(refit_driver_check_engine(bad[i], &error), REFIT_INVALID);
    assert_int_equal(refit_driver_check_engine("vllm=https://127.0.0.1:8000", &error), REFIT_UNSUPPORTED);
}

static void take(const char *text, enum refit_status expected, const char *version)
{
    struct refit_driver_sight sight = {.version = "?"};
    json_t *answer = json_loads(text, 0, NULL);
    assert_non_null(answer);
    assert_int_equal(refit_driver_take_version(answer, "/weight_info", &sight, NULL), expected);
    if (version)
        assert_string_equal(sight.version, version);
    json_decref(answer);
}

static void versions_of_engines_are_bounded_texts(void **state)
{
    char text[REFIT_DRIVER_VERSION_MAX + 64];
    take("{\"weight_version\": \"7\", \"t\": 0.7}", REFIT_OK, "7");
    take("{\"weight_version\": null}", REFIT_OK, "");
    take("{\"weight_version\": 7}", REFIT_UNSUPPORTED, NULL);
    take("{}", REFIT_UNSUPPORTED, NULL);
    take("[]", REFIT_UNSUPPORTED, NULL);
    take("{\"weight_version\": \"a\\u001b[31m\"}", REFIT_INVALID, NULL);
    snprintf(text, sizeof text, "{\"weight_version\": \"%0*d\"}", REFIT_DRIVER_VERSION_MAX - 1, 0);
    take(text, REFIT_OK, NULL);
    snprintf(text, sizeof text, "{\"weight_version\": \"%0*d\"}", REFIT_DRIVER_VERSION_MAX, 0);
    take(text, REFIT_INVALID, NULL);
}

static void success_that_is_false_is_a_failure(void **state)
{
    struct refit_error error;
    json_t *answer = json_loads("{\"success\": false, \"message\": \"no\\nroom\"}", 0, NULL);
    assert_int_equal(refit_driver_check_success(answer, "/x", &error), REFIT_CONFLICT);
    assert_non_null(strstr(error.text, "no room"));
    json_decref(answer);
    answer = json_loads("{\"success\": true}", 0, NULL);
    assert_int_equal(refit_driver_check_success(answer, "/x", &error), REFIT_OK);
    json_decref(answer);
    assert_int_equal(refit_driver_check_success(NULL, "/x", &error), REFIT_OK); /* an answer without a body */
}

/* Cut where a character ends, or what an error says could not be written as JSON. */
static void long_words_are_cut_between_characters(void **state)
{
    struct refit_error error;
    char text[512];
    (void)state;
    for (int before = 196; before <= 200; before++) {
        snprintf(text, sizeof text, "{\"success\": false, \"message\": \"%0*d\xe2\x82\xac, and so on\"}", before, 0);
        json_t *answer = json_loads(text, 0, NULL);
        assert_int_equal(refit_driver_check_success(answer, "/x", &error), REFIT_CONFLICT);
        json_decref(answer);
        json_t *said = json_string(error.text);
        assert_non_null(said);
        json_decref(said);
        assert_int_equal(strstr(error.text, "\xe2\x82\xac") != NULL, before + 3 <= 200);
    }
}

/* Nobody listens there: a call that went out without its body would end as REFIT_PEER. */
static void a_body_that_can_not_be_made_is_not_sent_as_none(void **state)
{
    const struct refit_driver_engine *const engines[] = {&refit_driver_vllm, &refit_driver_sglang};
    const struct refit_driver_order order = {.path = "/dev/shm/\xff", .version = "7"};
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        struct refit_driver_link link = {.call_ms = 1000};
        struct refit_error error;
        assert_int_equal(refit_http_url_parse("http://127.0.0.1:1", &link.url, &error), REFIT_OK);
        assert_int_equal(engines[i]->load(&link, &order, refit_deadline_in_ms(1000), &error), REFIT_INVALID);
        assert_non_null(strstr(error.text, "UTF-8"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_are_named_with_their_url),
        cmocka_unit_test(versions_of_engines_are_bounded_texts),
        cmocka_unit_test(success_that_is_false_is_a_failure),
        cmocka_unit_test(long_words_are_cut_between_characters),
        cmocka_unit_test(a_body_that_can_not_be_made_is_not_sent_as_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
