/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sender/ranks.h"
#include "sender/trust.h"
#include "tests/support/port.h"
#include "tests/tls/pki.h"

#define LONG_MS 20000
#define SHORT_MS 300

static struct refit_ranks *lead, *own;
static char address[64];
static uint16_t port;
static struct refit_error err;
static struct refit_trust secret, other_secret, over_tls, as_client;
static const struct refit_trust *trust, *own_trust; /* the lead's, and the ranks' */
static int gate[2] = {-1, -1}; /* when open: a rank dials once its writing end is closed */

static void ignore_message(void *context, uint32_t rank, enum refit_message type, const void *body, size_t len)
{
}

static void ignore_loss(void *context, uint32_t rank, const struct refit_error *why)
{
}

static const struct refit_ranks_handlers handlers = {.message = ignore_message, .lost = ignore_loss};

/* Ranks are forked before the lead's threads start, and dial until it is there. */
static void choose_address(void)
{
    port = port_reserve();
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
}

/* The lead's end and rank 0's; other ranks are processes. */
static void open_lead(uint32_t ranks)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(refit_ranks_listen(address, ranks, pair[0], trust, &handlers, &lead, &err), REFIT_OK);
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
    trust = own_trust = NULL;
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
    if (refit_ranks_join(address, rank, ranks, own_trust, &handlers, deadline, &member, &why) != REFIT_OK)
        _exit(80 + (int)why.status);
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

/* Stands before the C library's. A name that is given to the lead's host when the lead is started is not known before. */
static unsigned unknown; /* so often */

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(host, "lead.example") != 0)
        return real(host, service, hints, out);
    if (unknown == 0)
        return real("127.0.0.1", service, hints, out);
    return --unknown % 2 ? EAI_AGAIN : EAI_NONAME;
}

static void a_rank_waits_for_the_leads_name_too(void **state)
{
    char numeric[sizeof address];
    memcpy(numeric, address, sizeof numeric);
    snprintf(address, sizeof address, "lead.example:%u", (unsigned)port);
    unknown = 3;
    pid_t one = start_rank(1, 2, NULL, true);
    memcpy(address, numeric, sizeof address);
    open_lead(2);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    welcome();
    close_lead(NULL);
    assert_int_equal(exit_of(one), 0);
}

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

/* Stands before the C library's. */
static uint16_t only_port; /* that sockets may be given; 0: any */
static bool gives_it;

int socket(int domain, int type, int protocol)
{
    int (*real)(int, int, int);
    *(void **)&real = dlsym(RTLD_NEXT, "socket");
    int fd = real(domain, type, protocol);
    uint32_t range = (uint32_t)only_port << 16 | only_port;
    if (only_port && domain == AF_INET)
        gives_it = setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof range) == 0;
    return fd;
}

/* One that nobody has, of those that the kernel gives out. */
static uint16_t port_given_out(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(probe, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(probe, (struct sockaddr *)&at, &len), 0);
    close(probe);
    return ntohs(at.sin_port);
}

/* The kernel gives out ports that it also listens at, so where nobody listens yet a rank may come to dial itself. */
static void a_rank_is_not_its_own_lead(void **state)
{
    struct refit_ranks *member;
    enum refit_status status;
    do { /* until nobody else takes the port meanwhile */
        uint16_t own_port = port_given_out();
        snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)own_port);
        member = NULL;
        only_port = own_port;
        status = refit_ranks_join(address, 1, 2, NULL, &handlers, refit_deadline_in_ms(SHORT_MS), &member, &err);
        only_port = 0;
        refit_ranks_close(member);
    } while (gives_it && strstr(err.text, "Cannot assign requested address"));
    if (!gives_it) {
        print_message("skipped: this kernel can't be told which port to give\n");
        skip();
    }
    assert_int_equal(status, REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "Connection refused"));
}

static void a_name_that_stays_unknown_is_named_at_the_deadline(void **state)
{
    struct refit_ranks *member = NULL;
    unknown = UINT_MAX;
    assert_int_equal(refit_ranks_join("lead.example:1", 1, 2, NULL, &handlers, refit_deadline_in_ms(SHORT_MS), &member, &err),
                     REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "lead.example"));
    unknown = 0;
    assert_int_equal(refit_ranks_join("lead.example", 1, 2, NULL, &handlers, refit_deadline_in_ms(SHORT_MS), &member, &err),
                     REFIT_INVALID);
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
    gate[0] = gate[1] = -1;
}

/* ---- who they are ---- */

static void set_secret(struct refit_trust *out, const char *text)
{
    assert_int_equal(setenv("REFIT_JOB_SECRET", text, 1), 0);
    assert_int_equal(refit_trust_read_secret(out, NULL, &err), REFIT_OK);
    assert_int_equal(unsetenv("REFIT_JOB_SECRET"), 0);
}

