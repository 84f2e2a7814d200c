/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/receiver/bank_world.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "tests/receiver/bank_model.h"

int bank_world_setup(void **state)
{
    struct bank_world *world = calloc(1, sizeof *world);
    *state = world;
    if (!world)
        return -1;
    strcpy(world->dir, "/tmp/refit-bank-XXXXXX");
    if (!mkdtemp(world->dir) || chmod(world->dir, 0755) != 0)
        return -1;
    snprintf(world->socket_path, sizeof world->socket_path, "%s/refitd.sock", world->dir);
    snprintf(world->state_path, sizeof world->state_path, "%s.state", world->socket_path);
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, world->steps);
}

void kill_process(struct bank_world *world, unsigned at)
{
    struct process *p = &world->process[at];
    if (p->pid == 0)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    refit_io_close(&p->sock);
    p->pid = 0;
}

int bank_world_teardown(void **state)
{
    struct bank_world *world = *state;
    for (unsigned at = 0; at < WORLD_PROCESSES; at++)
        kill_process(world, at);
    if (world->stray > 0)
        kill(world->stray, SIGKILL);
    refit_bank_close(world->bank);
    unlink(world->state_path);
    unlink(world->socket_path);
    rmdir(world->dir);
    refit_io_close(&world->steps[0]);
    refit_io_close(&world->steps[1]);
    free(world);
    return 0;
}

void bank_open(struct bank_world *world, uint32_t ranks, uint32_t slots, enum refit_protection protection)
{
    struct refit_error error = {0};
    struct refit_bank_config config = {.ranks = ranks, .slots = slots, .protection = protection,
                                       .socket_path = world->socket_path, .socket_mode = 0666, .adopt_ms = 5000,
                                       .swap = world->swap};
    if (refit_bank_open(&config, &world->bank, &error) != REFIT_OK)
        fail_msg("%s", error.text);
}

enum refit_status bank_open_cuda(struct bank_world *world, uint32_t ranks, uint32_t slots, const int *devices,
                                 struct refit_error *error)
{
    struct refit_bank_config config = {.ranks = ranks, .slots = slots, .socket_path = world->socket_path,
                                       .slot_bytes = (uint64_t)2 * RANK_BYTES, .memory = REFIT_ARENA_CUDA,
                                       .devices = devices, .socket_mode = 0666, .adopt_ms = 5000};
    return refit_bank_open(&config, &world->bank, error);
}

struct refit_bank_snapshot bank_now(struct bank_world *world)
{
    struct refit_bank_snapshot now;
    refit_bank_read(world->bank, &now);
    return now;
}

struct waiter {
    int pipe[2];
};

static void on_change(void *context)
{
    struct waiter *waiter = context;
    (void)!write(waiter->pipe[1], "c", 1);
}

void bank_await(struct bank_world *world, bool (*done)(const struct refit_bank_snapshot *now, uint64_t value),
                uint64_t value)
{
    static struct waiter waiter = {{-1, -1}};
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    char drained[64];
    if (waiter.pipe[0] < 0)
        assert_int_equal(pipe2(waiter.pipe, O_CLOEXEC | O_NONBLOCK), 0);
    refit_bank_set_notify(world->bank, on_change, &waiter);
    for (struct refit_bank_snapshot now = bank_now(world); !done(&now, value); now = bank_now(world)) {
        struct pollfd p = {.fd = waiter.pipe[0], .events = POLLIN};
        assert_int_equal(poll(&p, 1, refit_deadline_left_ms(deadline)), 1);
        (void)!read(waiter.pipe[0], drained, sizeof drained);
    }
    refit_bank_set_notify(world->bank, NULL, NULL);
}

/* Only async-signal-safe calls: the test process has threads. */
static void become(char *const *argv, int sock, int step_fd, uid_t uid)
{
    if (dup2(sock, 0) < 0)
        _exit(3);
    if (step_fd >= 0)
        fcntl(step_fd, F_SETFD, 0);
    /* The other user may have no way to the program's directory. */
    int program = open(argv[0], O_RDONLY | O_CLOEXEC);
    if (program < 0)
        _exit(5);
    if (uid != 0 && (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0))
        _exit(4);
    fexecve(program, argv, environ);
    _exit(5);
}

