/* SPDX-License-Identifier: Apache-2.0
 *
 * One deadline per request, counted from its first byte: bytes that trickle in do not move it. In this process, with a
 * server whose deadline is short; the client sends a byte each time the loop turns, so the request never falls silent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "refitd.h"
#include "sidecar/http_server.h"

#define HASTY_MS 150

static int64_t deadline_ms;
static struct event_base *base;
static struct refit_httpd *server;
static int client;
static const char *trickle; /* what the client sends again and again */

static void on_head(void *context, struct refit_exchange *exchange, struct refit_http_limits *limits,
                    struct refit_reply *reply)
{
    *limits = (struct refit_http_limits){.body_bytes = 1 << 20, .deadline_ms = deadline_ms};
}

static void on_request(void *context, struct refit_exchange *exchange)
{
    struct refit_reply reply;
    refit_reply_init(&reply);
    refit_reply_bytes(&reply, 200, "text/plain", exchange->body, exchange->body_len);
    refit_exchange_reply(exchange, &reply);
}

static int open_server(int64_t ms)
{
    deadline_ms = ms;
    const struct refit_httpd_config config = {.name = "test",
                                              .address = "127.0.0.1:0",
                                              .connections_max = 2,
                                              .header_bytes_max = 1 << 20,
                                              .deadline_ms = deadline_ms,
                                              .idle_ms = 60000,
                                              .answer_ms = 60000,
                                              .bodies_max = 1 << 20,
                                              .on_head = on_head,
                                              .on_request = on_request};
    struct refit_error err;
    base = event_base_new();
    assert_int_equal(refit_httpd_start(base, &config, &server, &err), REFIT_OK);
    client = http_connect(refit_httpd_port(server));
    return 0;
}

static int set_up(void **state)
{
    return open_server(REFITD_WAIT_MS);
}

/* For requests that never end. */
static int set_up_hasty(void **state)
{
    return open_server(HASTY_MS);
}

static int tear_down(void **state)
{
    close(client);
    refit_httpd_stop(server);
    event_base_free(base);
    return 0;
}

static void send_more(evutil_socket_t fd, short what, void *context)
{
    http_send(client, trickle, strlen(trickle));
}

static void on_answer(evutil_socket_t fd, short what, void *context)
{
    event_base_loopbreak(base);
}

/* Runs the loop until the client has something to read; it sends all the while. */
static void trickle_until_answered(const char *first, const char *more)
{
    static struct answer answer;
    const struct timeval pace = {.tv_usec = 10000};
    struct event *sender = event_new(base, -1, EV_PERSIST, send_more, NULL);
    struct event *reader = event_new(base, client, EV_READ, on_answer, NULL);
    trickle = more;
    http_send(client, first, strlen(first));
    event_add(sender, &pace);
    event_add(reader, NULL);
    event_base_dispatch(base);
    event_free(sender);
    event_free(reader);
    http_receive(client, &answer);
    assert_problem(&answer, 408, "request-timeout");
}

static void a_head_that_trickles_in_ends_at_the_deadline(void **state)
{
    trickle_until_answered("GET / HTTP/1.1\r\nHost: a\r\n", "X-A: b\r\n");
}

static void a_body_that_trickles_in_ends_at_the_deadline(void **state)
{
    trickle_until_answered("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", "x");
}

/* Runs the loop until there is something to read from `fd`, or its end. */
static void run_until_readable(int fd)
{
    struct event *reader = event_new(base, fd, EV_READ, on_answer, NULL);
    event_add(reader, NULL);
    event_base_dispatch(base);
    event_free(reader);
}

static void idle_connections_give_way_to_a_new_one(void **state)
{
    int second = http_connect(refit_httpd_port(server)), third = http_connect(refit_httpd_port(server));
    run_until_readable(client);
    assert_true(http_closed(client));
    assert_int_equal(refit_httpd_connections(server), 2);
    close(second);
    close(third);
}

static void connections_that_are_answered_do_not_give_way(void **state)
{
    const char *body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n";
    int second = http_connect(refit_httpd_port(server));
    http_send(client, body, strlen(body));
    run_until_readable(client);
    http_send(second, body, strlen(body));
    run_until_readable(second);
    int third = http_connect(refit_httpd_port(server));
    run_until_readable(third);
    assert_true(http_closed(third));
    assert_int_equal(refit_httpd_connections(server), 2);
    close(second);
    close(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_head_that_trickles_in_ends_at_the_deadline, set_up_hasty, tear_down),
        cmocka_unit_test_setup_teardown(a_body_that_trickles_in_ends_at_the_deadline, set_up_hasty, tear_down),
        cmocka_unit_test_setup_teardown(idle_connections_give_way_to_a_new_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(connections_that_are_answered_do_not_give_way, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
