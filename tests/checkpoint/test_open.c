/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "tests/support/safetensors_writer.h"

#define SEED 77
#define FILE_1 "model-00001-of-00002.safetensors"
#define FILE_2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

struct fixture {
    char root[64];
    char path[256];
    struct refit_checkpoint *checkpoint;
    struct refit_tally *tally;
    struct refit_error err;
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
    memset(&f, 0, sizeof f);
    snprintf(f.root, sizeof f.root, "/tmp/refit-checkpoint-XXXXXX");
    *state = &f;
    return mkdtemp(f.root) ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    refit_checkpoint_close(f->checkpoint);
    refit_tally_destroy(f->tally);
    return nftw(f->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *in_root(struct fixture *f, const char *name)
{
    snprintf(f->path, sizeof f->path, "%s/%s", f->root, name);
    return f->path;
}

static const struct tensor {
    const char *name;
    enum refit_dtype dtype;
    uint32_t dims;
    int64_t shape[3];
} tensors[] = {
    {"embed.weight", REFIT_DTYPE_BF16, 2, {64, 32}},
    {"layers.0.up.weight", REFIT_DTYPE_F32, 2, {16, 8}},
    {"layers.1.up.weight", REFIT_DTYPE_F32, 2, {16, 8}},
    {"layers.0.packed", REFIT_DTYPE_F4, 2, {6, 32}},
    {"layers.0.scale", REFIT_DTYPE_F8_E8M0, 2, {6, 1}},
    {"layers.1.fp8", REFIT_DTYPE_F8_E4M3, 3, {3, 5, 7}},
    {"scalar", REFIT_DTYPE_F64, 0, {0}},
    {"empty", REFIT_DTYPE_I64, 2, {0, 9}},
    {"flags", REFIT_DTYPE_BOOL, 1, {13}},
};
#define TENSORS (sizeof tensors / sizeof *tensors)

/* Tensors first, first + step, ... of the list. */
static void write_file(struct fixture *f, const char *name, size_t first, size_t step)
{
    struct safetensors_writer writer;
    safetensors_begin(&writer, SEED);
    safetensors_metadata(&writer, "format", "pt");
    for (size_t i = first; i < TENSORS; i += step)
        safetensors_add(&writer, tensors[i].name, tensors[i].dtype, tensors[i].dims, tensors[i].shape);
    assert_true(safetensors_write(&writer, in_root(f, name)));
}

static void write_index(struct fixture *f)
{
    struct safetensors_place places[TENSORS];
    for (size_t i = 0; i < TENSORS; i++)
        places[i] = (struct safetensors_place){tensors[i].name, i % 2 == 0 ? FILE_1 : FILE_2};
    assert_true(safetensors_write_index(in_root(f, INDEX), places, TENSORS));
}

static void write_sharded(struct fixture *f)
{
    write_file(f, FILE_1, 0, 2);
    write_file(f, FILE_2, 1, 2);
    write_index(f);
}

static enum refit_status open_at(struct fixture *f, const char *name)
{
    return refit_checkpoint_open(in_root(f, name), &f->checkpoint, &f->err);
}

static void opens(struct fixture *f, const char *name)
{
    if (open_at(f, name) != REFIT_OK)
        fail_msg("%s", f->err.text);
}

static void refuses(struct fixture *f, const char *name, enum refit_status expected, const char *says)
{
    enum refit_status status = open_at(f, name);
    if (status != expected || !strstr(f->err.text, says))
        fail_msg("status %s, text \"%s\"; expected %s and \"%s\"", refit_status_name(status), f->err.text,
                 refit_status_name(expected), says);
}

static bool take_offset(void *ctx, const struct refit_region *region)
{
    *(uint64_t *)ctx = region->offset;
    return false;
}

/* Every tensor is there, with its own bytes at the place the layout says. */
static void expect_contents(struct fixture *f)
{
    struct refit_layout *layout = refit_checkpoint_layout(f->checkpoint);
    struct refit_arena *arena = refit_checkpoint_arena(f->checkpoint);
    assert_int_equal(refit_layout_ranks(layout), 1);
    assert_int_equal(refit_layout_tensor_count(layout), TENSORS);
    assert_int_equal(refit_arena_kind(arena), REFIT_ARENA_FILE);
    for (size_t i = 0; i < TENSORS; i++) {
        struct refit_tensor tensor;
        struct refit_piece piece;
        uint32_t id;
        uint64_t offset = UINT64_MAX;
        uint8_t expected[8192], found[8192];
        assert_true(refit_layout_find(layout, tensors[i].name, &id));
        refit_layout_tensor(layout, id, &tensor);
        assert_int_equal(tensor.dtype, tensors[i].dtype);
        if (tensor.bytes == 0)
            continue;
        assert_false(refit_layout_regions(layout, id, 0, take_offset, &offset));
        assert_true(refit_arena_piece(arena, offset, &piece));
        assert_int_equal(piece.offset, offset);
        assert_int_equal(piece.bytes, tensor.bytes);
        assert_int_equal(pread(piece.fd, found, tensor.bytes, (off_t)piece.fd_offset), tensor.bytes);
        safetensors_content(SEED, tensors[i].name, 0, expected, tensor.bytes);
        assert_memory_equal(found, expected, tensor.bytes);
    }
}

static void digest(struct fixture *f, unsigned threads, char hex[static REFIT_SHA256_HEX_MAX])
{
    refit_tally_destroy(f->tally);
    f->tally = NULL;
    if (refit_checkpoint_digest(f->checkpoint, threads, &f->tally, hex, &f->err) != REFIT_OK)
        fail_msg("%s", f->err.text);
}

static void a_single_file_opens_by_its_name_and_by_its_directory(void **state)
{
    struct fixture *f = *state;
    write_file(f, "model.safetensors", 0, 1);
    opens(f, "model.safetensors");
    expect_contents(f);
    refit_checkpoint_close(f->checkpoint);
    f->checkpoint = NULL;
    opens(f, ".");
    expect_contents(f);
}

static void another_single_file_of_a_directory_is_taken(void **state)
{
    struct fixture *f = *state;
    refuses(f, ".", REFIT_NOT_FOUND, "no model.safetensors");
    write_file(f, "adapter.safetensors", 0, 1);
    opens(f, ".");
    expect_contents(f);
    refit_checkpoint_close(f->checkpoint);
    f->checkpoint = NULL;
    write_file(f, "second.safetensors", 0, 1);
    refuses(f, ".", REFIT_NOT_FOUND, "2 *.safetensors");
}

static void shards_open_through_their_index(void **state)
{
    struct fixture *f = *state;
    write_sharded(f);
    opens(f, ".");
    expect_contents(f);
}

static void links_out_of_the_directory_are_followed(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {FILE_1, FILE_2, INDEX};
    write_sharded(f);
    assert_int_equal(mkdir(in_root(f, "snapshot"), 0700), 0);
    for (size_t i = 0; i < 3; i++) {
        char target[128], link[128];
        snprintf(target, sizeof target, "../%s", names[i]);
        snprintf(link, sizeof link, "snapshot/%s", names[i]);
        assert_int_equal(symlink(target, in_root(f, link)), 0);
    }
    opens(f, "snapshot");
    expect_contents(f);
}

static void the_digest_does_not_depend_on_files_or_threads(void **state)
{
    struct fixture *f = *state;
    char one[REFIT_SHA256_HEX_MAX], many[REFIT_SHA256_HEX_MAX], sharded[REFIT_SHA256_HEX_MAX];
    write_file(f, "model.safetensors", 0, 1);
    opens(f, "model.safetensors");
    digest(f, 1, one);
    digest(f, 7, many);
    assert_string_equal(one, many);
    refit_checkpoint_close(f->checkpoint);
    f->checkpoint = NULL;
    assert_int_equal(unlink(in_root(f, "model.safetensors")), 0);
    write_sharded(f);
    opens(f, ".");
    digest(f, 3, sharded);
    assert_string_equal(one, sharded);
    for (size_t i = 0; i < TENSORS; i++) {
        uint8_t content[8192];
        struct refit_tensor tensor;
        struct refit_digest expected = {{0, 0}};
        uint32_t id;
        assert_true(refit_layout_find(refit_checkpoint_layout(f->checkpoint), tensors[i].name, &id));
        refit_layout_tensor(refit_checkpoint_layout(f->checkpoint), id, &tensor);
        safetensors_content(SEED, tensors[i].name, 0, content, tensor.bytes);
        refit_digest_add(&expected, content, tensor.bytes, 0);
        assert_true(refit_digest_equal(expected, refit_tally_get(f->tally, id)));
    }
}

static void a_changed_byte_changes_the_digest(void **state)
{
    struct fixture *f = *state;
    char before[REFIT_SHA256_HEX_MAX], after[REFIT_SHA256_HEX_MAX];
    write_file(f, "model.safetensors", 0, 1);
    opens(f, "model.safetensors");
    digest(f, 2, before);
    int fd = open(in_root(f, "model.safetensors"), O_RDWR | O_CLOEXEC);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, 4000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 4000), 1);
    assert_int_equal(close(fd), 0);
    digest(f, 2, after);
    assert_string_not_equal(before, after);
}

