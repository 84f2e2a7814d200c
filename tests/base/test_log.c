/* SPDX-License-Identifier: Apache-2.0
 *
 * What lines look like, and what happens to them where they can't be written. Standard error is put somewhere else while a
 * line is logged, and back before anything is asserted.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "base/json.h"
#include "base/log.h"

#define MANY 4000

static int saved = -1, pipes[2] = {-1, -1};
static char text[2 << 20];

static void put_standard_error(int fd)
{
    saved = dup(STDERR_FILENO);
    assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
}

static void take_standard_error_back(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
}

static int set_up(void **state)
{
    refit_log_setup(REFIT_LOG_INFO, REFIT_LOG_TEXT, "test");
    refit_log_context(NULL, 0);
    return pipe2(pipes, O_CLOEXEC);
}

static int tear_down(void **state)
{
    close(pipes[0]);
    close(pipes[1]);
    return 0;
}

static void begin(void)
{
    put_standard_error(pipes[1]);
}

/* What stands in the pipe now. */
static const char *end(void)
{
    take_standard_error_back();
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    size_t len = 0;
    for (ssize_t n; len < sizeof text - 1 && (n = read(pipes[0], text + len, sizeof text - 1 - len)) > 0;)
        len += (size_t)n;
    text[len] = '\0';
    return text;
}

static void an_event_is_a_line_of_keys_and_values(void **state)
{
    begin();
    refit_log_event(REFIT_LOG_INFO, "refit committed", refit_log_text("refit", "r-1"), refit_log_u64("version", UINT64_MAX),
                    refit_log_text("label", "a\" b=\"c"), refit_log_bool("held", true), refit_log_real("seconds", 1.5),
                    refit_log_i64("left", -3), refit_log_errno(ENOSPC), refit_log_text("empty", NULL), refit_log_count("none", 0));
    assert_non_null(strstr(end(), " level=info component=test msg=\"refit committed\" refit=r-1 version=18446744073709551615"
                                  " label=\"a\\\" b=\\\"c\" held=true seconds=1.5 left=-3 errno=ENOSPC empty=\"\"\n"));
    assert_memory_equal(text, "ts=2", 4);
}

static void json_lines_are_json_whatever_they_are_given(void **state)
{
    json_t *line;
    struct refit_error err;
    static char longest[6000];
    memset(longest, '"', sizeof longest - 1);
    refit_log_setup(REFIT_LOG_INFO, REFIT_LOG_JSON, "test");
    begin();
    refit_log_event(REFIT_LOG_WARN, "odd bytes", refit_log_text("path", "\xff\xc3\xbc\n\xed\xa0\x80 \xf0\x9f\x98\x80\x1b"),
                    refit_log_u64("version", 7), refit_log_u64("large", UINT64_MAX), refit_log_text("long", longest),
                    refit_log_text("dropped", longest));
    end();
    size_t len = strcspn(text, "\n");
    assert_int_equal(len + 1, strlen(text));
    assert_true(len < 4096);
    assert_int_equal(refit_json_parse(text, len, "a line", &line, &err), REFIT_OK);
    assert_string_equal(json_string_value(json_object_get(line, "msg")), "odd bytes");
    assert_string_equal(json_string_value(json_object_get(line, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(line, "path")),
                        "\xef\xbf\xbd\xc3\xbc\n\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xf0\x9f\x98\x80\x1b");
    assert_int_equal(json_integer_value(json_object_get(line, "version")), 7);
    assert_string_equal(json_string_value(json_object_get(line, "large")), "18446744073709551615");
    assert_true(json_string_length(json_object_get(line, "long")) > 1500);
    json_decref(line);
}

static void lines_of_a_thread_say_the_refit_it_works_for(void **state)
{
    begin();
    refit_log_context("r-9", 12);
    refit_log_write(REFIT_LOG_WARN, "plain", NULL, 0);
    refit_log_event(REFIT_LOG_WARN, "named", refit_log_text("refit", "r-10"));
    refit_log_context(NULL, 0);
    refit_log_write(REFIT_LOG_WARN, "none", NULL, 0);
    end();
    assert_non_null(strstr(text, "msg=plain refit=r-9 version=12\n"));
    assert_non_null(strstr(text, "msg=named refit=r-10\n"));
    assert_non_null(strstr(text, "msg=none\n"));
}

static void levels_are_kept_and_errno_too(void **state)
{
    begin();
    errno = ENOENT;
    refit_log_write(REFIT_LOG_DEBUG, "not logged", NULL, 0);
    refit_log_event(REFIT_LOG_ERROR, "logged", refit_log_errno(errno));
    int after = errno;
    end();
    assert_int_equal(after, ENOENT);
    assert_null(strstr(text, "not logged"));
    assert_non_null(strstr(text, "level=error component=test msg=logged errno=ENOENT\n"));
}

static unsigned count(const char *needle)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, needle)); at++)
        n++;
    return n;
}

static void what_others_can_provoke_is_limited_and_counted(void **state)
{
    begin();
    for (int i = 0; i < 1000; i++)
        refit_log_limited(REFIT_LOG_WARN, "a flood", refit_log_i64("i", i));
    for (int i = 0; i < 30; i++)
        refit_log_event(REFIT_LOG_WARN, "no flood", refit_log_i64("i", i));
    uint64_t suppressed = refit_log_suppressed("a flood");
    end();
    assert_int_equal(count("msg=\"a flood\""), 20);
    assert_int_equal(count("msg=\"no flood\""), 30);
    assert_int_equal(suppressed, 980);
}

