/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client may do to the HTTP server, and what becomes of it: against a real refitd.
 */
#include "refitd.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static struct refitd refitd;
static struct answer answer;

static int set_up(void **state)
{
    refitd_prepare(&refitd);
    refitd_start(&refitd, NULL);
    return 0;
}

static int tear_down(void **state)
{
    int code = refitd_stop(&refitd);
    refitd_cleanup(&refitd);
    return code;
}

static void send_raw(const char *text, size_t len)
{
    int fd = http_connect(refitd.control);
    http_send(fd, text, len);
    http_receive(fd, &answer);
    close(fd);
}

#define SEND(text) send_raw(text, sizeof text - 1)

static void unknown_path_is_404(void **state)
{
    http_call(refitd.control, "GET", "/nothing", NULL, &answer);
    assert_problem(&answer, 404, "no-such-path");
    http_call(refitd.admin, "GET", "/v1/weights", NULL, &answer);
    assert_problem(&answer, 404, "no-such-path");
    http_call(refitd.control, "GET", "/refit//events", NULL, &answer);
    assert_problem(&answer, 404, "no-such-path");
    http_call(refitd.control, "GET", "/v1/weights/", NULL, &answer);
    assert_problem(&answer, 404, "no-such-path");
}

static void wrong_method_is_405_with_allow(void **state)
{
    http_call(refitd.control, "DELETE", "/refit", NULL, &answer);
    assert_problem(&answer, 405, "method-not-allowed");
    assert_string_equal(http_header(&answer, "Allow"), "POST, GET, HEAD");
    http_call(refitd.admin, "POST", "/livez", NULL, &answer);
    assert_problem(&answer, 405, "method-not-allowed");
}

static void head_has_no_body_and_the_connection_goes_on(void **state)
{
    int fd = http_connect(refitd.control);
    const char *head = "HEAD /v1/weights HTTP/1.1\r\nHost: a\r\n\r\n";
    http_send(fd, head, strlen(head));
    http_receive_head(fd, &answer);
    assert_int_equal(answer.status, 200);
    assert_true(atoi(http_header(&answer, "Content-Length")) > 0);
    const char *get = "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n";
    http_send(fd, get, strlen(get));
    http_receive(fd, &answer);
    assert_problem(&answer, 404, "no-such-path");
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    int fd = http_connect(refitd.control);
    const char *all =
        "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\nPOST /v1/plan HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
        "GET /v1/weights HTTP/1.1\r\nHost: a\r\n\r\n";
    http_send(fd, all, strlen(all));
    http_receive(fd, &answer);
    assert_int_equal(answer.status, 404);
    http_receive(fd, &answer);
    assert_problem(&answer, 400, "invalid");
    http_receive(fd, &answer);
    assert_int_equal(answer.status, 200);
    close(fd);
}

static void a_half_closed_client_gets_its_answer(void **state)
{
    int fd = http_connect(refitd.control);
    const char *get = "GET /v1/weights HTTP/1.1\r\nHost: a\r\n\r\n";
    http_send(fd, get, strlen(get));
    shutdown(fd, SHUT_WR);
    http_receive(fd, &answer);
    assert_int_equal(answer.status, 200);
    assert_true(http_closed(fd));
    close(fd);
}