static void large_tensors_are_shared_by_the_threads(void **state)
{
    struct fixture *f = *state;
    struct safetensors_writer writer;
    char one[REFIT_SHA256_HEX_MAX], many[REFIT_SHA256_HEX_MAX];
    safetensors_begin(&writer, SEED);
    safetensors_add(&writer, "small", REFIT_DTYPE_U8, 1, (const int64_t[]){3});
    safetensors_add(&writer, "large", REFIT_DTYPE_F32, 2, (const int64_t[]){1025, 8192});
    assert_true(safetensors_write(&writer, in_root(f, "model.safetensors")));
    opens(f, "model.safetensors");
    digest(f, 1, one);
    digest(f, 4, many);
    assert_string_equal(one, many);
}

static void a_file_cut_short_is_refused_before_a_byte_moves(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    write_sharded(f);
    assert_int_equal(stat(in_root(f, FILE_2), &st), 0);
    assert_int_equal(truncate(f->path, st.st_size - 1), 0);
    refuses(f, ".", REFIT_CORRUPT, FILE_2);
    assert_int_equal(truncate(in_root(f, FILE_2), 100), 0);
    refuses(f, ".", REFIT_CORRUPT, FILE_2);
    assert_int_equal(truncate(in_root(f, FILE_2), 7), 0);
    refuses(f, ".", REFIT_CORRUPT, FILE_2);
    assert_int_equal(truncate(in_root(f, FILE_2), 0), 0);
    refuses(f, ".", REFIT_CORRUPT, FILE_2);
    assert_int_equal(unlink(in_root(f, FILE_2)), 0);
    refuses(f, ".", REFIT_NOT_FOUND, FILE_2);
}

