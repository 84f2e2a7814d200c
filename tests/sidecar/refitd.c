/* SPDX-License-Identifier: Apache-2.0 */
#include "refitd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "tests/support/safetensors_writer.h"

#define ARGS_MAX 48

static void write_text(const char *path, const char *text)
{
    struct refit_error err;
    if (refit_io_replace_file(path, text, strlen(text), 0644, &err))
        fail_msg("%s", err.text);
}

void refitd_prepare(struct refitd *refitd)
{
    memset(refitd, 0, sizeof *refitd);
    refitd->log = -1;
    snprintf(refitd->dir, sizeof refitd->dir, "/tmp/refitd.XXXXXX");
    assert_non_null(mkdtemp(refitd->dir));
    snprintf(refitd->socket, sizeof refitd->socket, "%s/refitd.sock", refitd->dir);
    snprintf(refitd->root, sizeof refitd->root, "%s/checkpoints", refitd->dir);
    snprintf(refitd->layout, sizeof refitd->layout, "%s/layout.json", refitd->dir);
    snprintf(refitd->ports, sizeof refitd->ports, "%s/ports.json", refitd->dir);
    assert_int_equal(mkdir(refitd->root, 0755), 0);
    write_text(refitd->layout, REFITD_LAYOUT);
}

void refitd_spawn(struct refitd *refitd, const char *const *extra)
{
    const char *args[ARGS_MAX] = {REFITD_PATH,   "--socket",    refitd->socket, "--control",         "127.0.0.1:0",
                                  "--admin",     "127.0.0.1:0", "--data",       "127.0.0.1:0",       "--ports-file",
                                  refitd->ports, "--layout",    refitd->layout, "--checkpoint-root", refitd->root};
    size_t count = 15;
    for (; extra && *extra; extra++) {
        assert_true(count + 1 < ARGS_MAX);
        args[count++] = *extra;
    }
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    unlink(refitd->ports);
    refit_io_close(&refitd->log);
    refitd->pid = fork();
    assert_true(refitd->pid >= 0);
    if (refitd->pid == 0) {
        dup2(pipes[1], STDERR_FILENO);
        execv(args[0], (char *const *)(uintptr_t)args);
        _exit(127);
    }
    close(pipes[1]);
    refitd->log = pipes[0];
}

/* A line of refitd's log, printed when it belongs to a sanitizer's report. */
static bool log_line(struct refitd *refitd, char *line, size_t size)
{
    if (!http_line(refitd->log, line, size))
        return false;
    refitd->reported |= strstr(line, "Sanitizer") || strstr(line, "runtime error:");
    if (refitd->reported)
        print_error("%s\n", line);
    return true;
}

void refitd_expect_log(struct refitd *refitd, const char *text, char *line, size_t size)
{
    char buffer[4096] = "";
    while (log_line(refitd, buffer, sizeof buffer)) {
        if (!strstr(buffer, text))
            continue;
        if (line)
            snprintf(line, size, "%s", buffer);
        return;
    }
    fail_msg("refitd's log ended without \"%s\"; its last line: %s", text, buffer);
}

static uint16_t port_in(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    assert_non_null(at);
    return (uint16_t)atoi(at + strlen(key));
}

void refitd_start(struct refitd *refitd, const char *const *extra)
{
    char line[1024];
    refitd_spawn(refitd, extra);
    refitd_expect_log(refitd, "started ", line, sizeof line);
    refitd->control = port_in(line, "control=");
    refitd->admin = port_in(line, "admin=");
    refitd->data = port_in(line, "data=");
}

/* Drains the log meanwhile, or a talkative refitd would wait for us. */
int refitd_wait(struct refitd *refitd)
{
    char line[4096];
    int status;
    while (log_line(refitd, line, sizeof line))
        ;
    assert_int_equal(waitpid(refitd->pid, &status, 0), refitd->pid);
    refitd->pid = 0;
    if (WIFSIGNALED(status))
        return 128 + WTERMSIG(status);
    return WEXITSTATUS(status);
}

int refitd_stop(struct refitd *refitd)
{
    assert_int_equal(kill(refitd->pid, SIGTERM), 0);
    return refitd_wait(refitd);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void refitd_cleanup(struct refitd *refitd)
{
    if (refitd->pid > 0) {
        /* It may end as it wishes, so that a sanitizer has its last word; a process that won't is ended. */
        char line[4096];
        kill(refitd->pid, SIGTERM);
        while (log_line(refitd, line, sizeof line))
            ;
        kill(refitd->pid, SIGKILL);
        waitpid(refitd->pid, NULL, 0);
    }
    refit_io_close(&refitd->log);
    nftw(refitd->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    assert_false(refitd->reported);
}

void refitd_checkpoint(const struct refitd *refitd, const char *name, uint64_t seed)
{
    char path[256];
    struct safetensors_writer writer;
    snprintf(path, sizeof path, "%s/%s", refitd->root, name);
    safetensors_begin(&writer, seed);
    safetensors_add(&writer, "w", REFIT_DTYPE_F32, 2, (const int64_t[]){64, 256});
    safetensors_add(&writer, "b", REFIT_DTYPE_F32, 1, (const int64_t[]){300});
    assert_true(safetensors_write(&writer, path));
}

/* --- HTTP --------------------------------------------------------------------------------------------------------- */

int http_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

void http_send(int fd, const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return; /* refused half way: the answer tells */
        at += sent;
        len -= (size_t)sent;
    }
}

/* One byte; -1 at the end. Works on pipes and sockets. */
static int next_byte(int fd)
{
    unsigned char byte;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, REFITD_WAIT_MS) != 1)
        fail_msg("nothing came within %d ms", REFITD_WAIT_MS);
    return read(fd, &byte, 1) == 1 ? byte : -1;
}

