/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/socket.h"

#define STARTERS 8

static char directory[] = "/tmp/refit-socket-XXXXXX";
static char path[64];
static struct refit_error err;

static int make_directory(void **state)
{
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/s", directory);
    return 0;
}

static int remove_directory(void **state)
{
    unlink(path);
    return rmdir(directory);
}

static bool answers(void)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(refit_socket_address(path, &address, &err), REFIT_OK);
    bool connected = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return connected;
}

static void a_socket_that_an_ended_process_left_is_replaced(void **state)
{
    int fd = -1;
    assert_int_equal(refit_socket_listen(path, 0600, &fd, &err), REFIT_OK);
    close(fd);
    assert_false(answers());
    assert_int_equal(refit_socket_listen(path, 0600, &fd, &err), REFIT_OK);
    assert_true(answers());
    close(fd);
}

static void a_socket_where_somebody_answers_is_refused_and_stays(void **state)
{
    int fd = -1, other = -1;
    assert_int_equal(refit_socket_listen(path, 0600, &fd, &err), REFIT_OK);
    assert_int_equal(refit_socket_listen(path, 0600, &other, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "in use by a live refitd"));
    assert_int_equal(other, -1);
    assert_true(answers());
    close(fd);
}

static void what_is_not_a_socket_is_not_removed(void **state)
{
    struct stat info;
    int fd = -1;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(refit_socket_listen(path, 0600, &fd, &err), REFIT_CONFLICT);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    unlink(path);
}

static void a_path_without_its_directory_or_too_long_is_named(void **state)
{
    char longer[200];
    int fd = -1;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(refit_socket_listen(longer, 0, &fd, &err), REFIT_INVALID);
    assert_int_equal(refit_socket_listen("/nowhere-at-all/s", 0, &fd, &err), REFIT_SYSTEM);
    assert_non_null(strstr(err.text, "/nowhere-at-all/s"));
}

static pthread_barrier_t ready;

static void *start(void *context)
{
    int *fd = context;
    *fd = -1;
    pthread_barrier_wait(&ready);
    return refit_socket_listen(path, 0600, fd, NULL) == REFIT_OK ? context : NULL;
}

static void of_several_that_start_at_once_one_wins(void **state)
{
    for (int round = 0; round < 50; round++) {
        pthread_t threads[STARTERS];
        int fds[STARTERS], winners = 0;
        pthread_barrier_init(&ready, NULL, STARTERS);
        for (int i = 0; i < STARTERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, start, &fds[i]), 0);
        for (int i = 0; i < STARTERS; i++) {
            void *won;
            pthread_join(threads[i], &won);
            winners += won != NULL;
        }
        assert_int_equal(winners, 1);
        assert_true(answers());
        for (int i = 0; i < STARTERS; i++)
            refit_io_close(&fds[i]); /* the next round finds what an ended process left */
        pthread_barrier_destroy(&ready);
    }
}

static void a_stream_socket_listens_with_its_mode_and_is_told_from_the_other_kind(void **state)
{
    struct sockaddr_un address;
    struct stat info;
    int fd = -1, other = -1;
    assert_int_equal(refit_socket_listen_stream(path, 0660, &fd, &err), REFIT_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0660);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(refit_socket_address(path, &address, &err), REFIT_OK);
    assert_int_equal(connect(client, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(refit_socket_listen_stream(path, 0600, &other, &err), REFIT_CONFLICT);
    assert_int_not_equal(refit_socket_listen(path, 0600, &other, &err), REFIT_OK);
    assert_int_equal(stat(path, &info), 0);
    close(client);
    close(fd);
    assert_int_equal(refit_socket_listen_stream(path, 0600, &fd, &err), REFIT_OK);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_socket_that_an_ended_process_left_is_replaced),
        cmocka_unit_test(a_socket_where_somebody_answers_is_refused_and_stays),
        cmocka_unit_test(a_stream_socket_listens_with_its_mode_and_is_told_from_the_other_kind),
        cmocka_unit_test(what_is_not_a_socket_is_not_removed),
        cmocka_unit_test(a_path_without_its_directory_or_too_long_is_named),
        cmocka_unit_test(of_several_that_start_at_once_one_wins),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
