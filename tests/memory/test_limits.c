/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/limits.h"
#include "memory/slot.h"

/* A made-up system below a temporary directory. */
struct fixture {
    char root[64];
};

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int setup(void **state)
{
    static struct fixture f;
    snprintf(f.root, sizeof f.root, "/tmp/refit-limits-XXXXXX");
    *state = &f;
    return mkdtemp(f.root) ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    return nftw(f->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const struct fixture *f, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->root, name);
    for (char *slash = strchr(path + strlen(f->root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0700) != 0)
            assert_int_equal(errno, EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void machine_with(const struct fixture *f, const char *cgroup, const char *mountinfo)
{
    put(f, "proc/self/cgroup", cgroup);
    put(f, "proc/self/mountinfo", mountinfo);
    put(f, "proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   8000000 kB\n");
}

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

static void without_cgroups_the_machine_limits(void **state)
{
    struct fixture *f = *state;
    put(f, "proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:   8000000 kB\n");
    struct refit_limit limit = refit_limit_read(f->root);
    assert_int_equal(limit.available, UINT64_C(8000000) << 10);
    assert_string_equal(limit.name, "MemAvailable");
}

static void with_nothing_to_read_no_limit_is_known(void **state)
{
    struct fixture *f = *state;
    struct refit_limit limit = refit_limit_read(f->root);
    assert_true(limit.available == UINT64_MAX);
    assert_string_equal(limit.name, "unknown");
}

static void a_v2_limit_less_the_working_set_is_what_is_left(void **state)
{
    struct fixture *f = *state;
    machine_with(f, "0::/pod/refitd\n", V2_MOUNT);
    put(f, "sys/fs/cgroup/pod/refitd/memory.max", "1000000\n");
    put(f, "sys/fs/cgroup/pod/refitd/memory.current", "700000\n");
    put(f, "sys/fs/cgroup/pod/refitd/memory.stat", "anon 1\ninactive_file_x 5\ninactive_file 200000\n");
    struct refit_limit limit = refit_limit_read(f->root);
    assert_int_equal(limit.available, 500000);
    assert_int_equal(limit.limit, 1000000);
    assert_string_equal(limit.name, "memory.max");
    assert_non_null(strstr(limit.path, "/sys/fs/cgroup/pod/refitd/memory.max"));
}

static void the_tightest_level_of_nested_groups_counts(void **state)
{
    struct fixture *f = *state;
    machine_with(f, "0::/kube/pod/refitd\n", V2_MOUNT);
    put(f, "sys/fs/cgroup/kube/pod/refitd/memory.max", "max\n");
    put(f, "sys/fs/cgroup/kube/pod/refitd/memory.current", "700000\n");
    put(f, "sys/fs/cgroup/kube/pod/memory.max", "1000000\n");
    put(f, "sys/fs/cgroup/kube/pod/memory.current", "990000\n");
    put(f, "sys/fs/cgroup/kube/memory.max", "5000000\n");
    put(f, "sys/fs/cgroup/kube/memory.current", "1000000\n");
    assert_int_equal(refit_limit_read(f->root).available, 10000);
    put(f, "sys/fs/cgroup/kube/memory.current", "4999999\n");
    assert_int_equal(refit_limit_read(f->root).available, 1);
    put(f, "sys/fs/cgroup/kube/memory.current", "6000000\n");
    assert_int_equal(refit_limit_read(f->root).available, 0);
}

static void the_root_of_the_mount_limits_inside_a_cgroup_namespace(void **state)
{
    struct fixture *f = *state;
    machine_with(f, "0::/\n", V2_MOUNT);
    put(f, "sys/fs/cgroup/memory.max", "2000000\n");
    put(f, "sys/fs/cgroup/memory.current", "500000\n");
    assert_int_equal(refit_limit_read(f->root).available, 1500000);
}

static void a_v1_container_finds_itself_below_its_mount(void **state)
{
    struct fixture *f = *state;
    machine_with(f, "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/docker/abc\n0::/\n",
                 "40 30 0:35 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
                 "41 30 0:36 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put(f, "sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
    put(f, "sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "5\n");
    put(f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
    put(f, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
    put(f, "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 400000\n");
    struct refit_limit limit = refit_limit_read(f->root);
    assert_int_equal(limit.available, 2400000);
    assert_string_equal(limit.name, "memory.limit_in_bytes");
}

static void odd_lines_limit_nothing(void **state)
{
    struct fixture *f = *state;
    machine_with(f, "garbage\n::\n0::/../../etc\n", "x\n - \n1 2 3 - cgroup2 a b\n\n" V2_MOUNT);
    put(f, "sys/fs/cgroup/memory.max", "max\n");
    put(f, "sys/fs/cgroup/memory.current", "not a number\n");
    assert_string_equal(refit_limit_read(f->root).name, "MemAvailable");
}

static void the_real_system_answers(void **state)
{
    (void)state;
    const char *name = NULL;
    uint64_t available = refit_memory_available(&name);
    assert_non_null(name);
    assert_true(available > 0);
    assert_true(refit_memory_available(NULL) > 0);
}

/* ---- a real group: made, entered by a child, removed ---- */

static bool write_to(const char *directory, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

/* A group with a memory limit, by either version; the reason when there can't be one. */
static const char *make_group(char *directory, size_t len, const char *limit)
{
    static const struct {
        const char *parent, *file;
    } ways[] = {{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};
    for (size_t i = 0; i < 2; i++) {
        snprintf(directory, len, "%s/refit-test-%d", ways[i].parent, (int)getpid());
        if (mkdir(directory, 0700) != 0)
            continue;
        if (write_to(directory, ways[i].file, limit))
            return NULL;
        rmdir(directory);
    }
    return "no cgroup with a memory limit can be made here (needs root and a writable cgroup file system)";
}

static int slot_past_the_limit(const char *directory)
{
    struct refit_arena *slot = NULL;
    struct refit_error err = {0};
    if (!write_to(directory, "cgroup.procs", "0"))
        return 2;
    enum refit_status status = refit_slot_create("limited", 256u << 20, REFIT_PROTECT_UID, &slot, &err);
    if (status != REFIT_NO_MEMORY)
        return 3;
    if (!strstr(err.text, "268435456 bytes needed") || !strstr(err.text, directory))
        return 4;
    status = refit_slot_create("fits", 1u << 20, REFIT_PROTECT_UID, &slot, &err);
    refit_arena_release(slot);
    return status == REFIT_OK ? 0 : 5;
}

static void past_a_real_cgroup_limit_there_is_an_error_and_no_kill(void **state)
{
    (void)state;
    char directory[256];
    const char *why = make_group(directory, sizeof directory, "67108864");
    if (why) {
        print_message("skipped: %s\n", why);
        skip();
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(slot_past_the_limit(directory));
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(rmdir(directory), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        print_message("skipped: a process can't be moved into %s\n", directory);
        skip();
    }
    assert_int_equal(status, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(without_cgroups_the_machine_limits),
        CASE(with_nothing_to_read_no_limit_is_known),
        CASE(a_v2_limit_less_the_working_set_is_what_is_left),
        CASE(the_tightest_level_of_nested_groups_counts),
        CASE(the_root_of_the_mount_limits_inside_a_cgroup_namespace),
        CASE(a_v1_container_finds_itself_below_its_mount),
        CASE(odd_lines_limit_nothing),
        CASE(the_real_system_answers),
        CASE(past_a_real_cgroup_limit_there_is_an_error_and_no_kill),
    };
    return cmocka_run_group_tests_name("memory/limits", tests, NULL, NULL);
}
