/* SPDX-License-Identifier: Apache-2.0
 *
 * Start, signals, ports, first weights.
 */
#include "refitd.h"

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"

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

static void sigterm_ends_an_idle_refitd(void **state)
{
    refitd_start(&refitd, NULL);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void sigterm_right_after_the_start_is_not_lost(void **state)
{
    for (int i = 0; i < 10; i++) {
        refitd_spawn(&refitd, NULL);
        /* The mask is set by its first instruction; before exec the signal has its default action, which is an end,
         * too. */
        assert_int_equal(kill(refitd.pid, SIGTERM), 0);
        int code = refitd_wait(&refitd);
        assert_true(code == 0 || code == 128 + SIGTERM);
    }
}

static void a_name_cannot_pass_for_another_key_of_the_audit(void **state)
{
    char line[1024];
    refitd_start(&refitd, NULL);
    json_decref(http_json(refitd.control, "POST", "/v1/lead", "{\"name\":\"a\\\" change=release\"}", 200));
    refitd_expect_log(&refitd, "change=lead", line, sizeof line);
    assert_non_null(strstr(line, " lead=\"a\\\" change=release\" epoch="));
    assert_int_equal(refitd_stop(&refitd), 0);
}

/* A barrier refit of a checkpoint, staged; its sequence then. */
static long long stage(char id[static 64])
{
    char path[128];
    refitd_checkpoint(&refitd, "one.safetensors", 1);
    json_t *state = http_json(refitd.control, "POST", "/refit",
                              "{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", 202);
    snprintf(id, 64, "%s", json_string_value(json_object_get(state, "id")));
    snprintf(path, sizeof path, "/refit/%s", id);
    for (;;) {
        json_decref(state);
        state = http_json(refitd.control, "GET", path, NULL, 200);
        long long sequence = (long long)json_integer_value(json_object_get(state, "sequence"));
        bool staged = strcmp(json_string_value(json_object_get(state, "phase")), "staged") == 0;
        assert_false(json_is_true(json_object_get(state, "terminal")));
        if (staged) {
            json_decref(state);
            return sequence;
        }
        snprintf(path, sizeof path, "/refit/%s?after=%lld&wait_ms=30000", id, sequence);
    }
}

static void sigterm_ends_those_who_wait(void **state)
{
    char id[64], request[256], line[8192];
    refitd_start(&refitd, NULL);
    long long sequence = stage(id);
    int events = http_connect(refitd.control), poll = http_connect(refitd.control);
    int len = snprintf(request, sizeof request, "GET /refit/%s/events HTTP/1.1\r\nHost: a\r\n\r\n", id);
    http_send(events, request, (size_t)len);
    http_receive_head(events, &answer);
    len = snprintf(request, sizeof request, "GET /refit/%s?after=%lld&wait_ms=30000 HTTP/1.1\r\nHost: a\r\n\r\n", id,
                   sequence);
    http_send(poll, request, (size_t)len);
    assert_int_equal(kill(refitd.pid, SIGTERM), 0);
    /* Aborted, or too late: the signal and the request race. */
    http_receive(poll, &answer);
    assert_true(answer.status == 409 || answer.status == 503);
    while (http_line(events, line, sizeof line))
        ;
    close(poll);
    close(events);
    assert_int_equal(refitd_wait(&refitd), 0);
}

static void sigterm_while_a_body_comes_in_does_not_wait_for_it(void **state)
{
    const char *part = "PUT /v1/sources/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx";
    refitd_start(&refitd, NULL);
    int fd = http_connect(refitd.control);
    http_send(fd, part, strlen(part));
    assert_int_equal(refitd_stop(&refitd), 0);
    close(fd);
}

static void a_second_refitd_leaves_the_sockets_of_a_live_one_alone(void **state)
{
    struct refitd second;
    char line[1024];
    refitd_start(&refitd, NULL);
    refitd_prepare(&second);
    const char *const same[] = {"--socket", refitd.socket, NULL};
    refitd_spawn(&second, same);
    refitd_expect_log(&second, "can't start", line, sizeof line);
    assert_non_null(strstr(line, refitd.socket));
    assert_non_null(strstr(line, "in use by a live refitd"));
    assert_int_equal(refitd_wait(&second), 1);
    refitd_cleanup(&second);
    assert_int_equal(access(refitd.socket, F_OK), 0);
    json_decref(http_json(refitd.control, "GET", "/v1/weights", NULL, 200));
    /* What is left of one that was killed is no hindrance. */
    assert_int_equal(kill(refitd.pid, SIGKILL), 0);
    assert_int_equal(refitd_wait(&refitd), 128 + SIGKILL);
    assert_int_equal(access(refitd.socket, F_OK), 0);
    refitd_start(&refitd, NULL);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void the_ports_file_names_the_ports(void **state)
{
    char *text;
    size_t len;
    struct refit_error err;
    json_t *ports;
    refitd_start(&refitd, NULL);
    assert_int_equal(refit_io_read_file(refitd.ports, 4096, &text, &len, &err), REFIT_OK);
    assert_int_equal(refit_json_parse(text, len, "ports", &ports, &err), REFIT_OK);
    assert_int_equal(json_integer_value(json_object_get(ports, "control")), refitd.control);
    assert_int_equal(json_integer_value(json_object_get(ports, "admin")), refitd.admin);
    assert_int_equal(json_integer_value(json_object_get(ports, "data")), refitd.data);
    assert_int_not_equal(refitd.data, 0);
    json_decref(ports);
    free(text);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void probes_tell_three_truths(void **state)
{
    refitd_start(&refitd, NULL);
    json_decref(http_json(refitd.admin, "GET", "/livez", NULL, 200));
    json_decref(http_json(refitd.admin, "GET", "/startupz", NULL, 200));
    json_t *ready = http_json(refitd.admin, "GET", "/readyz", NULL, 503);
    assert_int_equal(json_array_size(json_object_get(ready, "reasons")), 2);
    json_decref(ready);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void initial_weights_are_loaded(void **state)
{
    static const char *const args[] = {
        "--initial-checkpoint", "one.safetensors", "--initial-version", "5", "--startup-needs-weights", NULL};
    refitd_checkpoint(&refitd, "one.safetensors", 1);
    refitd_start(&refitd, args);
    refitd_expect_log(&refitd, "change=swap from=0 to=5 label=initial", NULL, 0);
    json_t *started = http_json(refitd.admin, "GET", "/startupz", NULL, 200);
    assert_int_equal(json_integer_value(json_object_get(started, "version")), 5);
    json_decref(started);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void initial_weights_that_come_late_are_waited_for(void **state)
{
    static const char *const args[] = {"--initial-checkpoint", "late.safetensors", "--startup-needs-weights", NULL};
    refitd_start(&refitd, args);
    refitd_expect_log(&refitd, "late.safetensors", NULL, 0);
    json_decref(http_json(refitd.admin, "GET", "/startupz", NULL, 503));
    refitd_checkpoint(&refitd, "late.safetensors", 1);
    refitd_expect_log(&refitd, "change=swap from=0 to=1", NULL, 0);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void a_start_that_fails_says_why(void **state)
{
    char line[1024];
    static const char *const bad_layout[] = {"--layout", "/nonexistent/layout.json", NULL};
    refitd_spawn(&refitd, bad_layout);
    refitd_expect_log(&refitd, "can't start", line, sizeof line);
    assert_non_null(strstr(line, "/nonexistent/layout.json"));
    assert_int_equal(refitd_wait(&refitd), 1);
    static const char *const bad_option[] = {"--bogus", NULL};
    refitd_spawn(&refitd, bad_option);
    refitd_expect_log(&refitd, "--bogus", NULL, 0);
    assert_int_equal(refitd_wait(&refitd), 2);
}

static void a_port_in_use_is_named(void **state)
{
    char address[32], line[1024];
    struct refitd other;
    refitd_start(&refitd, NULL);
    snprintf(address, sizeof address, "127.0.0.1:%u", refitd.control);
    const char *const args[] = {"--control", address, NULL};
    refitd_prepare(&other);
    refitd_spawn(&other, args);
    refitd_expect_log(&other, "can't start", line, sizeof line);
    assert_non_null(strstr(line, address));
    assert_int_equal(refitd_wait(&other), 1);
    refitd_cleanup(&other);
    assert_int_equal(refitd_stop(&refitd), 0);
}

static void a_restart_is_another_instance(void **state)
{
    char before[64], after[64];
    refitd_start(&refitd, NULL);
    http_call(refitd.control, "GET", "/v1/weights", NULL, &answer);
    snprintf(before, sizeof before, "%s", http_header(&answer, "Refit-Instance"));
    json_t *lead = http_json(refitd.control, "POST", "/v1/lead", "{\"name\":\"a\"}", 200);
    assert_int_equal(json_integer_value(json_object_get(lead, "epoch")), 1);
    json_decref(lead);
    assert_int_equal(kill(refitd.pid, SIGKILL), 0);
    assert_int_equal(refitd_wait(&refitd), 128 + SIGKILL);
    refitd_start(&refitd, NULL);
    http_call(refitd.control, "GET", "/v1/weights", NULL, &answer);
    snprintf(after, sizeof after, "%s", http_header(&answer, "Refit-Instance"));
    assert_string_not_equal(before, after);
    lead = http_json(refitd.control, "POST", "/v1/lead", "{\"name\":\"a\"}", 200);
    assert_int_equal(json_integer_value(json_object_get(lead, "epoch")), 2);
    json_decref(lead);
    assert_int_equal(refitd_stop(&refitd), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sigterm_ends_an_idle_refitd),    TEST(sigterm_right_after_the_start_is_not_lost),
        TEST(sigterm_ends_those_who_wait),    TEST(sigterm_while_a_body_comes_in_does_not_wait_for_it),
        TEST(a_name_cannot_pass_for_another_key_of_the_audit),
        TEST(a_second_refitd_leaves_the_sockets_of_a_live_one_alone), TEST(probes_tell_three_truths),
        TEST(the_ports_file_names_the_ports), TEST(probes_tell_three_truths),
        TEST(initial_weights_are_loaded),     TEST(initial_weights_that_come_late_are_waited_for),
        TEST(a_start_that_fails_says_why),    TEST(a_port_in_use_is_named),
        TEST(a_restart_is_another_instance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
