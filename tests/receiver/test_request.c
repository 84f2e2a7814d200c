/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "receiver/fleet.h"
#include "receiver/request.h"

static char base[64], root[80];
static struct refit_receiver_config config;

static void make(const char *name, const char *content)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", base, name);
    if (!content) {
        assert_int_equal(mkdir(path, 0755), 0);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void make_link(const char *target, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", base, name);
    assert_int_equal(symlink(target, path), 0);
}

static int set_up(void **state)
{
    snprintf(base, sizeof base, "/tmp/refit-request-XXXXXX");
    assert_non_null(mkdtemp(base));
    snprintf(root, sizeof root, "%s/root", base);
    make("outside", NULL);
    make("outside/secret", "s");
    make("root", NULL);
    make("root/model", NULL);
    make("root/model/weights", "w");
    make_link("model", "root/latest");
    make_link("../outside", "root/escape");
    make_link("/etc", "root/absolute");
    make_link("../../outside/secret", "root/model/blob");
    make_link("loop", "root/loop");
    config = (struct refit_receiver_config){.checkpoint_root = root, .deadline_ms = 1000, .deadline_max_ms = 5000};
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    return system(command);
}

static enum refit_status find(const char *path, bool is_directory, struct refit_error *err)
{
    struct refit_checkpoint_place place;
    struct stat info;
    enum refit_status status = refit_checkpoint_find(root, path, &place, err);
    if (status != REFIT_OK) {
        assert_int_equal(place.fd, -1);
        assert_non_null(strstr(err->text, path));
        return status;
    }
    assert_int_equal(stat(place.path, &info), 0);
    assert_int_equal(S_ISDIR(info.st_mode) != 0, is_directory);
    refit_checkpoint_forget(&place);
    return status;
}

static void paths_below_the_root_are_found(void **state)
{
    struct refit_error err;
    assert_int_equal(find("model", true, &err), REFIT_OK);
    assert_int_equal(find("model/", true, &err), REFIT_OK);
    assert_int_equal(find(".", true, &err), REFIT_OK);
    assert_int_equal(find("model/../model", true, &err), REFIT_OK);
    assert_int_equal(find("latest", true, &err), REFIT_OK);
    assert_int_equal(find("model/weights", false, &err), REFIT_OK);
    assert_int_equal(find("latest/weights", false, &err), REFIT_OK);
}

static void file_may_be_a_link_to_elsewhere(void **state)
{
    struct refit_error err;
    assert_int_equal(find("model/blob", false, &err), REFIT_OK);
}

static void paths_out_of_the_root_are_refused(void **state)
{
    struct refit_error err;
    const char *const tricks[] = {
        "..", "../outside", "model/../../outside", "escape", "escape/", "escape/secret", "absolute", "absolute/passwd",
        "loop", "loop/x", "model/../..", "/etc", "//etc", "model/../../root/model",
    };
    for (size_t i = 0; i < sizeof tricks / sizeof tricks[0]; i++)
        assert_int_equal(find(tricks[i], true, &err), REFIT_INVALID);
}

static void missing_paths_are_not_found(void **state)
{
    struct refit_error err;
    assert_int_equal(find("nothing", true, &err), REFIT_NOT_FOUND);
    assert_int_equal(find("model/nothing", true, &err), REFIT_NOT_FOUND);
    assert_int_equal(find("model/weights/x", true, &err), REFIT_NOT_FOUND);
}

static void error_names_the_path_that_was_asked_for(void **state)
{
    struct refit_checkpoint_place place;
    struct refit_error err;
    assert_int_equal(refit_checkpoint_find(root, "model", &place, NULL), REFIT_OK);
    refit_fail(&err, REFIT_CORRUPT, "file %s/weights: cut short", place.path);
    refit_checkpoint_rename_in(&place, "model", &err);
    assert_string_equal(err.text, "file model/weights: cut short");
    refit_checkpoint_forget(&place);
}

/* --- requests --------------------------------------------------------------------------------------------------- */

static struct refit_request publish(void)
{
    struct refit_request request = {.version = 3, .label = "l", .epoch = 1, .publish_id = "p", .transport = "tcp",
                                    .kv = "keep"};
    memset(request.source, 'a', sizeof request.source - 1);
    return request;
}

static void accepted(const struct refit_request *request, struct refit_request *out)
{
    struct refit_error err;
    if (refit_request_check(&config, request, out, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void refused(const struct refit_request *request, const char *member)
{
    struct refit_request out;
    struct refit_error err;
    assert_int_equal(refit_request_check(&config, request, &out, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, member));
}

static void defaults_are_filled_in(void **state)
{
    struct refit_request out, request = publish();
    request.kv[0] = request.transport[0] = '\0';
    accepted(&request, &out);
    assert_string_equal(out.kv, "flush");
    assert_string_equal(out.transport, "tcp");
    assert_int_equal(out.deadline_ms, 1000);
}

static void each_bad_member_is_named(void **state)
{
#define REFUSED(change, member) \
    do { \
        struct refit_request request = publish(); \
        change; \
        refused(&request, member); \
    } while (0)
    REFUSED(request.version = 0, "version");
    REFUSED(request.epoch = 0, "epoch");
    REFUSED(request.publish_id[0] = '\0', "publish_id");
    REFUSED(request.source[5] = 'G', "source");
    REFUSED(request.source[63] = '\0', "source");
    REFUSED(request.source[0] = '\0', "source");
    REFUSED(strcpy(request.checkpoint, "model"), "checkpoint");
    REFUSED(strcpy(request.transport, "pigeon"), "pigeon");
    REFUSED(strcpy(request.digest, "abc"), "digest");
    REFUSED(strcpy(request.kv, "drop"), "kv");
    REFUSED(request.deadline_ms = -1, "deadline_ms");
    REFUSED(request.deadline_ms = 5001, "deadline_ms");
    REFUSED(memset(request.label, 'x', sizeof request.label), "label");
    REFUSED(memset(request.checkpoint, 'x', sizeof request.checkpoint), "checkpoint");
    REFUSED(strcpy(request.label, "a\x1b[0m"), "label");
#undef REFUSED
}

static void checkpoint_needs_a_root_and_no_lead(void **state)
{
    struct refit_request out, request = {.version = 1, .checkpoint = "model"};
    accepted(&request, &out);
    assert_string_equal(out.transport, "file");
    request.epoch = 3;
    refused(&request, "epoch");
    request.epoch = 0;
    config.checkpoint_root = NULL;
    assert_int_equal(refit_request_check(&config, &request, &out, NULL), REFIT_NOT_FOUND);
    config.checkpoint_root = root;
    strcpy(request.checkpoint, "escape");
    assert_int_equal(refit_request_check(&config, &request, &out, NULL), REFIT_INVALID);
    strcpy(request.checkpoint, "nothing");
    assert_int_equal(refit_request_check(&config, &request, &out, NULL), REFIT_NOT_FOUND);
}

static void what_is_broadcast_moves_whole_and_alone(void **state)
{
    struct refit_request out, request = publish();
    request.buckets = 3;
    accepted(&request, &out);
    assert_int_equal(out.buckets, 3);
    strcpy(request.resume, "r1-00");
    refused(&request, "broadcast");
    request.resume[0] = '\0';
    request.unchanged_since = 1;
    refused(&request, "broadcast");
}

/* A fleet of two, with one member set to something else (or taken away). */
static void fleet_is_refused(const char *path, json_t *value, const char *because)
{
    struct refit_fleet *fleet;
    struct refit_error err;
    json_t *json = json_pack("{s:s, s:s, s:i, s:[{s:s, s:s, s:{}}, {s:s, s:s}]}", "id", "f", "token",
                             "00112233445566778899aabbccddeeff", "self", 1, "members", "name", "a", "domain", "d",
                             "tcp", "name", "b", "domain", "d");
    assert_int_equal(refit_fleet_from_json(json, &fleet, &err), REFIT_OK);
    assert_int_equal(refit_fleet_members(fleet), 2);
    assert_int_equal(refit_fleet_self(fleet), 1);
    assert_int_equal(refit_fleet_token(fleet)[15], 0xff);
    assert_true(refit_fleet_same_domain(fleet, 0));
    assert_non_null(refit_fleet_member(fleet, 0).tcp);
    assert_null(refit_fleet_member(fleet, 1).tcp);
    refit_fleet_release(fleet);
    json_t *object = strncmp(path, "0.", 2) ? json : json_array_get(json_object_get(json, "members"), 0);
    const char *key = strncmp(path, "0.", 2) ? path : path + 2;
    if (value)
        json_object_set_new(object, key, value);
    else
        json_object_del(object, key);
    assert_int_equal(refit_fleet_from_json(json, &fleet, &err), REFIT_INVALID);
    if (!strstr(err.text, because))
        fail_msg("expected '%s' in: %s", because, err.text);
    json_decref(json);
}

static void each_bad_member_of_a_fleet_is_named(void **state)
{
    fleet_is_refused("id", NULL, "id");
    fleet_is_refused("id", json_string(""), "id");
    fleet_is_refused("token", json_string("00"), "token");
    fleet_is_refused("token", json_string("00112233445566778899AABBCCDDEEFF"), "token");
    fleet_is_refused("self", json_integer(2), "self");
    fleet_is_refused("sources", json_integer(-1), "sources");
    fleet_is_refused("members", json_array(), "members");
    fleet_is_refused("surprise", json_true(), "surprise");
    fleet_is_refused("0.name", NULL, "member 0");
    fleet_is_refused("0.name", json_string("a\nb"), "member 0");
    fleet_is_refused("0.domain", json_string(""), "domain");
    fleet_is_refused("0.tcp", json_string("127.0.0.1"), "tcp");
    fleet_is_refused("0.pid", json_integer(1), "pid");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(paths_below_the_root_are_found),
        TEST(file_may_be_a_link_to_elsewhere),
        TEST(paths_out_of_the_root_are_refused),
        TEST(missing_paths_are_not_found),
        TEST(error_names_the_path_that_was_asked_for),
        TEST(defaults_are_filled_in),
        TEST(each_bad_member_is_named),
        TEST(checkpoint_needs_a_root_and_no_lead),
        TEST(what_is_broadcast_moves_whole_and_alone),
        TEST(each_bad_member_of_a_fleet_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