static void a_file_cut_short_later_is_an_error_and_no_signal(void **state)
{
    struct fixture *f = *state;
    char hex[REFIT_SHA256_HEX_MAX];
    write_file(f, "model.safetensors", 0, 1);
    opens(f, "model.safetensors");
    assert_int_equal(truncate(in_root(f, "model.safetensors"), 3000), 0);
    assert_int_equal(refit_checkpoint_digest(f->checkpoint, 2, &f->tally, hex, &f->err), REFIT_CORRUPT);
    assert_non_null(strstr(f->err.text, "model.safetensors"));
    assert_null(f->tally);
}

static void an_index_that_disagrees_with_its_files_is_refused(void **state)
{
    struct fixture *f = *state;
    write_sharded(f);
    assert_true(safetensors_write_text(in_root(f, INDEX), "{\"weight_map\":{\"embed.weight\":\"" FILE_1 "\"}}"));
    refuses(f, ".", REFIT_MISMATCH, "is not in the index");
    write_index(f);
    write_file(f, FILE_2, 3, 2);
    refuses(f, ".", REFIT_MISMATCH, "layers.0.up.weight is not there");
    write_file(f, FILE_2, 0, 1);
    refuses(f, ".", REFIT_MISMATCH, "another file");
}

static void an_index_names_only_files_beside_it(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"../model.safetensors", "/etc/hostname", "sub/model.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        struct safetensors_place place = {"embed.weight", names[i]};
        assert_true(safetensors_write_index(in_root(f, INDEX), &place, 1));
        refuses(f, ".", REFIT_INVALID, names[i]);
    }
}

static void what_is_no_file_is_refused(void **state)
{
    struct fixture *f = *state;
    refuses(f, "missing", REFIT_NOT_FOUND, "missing");
    assert_int_equal(mkfifo(in_root(f, "model.safetensors"), 0600), 0);
    refuses(f, ".", REFIT_INVALID, "regular file");
}

static void bad_headers_are_refused_by_file(void **state)
{
    struct fixture *f = *state;
    const char *name = "model.safetensors";
    assert_true(safetensors_write_raw(in_root(f, name), "{}", INT64_MAX, 0));
    refuses(f, name, REFIT_INVALID, "at most 100000000");
    assert_true(safetensors_write_raw(in_root(f, name), "{}", 99999999, 0));
    refuses(f, name, REFIT_CORRUPT, "cut short");
    assert_true(safetensors_write_raw(in_root(f, name), "{}", -1, 0));
    refuses(f, name, REFIT_INVALID, "no tensor");
    assert_true(safetensors_write_raw(in_root(f, name), "{\"a\":", -1, 0));
    refuses(f, name, REFIT_INVALID, name);
    assert_true(safetensors_write_raw(in_root(f, name),
                                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                      "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
                                      -1, 4));
    refuses(f, name, REFIT_INVALID, "twice");
}

static void a_name_that_a_layout_would_read_as_a_pattern_is_refused(void **state)
{
    struct fixture *f = *state;
    assert_true(safetensors_write_raw(in_root(f, "model.safetensors"),
                                      "{\"a.{x}\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", -1, 2));
    refuses(f, "model.safetensors", REFIT_INVALID, "{x}");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_single_file_opens_by_its_name_and_by_its_directory),
        CASE(another_single_file_of_a_directory_is_taken),
        CASE(shards_open_through_their_index),
        CASE(links_out_of_the_directory_are_followed),
        CASE(the_digest_does_not_depend_on_files_or_threads),
        CASE(a_changed_byte_changes_the_digest),
        CASE(large_tensors_are_shared_by_the_threads),
        CASE(a_file_cut_short_is_refused_before_a_byte_moves),
        CASE(a_file_cut_short_later_is_an_error_and_no_signal),
        CASE(an_index_that_disagrees_with_its_files_is_refused),
        CASE(an_index_names_only_files_beside_it),
        CASE(what_is_no_file_is_refused),
        CASE(bad_headers_are_refused_by_file),
        CASE(a_name_that_a_layout_would_read_as_a_pattern_is_refused),
    };
    return cmocka_run_group_tests_name("checkpoint/open", tests, NULL, NULL);
}
