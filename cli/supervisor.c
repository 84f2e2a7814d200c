/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"

#define PAUSE_FIRST_MS 100
#define PAUSE_LONGEST_MS 10000

struct timer {
    bool set;
    struct refit_deadline at;
};

struct supervisor {
    const struct refit_supervisor_options *options;
    int signals, notify;
    char notify_name[2 * sizeof(int64_t)]; /* "@00a1f": abstract, chosen by the kernel */
    pid_t engine, refitd;                  /* 0: not running */
    bool engine_started, over;
    int code; /* to end with */
    int64_t pause_ms;
    struct timer ready_by, kill_engine, kill_refitd, restart;
};

/* --- children ---------------------------------------------------------------------------------------------------- */

static void become(const char *program, char *const *argv, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL); /* ignored signals stay ignored over exec */
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Should this supervisor be killed without being process 1, nobody else would end its children. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        raise(SIGTERM);
    execvp(program, argv);
    fprintf(stderr, "refit exec: can't start %s: %s\n", program, strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static bool on_gpus(void)
{
    const char *memory = getenv("REFIT_MEMORY");
    return memory && strncmp(memory, "cuda", 4) == 0;
}

static pid_t start_refitd(const struct supervisor *s)
{
    char name[] = "refitd";
    char *argv[] = {name, NULL};
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        setenv("NOTIFY_SOCKET", s->notify_name, 1);
        unsetenv("WATCHDOG_USEC");
        /* One user owns both processes here, so another user id can't guard the slots. Those on GPUs have no seals. */
        if (!on_gpus())
            setenv("REFIT_PROTECTION", "seal", 0);
        become(s->options->refitd, argv, parent);
    }
    return pid;
}

static pid_t start_engine(const struct supervisor *s)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        unsetenv("NOTIFY_SOCKET");
        unsetenv("WATCHDOG_USEC");
        become(s->options->engine[0], s->options->engine, parent);
    }
    return pid;
}

/* Never 0, which would be this process's group. */
static void tell(pid_t child, int number)
{
    if (child > 0)
        kill(child, number);
}

static void set(struct timer *timer, int64_t ms)
{
    *timer = (struct timer){.set = true, .at = refit_deadline_in_ms(ms)};
}

static void end_with(struct supervisor *s, int code)
{
    s->code = code;
    s->over = true;
}

static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void run_refitd(struct supervisor *s)
{
    s->restart.set = false;
    s->refitd = start_refitd(s);
    if (s->refitd > 0)
        return;
    s->refitd = 0;
    refit_log_event(REFIT_LOG_ERROR, "can't start refitd", refit_log_errno(errno));
    if (s->engine_started)
        set(&s->restart, s->pause_ms);
    else
        end_with(s, 1);
}

static void run_engine(struct supervisor *s)
{
    s->ready_by.set = false;
    s->engine_started = true;
    s->engine = start_engine(s);
    if (s->engine > 0)
        return;
    s->engine = 0;
    refit_log_event(REFIT_LOG_ERROR, "can't start the engine", refit_log_errno(errno));
    s->code = 1;
    tell(s->refitd, SIGTERM);
    set(&s->kill_refitd, s->options->refitd_grace_ms);
}

static void on_engine_end(struct supervisor *s, int status)
{
    s->engine = 0;
    s->kill_engine.set = s->restart.set = false;
    s->code = code_of(status);
    refit_log_event(REFIT_LOG_INFO, "engine ended", refit_log_i64("code", s->code));
    if (!s->refitd) {
        s->over = true;
        return;
    }
    tell(s->refitd, SIGTERM);
    set(&s->kill_refitd, s->options->refitd_grace_ms);
}

static void on_refitd_end(struct supervisor *s, int status)
{
    int code = code_of(status);
    s->refitd = 0;
    s->kill_refitd.set = false;
    if (s->engine) {
        refit_log_event(REFIT_LOG_ERROR, "refitd ended; the engine serves on and refitd is started again",
                        refit_log_i64("code", code), refit_log_i64("pause_ms", s->pause_ms));
        set(&s->restart, s->pause_ms);
        s->pause_ms = s->pause_ms * 2 < PAUSE_LONGEST_MS ? s->pause_ms * 2 : PAUSE_LONGEST_MS;
    } else if (s->engine_started || s->code) {
        s->over = true;
    } else {
        refit_log_event(REFIT_LOG_ERROR, "refitd ended before it was ready", refit_log_i64("code", code));
        end_with(s, code ? code : 1);
    }
}

/* Also takes in orphans that a process 1 inherits. */
static void reap(struct supervisor *s)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == s->engine)
            on_engine_end(s, status);
        else if (pid == s->refitd)
            on_refitd_end(s, status);
    }
}

/* --- events ------------------------------------------------------------------------------------------------------ */

