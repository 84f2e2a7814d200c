/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/arena.h"

struct fixture {
    struct refit_arena *arena;
    struct refit_error err;
    uint8_t memory[4096];
    int fd;
};

static int setup(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    f.fd = memfd_create("arena-test", MFD_CLOEXEC);
    *state = &f;
    return f.fd >= 0 && ftruncate(f.fd, 4096) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    refit_arena_release(f->arena);
    close(f->fd);
    return 0;
}

static void make(struct fixture *f, enum refit_arena_kind kind, uint64_t bytes)
{
    assert_int_equal(refit_arena_create(kind, bytes, &f->arena, &f->err), REFIT_OK);
}

static void a_range_across_two_pieces_has_no_one_address(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_HOST, 1024);
    assert_int_equal(refit_arena_bind_host(f->arena, 512, f->memory + 512, 512, -1, 0, &f->err), REFIT_OK);
    assert_int_equal(refit_arena_bind_host(f->arena, 0, f->memory, 256, -1, 0, &f->err), REFIT_OK);
    assert_ptr_equal(refit_arena_host(f->arena, 0, 256), f->memory);
    assert_ptr_equal(refit_arena_host(f->arena, 600, 424), f->memory + 600);
    assert_null(refit_arena_host(f->arena, 0, 257));
    assert_null(refit_arena_host(f->arena, 256, 1));
    assert_null(refit_arena_host(f->arena, 511, 1));
    assert_null(refit_arena_host(f->arena, 1024, 1));
    assert_null(refit_arena_host(f->arena, 1023, UINT64_MAX));
}

static void pieces_are_listed_by_offset_whatever_the_order_of_binding(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_HOST, 4096);
    for (uint64_t i = 0; i < 16; i++) {
        uint64_t at = (i * 7 % 16) * 256;
        assert_int_equal(refit_arena_bind_host(f->arena, at, f->memory + at, 256, f->fd, at, &f->err), REFIT_OK);
    }
    assert_int_equal(refit_arena_piece_count(f->arena), 16);
    for (size_t i = 0; i < 16; i++) {
        struct refit_piece piece, found;
        refit_arena_piece_at(f->arena, i, &piece);
        assert_int_equal(piece.offset, i * 256);
        assert_ptr_equal(piece.host, f->memory + i * 256);
        assert_int_equal(piece.fd, f->fd);
        assert_int_equal(piece.fd_offset, i * 256);
        assert_null(piece.path);
        assert_true(refit_arena_piece(f->arena, i * 256 + 255, &found));
        assert_int_equal(found.offset, piece.offset);
    }
}

