/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sender/control.h"
#include "tests/sender/raw_server.h"

#define SHORT_MS 200
#define LONG_MS 20000

static struct raw_server server;
static struct refit_control control;
static struct refit_error err;

static int reset(void **state)
{
    memset(&server, 0, sizeof server);
    memset(&err, 0, sizeof err);
    return 0;
}

/* One GET of /v1/weights as JSON. */
static enum refit_status get(const char *url, int64_t ms, json_t **out)
{
    assert_int_equal(refit_control_init(&control, url, &err), REFIT_OK);
    return refit_control_call(&control, REFIT_HTTP_GET, "/v1/weights", NULL, refit_deadline_in_ms(ms), out, &err);
}

static enum refit_status get_from_server(int64_t ms, json_t **out)
{
    raw_server_start(&server);
    enum refit_status status = get(server.url, ms, out);
    raw_server_stop(&server);
    return status;
}

/* ---- addresses ---- */

static void urls_are_taken_apart(void **state)
{
    struct refit_http_url url;
    assert_int_equal(refit_http_url_parse("http://10.0.0.7:7070/", &url, &err), REFIT_OK);
    assert_string_equal(url.host, "10.0.0.7");
    assert_int_equal(url.port, 7070);
    assert_string_equal(url.prefix, "");
    assert_string_equal(url.text, "http://10.0.0.7:7070");
    assert_int_equal(refit_http_url_parse("pod-3:80/replicas/a/", &url, &err), REFIT_OK);
    assert_string_equal(url.host, "pod-3");
    assert_string_equal(url.prefix, "/replicas/a");
    assert_int_equal(refit_http_url_parse("http://[::1]:7070", &url, &err), REFIT_OK);
    assert_string_equal(url.host, "::1");
    assert_false(url.secure);
    assert_int_equal(refit_http_url_parse("https://replica-0.pool", &url, &err), REFIT_OK);
    assert_true(url.secure);
    assert_int_equal(url.port, 443);
}

static void bad_urls_are_named(void **state)
{
    static const char *const bad[] = {"ftp://a:1", "httpss://a:1", "http://", "http://a:0", "http://u@a:1", "http://a:1?q", ""};
    struct refit_http_url url;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(refit_http_url_parse(bad[i], &url, &err), REFIT_INVALID);
        assert_non_null(strstr(err.text, bad[i]));
    }
}

/* ---- answers ---- */

static void an_answer_comes_with_its_instance(void **state)
{
    json_t *answer = NULL;
    server.answer = "HTTP/1.1 200 OK\r\nRefit-Instance: abc\r\nContent-Length: 9\r\n\r\n{\"x\": 17}";
    assert_int_equal(get_from_server(LONG_MS, &answer), REFIT_OK);
    assert_int_equal(json_integer_value(json_object_get(answer, "x")), 17);
    assert_string_equal(control.instance, "abc");
    char host[64];
    snprintf(host, sizeof host, "Host: 127.0.0.1:%u\r\n", (unsigned)server.port);
    assert_non_null(strstr(server.request, host));
    assert_int_equal(strncmp(server.request, "GET /v1/weights HTTP/1.1\r\n", 26), 0);
    json_decref(answer);
}

static void names_are_looked_up(void **state)
{
    json_t *answer = NULL;
    char url[64];
    server.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    raw_server_start(&server);
    snprintf(url, sizeof url, "localhost:%u", (unsigned)server.port);
    enum refit_status status = get(url, LONG_MS, &answer);
    raw_server_stop(&server);
    assert_int_equal(status, REFIT_OK);
    json_decref(answer);
}

static void a_problem_becomes_the_error_it_names(void **state)
{
    server.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Type: application/problem+json\r\nConnection: close\r\n\r\n"
                    "{\"status\": 412, \"detail\": \"epoch 4 is not current\", \"refit_status\": \"stale\"}";
    assert_int_equal(get_from_server(LONG_MS, NULL), REFIT_STALE);
    assert_int_equal(err.status, REFIT_STALE);
    assert_non_null(strstr(err.text, "epoch 4 is not current"));
    assert_non_null(strstr(err.text, server.url));
}

/* What a peer says is shown on terminals. */
static void what_a_peer_says_steers_no_terminal(void **state)
{
    server.answer = "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n"
                    "{\"detail\": \"held\\u001b[2J\\u009b31m\\nrefit: all is well\", \"refit_status\": \"conflict\"}";
    assert_int_equal(get_from_server(LONG_MS, NULL), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "held [2J  31m refit: all is well"));
}