static void on_end_asked(struct supervisor *s, int number)
{
    if (s->engine) {
        tell(s->engine, number);
        if (!s->kill_engine.set)
            set(&s->kill_engine, s->options->grace_ms);
    } else if (!s->engine_started && s->refitd) {
        s->code = 128 + number;
        s->ready_by.set = false;
        tell(s->refitd, SIGTERM);
        set(&s->kill_refitd, s->options->refitd_grace_ms);
    }
}

static void on_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    int number = (int)info.ssi_signo;
    switch (number) {
    case SIGCHLD: reap(s); break;
    case SIGTERM:
    case SIGINT:
    case SIGQUIT: on_end_asked(s, number); break;
    case SIGHUP: /* asks refitd for its certificates anew; it would end most engines */
        tell(s->refitd, number);
        break;
    default: tell(s->engine, number);
    }
}

static bool has_line(const char *text, const char *line)
{
    size_t len = strlen(line);
    for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (strncmp(at, line, len) == 0 && (at[len] == '\0' || at[len] == '\n'))
            return true;
    return false;
}

static void on_notify(struct supervisor *s)
{
    char text[512];
    ssize_t n = recv(s->notify, text, sizeof text - 1, MSG_DONTWAIT);
    if (n <= 0)
        return;
    text[n] = '\0';
    if (!has_line(text, "READY=1"))
        return;
    s->pause_ms = PAUSE_FIRST_MS;
    if (!s->engine_started && !s->code)
        run_engine(s);
}

static bool expired(struct timer *timer)
{
    if (!timer->set || !refit_deadline_passed(timer->at))
        return false;
    timer->set = false;
    return true;
}

static void on_time(struct supervisor *s)
{
    if (expired(&s->kill_engine) && s->engine) {
        refit_log_event(REFIT_LOG_WARN, "the engine did not end in time: killed",
                        refit_log_i64("grace_ms", s->options->grace_ms));
        tell(s->engine, SIGKILL);
    }
    if (expired(&s->kill_refitd) && s->refitd) {
        refit_log_event(REFIT_LOG_WARN, "refitd did not end in time: killed",
                        refit_log_i64("grace_ms", s->options->refitd_grace_ms));
        tell(s->refitd, SIGKILL);
    }
    if (expired(&s->ready_by)) {
        refit_log_event(REFIT_LOG_ERROR, "refitd did not get ready in time", refit_log_i64("limit_ms", s->options->start_ms));
        s->code = 1;
        tell(s->refitd, SIGKILL);
    }
    if (expired(&s->restart))
        run_refitd(s);
}

static int next_ms(const struct supervisor *s)
{
    const struct timer *all[] = {&s->kill_engine, &s->kill_refitd, &s->ready_by, &s->restart};
    int least = -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int left = all[i]->set ? refit_deadline_left_ms(all[i]->at) : -1;
        if (left >= 0 && (least < 0 || left < least))
            least = left;
    }
    return least;
}

/* --- putting it together ------------------------------------------------------------------------------------------ */

static int open_signals(void)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH};
    sigset_t set_of;
    sigemptyset(&set_of);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&set_of, numbers[i]);
    sigprocmask(SIG_BLOCK, &set_of, NULL);
    return signalfd(-1, &set_of, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* An abstract address that the kernel chooses: nothing is written to a file system that may be read-only. */
static int open_notify(char *name, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa_family_t);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, len) != 0)
        goto fail;
    len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        goto fail;
    size_t n = len - offsetof(struct sockaddr_un, sun_path);
    if (n < 2 || n >= size)
        goto fail;
    memcpy(name, address.sun_path, n);
    name[0] = '@';
    name[n] = '\0';
    return fd;
fail:
    refit_io_close(&fd);
    return -1;
}

static void turn(struct supervisor *s)
{
    struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN}, {.fd = s->notify, .events = POLLIN}};
    if (poll(fds, 2, next_ms(s)) > 0) {
        if (fds[0].revents)
            on_signal(s);
        if (fds[1].revents)
            on_notify(s);
    }
    on_time(s);
}

int refit_supervise(const struct refit_supervisor_options *options)
{
    struct supervisor s = {.options = options, .signals = -1, .notify = -1, .pause_ms = PAUSE_FIRST_MS};
    s.signals = open_signals();
    s.notify = open_notify(s.notify_name, sizeof s.notify_name);
    if (s.signals < 0 || s.notify < 0) {
        refit_log_event(REFIT_LOG_ERROR, "can't watch over processes", refit_log_errno(errno));
        s.code = 1;
        goto out;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    run_refitd(&s);
    if (!s.over)
        set(&s.ready_by, options->start_ms);
    while (!s.over)
        turn(&s);
out:
    refit_io_close(&s.signals);
    refit_io_close(&s.notify);
    return s.code;
}
