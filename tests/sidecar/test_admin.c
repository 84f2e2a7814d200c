/* SPDX-License-Identifier: Apache-2.0
 *
 * The admin listener: probes before, while and after refitd is up, and the forms of its answers.
 */
#include "refitd.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "sidecar/http_head.h"
#include "tests/support/port.h"

static struct refitd refitd;
static struct answer answer;

static int set_up(void **state)
{
    refitd_prepare(&refitd);
    return 0;
}

static int tear_down(void **state)
{
    refitd_cleanup(&refitd);
    return 0;
}

/* Until somebody listens there. */
static void await_listener(uint16_t port)
{
    struct refit_deadline deadline = refit_deadline_in_ms(REFITD_WAIT_MS);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (bool connected = false; !connected;) {
        assert_false(refit_deadline_passed(deadline));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        connected = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
    }
}

/* Touching half a GiB takes a while; each answer on the way there must be one of the two that make sense, and the same truth in
 * each form. */
static void probes_answer_while_it_still_starts(void **state)
{
    char admin[32];
    uint16_t port = port_reserve();
    snprintf(admin, sizeof admin, "127.0.0.1:%u", port);
    const char *const args[] = {"--slot-bytes", "256MiB", "--admin", admin, NULL};
    refitd_spawn(&refitd, args);
    await_listener(port);
    for (bool started = false; !started;) {
        json_decref(http_json(port, "GET", "/livez", NULL, 200));
        json_decref(http_json(port, "GET", "/readyz", NULL, 503));
        http_call(port, "GET", "/startupz", NULL, &answer);
        started = answer.status == 200;
        if (!started)
            assert_non_null(strstr(answer.body, "\"reasons\":[\"capacity is being reserved\"]"));
        http_call(port, "GET", "/metrics", NULL, &answer);
        assert_non_null(strstr(answer.body, "\nrefit_started "));
        assert_true(!started || strstr(answer.body, "\nrefit_started 1\n"));
        http_call(port, "GET", "/", NULL, &answer);
        assert_int_equal(answer.status, 200);
        http_call(port, "GET", "/traffic", NULL, &answer);
        assert_true(answer.status == 200 || (!started && answer.status == 503));
    }
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void verbose_says_every_check_one_a_line(void **state)
{
    refitd_start(&refitd, NULL);
    http_call(refitd.admin, "GET", "/readyz?verbose", NULL, &answer);
    assert_int_equal(answer.status, 503);
    assert_string_equal(http_header(&answer, "Refit-Version"), "0");
    assert_non_null(strstr(answer.body, "\"name\": \"engines\",\n      \"ok\": false\n"));
    assert_non_null(strstr(answer.body, "\"name\": \"capacity\",\n      \"ok\": true\n"));
    assert_non_null(strstr(answer.body, "0 of 1 engine ranks are attached"));
    json_t *brief = http_json(refitd.admin, "GET", "/readyz", NULL, 503);
    assert_null(json_object_get(brief, "checks"));
    json_decref(brief);
    json_t *live = http_json(refitd.admin, "GET", "/livez?verbose=1", NULL, 200);
    assert_int_equal(json_array_size(json_object_get(live, "checks")), 1);
    json_decref(live);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void the_minimum_version_is_a_check_of_readiness_only(void **state)
{
    static const char *const args[] = {"--initial-checkpoint", "one.safetensors", "--initial-version", "5", "--ready-min-version", "6",
                                       NULL};
    refitd_checkpoint(&refitd, "one.safetensors", 1);
    refitd_start(&refitd, args);
    refitd_expect_log(&refitd, "change=swap from=0 to=5", NULL, 0);
    http_call(refitd.admin, "GET", "/readyz?verbose", NULL, &answer);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.body, "version 5 is served, at least 6 is asked for"));
    json_decref(http_json(refitd.admin, "GET", "/startupz", NULL, 200));
    json_decref(http_json(refitd.admin, "GET", "/livez", NULL, 200));
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void metrics_come_in_the_form_that_is_asked_for(void **state)
{
    const char *ask = "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    refitd_start(&refitd, NULL);
    int fd = http_connect(refitd.admin);
    http_send(fd, ask, strlen(ask));
    http_receive(fd, &answer);
    close(fd);
    assert_string_equal(http_header(&answer, "Content-Type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_string_equal(http_header(&answer, "Vary"), "Accept");
    assert_string_equal(answer.body + answer.body_len - 6, "# EOF\n");
    http_call(refitd.admin, "GET", "/metrics", NULL, &answer);
    assert_string_equal(http_header(&answer, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    /* The two before this one, and no error. */
    assert_non_null(strstr(answer.body, "refit_http_answers_total{listener=\"admin\",code=\"2xx\"} 1\n"));
    assert_non_null(strstr(answer.body, "refit_http_answers_total{listener=\"admin\",code=\"4xx\"} 0\n"));
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void it_only_reads(void **state)
{
    static const char *const paths[] = {"/", "/status", "/traffic", "/livez", "/readyz", "/startupz", "/metrics"};
    refitd_start(&refitd, NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        http_call(refitd.admin, "POST", paths[i], "{}", &answer);
        assert_problem(&answer, 405, "method-not-allowed");
        assert_string_equal(http_header(&answer, "Allow"), "GET, HEAD");
        http_call(refitd.admin, "GET", paths[i], NULL, &answer);
        assert_true(answer.status == 200 || answer.status == 503);
    }
    http_call(refitd.admin, "GET", "/../status", NULL, &answer);
    assert_problem(&answer, 404, "no-such-path");
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void accept_and_query_are_read_as_written(void **state)
{
    assert_true(refit_http_accepts("a/b", "a/b"));
    assert_true(refit_http_accepts("x/y;q=0.5, a/b ; v=1;q=0.3,*/*", "a/b"));
    assert_true(refit_http_accepts("A/B;q=0.001", "a/b"));
    assert_false(refit_http_accepts("a/b;q=0", "a/b"));
    assert_false(refit_http_accepts("a/b; q=0.000", "a/b"));
    assert_false(refit_http_accepts("*/*", "a/b"));
    assert_false(refit_http_accepts("", "a/b"));
    assert_false(refit_http_accepts("a/bc", "a/b"));
    assert_true(refit_http_query_has("verbose", "verbose"));
    assert_true(refit_http_query_has("a=1&verbose=", "verbose"));
    assert_false(refit_http_query_has("", "verbose"));
    assert_false(refit_http_query_has("a=verbose&verbosely", "verbose"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(probes_answer_while_it_still_starts),
        TEST(verbose_says_every_check_one_a_line),
        TEST(the_minimum_version_is_a_check_of_readiness_only),
        TEST(metrics_come_in_the_form_that_is_asked_for),
        TEST(it_only_reads),
        TEST(accept_and_query_are_read_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
