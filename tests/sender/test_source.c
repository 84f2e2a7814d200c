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

#include "sender/source.h"

/* Two buffers of 64 bytes each on each of two ranks. */
static const char layout_text[] =
    "{\"format\": \"refit-layout/1\", \"ranks\": 2, \"meshes\": {\"m\": {\"axes\": [\"tp\"], \"shape\": [2]}}, \"entries\": ["
    "{\"tensor\": \"a\", \"dtype\": \"F32\", \"shape\": [32], \"mesh\": \"m\", \"placements\": [\"Shard(0)\"]},"
    "{\"tensor\": \"b\", \"dtype\": \"F32\", \"shape\": [16], \"mesh\": \"m\", \"placements\": [\"Replicate\"]}]}";

static struct refit_layout *layout;
static struct refit_error err;
static char a[64], b[64];

static int setup(void **state)
{
    return refit_layout_parse(layout_text, strlen(layout_text), "test layout", &layout, &err) != REFIT_OK;
}

static int teardown(void **state)
{
    refit_layout_release(layout);
    return 0;
}

static enum refit_status bind_buffers(const struct refit_sender_buffer *buffers, size_t count,
                                      const struct refit_shared *shared, struct refit_arena **arena)
{
    memset(&err, 0, sizeof err);
    return refit_source_bind(layout, 1, buffers, count, shared, arena, &err);
}

static void buffers_are_bound_where_the_layout_says(void **state)
{
    const struct refit_sender_buffer buffers[] = {{.name = "b", .data = b, .bytes = sizeof b}, {.name = "a", .data = a, .bytes = sizeof a}};
    struct refit_arena *arena = NULL;
    struct refit_buffer wanted;
    assert_int_equal(bind_buffers(buffers, 2, NULL, &arena), REFIT_OK);
    assert_true(refit_layout_buffer_find(layout, 1, "b", &wanted));
    assert_ptr_equal(refit_arena_host(arena, wanted.offset, sizeof b), b);
    assert_true(refit_layout_buffer_find(layout, 1, "a", &wanted));
    assert_ptr_equal(refit_arena_host(arena, wanted.offset, sizeof a), a);
    refit_arena_release(arena);
}

static void a_missing_buffer_is_named(void **state)
{
    const struct refit_sender_buffer buffers[] = {{.name = "a", .data = a, .bytes = sizeof a}};
    struct refit_arena *arena = NULL;
    assert_int_equal(bind_buffers(buffers, 1, NULL, &arena), REFIT_INVALID);
    assert_non_null(strstr(err.text, "buffer b of rank 1"));
    assert_null(arena);
}

static void a_wrong_size_is_named_with_both_sizes(void **state)
{
    const struct refit_sender_buffer buffers[] = {{.name = "a", .data = a, .bytes = sizeof a}, {.name = "b", .data = b, .bytes = 60}};
    struct refit_arena *arena = NULL;
    assert_int_equal(bind_buffers(buffers, 2, NULL, &arena), REFIT_MISMATCH);
    assert_non_null(strstr(err.text, "buffer b"));
    assert_non_null(strstr(err.text, "64"));
    assert_non_null(strstr(err.text, "60"));
}

static void a_name_that_the_layout_lacks_is_named(void **state)
{
    const struct refit_sender_buffer buffers[] = {{.name = "a", .data = a, .bytes = sizeof a}, {.name = "b", .data = b, .bytes = sizeof b}, {.name = "c", .data = a, .bytes = sizeof a}};
    struct refit_arena *arena = NULL;
    assert_int_equal(bind_buffers(buffers, 3, NULL, &arena), REFIT_NOT_FOUND);
    assert_non_null(strstr(err.text, "buffer c"));
}

static void a_buffer_that_is_given_twice_is_named(void **state)
{
    const struct refit_sender_buffer buffers[] = {{.name = "a", .data = a, .bytes = sizeof a}, {.name = "b", .data = b, .bytes = sizeof b}, {.name = "a", .data = b, .bytes = sizeof b}};
    struct refit_arena *arena = NULL;
    assert_int_equal(bind_buffers(buffers, 3, NULL, &arena), REFIT_INVALID);
    assert_non_null(strstr(err.text, "a is given twice"));
}

