/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/text.h"

static void controls_become_blanks(void **state)
{
    char text[] = "a\x1b[2Jb\xc2\x9b" "31m\xe2\x80\xae" "c\ngr\xc3\xb6\xc3\x9f" "e \xff";
    refit_text_blank_controls(text);
    assert_string_equal(text, "a [2Jb  31m   c gr\xc3\xb6\xc3\x9f" "e \xff");
}

static void what_steers_a_terminal_is_control(void **state)
{
    static const struct {
        const char *text;
        unsigned control, bytes;
    } cases[] = {
        {"a", 0, 1},           {"", 0, 1},                   {" ", 0, 1},         {"\n", 0x0a, 1},         {"\x1b[2J", 0x1b, 1},
        {"\x7f", 0x7f, 1},     {"\xc2\x80", 0x80, 2},        {"\xc2\x9b", 0x9b, 2}, {"\xc2\xa0", 0, 2},    {"\xc3\xbc", 0, 1},
        {"\xe2\x80\xa8", 0x2028, 3}, {"\xe2\x80\xae", 0x202e, 3}, {"\xe2\x81\xa6", 0x2066, 3}, {"\xe2\x9c\x93", 0, 3},
        {"\xc2", 0, 1},        {"\xe2\x80", 0, 1},           {"\x80", 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned bytes = 0;
        assert_int_equal(refit_text_control(cases[i].text, &bytes), cases[i].control);
        assert_int_equal(bytes, cases[i].bytes);
        assert_int_equal(refit_text_control(cases[i].text, NULL), cases[i].control);
    }
}

/* What the log writes for `text`. */
static void logged(const char *text, char *out, size_t size)
{
    int pipes[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    refit_log_write(REFIT_LOG_ERROR, text, NULL, 0);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipes[1]);
    ssize_t n = read(pipes[0], out, size - 1);
    close(pipes[0]);
    assert_true(n > 0);
    out[n] = '\0';
}

static void a_log_line_stays_one_line_of_text(void **state)
{
    char line[4096];
    logged("a\n\xc2\x85\xe2\x80\xa8\"\\ \xc3\xbc \xe2\x9c\x93", line, sizeof line);
    assert_non_null(strstr(line, "msg=\"a\\u000a\\u0085\\u2028\\\"\\\\ \xc3\xbc \xe2\x9c\x93\"\n"));
    logged("cut \xe2", line, sizeof line);
    assert_non_null(strstr(line, "msg=\"cut \xe2\"\n"));
}

static void a_duration_is_digits_and_a_unit(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"500ms", 500}, {"30s", 30000}, {"10m", 600000}, {"2h", 7200000}, {"0", 0}, {"0s", 0}, {"007s", 7000},
                {"9223372036854775807ms", INT64_MAX}};
    static const char *const bad[] = {"", " 1s", "1 s", "1s ", "+1s", "-1s", "s", "1.5s", "1S", "1d", "0x1s", "1\ns",
                                      "1sm", "1ss", "9223372036854775808ms", "9223372036854775807s"};
    int64_t ms;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ms = -1;
        assert_true(refit_text_duration(good[i].text, 0, &ms));
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(refit_text_duration(bad[i], 0, &ms));
        assert_false(refit_text_duration(bad[i], 1000, &ms));
    }
}

static void a_number_without_unit_is_what_the_caller_says(void **state)
{
    int64_t ms = -1;
    assert_false(refit_text_duration("5", 0, &ms));
    assert_true(refit_text_duration("5", 1000, &ms));
    assert_int_equal(ms, 5000);
    assert_false(refit_text_duration("9223372036854775807", 1000, &ms));
}

static void hex_comes_back_as_the_bytes_it_was(void **state)
{
    const uint8_t bytes[] = {0x00, 0x9f, 0xa0, 0xff};
    uint8_t back[4];
    char text[9];
    refit_text_hex(bytes, 4, text);
    assert_string_equal(text, "009fa0ff");
    assert_true(refit_text_unhex("009FA0fF", back, 4));
    assert_memory_equal(back, bytes, 4);
    static const char *const bad[] = {"", "009fa0f", "009fa0fff", "009fa0fg", "009fa0f@", "009fa0f\x80", "0x9fa0ff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(refit_text_unhex(bad[i], back, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controls_become_blanks),
        cmocka_unit_test(what_steers_a_terminal_is_control),
        cmocka_unit_test(a_log_line_stays_one_line_of_text),
        cmocka_unit_test(hex_comes_back_as_the_bytes_it_was),
        cmocka_unit_test(a_duration_is_digits_and_a_unit),
        cmocka_unit_test(a_number_without_unit_is_what_the_caller_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