static void ranks_with_the_same_secret_meet(void **state)
{
    trust = own_trust = &secret;
    pid_t one = start_rank(1, 3, NULL, false), two = start_rank(2, 3, NULL, false);
    open_lead(3);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    welcome();
    assert_int_equal(exit_of(one), 0);
    assert_int_equal(exit_of(two), 0);
}

/* What a lead and a rank have; how the rank's process ends. */
static int ends(const struct refit_trust *of_lead, const struct refit_trust *of_rank)
{
    trust = of_lead;
    own_trust = of_rank;
    pid_t wrong = start_rank(1, 2, NULL, false);
    open_lead(2);
    int code = exit_of(wrong);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(0), &err), REFIT_TIMEOUT);
    return code;
}

static void refuses(const struct refit_trust *of_lead, const struct refit_trust *of_rank, int code)
{
    assert_int_equal(ends(of_lead, of_rank), code);
}

static void a_rank_with_another_secret_finds_out_that_the_lead_is_not_its_own(void **state)
{
    refuses(&secret, &other_secret, 80 + REFIT_INVALID);
}

static void a_rank_without_the_secret_is_refused(void **state)
{
    refuses(&secret, NULL, 40 + REFIT_INVALID);
}

static void a_lead_without_the_secret_is_refused(void **state)
{
    refuses(NULL, &secret, 80 + REFIT_INVALID);
}

static void send_frame(int fd, uint8_t type, const char *text)
{
    uint8_t frame[1024];
    uint32_t len = (uint32_t)strlen(text) + 9;
    memcpy(frame, &len, 4);
    frame[4] = type;
    memset(frame + 5, 0, 8);
    memcpy(frame + 13, text, strlen(text));
    assert_int_equal(send(fd, frame, len + 4, MSG_NOSIGNAL), len + 4);
}

/* The type of the next frame; 0: the connection ended. */
static int take_frame(int fd)
{
    uint8_t frame[4096];
    uint32_t len;
    if (recv(fd, frame, 5, MSG_WAITALL) != 5)
        return 0;
    memcpy(&len, frame, 4);
    assert_in_range(len, 9, sizeof frame);
    return recv(fd, frame + 5, len - 1, MSG_WAITALL) == (ssize_t)len - 1 ? frame[4] : 0;
}

/* Who has heard a greeting, or made a proof up, or proves what was not asked, is nobody. */
static void a_proof_that_does_not_hold_is_refused(void **state)
{
    static const char hello[] = "{\"format\":\"refit-ranks/1\",\"rank\":1,\"ranks\":2,\"nonce\":"
                                "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"}";
    static const char proof[] = "{\"proof\":\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"}";
    const struct {
        const char *first, *second;
    } tries[] = {{hello, proof}, {hello, "{}"}, {hello, "not JSON"}, {NULL, proof}, {hello, NULL}};
    trust = &secret;
    open_lead(2);
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        int fd = connect_stranger(), type;
        if (tries[i].first)
            send_frame(fd, REFIT_MESSAGE_HELLO, tries[i].first);
        if (tries[i].first)
            assert_int_equal(take_frame(fd), REFIT_MESSAGE_CHALLENGE);
        send_frame(fd, tries[i].second ? REFIT_MESSAGE_PROOF : REFIT_MESSAGE_REGISTER,
                   tries[i].second ? tries[i].second : "x");
        while ((type = take_frame(fd)) != 0)
            assert_int_equal(type, REFIT_MESSAGE_WELCOME); /* with the reason */
        close(fd);
    }
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(0), &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "1"));
}

static void ranks_with_certificates_meet_over_tls(void **state)
{
    static char large[3 << 20];
    struct refit_buf bodies[2];
    const void *text;
    size_t len;
    memset(large, 'x', sizeof large - 1);
    trust = &over_tls;
    own_trust = &as_client;
    pid_t one = start_rank(1, 2, large, true);
    open_lead(2);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    struct refit_error ok = {0};
    assert_int_equal(refit_outcome_send(own, 0, REFIT_MESSAGE_REGISTER, &ok, "own", 3, refit_deadline_in_ms(LONG_MS),
                                        &err),
                     REFIT_OK);
    welcome();
    assert_int_equal(refit_ranks_take(lead, REFIT_MESSAGE_REGISTER, refit_deadline_in_ms(LONG_MS), bodies, &err),
                     REFIT_OK);
    assert_int_equal(refit_outcome_read(&bodies[1], &text, &len, &err), REFIT_OK);
    assert_int_equal(len, sizeof large - 1);
    assert_memory_equal(text, large, len);
    refit_buf_release(&bodies[0]);
    refit_buf_release(&bodies[1]);
    close_lead(NULL);
    assert_int_equal(exit_of(one), 0);
}

static void plain_ranks_are_not_let_in_where_tls_is_spoken(void **state)
{
    int code = ends(&over_tls, NULL);
    /* The connection ends: before its greeting is out, or after, and no welcome comes. */
    assert_true(code == 80 + REFIT_PEER || code == 3);
}