bool http_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    for (int byte = next_byte(fd); byte != '\n'; byte = next_byte(fd)) {
        if (byte < 0)
            return false;
        if (byte != '\r' && n + 1 < size)
            line[n++] = (char)byte;
    }
    line[n] = '\0';
    return true;
}

void http_receive_head(int fd, struct answer *answer)
{
    size_t n = 0;
    memset(answer, 0, sizeof *answer);
    while (n < 4 || memcmp(answer->head + n - 4, "\r\n\r\n", 4) != 0) {
        int byte = next_byte(fd);
        if (byte < 0 || n + 1 >= sizeof answer->head)
            fail_msg("no whole answer, found \"%s\"", answer->head);
        answer->head[n++] = (char)byte;
    }
    assert_int_equal(sscanf(answer->head, "HTTP/1.1 %d", &answer->status), 1);
}

void http_receive(int fd, struct answer *answer)
{
    http_receive_head(fd, answer);
    const char *length = http_header(answer, "Content-Length");
    size_t want = length ? (size_t)strtoul(length, NULL, 10) : 0;
    assert_true(want < sizeof answer->body);
    for (; answer->body_len < want; answer->body_len++) {
        int byte = next_byte(fd);
        assert_true(byte >= 0);
        answer->body[answer->body_len] = (char)byte;
    }
}

bool http_closed(int fd)
{
    return next_byte(fd) < 0;
}

const char *http_header(const struct answer *answer, const char *name)
{
    static char value[1024];
    size_t len = strlen(name);
    for (const char *line = strstr(answer->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, len) != 0 || line[2 + len] != ':')
            continue;
        snprintf(value, sizeof value, "%.*s", (int)strcspn(line + 4 + len, "\r"), line + 4 + len);
        return value;
    }
    return NULL;
}

void http_call(uint16_t port, const char *method, const char *path, const char *body, struct answer *answer)
{
    char head[2048];
    int fd = http_connect(port);
    int len = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: test\r\nContent-Length: %zu\r\n\r\n", method, path,
                       body ? strlen(body) : 0);
    http_send(fd, head, (size_t)len);
    if (body)
        http_send(fd, body, strlen(body));
    http_receive(fd, answer);
    close(fd);
}

void refitd_await_ready(struct refitd *refitd)
{
    static struct answer answer;
    struct refit_deadline deadline = refit_deadline_in_ms(REFITD_WAIT_MS);
    for (http_call(refitd->admin, "GET", "/readyz", NULL, &answer); answer.status != 200;
         http_call(refitd->admin, "GET", "/readyz", NULL, &answer)) {
        if (refit_deadline_passed(deadline))
            fail_msg("/readyz: expected 200, found %s%s", answer.head, answer.body);
        poll(NULL, 0, 1); /* a probe is asked again and again; it has nothing to wait on */
    }
}

json_t *http_json(uint16_t port, const char *method, const char *path, const char *body, int expected)
{
    static struct answer answer;
    struct refit_error err;
    json_t *out = NULL;
    http_call(port, method, path, body, &answer);
    if (answer.status != expected)
        fail_msg("%s %s: expected %d, found %s%s", method, path, expected, answer.head, answer.body);
    if (refit_json_parse(answer.body, answer.body_len, path, &out, &err))
        fail_msg("%s", err.text);
    return out;
}

void assert_problem(const struct answer *answer, int status, const char *type)
{
    char urn[128];
    struct refit_error err;
    json_t *body;
    if (answer->status != status)
        fail_msg("expected %d, found %s%s", status, answer->head, answer->body);
    assert_string_equal(http_header(answer, "Content-Type"), "application/problem+json");
    if (refit_json_parse(answer->body, answer->body_len, "problem", &body, &err))
        fail_msg("%s", err.text);
    snprintf(urn, sizeof urn, "urn:refit:problem:%s", type);
    assert_string_equal(json_string_value(json_object_get(body, "type")), urn);
    assert_int_equal(json_integer_value(json_object_get(body, "status")), status);
    assert_true(strlen(json_string_value(json_object_get(body, "detail"))) > 0);
    json_decref(body);
}