static void a_full_disk_drops_lines_and_says_so_later(void **state)
{
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    uint64_t before = refit_log_lost();
    put_standard_error(full);
    for (int i = 0; i < 5; i++)
        refit_log_write(REFIT_LOG_ERROR, "nowhere to go", NULL, 0);
    take_standard_error_back();
    close(full);
    assert_int_equal(refit_log_lost() - before, 5);
    begin();
    refit_log_write(REFIT_LOG_ERROR, "room again", NULL, 0);
    refit_log_write(REFIT_LOG_ERROR, "and more", NULL, 0);
    end();
    assert_non_null(strstr(text, "level=warn component=test msg=\"log lines were lost\" lost=5 lost_total="));
    assert_non_null(strstr(text, "errno=ENOSPC\n"));
    assert_true(strstr(text, "were lost") < strstr(text, "room again"));
    assert_int_equal(count("were lost"), 1);
}

/* A pipe that nobody reads takes 64 KiB and no more. */
static void a_pipe_that_nobody_reads_holds_nobody_up(void **state)
{
    uint64_t before = refit_log_lost();
    begin();
    for (int i = 0; i < MANY; i++)
        refit_log_event(REFIT_LOG_ERROR, "nobody reads this", refit_log_i64("i", i));
    uint64_t lost = refit_log_lost() - before;
    end();
    assert_true(lost > 0);
    assert_int_equal(count("nobody reads this") + lost, MANY);
    begin();
    refit_log_write(REFIT_LOG_ERROR, "read again", NULL, 0);
    assert_non_null(strstr(end(), "msg=\"log lines were lost\""));
}

static void the_thread_waits_for_the_pipe_so_that_callers_do_not(void **state)
{
    struct refit_error err;
    char pad[512];
    memset(pad, 'x', sizeof pad - 1);
    pad[sizeof pad - 1] = '\0';
    uint64_t before = refit_log_lost();
    put_standard_error(pipes[1]);
    assert_int_equal(refit_log_start(&err), REFIT_OK);
    for (int i = 0; i < MANY; i++)
        refit_log_event(REFIT_LOG_ERROR, "queued", refit_log_i64("i", i), refit_log_text("pad", pad));
    uint64_t lost = refit_log_lost() - before;
    /* The reader comes back; the thread goes on where it waited, and all that was taken arrives. */
    size_t len = 0, seen = 0;
    for (uint64_t arrived = 0; arrived < MANY - lost;) {
        ssize_t n = read(pipes[0], text + len, sizeof text - 1 - len);
        assert_true(n > 0);
        len += (size_t)n;
        text[len] = '\0';
        for (const char *at; (at = strstr(text + seen, "msg=queued ")); arrived++)
            seen = (size_t)(at - text) + 1;
    }
    refit_log_stop(30000);
    take_standard_error_back();
    assert_true(lost > 0);
    assert_non_null(strstr(text, "msg=\"log lines were lost\""));
}

static void a_stop_does_not_wait_for_ever(void **state)
{
    pid_t child = fork(); /* its thread stays behind */
    assert_true(child >= 0);
    if (child == 0) {
        struct refit_error err;
        dup2(pipes[1], STDERR_FILENO);
        if (refit_log_start(&err))
            _exit(2);
        for (int i = 0; i < MANY; i++)
            refit_log_event(REFIT_LOG_ERROR, "nobody reads this", refit_log_i64("i", i));
        refit_log_stop(50);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a library there is nobody who ignores SIGPIPE for us. */
static void neither_a_reader_that_left_nor_a_closed_descriptor_kills(void **state)
{
    refit_io_close(&pipes[0]); /* here too, before the child looks */
    for (int closed = 0; closed < 2; closed++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGPIPE, SIG_DFL);
            if (closed)
                close(STDERR_FILENO);
            else
                dup2(pipes[1], STDERR_FILENO);
            close(pipes[1]);
            uint64_t before = refit_log_lost();
            refit_log_write(REFIT_LOG_ERROR, "nobody is there", NULL, 0);
            _exit(refit_log_lost() == before + 1 ? 0 : 3);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static void a_line_is_appended_to_another_file_whole_or_not_at_all(void **state)
{
    const struct refit_log_field fields[] = {refit_log_text("by", "token:ci"), refit_log_u64("to", 7)};
    char line[256];
    assert_true(refit_log_append(pipes[1], REFIT_LOG_INFO, "audit", fields, 2));
    ssize_t len = read(pipes[0], line, sizeof line - 1);
    assert_true(len > 0);
    line[len] = '\0';
    assert_non_null(strstr(line, " level=info component=test msg=audit by=token:ci to=7\n"));
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0);
    assert_false(refit_log_append(full, REFIT_LOG_INFO, "audit", fields, 2));
    assert_int_equal(errno, ENOSPC);
    close(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_event_is_a_line_of_keys_and_values),
        TEST(json_lines_are_json_whatever_they_are_given),
        TEST(lines_of_a_thread_say_the_refit_it_works_for),
        TEST(levels_are_kept_and_errno_too),
        TEST(a_line_is_appended_to_another_file_whole_or_not_at_all),
        TEST(what_others_can_provoke_is_limited_and_counted),
        TEST(a_full_disk_drops_lines_and_says_so_later),
        TEST(a_pipe_that_nobody_reads_holds_nobody_up),
        TEST(a_stop_does_not_wait_for_ever),
        TEST(neither_a_reader_that_left_nor_a_closed_descriptor_kills),
        TEST(the_thread_waits_for_the_pipe_so_that_callers_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