static void start(struct bank_world *world, unsigned at, char *const *argv, int step_fd, uid_t uid)
{
    int pair[2];
    kill_process(world, at);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0)
        become(argv, pair[1], step_fd, uid);
    assert_true(pid > 0);
    close(pair[1]);
    world->process[at] = (struct process){.pid = pid, .sock = pair[0]};
}

void start_rank(struct bank_world *world, unsigned at, uint32_t rank, uint32_t ranks, const char *name, uid_t uid)
{
    char number[4][24];
    int step_fd = ranks == 2 ? world->steps[rank] : -1;
    snprintf(number[0], sizeof number[0], "%u", rank);
    snprintf(number[1], sizeof number[1], "%u", ranks);
    snprintf(number[2], sizeof number[2], "%lu", world->rank_bytes ? world->rank_bytes : RANK_BYTES);
    snprintf(number[3], sizeof number[3], "%d", step_fd);
    char program[] = BANK_PROCESS, role[] = "rank", named[64];
    snprintf(named, sizeof named, "%s", name);
    char *argv[] = {program, role, world->socket_path, number[0], number[1], number[2], named,
                    step_fd >= 0 ? number[3] : NULL, NULL};
    start(world, at, argv, step_fd, uid);
}

void start_bank(struct bank_world *world, unsigned at, uint32_t ranks, uint32_t slots, const char *protection,
                const char *adopt_ms)
{
    char number[2][24], protected[16], adopt[24], swap[16];
    char program[] = BANK_PROCESS, role[] = "bank";
    snprintf(number[0], sizeof number[0], "%u", ranks);
    snprintf(number[1], sizeof number[1], "%u", slots);
    snprintf(protected, sizeof protected, "%s", protection);
    snprintf(adopt, sizeof adopt, "%s", adopt_ms);
    snprintf(swap, sizeof swap, "%u", world->swap);
    char *argv[] = {program, role, world->socket_path, number[0], number[1], protected, adopt, swap, NULL};
    start(world, at, argv, -1, 0);
    assert_int_equal(hear_process(world, at), REFIT_OK);
}

void tell_process(struct bank_world *world, unsigned at, const char *text)
{
    assert_int_equal(send(world->process[at].sock, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

enum refit_status hear_process(struct bank_world *world, unsigned at)
{
    char answer[sizeof world->answer];
    struct pollfd p = {.fd = world->process[at].sock, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 2 * MODEL_WAIT_MS), 1);
    ssize_t n = recv(world->process[at].sock, answer, sizeof answer - 1, 0);
    if (n <= 0)
        fail_msg("process %u ended", at);
    answer[n] = '\0';
    char *text = strchr(answer, ' ');
    snprintf(world->answer, sizeof world->answer, "%s", text ? text + 1 : "");
    return (enum refit_status)atoi(answer);
}

enum refit_status command(struct bank_world *world, unsigned at, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell_process(world, at, text);
    return hear_process(world, at);
}

void attach_rank(struct bank_world *world, unsigned at, uint32_t rank, uint32_t ranks)
{
    start_rank(world, at, rank, ranks, "w", 0);
    if (command(world, at, "attach %d", MODEL_WAIT_MS) != REFIT_OK)
        fail_msg("attach: %s", world->answer);
}

void await_answer(struct bank_world *world, unsigned at, const char *text, const char *expected)
{
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    while (command(world, at, "%s", text) != REFIT_OK || !strstr(world->answer, expected)) {
        if (refit_deadline_passed(deadline))
            fail_msg("%s: \"%s\" expected, found \"%s\"", text, expected, world->answer);
        poll(NULL, 0, 1); /* a processor for the one that is waited for */
    }
}
