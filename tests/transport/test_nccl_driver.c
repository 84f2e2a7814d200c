/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL as it is found at run time. A process opens it once, so each case is a process of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/nccl_driver.h"

#define SKIPPED 77
#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)

/* `library` becomes REFIT_NCCL_LIBRARY; NULL: unset. */
static void in_child(void (*body)(void), const char *library)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (library)
            setenv("REFIT_NCCL_LIBRARY", library, 1);
        else
            unsetenv("REFIT_NCCL_LIBRARY");
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) {
        print_message("skipped: %s is not there\n", REFIT_TEST_REAL_NCCL);
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void real_is_whole(void)
{
    const struct refit_nccl_driver *driver;
    struct refit_error err;
    char text[REFIT_NCCL_DESCRIPTION_MAX], expected[REFIT_NCCL_DESCRIPTION_MAX];
    if (access(REFIT_TEST_REAL_NCCL, R_OK) != 0)
        _exit(SKIPPED);
    if (refit_nccl_driver(&driver, &err) != REFIT_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    CHECK(driver->version == NCCL_VERSION_CODE);
#define THERE(name) CHECK(driver->name);
    REFIT_NCCL_CALLS(THERE)
    REFIT_NCCL_NEWER_CALLS(THERE)
#undef THERE
    refit_nccl_describe(text, sizeof text);
    snprintf(expected, sizeof expected, "built for %d.%d; libnccl.so.2 %d.%d.%d: shrink, revoke, grow, one-sided",
             NCCL_MAJOR, NCCL_MINOR, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    CHECK(strncmp(text, expected, strlen(expected)) == 0);
}

static void the_real_library_has_every_call(void **state)
{
    in_child(real_is_whole, REFIT_TEST_REAL_NCCL);
}

static void expect_unsupported(const char *reason)
{
    const struct refit_nccl_driver *driver;
    struct refit_error err;
    char text[REFIT_NCCL_DESCRIPTION_MAX];
    for (int time = 0; time < 2; time++) { /* a second try finds the same, and does not crash */
        CHECK(refit_nccl_driver(&driver, &err) == REFIT_UNSUPPORTED);
        CHECK(strstr(err.text, reason));
    }
    refit_nccl_describe(text, sizeof text);
    CHECK(strncmp(text, "built for ", 10) == 0 && strstr(text, reason));
}

static void missing_is_named(void)
{
    expect_unsupported("/nowhere/libnccl.so.2: cannot open shared object file");
}

static void a_missing_library_is_named(void **state)
{
    in_child(missing_is_named, "/nowhere/libnccl.so.2");
}

static void stranger_is_refused(void)
{
    expect_unsupported("libnccl.so.2: lacks ncclGetVersion; NCCL 2.19 or newer is needed");
}

static void a_library_that_is_no_nccl_is_refused(void **state)
{
    in_child(stranger_is_refused, "libm.so.6");
}

static void old_is_refused(void)
{
    setenv("STANDIN_NCCL", "version:21805", 1);
    expect_unsupported("libnccl.so.2: is version 2.18.5; NCCL 2.19 or newer is needed");
}

static void an_old_library_is_refused(void **state)
{
    in_child(old_is_refused, REFIT_TEST_STANDIN_NCCL);
}

static void fails_once(void)
{
    const struct refit_nccl_driver *driver;
    struct refit_error err;
    setenv("STANDIN_NCCL", "delay-us:0,fail:ncclGetVersion:1:3", 1);
    CHECK(refit_nccl_driver(&driver, &err) == REFIT_SYSTEM);
    CHECK(strcmp(err.text, "ncclGetVersion: internal error (3)") == 0);
    CHECK(refit_nccl_driver(&driver, &err) == REFIT_OK);
    CHECK(driver->version == NCCL_VERSION_CODE);
}

static void a_library_that_failed_is_asked_again(void **state)
{
    in_child(fails_once, REFIT_TEST_STANDIN_NCCL);
}

static void loaded_is_taken(void)
{
    const struct refit_nccl_driver *driver;
    struct refit_error err;
    char text[REFIT_NCCL_DESCRIPTION_MAX];
    void *first = dlopen(REFIT_TEST_STANDIN_NCCL, RTLD_NOW | RTLD_LOCAL);
    CHECK(first);
    CHECK(refit_nccl_driver(&driver, &err) == REFIT_OK);
    CHECK(driver->library == first);
    CHECK(driver->capabilities ==
          (REFIT_NCCL_SHRINK | REFIT_NCCL_REVOKE | REFIT_NCCL_GROW | REFIT_NCCL_MULTI_RANK_GPU));
    CHECK(!driver->ncclPutSignal && driver->ncclCommShrink);
    refit_nccl_describe(text, sizeof text);
    CHECK(strstr(text, ": shrink, revoke, grow, several ranks per GPU"));
}

/* Nothing but its path finds it: it is in no directory that is searched. */
static void a_library_that_the_process_has_is_taken(void **state)
{
    in_child(loaded_is_taken, NULL);
}

static const char *string_of(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited" : "other";
}

static const char *last_error(ncclComm_t comm)
{
    return comm ? "" : "rank 3 is gone\nsecond line";
}

static void results_become_statuses(void **state)
{
    const struct refit_nccl_driver driver = {.ncclGetErrorString = string_of, .ncclGetLastError = last_error};
    static const struct { ncclResult_t result; enum refit_status status; } rows[] = {
        {ncclSuccess, REFIT_OK},           {ncclInProgress, REFIT_OK},
        {ncclRemoteError, REFIT_PEER},     {ncclSystemError, REFIT_PEER},
        {ncclTimeout, REFIT_TIMEOUT},      {ncclInvalidArgument, REFIT_INVALID},
        {ncclInvalidUsage, REFIT_UNSUPPORTED}, {ncclInternalError, REFIT_SYSTEM},
        {ncclUnhandledCudaError, REFIT_SYSTEM},
    };
    struct refit_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(refit_nccl_check(&driver, NULL, rows[i].result, "ncclRecv", &err), rows[i].status);
    assert_int_equal(refit_nccl_check(&driver, NULL, ncclRemoteError, "ncclRecv", &err), REFIT_PEER);
    assert_string_equal(err.text, "ncclRecv: remote process exited (6): rank 3 is gone");
    ncclComm_t other = (ncclComm_t)(void *)&err;
    assert_int_equal(refit_nccl_check(&driver, other, ncclRemoteError, "ncclSend", &err), REFIT_PEER);
    assert_string_equal(err.text, "ncclSend: remote process exited (6)");
}

static void versions_that_differ_are_both_named(void **state)
{
    struct refit_error err;
    assert_int_equal(refit_nccl_check_versions(23203, 23203, "trainer 0", &err), REFIT_OK);
    assert_int_equal(refit_nccl_check_versions(23203, 22809, "trainer 0", &err), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "2.32.3 here and 2.28.9 at trainer 0"));
    assert_non_null(strstr(err.text, "REFIT_NCCL_LIBRARY"));
    assert_int_equal(refit_nccl_check_versions(23203, 23202, "trainer 0", &err), REFIT_MISMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_library_has_every_call),
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(a_library_that_is_no_nccl_is_refused),
        cmocka_unit_test(an_old_library_is_refused),
        cmocka_unit_test(a_library_that_failed_is_asked_again),
        cmocka_unit_test(a_library_that_the_process_has_is_taken),
        cmocka_unit_test(results_become_statuses),
        cmocka_unit_test(versions_that_differ_are_both_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
