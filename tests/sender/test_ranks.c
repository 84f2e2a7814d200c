/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sender/ranks.h"

#define LONG_MS 20000
#define SHORT_MS 300

static struct refit_ranks *lead, *own;
static char address[64];
static uint16_t port;
static struct refit_error err;
static int gate[2] = {-1, -1}; /* when open: a rank dials once its writing end is closed */

static void ignore_message(void *context, uint32_t rank, enum refit_message type, const void *body, size_t len)
{
}

static void ignore_loss(void *context, uint32_t rank, const struct refit_error *why)
{
}

static const struct refit_ranks_handlers handlers = {.message = ignore_message, .lost = ignore_loss};

/* A port that was free a moment ago. Ranks are forked before the lead's threads start, and dial until it is there. */
static void choose_address(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(probe, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(probe, (struct sockaddr *)&at, &len), 0);
    close(probe);
    port = ntohs(at.sin_port);
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
}

/* The lead's end and rank 0's; other ranks are processes. */
static void open_lead(uint32_t ranks)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(refit_ranks_listen(address, ranks, pair[0], &handlers, &lead, &err), REFIT_OK);
    assert_int_equal(refit_ranks_join_over(pair[1], 0, ranks, &handlers, &own, &err), REFIT_OK);
}

static int choose(void **state)
{
    choose_address();
    return 0;
}

static int close_lead(void **state)
{
    refit_ranks_close(own);
    refit_ranks_close(lead);
    own = lead = NULL;
    return 0;
}

/* A rank in a process of its own: joins, says what it is told to, and ends when the lead goes, or at once. */
static pid_t start_rank(uint32_t rank, uint32_t ranks, const char *say, bool stay)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    struct refit_ranks *member = NULL;
    struct refit_buf body;
    struct refit_deadline deadline = refit_deadline_in_ms(LONG_MS);
    struct refit_error ok = {0}, why;
    char byte;
    close(gate[1]);
    if (gate[0] >= 0 && read(gate[0], &byte, 1) != 0)
        _exit(6);
    if (refit_ranks_join(address, rank, ranks, &handlers, deadline, &member, &why) != REFIT_OK)
        _exit(1);
    if (say && refit_outcome_send(member, 0, REFIT_MESSAGE_REGISTER, &ok, say, strlen(say), deadline, &why) != REFIT_OK)
        _exit(2);
    if (refit_ranks_take(member, REFIT_MESSAGE_WELCOME, deadline, &body, &why) != REFIT_OK)
        _exit(3);
    if (refit_outcome_read(&body, NULL, NULL, &why) != REFIT_OK)
        _exit(40 + (int)why.status);
    if (stay && refit_ranks_take(member, REFIT_MESSAGE_REPORT, deadline, &body, &why) != REFIT_PEER)
        _exit(5);
    _exit(0);
}

static int exit_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void welcome(void)
{
    struct refit_error ok = {0};
    assert_int_equal(refit_outcome_send(lead, UINT32_MAX, REFIT_MESSAGE_WELCOME, &ok, NULL, 0,
                                        refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
}

static void all_ranks_meet_and_their_words_come_in_order(void **state)
{
    struct refit_buf bodies[3];
    struct refit_error ok = {0};
    const void *text;
    size_t len;
    pid_t two = start_rank(2, 3, "of two", true), one = start_rank(1, 3, "of one", true);
    open_lead(3);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    assert_int_equal(refit_outcome_send(own, 0, REFIT_MESSAGE_REGISTER, &ok, "of zero", 7, refit_deadline_in_ms(LONG_MS),
                                        &err), REFIT_OK);
    welcome();
    assert_int_equal(refit_ranks_take(lead, REFIT_MESSAGE_REGISTER, refit_deadline_in_ms(LONG_MS), bodies, &err), REFIT_OK);
    assert_int_equal(refit_outcome_read(&bodies[2], &text, &len, &err), REFIT_OK);
    assert_int_equal(len, 6);
    assert_memory_equal(text, "of two", 6);
    for (int i = 0; i < 3; i++)
        refit_buf_release(&bodies[i]);
    close_lead(NULL);
    assert_int_equal(exit_of(one), 0);
    assert_int_equal(exit_of(two), 0);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    pid_t one = start_rank(1, 4, NULL, false);
    open_lead(4);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(SHORT_MS), &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "2, 3"));
    kill(one, SIGKILL);
    exit_of(one);
}

