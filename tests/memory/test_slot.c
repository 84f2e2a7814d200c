/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/slot.h"

#define SLOT_BYTES 100000u
#define SLOT_PAGES ((SLOT_BYTES + 4095u) / 4096u * 4096u)
#define NOBODY 65534

struct fixture {
    struct refit_arena *slot;
    struct refit_arena *other;
    struct refit_error err;
    int fd;
};

static int setup(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    f.fd = -1;
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    refit_arena_release(f->slot);
    refit_arena_release(f->other);
    if (f->fd >= 0)
        close(f->fd);
    return 0;
}

static void make(struct fixture *f, enum refit_protection protection)
{
    assert_int_equal(refit_slot_create("test", SLOT_BYTES, protection, &f->slot, &f->err), REFIT_OK);
    assert_int_equal(refit_slot_export(f->slot, &f->fd, &f->err), REFIT_OK);
}

static int own_fd(const struct refit_arena *arena)
{
    struct refit_piece piece;
    refit_arena_piece_at(arena, 0, &piece);
    return piece.fd;
}

static void reopen_path(int fd, char path[64])
{
    snprintf(path, 64, "/proc/self/fd/%d", fd);
}

/* Runs `body` as another uid, in a child; its result is the child's exit status. */
static int as_nobody(int (*body)(int fd), int fd)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)
            _exit(100);
        /* Changing the uid hides /proc/self/fd from oneself; an engine that began as that uid sees it. */
        prctl(PR_SET_DUMPABLE, 1);
        _exit(body(fd));
    }
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

static void a_slot_is_whole_pages_zero_and_present(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(refit_arena_bytes(f->slot), SLOT_PAGES);
    const uint8_t *bytes = refit_arena_host(f->slot, 0, SLOT_PAGES);
    assert_non_null(bytes);
    static const uint8_t zeros[SLOT_PAGES];
    assert_memory_equal(bytes, zeros, SLOT_PAGES);
    struct stat st;
    assert_int_equal(fstat(own_fd(f->slot), &st), 0);
    assert_int_equal(st.st_size, SLOT_PAGES);
    assert_true((uint64_t)st.st_blocks * 512 >= SLOT_PAGES);
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void an_empty_rank_has_a_slot_of_one_page(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(refit_slot_create("empty", 0, REFIT_PROTECT_UID, &f->slot, &f->err), REFIT_OK);
    assert_int_equal(refit_arena_bytes(f->slot), sysconf(_SC_PAGESIZE));
    assert_int_equal(refit_slot_map(own_fd(f->slot), 0, &f->other, &f->err), REFIT_OK);
}

static void what_the_owner_writes_the_engine_reads(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_PROTECT_SEAL);
    assert_int_equal(refit_slot_map(f->fd, SLOT_BYTES, &f->other, &f->err), REFIT_OK);
    strcpy(refit_arena_host(f->slot, 5000, 16), "weights");
    assert_string_equal(refit_arena_host(f->other, 5000, 16), "weights");
}

