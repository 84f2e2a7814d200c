/* SPDX-License-Identifier: Apache-2.0
 *
 * What is written for an engine, read back as any reader of safetensors would; and a directory that others share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "checkpoint/checkpoint.h"
#include "drivers/export.h"
#include "drivers/tensors.h"

struct world {
    char path[64];
    int directory;
    struct refit_layout *layout;
    struct refit_arena *arenas[2];
};

/* Two ranks, fused and cut and padded and transposed; units of 1, 2, 4 and 8 bytes; a scalar and an empty tensor. */
static const char document[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"b.u8\",\"dtype\":\"U8\",\"shape\":[7],\"mesh\":\"m\"},"
    "{\"tensor\":\"a.f32\",\"dtype\":\"F32\",\"shape\":[3,5],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"c.i64\",\"dtype\":\"I64\",\"shape\":[],\"mesh\":\"m\"},"
    "{\"tensor\":\"d.empty\",\"dtype\":\"BF16\",\"shape\":[0,4],\"mesh\":\"m\"},"
    "{\"tensor\":\"e.t\",\"dtype\":\"BF16\",\"shape\":[4,6],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"],\"order\":[1,0]},"
    "{\"buffer\":\"qk\",\"dtype\":\"BF16\",\"mesh\":\"m\",\"pieces\":["
    "{\"tensor\":\"q\",\"shape\":[8,3],\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"k\",\"shape\":[4,3],\"placements\":[\"Shard(0)\"]}]},"
    "{\"tensor\":\"v\",\"dtype\":\"BF16\",\"shape\":[9,2],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"],"
    "\"pad\":{\"dim\":0,\"to\":16,\"value\":0}}]}";

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    snprintf(world->path, sizeof world->path, "/tmp/refit-export.XXXXXX");
    assert_non_null(mkdtemp(world->path));
    assert_int_equal(refit_export_open(world->path, &world->directory, NULL), REFIT_OK);
    assert_int_equal(refit_layout_parse(document, strlen(document), "test", &world->layout, NULL), REFIT_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(refit_slot_create("test", refit_layout_arena_bytes(world->layout, rank), REFIT_PROTECT_UID,
                                           &world->arenas[rank], NULL), REFIT_OK);
        uint64_t bytes = refit_layout_arena_bytes(world->layout, rank);
        uint8_t *at = refit_arena_host(world->arenas[rank], 0, bytes);
        for (uint64_t i = 0; i < bytes; i++)
            at[i] = (uint8_t)(i * 37 + i / 256); /* the same on both ranks: copies of a tensor agree */
    }
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    for (uint32_t rank = 0; rank < 2; rank++)
        refit_arena_release(world->arenas[rank]);
    refit_layout_release(world->layout);
    refit_io_close(&world->directory);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", world->path);
    int code = system(command);
    free(world);
    return code;
}

static struct refit_bank_copy copy_of(struct world *world, const char *digest)
{
    struct refit_bank_copy copy = {.version.version = 5, .layout = world->layout, .arenas = world->arenas};
    snprintf(copy.version.digest, sizeof copy.version.digest, "%s", digest);
    return copy;
}

static enum refit_status write_out(struct world *world, const char *digest, struct refit_export *export,
                                   struct refit_error *err)
{
    struct refit_bank_copy copy = copy_of(world, digest);
    return refit_export_write(export, world->directory, world->path, &copy, refit_deadline_in_ms(60000), NULL, err);
}

static unsigned entries_of(const char *path)
{
    unsigned count = 0;
    DIR *list = opendir(path);
    for (const struct dirent *item; list && (item = readdir(list));)
        count += item->d_name[0] != '.';
    if (list)
        closedir(list);
    return count;
}

static void what_is_written_reads_back_with_its_digest(void **state)
{
    struct world *world = *state;
    struct refit_export export, again;
    struct refit_checkpoint *checkpoint;
    struct refit_tally *tally;
    char digest[REFIT_SHA256_HEX_MAX];
    assert_int_equal(write_out(world, "", &export, NULL), REFIT_OK);
    assert_int_equal(refit_checkpoint_open(export.path, &checkpoint, NULL), REFIT_OK);
    assert_int_equal(refit_checkpoint_digest(checkpoint, 1, &tally, digest, NULL), REFIT_OK);
    assert_int_equal(refit_layout_tensor_count(refit_checkpoint_layout(checkpoint)), 8);
    refit_tally_destroy(tally);
    refit_checkpoint_close(checkpoint);
    /* The digest that the slot itself has: the same bytes under the same names. */
    assert_int_equal(write_out(world, digest, &again, NULL), REFIT_OK);
    assert_string_not_equal(export.path, again.path);
    refit_export_remove(&export);
    refit_export_remove(&again);
    assert_int_equal(entries_of(world->path), 0);
}