static void a_rank_that_dies_is_named_at_once(void **state)
{
    struct refit_buf bodies[3];
    pid_t one = start_rank(1, 3, NULL, true), two = start_rank(2, 3, NULL, true);
    open_lead(3);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    kill(two, SIGKILL);
    exit_of(two);
    assert_int_equal(refit_ranks_take(lead, REFIT_MESSAGE_REGISTER, refit_deadline_in_ms(LONG_MS), bodies, &err), REFIT_PEER);
    assert_non_null(strstr(err.text, "rank 2"));
    kill(one, SIGKILL);
    exit_of(one);
}

static void a_rank_of_another_mesh_is_refused(void **state)
{
    pid_t wrong = start_rank(1, 5, NULL, false);
    pid_t right = start_rank(1, 2, NULL, false);
    open_lead(2);
    assert_int_equal(exit_of(wrong), 40 + REFIT_MISMATCH);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    welcome();
    assert_int_equal(exit_of(right), 0);
}

static void a_second_rank_of_the_same_number_is_refused(void **state)
{
    pid_t first = start_rank(1, 3, NULL, true);
    pid_t second = start_rank(1, 3, NULL, true);
    open_lead(3);
    int status;
    pid_t refused = wait(&status);
    assert_true(refused == first || refused == second);
    assert_int_equal(WEXITSTATUS(status), 40 + REFIT_CONFLICT);
    pid_t other = refused == first ? second : first;
    kill(other, SIGKILL);
    exit_of(other);
}

static void say(uint64_t turn, const char *text)
{
    struct refit_error ok = {0};
    refit_ranks_set_turn(own, turn);
    assert_int_equal(refit_outcome_send(own, 0, REFIT_MESSAGE_PUBLISH, &ok, text, strlen(text),
                                        refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
}

static void what_a_turn_that_timed_out_left_behind_answers_no_later_one(void **state)
{
    struct refit_buf body;
    const void *text;
    size_t len;
    open_lead(1);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    refit_ranks_set_turn(lead, 1);
    assert_int_equal(refit_ranks_take(lead, REFIT_MESSAGE_PUBLISH, refit_deadline_in_ms(0), &body, &err), REFIT_TIMEOUT);
    for (uint64_t turn = 1; turn < 40; turn++) /* more than a seat has room for */
        say(turn, "late");
    say(40, "in time");
    refit_ranks_set_turn(lead, 40);
    assert_int_equal(refit_ranks_take(lead, REFIT_MESSAGE_PUBLISH, refit_deadline_in_ms(LONG_MS), &body, &err), REFIT_OK);
    assert_int_equal(refit_outcome_read(&body, &text, &len, &err), REFIT_OK);
    assert_int_equal(len, 7);
    refit_buf_release(&body);
}

static int connect_stranger(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* More of them, one after the other, than there are places for strangers. */
static void garbage_on_the_port_hurts_nobody(void **state)
{
    static const char *const garbage[] = {"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff\xff", "\x01\0\0\0\x01", "\x03\0\0\0\x02hi"};
    static const size_t lengths[] = {18, 5, 5, 7};
    assert_int_equal(pipe(gate), 0);
    pid_t one = start_rank(1, 2, NULL, false);
    open_lead(2);
    for (int i = 0; i < 200; i++) {
        int fd = connect_stranger();
        char byte;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        assert_true(send(fd, garbage[i % 4], lengths[i % 4], MSG_NOSIGNAL) > 0);
        do
            assert_int_equal(poll(&wait, 1, LONG_MS), 1);
        while (recv(fd, &byte, 1, 0) > 0);
        close(fd);
    }
    int silent = connect_stranger();
    close(gate[1]);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    welcome();
    assert_int_equal(exit_of(one), 0);
    close(silent);
    close(gate[0]);
}

static void bad_addresses_are_named(void **state)
{
    struct refit_ranks *out = NULL;
    struct refit_deadline soon = refit_deadline_in_ms(SHORT_MS);
    assert_int_equal(refit_ranks_join("nowhere", 1, 2, &handlers, soon, &out, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "nowhere"));
    assert_int_equal(refit_ranks_join("127.0.0.1:1", 1, 2, &handlers, soon, &out, &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "127.0.0.1:1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ranks_meet_and_their_words_come_in_order, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_come_is_named, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_that_dies_is_named_at_once, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_of_another_mesh_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_second_rank_of_the_same_number_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(garbage_on_the_port_hurts_nobody, choose, close_lead),
        cmocka_unit_test_setup_teardown(what_a_turn_that_timed_out_left_behind_answers_no_later_one, choose, close_lead),
        cmocka_unit_test(bad_addresses_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
