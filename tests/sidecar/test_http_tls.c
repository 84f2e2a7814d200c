/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server under TLS: handshakes that never end, requests one behind the other, and clients that leave rudely.
 */
#include "refitd.h"

#include <event2/event.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "sidecar/http_server.h"
#include "tests/tls/pki.h"

#define HASTY_MS 300

static struct event_base *base;
static struct refit_httpd *server;
static struct refit_tls *tls;
static char dir[64];
static int client;
static SSL_CTX *context;
static unsigned requests;
static char seen[512];

static void on_head(void *nothing, struct refit_exchange *exchange, struct refit_http_limits *limits,
                    struct refit_reply *reply)
{
    *limits = (struct refit_http_limits){.body_bytes = 1 << 20, .deadline_ms = 30000};
    snprintf(seen, sizeof seen, "%s", exchange->peer ? exchange->peer->names[0] : "nobody");
}

static void on_request(void *nothing, struct refit_exchange *exchange)
{
    struct refit_reply reply;
    requests++;
    refit_reply_init(&reply);
    refit_reply_bytes(&reply, 200, "text/plain", exchange->body, exchange->body_len);
    refit_exchange_reply(exchange, &reply);
}

static const char *in_dir(const char *name)
{
    static char paths[8][96];
    static unsigned next;
    char *out = paths[next++ % 8];
    snprintf(out, sizeof paths[0], "%s/%s", dir, name);
    return out;
}