static void another_digest_is_refused_and_nothing_stays(void **state)
{
    struct world *world = *state;
    struct refit_export export;
    struct refit_error error;
    char wrong[REFIT_SHA256_HEX_MAX];
    memset(wrong, 'a', sizeof wrong - 1);
    wrong[sizeof wrong - 1] = '\0';
    assert_int_equal(write_out(world, wrong, &export, &error), REFIT_CORRUPT);
    assert_non_null(strstr(error.text, "version 5"));
    assert_false(export.there);
    assert_int_equal(entries_of(world->path), 0);
}

static void the_engine_may_read_and_nobody_may_write(void **state)
{
    struct world *world = *state;
    struct refit_export export;
    struct stat st;
    char file[4200];
    mode_t old = umask(077);
    assert_int_equal(write_out(world, "", &export, NULL), REFIT_OK);
    umask(old);
    assert_int_equal(stat(export.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    snprintf(file, sizeof file, "%s/model.safetensors", export.path);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0444);
    refit_export_remove(&export);
}

static void every_tensor_is_aligned_to_its_unit(void **state)
{
    struct world *world = *state;
    struct refit_tensors tensors;
    assert_int_equal(refit_tensors_order(world->layout, &tensors, NULL), REFIT_OK);
    uint64_t at = 0;
    for (uint32_t i = 0; i < tensors.count; i++) {
        assert_int_equal(tensors.items[i].begin, at);
        assert_int_equal(at % tensors.items[i].unit_bytes, 0);
        at += tensors.items[i].bytes;
    }
    assert_int_equal(at, tensors.bytes);
    refit_tensors_release(&tensors);
}

static void leftovers_go_and_what_is_not_ours_stays(void **state)
{
    struct world *world = *state;
    struct refit_export export;
    char path[256], outside[256];
    int fd;
    assert_int_equal(write_out(world, "", &export, NULL), REFIT_OK);
    snprintf(path, sizeof path, "%s/other", world->path);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(outside, sizeof outside, "%s/other/model.safetensors", world->path);
    assert_true((fd = open(outside, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)) >= 0);
    close(fd);
    snprintf(path, sizeof path, "%s/refit-1-link", world->path);
    assert_int_equal(symlink("other", path), 0);
    assert_int_equal(refit_export_open(world->path, &fd, NULL), REFIT_OK);
    close(fd);
    assert_int_equal(access(export.path, F_OK), -1);
    assert_int_equal(access(outside, F_OK), 0); /* not through the link */
}

static void a_link_is_no_directory_for_weights(void **state)
{
    struct world *world = *state;
    char path[256];
    int fd = -1;
    snprintf(path, sizeof path, "%s/link", world->path);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(refit_export_open(path, &fd, NULL), REFIT_SYSTEM);
    assert_int_equal(refit_export_open("relative", &fd, NULL), REFIT_INVALID);
}

static void a_cancelled_one_leaves_nothing(void **state)
{
    struct world *world = *state;
    struct refit_export export;
    struct refit_bank_copy copy = copy_of(world, "");
    const atomic_bool cancel = true;
    assert_int_equal(refit_export_write(&export, world->directory, world->path, &copy, refit_deadline_in_ms(60000),
                                        &cancel,
                                        NULL), REFIT_ABORTED);
    assert_int_equal(refit_export_write(&export, world->directory, world->path, &copy, refit_deadline_in_ms(0), NULL,
                                        NULL),
                     REFIT_TIMEOUT);
    assert_int_equal(entries_of(world->path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_reads_back_with_its_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(another_digest_is_refused_and_nothing_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(the_engine_may_read_and_nobody_may_write, setup, teardown),
        cmocka_unit_test_setup_teardown(every_tensor_is_aligned_to_its_unit, setup, teardown),
        cmocka_unit_test_setup_teardown(leftovers_go_and_what_is_not_ours_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(a_link_is_no_directory_for_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancelled_one_leaves_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