static void a_buffer_without_memory_or_name_is_refused(void **state)
{
    const struct refit_sender_buffer no_memory[] = {{.name = "a", .data = NULL, .bytes = sizeof a}, {.name = "b", .data = b, .bytes = sizeof b}};
    const struct refit_sender_buffer no_name[] = {{.name = NULL, .data = a, .bytes = sizeof a}, {.name = "b", .data = b, .bytes = sizeof b}};
    struct refit_arena *arena = NULL;
    assert_int_equal(bind_buffers(no_memory, 2, NULL, &arena), REFIT_INVALID);
    assert_int_equal(bind_buffers(no_name, 2, NULL, &arena), REFIT_INVALID);
}

static void shared_memory_is_bound_with_its_descriptor(void **state)
{
    struct refit_shared *shared = NULL;
    struct refit_arena *arena = NULL;
    struct refit_buffer wanted;
    struct refit_piece piece;
    void *memory = NULL;
    assert_int_equal(refit_shared_alloc(&shared, 10000, &memory, &err), REFIT_OK);
    const struct refit_sender_buffer buffers[] = {{.name = "a", .data = (char *)memory + 5000, .bytes = 64}, {.name = "b", .data = b, .bytes = sizeof b}};
    assert_int_equal(bind_buffers(buffers, 2, shared, &arena), REFIT_OK);
    assert_true(refit_layout_buffer_find(layout, 1, "a", &wanted));
    assert_true(refit_arena_piece(arena, wanted.offset, &piece));
    assert_true(piece.fd >= 0);
    assert_int_equal(piece.fd_offset, 5000);
    assert_true(refit_layout_buffer_find(layout, 1, "b", &wanted));
    assert_true(refit_arena_piece(arena, wanted.offset, &piece));
    assert_int_equal(piece.fd, -1);
    refit_arena_release(arena);
    refit_shared_free_all(&shared);
}

/* A receiver that gets the descriptor can neither write through it nor pull the memory from under the trainer. */
static void shared_memory_cannot_be_written_or_resized_by_its_descriptor(void **state)
{
    struct refit_shared *shared = NULL;
    void *memory = NULL;
    assert_int_equal(refit_shared_alloc(&shared, 4096, &memory, &err), REFIT_OK);
    strcpy(memory, "weights");
    char seen[8];
    assert_int_equal(pread(shared->fd, seen, sizeof seen, 0), sizeof seen);
    assert_string_equal(seen, "weights");
    assert_int_equal(pwrite(shared->fd, "x", 1, 0), -1);
    assert_int_equal(ftruncate(shared->fd, 0), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0), MAP_FAILED);
    refit_shared_free_all(&shared);
    assert_null(shared);
}

static void nothing_and_too_much_are_not_allocated(void **state)
{
    struct refit_shared *shared = NULL;
    void *memory = NULL;
    assert_int_equal(refit_shared_alloc(&shared, 0, &memory, &err), REFIT_INVALID);
    assert_int_equal(refit_shared_alloc(&shared, SIZE_MAX - 5, &memory, &err), REFIT_INVALID);
    assert_null(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_bound_where_the_layout_says),
        cmocka_unit_test(a_missing_buffer_is_named),
        cmocka_unit_test(a_wrong_size_is_named_with_both_sizes),
        cmocka_unit_test(a_name_that_the_layout_lacks_is_named),
        cmocka_unit_test(a_buffer_that_is_given_twice_is_named),
        cmocka_unit_test(a_buffer_without_memory_or_name_is_refused),
        cmocka_unit_test(shared_memory_is_bound_with_its_descriptor),
        cmocka_unit_test(shared_memory_cannot_be_written_or_resized_by_its_descriptor),
        cmocka_unit_test(nothing_and_too_much_are_not_allocated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
