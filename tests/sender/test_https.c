/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls over https to a server that drops connections in their handshake, holds them, or answers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "sender/http_client.h"
#include "tests/tls/pki.h"
#include "tls/stream.h"

#define WAIT_MS 20000
#define SHORT_MS 300
#define TOKEN "token-0123456789"

static char dir[] = "/tmp/refit-https.XXXXXX";
static struct server {
    int listener;
    pthread_t thread;
    unsigned drops; /* connections that are closed after their client hello */
    bool hold;      /* says nothing */
    unsigned accepted;
    char request[4096];
} server;
static struct refit_credentials *credentials;
static struct refit_http_url url;
static struct refit_http_answer answer;
static struct refit_error err;

static const char *in_dir(const char *name)
{
    static char paths[8][96];
    static unsigned next;
    char *out = paths[next++ % 8];
    snprintf(out, sizeof paths[0], "%s/%s", dir, name);
    return out;
}

static void drop(int fd)
{
    char hello[4096];
    (void)!recv(fd, hello, sizeof hello, 0);
    close(fd);
}

static void hold(int fd)
{
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
    close(fd);
}

/* As far as a step goes before the deadline; false when it failed. */
static bool wait_for(int fd, struct refit_tls_stream *stream, enum refit_tls_step step)
{
    struct pollfd polled = {.fd = fd, .events = refit_tls_stream_events(stream)};
    return step == REFIT_TLS_DONE || (step == REFIT_TLS_AGAIN && poll(&polled, 1, WAIT_MS) == 1);
}

static void serve_one(int fd, struct refit_tls *tls)
{
    static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    struct refit_tls_stream *stream;
    enum refit_tls_step step;
    size_t used = 0, done;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || refit_tls_stream_open(tls, fd, NULL, &stream, NULL))
        return;
    do
        step = refit_tls_stream_handshake(stream, NULL);
    while (step != REFIT_TLS_DONE && wait_for(fd, stream, step));
    while (step == REFIT_TLS_DONE && !strstr(server.request, "\r\n\r\n")) {
        enum refit_tls_step read = refit_tls_stream_read(stream, server.request + used, sizeof server.request - 1 - used, &done, NULL);
        used += done;
        if (!wait_for(fd, stream, read))
            break;
    }
    if (refit_tls_stream_write(stream, reply, sizeof reply - 1, &done, NULL) == REFIT_TLS_DONE)
        refit_tls_stream_shutdown(stream, NULL);
    refit_tls_stream_free(stream);
    close(fd);
}

static void *serve(void *context)
{
    struct refit_tls *tls = context;
    for (int fd; (fd = accept(server.listener, NULL, NULL)) >= 0;) {
        server.accepted++;
        if (server.hold)
            hold(fd);
        else if (server.accepted <= server.drops)
            drop(fd);
        else
            serve_one(fd, tls);
    }
    refit_tls_close(tls);
    return NULL;
}

static int set_up(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char text[64];
    struct refit_tls *tls;
    memset(&server, 0, sizeof server);
    const struct refit_tls_config files = {.end = REFIT_TLS_SERVER, .cert = in_dir("node.pem"), .key = in_dir("node.key")};
    assert_int_equal(refit_tls_open(&files, &tls, &err), REFIT_OK);
    server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server.listener, 8), 0);
    assert_int_equal(getsockname(server.listener, (struct sockaddr *)&address, &len), 0);
    snprintf(text, sizeof text, "https://localhost:%u", (unsigned)ntohs(address.sin_port));
    assert_int_equal(refit_http_url_parse(text, &url, &err), REFIT_OK);
    const struct refit_credentials_config shown = {.cacert = in_dir("ca.pem"), .cert = "", .key = "", .token_file = in_dir("token")};
    assert_int_equal(refit_credentials_open(&shown, &credentials, &err), REFIT_OK);
    return pthread_create(&server.thread, NULL, serve, tls);
}

/* Before anything is asked about the server. */
static void stop(void)
{
    if (server.listener < 0)
        return;
    shutdown(server.listener, SHUT_RDWR);
    pthread_join(server.thread, NULL);
    refit_io_close(&server.listener);
}

static int tear_down(void **state)
{
    stop();
    refit_http_answer_release(&answer);
    refit_credentials_close(credentials);
    return 0;
}

static enum refit_status get(int64_t ms)
{
    const struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = "/v1/weights", .credentials = credentials,
                                               .deadline = refit_deadline_in_ms(ms)};
    return refit_http_call(&url, &request, &answer, &err);
}