static void a_header_value_with_a_nul_is_refused(void **state)
{
    SEND("GET /v1/weights HTTP/1.1\r\nHost: a\r\nX-A: b\0c\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
    assert_non_null(strstr(answer.body, "NUL"));
}

static void ambiguous_framing_is_refused(void **state)
{
    SEND("POST /v1/plan HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}");
    assert_problem(&answer, 400, "bad-request");
    SEND("POST /v1/plan HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}");
    assert_problem(&answer, 400, "bad-request");
    SEND("POST /v1/plan HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_int_equal(answer.status, 411);
    SEND("POST /v1/plan HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
    SEND("POST /v1/plan HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
    SEND("GET /v1/weights HTTP/1.1\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
    SEND("GET /v1/weights HTTP/1.1\r\nHost : a\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
    SEND("GET /v1/weights HTTP/2.0\r\nHost: a\r\n\r\n");
    assert_int_equal(answer.status, 505);
    SEND("nonsense\r\n\r\n");
    assert_problem(&answer, 400, "bad-request");
}

static void a_huge_header_is_431(void **state)
{
    static char text[20000];
    int len = snprintf(text, sizeof text, "GET /v1/weights HTTP/1.1\r\nHost: a\r\nX-A: ");
    memset(text + len, 'x', sizeof text - (size_t)len);
    send_raw(text, sizeof text);
    assert_problem(&answer, 431, "header-too-large");
}

static void a_huge_body_is_413_before_it_is_read(void **state)
{
    SEND("POST /refit HTTP/1.1\r\nHost: a\r\nContent-Length: 4194305\r\n\r\n");
    assert_problem(&answer, 413, "body-too-large");
    SEND("POST /v1/lead HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n");
    assert_problem(&answer, 413, "body-too-large");
    SEND("PUT /v1/sources/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 67108865\r\nExpect: 100-continue\r\n\r\n");
    assert_problem(&answer, 413, "body-too-large");
    SEND("GET /v1/weights HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    assert_problem(&answer, 413, "body-too-large");
}

static void large_bodies_together_are_bounded(void **state)
{
    const char *head =
        "PUT /v1/sources/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 67108864\r\nExpect: 100-continue\r\n\r\n";
    int first = http_connect(refitd.control);
    http_send(first, head, strlen(head));
    http_receive_head(first, &answer);
    assert_int_equal(answer.status, 100);
    send_raw(head, strlen(head));
    assert_problem(&answer, 503, "busy");
    assert_string_equal(http_header(&answer, "Retry-After"), "1");
    close(first);
}

static void requests_of_web_pages_only_read(void **state)
{
    SEND("POST /v1/release HTTP/1.1\r\nHost: a\r\nOrigin: http://evil\r\nContent-Length: 2\r\n\r\n{}");
    assert_problem(&answer, 403, "cross-site");
}

static void bad_bodies_are_400(void **state)
{
    static const char *const bodies[] = {
        "{",
        "[]",
        "{\"version\":1,\"version\":2}",
        "{\"version\":1.5}",
        "{\"version\":-1,\"checkpoint\":\"x\"}",
        "{\"version\":\"x\",\"checkpoint\":\"x\"}",
        "{\"version\":99999999999999999999,\"checkpoint\":\"x\"}",
        "{\"version\":1,\"checkpoint\":7}",
        "{\"version\":1,\"checkpoint\":\"x\",\"surprise\":1}",
        "{\"version\":0,\"checkpoint\":\"x\"}",
        "{\"version\":1}",
        "{\"version\":1,\"checkpoint\":\"x\",\"commit\":\"maybe\"}",
        "{\"version\":1,\"checkpoint\":\"x\",\"kv\":\"burn\"}",
        "{\"version\":1,\"checkpoint\":\"x\",\"deadline_ms\":0}",
        "{\"version\":1,\"checkpoint\":\"x\",\"digest\":\"abc\"}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        http_call(refitd.control, "POST", "/refit", bodies[i], &answer);
        if (answer.status != 400)
            fail_msg("%s: expected 400, found %d %s", bodies[i], answer.status, answer.body);
        assert_problem(&answer, 400, "invalid");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_path_is_404),
        cmocka_unit_test(wrong_method_is_405_with_allow),
        cmocka_unit_test(head_has_no_body_and_the_connection_goes_on),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_half_closed_client_gets_its_answer),
        cmocka_unit_test(a_header_value_with_a_nul_is_refused),
        cmocka_unit_test(ambiguous_framing_is_refused),
        cmocka_unit_test(a_huge_header_is_431),
        cmocka_unit_test(a_huge_body_is_413_before_it_is_read),
        cmocka_unit_test(large_bodies_together_are_bounded),
        cmocka_unit_test(requests_of_web_pages_only_read),
        cmocka_unit_test(bad_bodies_are_400),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
