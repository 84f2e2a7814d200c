/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

static char dir[] = "/tmp/refit-test-io.XXXXXX";
static char file[64];

static int make_dir(void **state)
{
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/file", dir);
    return 0;
}

static int remove_dir(void **state)
{
    unlink(file);
    return rmdir(dir);
}

static void a_file_is_replaced_whole_or_not_at_all(void **state)
{
    char *data;
    size_t len;
    struct refit_error err;
    assert_int_equal(refit_io_replace_file(file, "one", 3, 0600, &err), REFIT_OK);
    assert_int_equal(refit_io_replace_file(file, "three", 5, 0600, &err), REFIT_OK);
    assert_int_equal(refit_io_read_file(file, 100, &data, &len, &err), REFIT_OK);
    assert_int_equal(len, 5);
    assert_string_equal(data, "three");
    free(data);
    assert_int_equal(refit_io_replace_file("/nowhere/at/all", "x", 1, 0600, &err), REFIT_SYSTEM);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
}

static void reading_a_file_is_bounded_and_names_it(void **state)
{
    char *data;
    size_t len;
    struct refit_error err;
    assert_int_equal(refit_io_replace_file(file, "12345", 5, 0600, &err), REFIT_OK);
    assert_int_equal(refit_io_read_file(file, 4, &data, &len, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, file));
    assert_int_equal(refit_io_read_file(dir, 100, &data, &len, &err), REFIT_INVALID);
    assert_int_equal(refit_io_read_file("/nowhere", 100, &data, &len, &err), REFIT_NOT_FOUND);
    char part[8];
    int fd = open(file, O_RDONLY);
    assert_int_equal(refit_io_pread_full(fd, part, 3, 2, file, &err), REFIT_OK);
    assert_memory_equal(part, "345", 3);
    assert_int_equal(refit_io_pread_full(fd, part, 4, 2, file, &err), REFIT_CORRUPT);
    assert_non_null(strstr(err.text, "ends at byte 5"));
    close(fd);
}

static void a_peer_that_does_not_read_is_a_timeout_and_a_closed_one_is_lost(void **state)
{
    int pair[2];
    char data[4];
    struct refit_error err;
    const size_t large = 8u << 20; /* more than a socket takes */
    char *bytes = calloc(1, large);
    assert_non_null(bytes);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(refit_io_send_full(pair[0], "ab", 2, refit_deadline_in_ms(1000), "peer", &err), REFIT_OK);
    assert_int_equal(recv(pair[1], data, sizeof data, 0), 2);
    assert_int_equal(refit_io_send_full(pair[0], bytes, large, refit_deadline_in_ms(5), "peer", &err), REFIT_TIMEOUT);
    free(bytes);
    close(pair[0]);
    assert_int_equal(refit_io_send_full(pair[1], "ab", 2, refit_deadline_in_ms(1000), "peer", &err), REFIT_PEER);
    close(pair[1]);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void descriptors_travel_and_surplus_ones_are_closed(void **state)
{
    int pair[2], got[4];
    char data[16];
    size_t len, count;
    struct refit_error err;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
    int before = open_descriptors();
    assert_int_equal(refit_io_recv_fds(pair[1], data, sizeof data, &len, got, 4, &count, &err), REFIT_BUSY);
    assert_int_equal(refit_io_send_fds(pair[0], "hello", 5, (int[]){0, 1, 2}, 3, &err), REFIT_OK);
    assert_int_equal(refit_io_recv_fds(pair[1], data, sizeof data, &len, got, 4, &count, &err), REFIT_OK);
    assert_int_equal(count, 3);
    assert_int_equal(len, 5);
    while (count > 0)
        close(got[--count]);
    assert_int_equal(refit_io_send_fds(pair[0], "hello", 5, (int[]){0, 1, 2}, 3, &err), REFIT_OK);
    assert_int_equal(refit_io_recv_fds(pair[1], data, sizeof data, &len, got, 2, &count, &err), REFIT_INVALID);
    assert_int_equal(refit_io_send_fds(pair[0], "hello", 5, (int[]){0}, 1, &err), REFIT_OK);
    assert_int_equal(refit_io_recv_fds(pair[1], data, 3, &len, got, 2, &count, &err), REFIT_INVALID);
    assert_int_equal(open_descriptors(), before);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_replaced_whole_or_not_at_all),
        cmocka_unit_test(reading_a_file_is_bounded_and_names_it),
        cmocka_unit_test(a_peer_that_does_not_read_is_a_timeout_and_a_closed_one_is_lost),
        cmocka_unit_test(descriptors_travel_and_surplus_ones_are_closed),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