static void nobody_can_change_its_size(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_PROTECT_UID);
    int fd = own_fd(f->slot);
    assert_int_equal(ftruncate(fd, SLOT_PAGES - 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, SLOT_PAGES + 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

static void an_exported_descriptor_can_not_write(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(pwrite(f->fd, "x", 1, 0), -1);
    assert_ptr_equal(mmap(NULL, SLOT_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0), MAP_FAILED);
    assert_int_equal(refit_slot_map(f->fd, SLOT_BYTES, &f->other, &f->err), REFIT_OK);
    assert_int_equal(mprotect(refit_arena_host(f->other, 0, 1), 4096, PROT_READ | PROT_WRITE), -1);
    assert_true(fcntl(f->fd, F_GETFD) & FD_CLOEXEC);
}

/* 0: everything is as promised. */
static int engine_of_another_uid(int fd)
{
    char path[64];
    reopen_path(fd, path);
    if (open(path, O_RDWR) >= 0 || errno != EACCES)
        return 1;
    if (open(path, O_WRONLY) >= 0 || errno != EACCES)
        return 2;
    void *mapping = mmap(NULL, SLOT_PAGES, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        return 3;
    if (mprotect(mapping, SLOT_PAGES, PROT_READ | PROT_WRITE) == 0)
        return 4;
    if (ftruncate(fd, 0) == 0)
        return 5;
    if (fchmod(fd, 0666) == 0)
        return 6;
    return *(volatile uint8_t *)mapping == 42 ? 0 : 7;
}

/* 0 when a descriptor with an open mode can be reopened: the EACCES above is the mode's doing, not that of /proc. */
static int reopens_when_the_mode_allows(int fd)
{
    char path[64];
    reopen_path(fd, path);
    return open(path, O_RDWR) >= 0 ? 0 : 1;
}

static void an_engine_of_another_uid_reads_and_can_not_write(void **state)
{
    struct fixture *f = *state;
    if (geteuid() != 0) {
        print_message("skipped: taking another uid needs root\n");
        skip();
    }
    make(f, REFIT_PROTECT_UID);
    *(uint8_t *)refit_arena_host(f->slot, 0, 1) = 42;
    assert_int_equal(as_nobody(engine_of_another_uid, f->fd), 0);
    int open_to_all = memfd_create("open", MFD_CLOEXEC);
    assert_true(open_to_all >= 0);
    assert_int_equal(fchmod(open_to_all, 0666), 0);
    int reopened = as_nobody(reopens_when_the_mode_allows, open_to_all);
    close(open_to_all);
    assert_int_equal(reopened, 0);
}

static void a_sealed_slot_is_written_through_its_first_mapping_only(void **state)
{
    struct fixture *f = *state;
    char path[64];
    make(f, REFIT_PROTECT_SEAL);
    *(uint8_t *)refit_arena_host(f->slot, 0, 1) = 7;
    reopen_path(f->fd, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        assert_int_equal(pwrite(fd, "x", 1, 0), -1);
        assert_int_equal(errno, EPERM);
        assert_ptr_equal(mmap(NULL, SLOT_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        assert_int_equal(errno, EPERM);
        close(fd);
    }
    assert_int_equal(*(uint8_t *)refit_arena_host(f->slot, 0, 1), 7);
}

static void a_restarted_owner_fills_its_slot_again_under_uid(void **state)
{
    struct fixture *f = *state;
    bool writable = false;
    make(f, REFIT_PROTECT_UID);
    *(uint8_t *)refit_arena_host(f->slot, 17, 1) = 99;
    refit_arena_release(f->slot);
    f->slot = NULL;
    assert_int_equal(refit_slot_adopt(f->fd, SLOT_BYTES, REFIT_PROTECT_UID, &f->other, &writable, &f->err), REFIT_OK);
    assert_true(writable);
    uint8_t *byte = refit_arena_host(f->other, 17, 1);
    assert_int_equal(*byte, 99);
    *byte = 100;
    uint8_t seen = 0;
    assert_int_equal(pread(f->fd, &seen, 1, 17), 1);
    assert_int_equal(seen, 100);
}

static void a_restarted_owner_only_serves_its_slot_under_seal(void **state)
{
    struct fixture *f = *state;
    bool writable = true;
    make(f, REFIT_PROTECT_SEAL);
    *(uint8_t *)refit_arena_host(f->slot, 17, 1) = 99;
    refit_arena_release(f->slot);
    f->slot = NULL;
    assert_int_equal(refit_slot_adopt(f->fd, SLOT_BYTES, REFIT_PROTECT_SEAL, &f->other, &writable, &f->err), REFIT_OK);
    assert_false(writable);
    assert_int_equal(*(uint8_t *)refit_arena_host(f->other, 17, 1), 99);
    int again = -1;
    assert_int_equal(refit_slot_export(f->other, &again, &f->err), REFIT_OK);
    assert_int_equal(close(again), 0);
}

static void a_slot_with_less_protection_than_configured_is_not_adopted(void **state)
{
    struct fixture *f = *state;
    bool writable;
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(refit_slot_adopt(f->fd, SLOT_BYTES, REFIT_PROTECT_SEAL, &f->other, &writable, &f->err),
                     REFIT_MISMATCH);
}

static enum refit_status adopt(struct fixture *f, int fd)
{
    bool writable;
    return refit_slot_adopt(fd, SLOT_BYTES, REFIT_PROTECT_UID, &f->other, &writable, &f->err);
}

static void a_hostile_descriptor_is_not_adopted(void **state)
{
    struct fixture *f = *state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(adopt(f, ends[0]), REFIT_INVALID);
    assert_int_equal(refit_slot_map(ends[0], SLOT_BYTES, &f->other, &f->err), REFIT_INVALID);
    close(ends[0]);
    close(ends[1]);
    assert_int_not_equal(adopt(f, 987654), REFIT_OK);

    f->fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(f->fd, SLOT_PAGES), 0);
    assert_int_equal(adopt(f, f->fd), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "sealed"));
    assert_int_equal(refit_slot_map(f->fd, SLOT_BYTES, &f->other, &f->err), REFIT_INVALID);
    assert_int_equal(fcntl(f->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(fchmod(f->fd, 0666), 0);
    assert_int_equal(adopt(f, f->fd), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "mode 0600"));
}

static void a_descriptor_of_another_owner_is_not_adopted(void **state)
{
    struct fixture *f = *state;
    if (geteuid() != 0) {
        print_message("skipped: giving a file to another uid needs root\n");
        skip();
    }
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(fchown(own_fd(f->slot), NOBODY, NOBODY), 0);
    assert_int_equal(adopt(f, f->fd), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "65534"));
}

static void another_size_is_neither_adopted_nor_mapped(void **state)
{
    struct fixture *f = *state;
    bool writable;
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(refit_slot_adopt(f->fd, 2 * SLOT_BYTES, REFIT_PROTECT_UID, &f->other, &writable, &f->err),
                     REFIT_MISMATCH);
    assert_int_equal(refit_slot_map(f->fd, SLOT_BYTES - 8192, &f->other, &f->err), REFIT_MISMATCH);
    assert_int_equal(refit_slot_map(f->fd, UINT64_MAX, &f->other, &f->err), REFIT_INVALID);
}

static void identity_is_the_same_through_every_descriptor(void **state)
{
    struct fixture *f = *state;
    struct refit_slot_identity a, b, c;
    make(f, REFIT_PROTECT_UID);
    assert_int_equal(refit_slot_create("other", 1, REFIT_PROTECT_UID, &f->other, &f->err), REFIT_OK);
    assert_int_equal(refit_slot_identify(own_fd(f->slot), &a, &f->err), REFIT_OK);
    assert_int_equal(refit_slot_identify(f->fd, &b, &f->err), REFIT_OK);
    assert_int_equal(refit_slot_identify(own_fd(f->other), &c, &f->err), REFIT_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &c, sizeof a);
}

static void a_slot_that_does_not_fit_is_refused_with_numbers(void **state)
{
    struct fixture *f = *state;
    uint64_t bytes = UINT64_C(1) << 60;
    assert_int_equal(refit_slot_create("huge", bytes, REFIT_PROTECT_UID, &f->slot, &f->err), REFIT_NO_MEMORY);
    assert_non_null(strstr(f->err.text, "1152921504606846976 bytes"));
    assert_non_null(strstr(f->err.text, "available"));
    assert_int_equal(refit_slot_create("huge", UINT64_MAX, REFIT_PROTECT_UID, &f->slot, &f->err), REFIT_INVALID);
}

static void a_child_does_not_inherit_the_mapping(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_PROTECT_UID);
    uint8_t *bytes = refit_arena_host(f->slot, 0, 1);
    unsigned char present[SLOT_PAGES / 4096];
    assert_int_equal(mincore(bytes, SLOT_PAGES, present), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(mincore(bytes, SLOT_PAGES, present) != 0 && errno == ENOMEM ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void protections_have_names(void **state)
{
    (void)state;
    assert_string_equal(refit_protection_name(REFIT_PROTECT_UID), "uid");
    assert_string_equal(refit_protection_name(REFIT_PROTECT_SEAL), "seal");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_slot_is_whole_pages_zero_and_present),
        CASE(an_empty_rank_has_a_slot_of_one_page),
        CASE(what_the_owner_writes_the_engine_reads),
        CASE(nobody_can_change_its_size),
        CASE(an_exported_descriptor_can_not_write),
        CASE(an_engine_of_another_uid_reads_and_can_not_write),
        CASE(a_sealed_slot_is_written_through_its_first_mapping_only),
        CASE(a_restarted_owner_fills_its_slot_again_under_uid),
        CASE(a_restarted_owner_only_serves_its_slot_under_seal),
        CASE(a_slot_with_less_protection_than_configured_is_not_adopted),
        CASE(a_hostile_descriptor_is_not_adopted),
        CASE(a_descriptor_of_another_owner_is_not_adopted),
        CASE(another_size_is_neither_adopted_nor_mapped),
        CASE(identity_is_the_same_through_every_descriptor),
        CASE(a_slot_that_does_not_fit_is_refused_with_numbers),
        CASE(a_child_does_not_inherit_the_mapping),
        CASE(protections_have_names),
    };
    return cmocka_run_group_tests_name("memory/slot", tests, NULL, NULL);
}
