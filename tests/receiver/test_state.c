/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "receiver/state.h"

struct place {
    char dir[64];
    char path[80];
    char bad[96];
};

static int setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    *state = place;
    if (!place)
        return -1;
    strcpy(place->dir, "/tmp/refit-state-XXXXXX");
    if (!mkdtemp(place->dir))
        return -1;
    snprintf(place->path, sizeof place->path, "%s/state", place->dir);
    snprintf(place->bad, sizeof place->bad, "%s.bad", place->path);
    return 0;
}

static int teardown(void **state)
{
    struct place *place = *state;
    unlink(place->path);
    unlink(place->bad);
    rmdir(place->dir);
    free(place);
    return 0;
}

static void put(struct refit_state *state, const char *section, int value)
{
    json_t *object = json_pack("{s:i}", "n", value);
    assert_int_equal(refit_state_put(state, section, object, NULL), REFIT_OK);
    json_decref(object);
}

static int get(struct refit_state *state, const char *section)
{
    json_t *object = refit_state_get(state, section);
    int value = object ? (int)json_integer_value(json_object_get(object, "n")) : -1;
    json_decref(object);
    return value;
}

static void sections_are_kept_apart_and_outlive_the_process(void **state)
{
    struct place *place = *state;
    struct refit_state *file = NULL;
    assert_int_equal(refit_state_open(place->path, &file, NULL), REFIT_OK);
    assert_int_equal(get(file, "bank"), -1);
    put(file, "bank", 1);
    put(file, "receiver", 2);
    put(file, "bank", 3);
    refit_state_close(file);
    assert_int_equal(refit_state_open(place->path, &file, NULL), REFIT_OK);
    assert_int_equal(get(file, "bank"), 3);
    assert_int_equal(get(file, "receiver"), 2);
    refit_state_close(file);
}

static void a_file_that_is_no_state_is_put_aside(void **state)
{
    struct place *place = *state;
    struct refit_state *file = NULL;
    struct stat st;
    assert_int_equal(refit_io_replace_file(place->path, "{\"bank\": ", 9, 0600, NULL), REFIT_OK);
    assert_int_equal(refit_state_open(place->path, &file, NULL), REFIT_OK);
    assert_int_equal(get(file, "bank"), -1);
    assert_int_equal(stat(place->bad, &st), 0);
    put(file, "bank", 1);
    refit_state_close(file);
}

static void a_section_that_makes_no_sense_is_dropped_and_the_file_copied(void **state)
{
    struct place *place = *state;
    struct refit_state *file = NULL;
    char *text;
    size_t len;
    assert_int_equal(refit_state_open(place->path, &file, NULL), REFIT_OK);
    put(file, "bank", 1);
    put(file, "receiver", 2);
    refit_state_drop(file, "receiver", "a test");
    assert_int_equal(get(file, "receiver"), -1);
    assert_int_equal(get(file, "bank"), 1);
    assert_int_equal(refit_io_read_file(place->bad, REFIT_STATE_FILE_MAX, &text, &len, NULL), REFIT_OK);
    assert_non_null(strstr(text, "\"receiver\""));
    free(text);
    refit_state_close(file);
}

static void what_is_no_file_stays_where_it_is(void **state)
{
    struct place *place = *state;
    struct refit_state *file = NULL;
    struct refit_error error = {0};
    struct stat st;
    assert_int_equal(mkdir(place->path, 0700), 0);
    assert_int_equal(refit_state_open(place->path, &file, &error), REFIT_INVALID);
    assert_non_null(strstr(error.text, "must be a regular file"));
    assert_int_equal(stat(place->path, &st), 0);
    assert_int_equal(stat(place->bad, &st), -1);
    assert_int_equal(rmdir(place->path), 0);
    assert_int_equal(mkfifo(place->path, 0600), 0);
    assert_int_equal(refit_state_open(place->path, &file, &error), REFIT_INVALID);
    assert_int_equal(stat(place->path, &st), 0);
}

static void a_put_that_fails_keeps_the_old_file(void **state)
{
    struct place *place = *state;
    struct refit_state *file = NULL;
    struct refit_error error = {0};
    char away[96];
    snprintf(away, sizeof away, "%s.away", place->dir);
    assert_int_equal(refit_state_open(place->path, &file, NULL), REFIT_OK);
    put(file, "bank", 1);
    assert_int_equal(rename(place->dir, away), 0); /* as good as a full disk: nothing can be created there */
    json_t *object = json_pack("{s:i}", "n", 2);
    assert_int_equal(refit_state_put(file, "bank", object, &error), REFIT_SYSTEM);
    assert_non_null(strstr(error.text, "state"));
    assert_int_equal(rename(away, place->dir), 0);
    assert_int_equal(get(file, "bank"), 2);
    struct refit_state *again = NULL;
    assert_int_equal(refit_state_open(place->path, &again, NULL), REFIT_OK);
    assert_int_equal(get(again, "bank"), 1);
    refit_state_close(again);
    assert_int_equal(refit_state_put(file, "bank", object, &error), REFIT_OK);
    json_decref(object);
    refit_state_close(file);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sections_are_kept_apart_and_outlive_the_process),
        TEST(a_file_that_is_no_state_is_put_aside),
        TEST(a_section_that_makes_no_sense_is_dropped_and_the_file_copied),
        TEST(what_is_no_file_stays_where_it_is),
        TEST(a_put_that_fails_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