static void overlapping_pieces_are_refused(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_HOST, 1024);
    assert_int_equal(refit_arena_bind_host(f->arena, 256, f->memory, 256, -1, 0, &f->err), REFIT_OK);
    assert_int_equal(refit_arena_bind_host(f->arena, 0, f->memory, 257, -1, 0, &f->err), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "overlap"));
    assert_int_equal(refit_arena_bind_host(f->arena, 511, f->memory, 1, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_bind_host(f->arena, 256, f->memory, 256, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_bind_host(f->arena, 512, f->memory, 1, -1, 0, &f->err), REFIT_OK);
    assert_int_equal(refit_arena_bind_host(f->arena, 0, f->memory, 256, -1, 0, &f->err), REFIT_OK);
}

static void pieces_outside_the_space_are_refused(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_HOST, 1024);
    assert_int_equal(refit_arena_bind_host(f->arena, 1000, f->memory, 25, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_bind_host(f->arena, 1025, f->memory, 0, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_bind_host(f->arena, 8, f->memory, UINT64_MAX, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_bind_host(f->arena, 0, NULL, 8, -1, 0, &f->err), REFIT_INVALID);
    assert_int_equal(refit_arena_piece_count(f->arena), 0);
}

static void nothing_bound_is_no_piece(void **state)
{
    struct fixture *f = *state;
    struct refit_piece piece;
    make(f, REFIT_ARENA_HOST, 1024);
    assert_int_equal(refit_arena_bind_host(f->arena, 512, NULL, 0, -1, 0, &f->err), REFIT_OK);
    assert_false(refit_arena_piece(f->arena, 512, &piece));
    assert_int_equal(refit_arena_piece_count(f->arena), 0);
}

static void file_ranges_share_a_descriptor_and_keep_their_path(void **state)
{
    struct fixture *f = *state;
    struct refit_piece a, b;
    make(f, REFIT_ARENA_FILE, 4096);
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 100, 1000, "w.safetensors", &f->err), REFIT_OK);
    assert_int_equal(refit_arena_bind_file(f->arena, 1024, f->fd, 1100, 1000, "w.safetensors", &f->err), REFIT_OK);
    assert_true(refit_arena_piece(f->arena, 5, &a));
    assert_true(refit_arena_piece(f->arena, 1500, &b));
    assert_int_equal(a.fd, b.fd);
    assert_int_not_equal(a.fd, f->fd);
    assert_int_equal(b.fd_offset, 1100);
    assert_string_equal(b.path, "w.safetensors");
    assert_null(b.host);
    assert_null(refit_arena_host(f->arena, 0, 1));
}

static void a_file_that_is_too_short_is_refused_by_name(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_FILE, 8192);
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 4000, 97, "short.safetensors", &f->err), REFIT_CORRUPT);
    assert_non_null(strstr(f->err.text, "short.safetensors"));
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 4097, 0, "short.safetensors", &f->err), REFIT_CORRUPT);
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 4000, 96, "short.safetensors", &f->err), REFIT_OK);
}

static void memory_of_the_wrong_kind_is_refused(void **state)
{
    struct fixture *f = *state;
    make(f, REFIT_ARENA_FILE, 64);
    assert_int_equal(refit_arena_bind_host(f->arena, 0, f->memory, 64, -1, 0, &f->err), REFIT_INVALID);
    refit_arena_release(f->arena);
    make(f, REFIT_ARENA_HOST, 64);
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 0, 64, "x", &f->err), REFIT_INVALID);
    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct refit_arena *files = NULL;
    assert_int_equal(refit_arena_create(REFIT_ARENA_FILE, 64, &files, &f->err), REFIT_OK);
    enum refit_status status = refit_arena_bind_file(files, 0, dir, 0, 0, "/", &f->err);
    close(dir);
    refit_arena_release(files);
    assert_int_equal(status, REFIT_INVALID);
}

static void a_kind_that_is_not_built_in_is_unsupported(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(refit_arena_create(REFIT_ARENA_CUDA, 64, &f->arena, &f->err), REFIT_UNSUPPORTED);
}

static void the_last_release_ends_it(void **state)
{
    struct fixture *f = *state;
    struct refit_piece piece;
    make(f, REFIT_ARENA_FILE, 64);
    assert_int_equal(refit_arena_bind_file(f->arena, 0, f->fd, 0, 64, "x", &f->err), REFIT_OK);
    assert_true(refit_arena_piece(f->arena, 0, &piece));
    assert_ptr_equal(refit_arena_retain(f->arena), f->arena);
    refit_arena_release(f->arena);
    assert_int_not_equal(fcntl(piece.fd, F_GETFD), -1);
    refit_arena_release(f->arena);
    f->arena = NULL;
    assert_int_equal(fcntl(piece.fd, F_GETFD), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_range_across_two_pieces_has_no_one_address, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_are_listed_by_offset_whatever_the_order_of_binding, setup, teardown),
        cmocka_unit_test_setup_teardown(overlapping_pieces_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_outside_the_space_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_bound_is_no_piece, setup, teardown),
        cmocka_unit_test_setup_teardown(file_ranges_share_a_descriptor_and_keep_their_path, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_too_short_is_refused_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_the_wrong_kind_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kind_that_is_not_built_in_is_unsupported, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_release_ends_it, setup, teardown),
    };
    return cmocka_run_group_tests_name("memory/arena", tests, NULL, NULL);
}