static void an_answer_comes_and_the_token_went(void **state)
{
    if (get(WAIT_MS))
        fail_msg("%s", err.text);
    stop();
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.body, "{}");
    assert_non_null(strstr(server.request, "Authorization: Bearer " TOKEN "\r\n"));
}

/* The check of a canary goes to a server that is no replica. */
static void a_token_stays_here_where_it_is_not_to_be_shown(void **state)
{
    const struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = "/ok", .credentials = credentials,
                                               .without_token = true, .deadline = refit_deadline_in_ms(WAIT_MS)};
    if (refit_http_call(&url, &request, &answer, &err))
        fail_msg("%s", err.text);
    stop();
    assert_int_equal(answer.status, 200);
    assert_null(strstr(server.request, "Authorization"));
}

static void a_connection_dropped_in_its_handshake_is_tried_again(void **state)
{
    server.drops = 2;
    if (get(WAIT_MS))
        fail_msg("%s", err.text);
    stop();
    assert_int_equal(answer.status, 200);
    assert_int_equal(server.accepted, 3);
}

static void where_nobody_listens_that_is_said_and_not_tried_again(void **state)
{
    stop();
    assert_int_equal(get(WAIT_MS), REFIT_PEER);
    assert_non_null(strstr(err.text, "cannot connect"));
}

static void but_not_for_ever(void **state)
{
    server.drops = 1000;
    assert_int_equal(get(WAIT_MS), REFIT_PEER);
    stop();
    assert_non_null(strstr(err.text, "in the middle of the TLS handshake"));
    assert_int_equal(server.accepted, 4);
}

static void a_handshake_that_never_ends_ends_at_the_deadline(void **state)
{
    server.hold = true;
    assert_int_equal(get(SHORT_MS), REFIT_TIMEOUT);
    stop();
    assert_int_equal(server.accepted, 1);
}

static void another_name_than_the_certificates_is_refused(void **state)
{
    snprintf(url.name, sizeof url.name, "other.example");
    assert_int_equal(get(WAIT_MS), REFIT_PEER);
    stop();
    assert_non_null(strstr(err.text, "subject alternative names"));
    assert_int_equal(server.accepted, 1); /* said plainly: nothing to try again */
}

static void a_token_is_read_again(void **state)
{
    static const char list[] = "# list\nadmin:me:second-0123456789\nread:x\n";
    assert_int_equal(refit_io_replace_file(in_dir("token"), list, sizeof list - 1, 0600, &err), REFIT_OK);
    assert_int_equal(get(WAIT_MS), REFIT_OK);
    stop();
    assert_non_null(strstr(server.request, "Authorization: Bearer second-0123456789\r\n"));
    assert_int_equal(refit_io_replace_file(in_dir("token"), TOKEN "\n", sizeof TOKEN, 0600, &err), REFIT_OK);
}

static void a_bad_token_is_neither_sent_nor_shown(void **state)
{
    assert_int_equal(refit_io_replace_file(in_dir("token"), "two words\n", 10, 0600, &err), REFIT_OK);
    assert_int_equal(get(WAIT_MS), REFIT_INVALID);
    stop();
    assert_null(strstr(err.text, "two words"));
    assert_int_equal(server.accepted, 0);
    assert_int_equal(refit_io_replace_file(in_dir("token"), TOKEN "\n", sizeof TOKEN, 0600, &err), REFIT_OK);
}

static int make_files(void **state)
{
    const struct pki_leaf node = {.name = "node", .ca = "ca", .san = "DNS:localhost"};
    return mkdtemp(dir) && pki_make_ca(dir, "ca") && pki_make_leaf(dir, &node) &&
                   refit_io_replace_file(in_dir("token"), TOKEN "\n", sizeof TOKEN, 0600, &err) == REFIT_OK
               ? 0
               : -1;
}

static int remove_files(void **state)
{
    static const char *const names[] = {"ca.pem", "ca.key", "node.pem", "node.key", "token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_dir(names[i]));
    return rmdir(dir);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(an_answer_comes_and_the_token_went),
        TEST(a_token_stays_here_where_it_is_not_to_be_shown),
        TEST(a_connection_dropped_in_its_handshake_is_tried_again),
        TEST(but_not_for_ever),
        TEST(where_nobody_listens_that_is_said_and_not_tried_again),
        TEST(a_handshake_that_never_ends_ends_at_the_deadline),
        TEST(another_name_than_the_certificates_is_refused),
        TEST(a_token_is_read_again),
        TEST(a_bad_token_is_neither_sent_nor_shown),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