static void a_status_without_a_problem_is_still_an_error(void **state)
{
    server.answer = "HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 4\r\n\r\noops";
    assert_int_equal(get_from_server(LONG_MS, NULL), REFIT_BUSY);
    assert_non_null(strstr(err.text, "503"));
}

static void wrong_json_is_named(void **state)
{
    json_t *answer = NULL;
    server.answer = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"x\": 1";
    assert_int_equal(get_from_server(LONG_MS, &answer), REFIT_INVALID);
    assert_non_null(strstr(err.text, "/v1/weights"));
    assert_null(answer);
}

static void members_of_another_type_are_named(void **state)
{
    struct refit_control_state refit;
    server.answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"id\": \"r1\", \"version\": \"x\", \"phase\": \"staged\"}";
    raw_server_start(&server);
    assert_int_equal(refit_control_init(&control, server.url, &err), REFIT_OK);
    enum refit_status status =
        refit_control_state(&control, "r1", 3, 100, refit_deadline_in_ms(LONG_MS), &refit, &err);
    raw_server_stop(&server);
    assert_int_equal(status, REFIT_INVALID);
    assert_non_null(strstr(err.text, "version"));
    assert_non_null(strstr(server.request, "GET /refit/r1?after=3&wait_ms=100 "));
}

/* ---- peers that misbehave ---- */

static void silence_ends_at_the_deadline(void **state)
{
    server.hold = true;
    assert_int_equal(get_from_server(SHORT_MS, NULL), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, server.url));
}

static void a_trickle_ends_at_the_deadline(void **state)
{
    server.answer = "H";
    server.trickle = true;
    enum refit_status status = get_from_server(SHORT_MS, NULL);
    /* Either the deadline or the limit of a header's size comes first. */
    assert_true(status == REFIT_TIMEOUT || status == REFIT_INVALID);
}

static void an_answer_that_is_too_large_is_refused(void **state)
{
    static char filler[65537];
    memset(filler, 'x', sizeof filler - 1);
    server.answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    server.filler = filler;
    server.repeat = 4096;
    enum refit_status status = get_from_server(LONG_MS, NULL);
    assert_int_equal(status, REFIT_INVALID);
    assert_non_null(strstr(err.text, "larger"));
}

static void a_close_before_the_end_is_a_lost_peer(void **state)
{
    server.answer = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"x\"";
    assert_int_equal(get_from_server(LONG_MS, NULL), REFIT_PEER);
}

static void a_close_without_an_answer_is_a_lost_peer(void **state)
{
    assert_int_equal(get_from_server(LONG_MS, NULL), REFIT_PEER);
}

static void something_else_than_http_is_refused(void **state)
{
    server.answer = "SSH-2.0-OpenSSH_9\r\n\r\n";
    enum refit_status status = get_from_server(LONG_MS, NULL);
    assert_true(status == REFIT_INVALID || status == REFIT_PEER);
}

static void a_port_where_nobody_listens_is_a_lost_peer(void **state)
{
    raw_server_start(&server);
    raw_server_stop(&server);
    assert_int_equal(get(server.url, LONG_MS, NULL), REFIT_PEER);
    assert_non_null(strstr(err.text, "cannot connect"));
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(urls_are_taken_apart, reset),
        cmocka_unit_test_setup(bad_urls_are_named, reset),
        cmocka_unit_test_setup(an_answer_comes_with_its_instance, reset),
        cmocka_unit_test_setup(names_are_looked_up, reset),
        cmocka_unit_test_setup(a_problem_becomes_the_error_it_names, reset),
        cmocka_unit_test_setup(what_a_peer_says_steers_no_terminal, reset),
        cmocka_unit_test_setup(a_status_without_a_problem_is_still_an_error, reset),
        cmocka_unit_test_setup(wrong_json_is_named, reset),
        cmocka_unit_test_setup(members_of_another_type_are_named, reset),
        cmocka_unit_test_setup(silence_ends_at_the_deadline, reset),
        cmocka_unit_test_setup(a_trickle_ends_at_the_deadline, reset),
        cmocka_unit_test_setup(an_answer_that_is_too_large_is_refused, reset),
        cmocka_unit_test_setup(a_close_before_the_end_is_a_lost_peer, reset),
        cmocka_unit_test_setup(a_close_without_an_answer_is_a_lost_peer, reset),
        cmocka_unit_test_setup(something_else_than_http_is_refused, reset),
        cmocka_unit_test_setup(a_port_where_nobody_listens_is_a_lost_peer, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