static void a_rank_that_speaks_tls_does_not_fall_back(void **state)
{
    own_trust = &as_client;
    pid_t one = start_rank(1, 2, NULL, false);
    open_lead(2);
    int code = exit_of(one);
    assert_in_range(code, 81, 99);
    assert_int_equal(refit_ranks_wait_all(lead, refit_deadline_in_ms(0), &err), REFIT_TIMEOUT);
}

static void a_secret_must_be_long_enough_and_may_lie_in_a_file(void **state)
{
    char path[] = "/tmp/refit-secret.XXXXXX";
    struct refit_trust read = {.secret_len = 0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "short\n", 6), 6);
    assert_int_equal(refit_trust_read_secret(&read, path, &err), REFIT_INVALID);
    assert_null(strstr(err.text, "short\n"));
    assert_int_equal(pwrite(fd, "0123456789abcdef\n", 17, 0), 17);
    close(fd);
    assert_int_equal(refit_trust_read_secret(&read, path, &err), REFIT_OK);
    assert_int_equal(read.secret_len, 16);
    unlink(path);
    assert_int_equal(refit_trust_read_secret(&read, path, &err), REFIT_NOT_FOUND);
    read.secret_len = 0;
    assert_int_equal(refit_trust_read_secret(&read, "", &err), REFIT_OK);
    assert_int_equal(read.secret_len, 0);
}

static char directory[64];

static int open_trusts(void **state)
{
    char cert[96], key[96], ca[96];
    const struct pki_leaf leaf = {.name = "job", .ca = "ca"};
    snprintf(directory, sizeof directory, "/tmp/refit-ranks.XXXXXX");
    if (!mkdtemp(directory) || !pki_make_ca(directory, "ca") || !pki_make_leaf(directory, &leaf))
        return -1;
    snprintf(cert, sizeof cert, "%s/job.pem", directory);
    snprintf(key, sizeof key, "%s/job.key", directory);
    snprintf(ca, sizeof ca, "%s/ca.pem", directory);
    struct refit_tls_config config = {.end = REFIT_TLS_SERVER, .use = REFIT_TLS_DATA, .cert = cert, .key = key,
                                      .ca = ca,
                                      .any_purpose = true};
    set_secret(&secret, "0123456789abcdef0123456789abcdef");
    set_secret(&other_secret, "0123456789abcdef0123456789abcdeX");
    enum refit_status status = refit_tls_open(&config, &over_tls.tls, &err);
    config.end = REFIT_TLS_CLIENT;
    return status == REFIT_OK && refit_tls_open(&config, &as_client.tls, &err) == REFIT_OK ? 0 : -1;
}

static int close_trusts(void **state)
{
    char command[96];
    refit_tls_close(over_tls.tls);
    refit_tls_close(as_client.tls);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static void bad_addresses_are_named(void **state)
{
    struct refit_ranks *out = NULL;
    struct refit_deadline soon = refit_deadline_in_ms(SHORT_MS);
    assert_int_equal(refit_ranks_join("nowhere", 1, 2, NULL, &handlers, soon, &out, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "nowhere"));
    assert_int_equal(refit_ranks_join("127.0.0.1:1", 1, 2, NULL, &handlers, soon, &out, &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "127.0.0.1:1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_ranks_meet_and_their_words_come_in_order, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_waits_for_the_leads_name_too, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_name_that_stays_unknown_is_named_at_the_deadline, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_is_not_its_own_lead, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_come_is_named, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_that_dies_is_named_at_once, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_of_another_mesh_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_second_rank_of_the_same_number_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(garbage_on_the_port_hurts_nobody, choose, close_lead),
        cmocka_unit_test_setup_teardown(what_a_turn_that_timed_out_left_behind_answers_no_later_one, choose, close_lead),
        cmocka_unit_test_setup_teardown(ranks_with_the_same_secret_meet, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_with_another_secret_finds_out_that_the_lead_is_not_its_own, choose,
                                        close_lead),
        cmocka_unit_test_setup_teardown(a_rank_without_the_secret_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_lead_without_the_secret_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_proof_that_does_not_hold_is_refused, choose, close_lead),
        cmocka_unit_test_setup_teardown(ranks_with_certificates_meet_over_tls, choose, close_lead),
        cmocka_unit_test_setup_teardown(plain_ranks_are_not_let_in_where_tls_is_spoken, choose, close_lead),
        cmocka_unit_test_setup_teardown(a_rank_that_speaks_tls_does_not_fall_back, choose, close_lead),
        cmocka_unit_test(a_secret_must_be_long_enough_and_may_lie_in_a_file),
        cmocka_unit_test(bad_addresses_are_named),
    };
    return cmocka_run_group_tests(tests, open_trusts, close_trusts);
}