static int open_server(int64_t handshake_ms)
{
    struct refit_error err;
    const struct pki_leaf node = {.name = "node", .ca = "ca", .san = "URI:spiffe://x/y"};
    snprintf(dir, sizeof dir, "/tmp/refit-http-tls.XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_true(pki_make_ca(dir, "ca") && pki_make_leaf(dir, &node));
    const struct refit_tls_config files = {.end = REFIT_TLS_SERVER, .cert = in_dir("node.pem"), .key = in_dir("node.key"),
                                           .ca = in_dir("ca.pem"), .client_optional = true};
    assert_int_equal(refit_tls_open(&files, &tls, &err), REFIT_OK);
    const struct refit_httpd_config config = {.name = "test",
                                              .address = "127.0.0.1:0",
                                              .tls = tls,
                                              .connections_max = 4,
                                              .header_bytes_max = 16384,
                                              .handshake_ms = handshake_ms,
                                              .deadline_ms = 30000,
                                              .idle_ms = 60000,
                                              .answer_ms = 60000,
                                              .bodies_max = 1 << 20,
                                              .on_head = on_head,
                                              .on_request = on_request};
    base = event_base_new();
    assert_int_equal(refit_httpd_start(base, &config, &server, &err), REFIT_OK);
    client = http_connect(refit_httpd_port(server));
    context = SSL_CTX_new(TLS_client_method());
    requests = 0;
    return 0;
}

static int set_up(void **state)
{
    return open_server(REFITD_WAIT_MS);
}

/* For those who never shake hands. */
static int set_up_hasty(void **state)
{
    return open_server(HASTY_MS);
}

static int tear_down(void **state)
{
    static const char *const files[] = {"ca.pem", "ca.key", "node.pem", "node.key"};
    if (client >= 0)
        close(client);
    SSL_CTX_free(context);
    refit_httpd_stop(server);
    event_base_free(base);
    refit_tls_close(tls);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(in_dir(files[i]));
    return rmdir(dir);
}

static void turn_until(bool (*reached)(void *), void *argument)
{
    struct refit_deadline deadline = refit_deadline_in_ms(REFITD_WAIT_MS);
    const struct timeval soon = {.tv_usec = 20000};
    while (!reached(argument)) {
        if (refit_deadline_passed(deadline))
            fail_msg("did not happen within %d ms", REFITD_WAIT_MS);
        event_base_loopexit(base, &soon);
        event_base_loop(base, EVLOOP_ONCE);
    }
}

static bool nobody_is_connected(void *nothing)
{
    return refit_httpd_connections(server) == 0;
}

static bool somebody_is_connected(void *nothing)
{
    return refit_httpd_connections(server) > 0;
}

static void a_connection_that_says_nothing_ends_at_the_deadline(void **state)
{
    turn_until(somebody_is_connected, NULL);
    turn_until(nobody_is_connected, NULL);
    assert_int_equal(refit_httpd_handshakes_failed(server), 1);
    assert_true(http_closed(client));
}

static void half_a_client_hello_ends_at_the_deadline(void **state)
{
    static const char half[] = "\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03";
    http_send(client, half, sizeof half - 1);
    turn_until(somebody_is_connected, NULL);
    turn_until(nobody_is_connected, NULL);
    assert_int_equal(refit_httpd_handshakes_failed(server), 1);
}

static void trickle(evutil_socket_t fd, short what, void *at)
{
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    size_t *sent = at;
    char byte = *sent < sizeof hello - 1 ? hello[*sent] : 0;
    http_send(client, &byte, 1);
    ++*sent;
}

static void a_hello_that_trickles_in_ends_at_the_deadline(void **state)
{
    const struct timeval pace = {.tv_usec = 10000};
    size_t sent = 0;
    struct event *sender = event_new(base, -1, EV_PERSIST, trickle, &sent);
    event_add(sender, &pace);
    turn_until(somebody_is_connected, NULL);
    turn_until(nobody_is_connected, NULL);
    event_free(sender);
    assert_true(sent > 1);
}

static bool shaken(void *argument)
{
    SSL *ssl = argument;
    ERR_clear_error();
    return SSL_do_handshake(ssl) == 1;
}

static SSL *meet(bool with_certificate)
{
    if (with_certificate) {
        assert_int_equal(SSL_CTX_use_certificate_file(context, in_dir("node.pem"), SSL_FILETYPE_PEM), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(context, in_dir("node.key"), SSL_FILETYPE_PEM), 1);
    }
    SSL *ssl = SSL_new(context);
    assert_int_equal(fcntl(client, F_SETFL, O_NONBLOCK), 0);
    SSL_set_fd(ssl, client);
    SSL_set_connect_state(ssl);
    turn_until(shaken, ssl);
    return ssl;
}

static char got[65536];
static size_t got_len;

/* As many answers' ends as asked for have come in. */
struct wanted {
    SSL *ssl;
    unsigned answers;
};

static bool answered(void *argument)
{
    const struct wanted *wanted = argument;
    int n = SSL_read(wanted->ssl, got + got_len, (int)(sizeof got - got_len - 1));
    got_len += n > 0 ? (size_t)n : 0;
    got[got_len] = '\0';
    unsigned count = 0;
    for (const char *at = strstr(got, "HTTP/1.1 200"); at; at = strstr(at + 1, "HTTP/1.1 200"))
        count++;
    return count == wanted->answers && strstr(got, "last!");
}

static void pipelined_requests_are_answered_in_order_under_one_name(void **state)
{
    static const char three[] = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst"
                                "GET /b HTTP/1.1\r\nHost: a\r\n\r\n"
                                "POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nlast!";
    struct wanted wanted = {meet(true), 3};
    got_len = 0;
    assert_int_equal(SSL_write(wanted.ssl, three, sizeof three - 1), (int)sizeof three - 1);
    turn_until(answered, &wanted);
    assert_true(strstr(got, "first") < strstr(got, "last!"));
    assert_string_equal(seen, "uri:spiffe://x/y");
    SSL_free(wanted.ssl);
}

static void a_large_body_comes_back_whole(void **state)
{
    static char request[40000];
    struct wanted wanted = {meet(false), 1};
    int len = snprintf(request, sizeof request, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 30005\r\n\r\n");
    memset(request + len, 'x', 30000);
    memcpy(request + len + 30000, "last!", 5);
    got_len = 0;
    for (int at = 0; at < len + 30005;) {
        int n = SSL_write(wanted.ssl, request + at, len + 30005 - at);
        at += n > 0 ? n : 0;
        event_base_loop(base, EVLOOP_NONBLOCK);
    }
    turn_until(answered, &wanted);
    assert_string_equal(seen, "nobody");
    SSL_free(wanted.ssl);
}

static void a_client_that_leaves_without_a_word_is_forgotten(void **state)
{
    static const char half[] = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhal";
    SSL *ssl = meet(false);
    assert_int_equal(SSL_write(ssl, half, sizeof half - 1), (int)sizeof half - 1);
    SSL_free(ssl);
    close(client);
    client = -1;
    turn_until(nobody_is_connected, NULL);
    assert_int_equal(requests, 0); /* what was cut is never delivered */
}

static bool closed_with_a_word(void *argument)
{
    char byte[4096];
    int n = SSL_read(argument, byte, sizeof byte);
    return n <= 0 && SSL_get_error(argument, n) == SSL_ERROR_ZERO_RETURN;
}

static void the_server_closes_with_a_word(void **state)
{
    static const char one[] = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    SSL *ssl = meet(false);
    assert_int_equal(SSL_write(ssl, one, sizeof one - 1), (int)sizeof one - 1);
    turn_until(closed_with_a_word, ssl);
    assert_int_equal(requests, 1);
    SSL_free(ssl);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define HASTY_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_hasty, tear_down)
    const struct CMUnitTest tests[] = {
        HASTY_TEST(a_connection_that_says_nothing_ends_at_the_deadline),
        HASTY_TEST(half_a_client_hello_ends_at_the_deadline),
        HASTY_TEST(a_hello_that_trickles_in_ends_at_the_deadline),
        TEST(pipelined_requests_are_answered_in_order_under_one_name),
        TEST(a_large_body_comes_back_whole),
        TEST(a_client_that_leaves_without_a_word_is_forgotten),
        TEST(the_server_closes_with_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
