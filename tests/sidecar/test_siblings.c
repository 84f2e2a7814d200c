/* SPDX-License-Identifier: Apache-2.0
 *
 * What follows from what siblings say: whom to ask, what to fetch, and from whom.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sidecar/siblings.h"

#define NOW 1000000000000ll
#define LAYOUT "1111111111111111111111111111111111111111111111111111111111111111"

static struct refit_siblings siblings;
static char urls[600][64];

static void follow(unsigned first, unsigned count, uint64_t epoch)
{
    static char *one[600];
    static struct refit_members_item items[600];
    struct refit_error err;
    for (unsigned i = 0; i < count; i++) {
        snprintf(urls[i], sizeof urls[i], "http://10.0.%u.%u:7070", (first + i) / 200, (first + i) % 200);
        one[i] = urls[i];
        items[i] = (struct refit_members_item){.urls = &one[i], .count = 1};
    }
    const struct refit_membership membership = {.epoch = epoch, .members = items, .count = count};
    assert_int_equal(refit_siblings_follow(&siblings, &membership, &err), REFIT_OK);
}

static int open_three(void **state)
{
    (void)state;
    siblings = (struct refit_siblings){.seed = 7};
    follow(0, 3, 1);
    return 0;
}

static int release(void **state)
{
    (void)state;
    refit_siblings_release(&siblings);
    return 0;
}

/* A whole sibling says this. `version` 0: serves nothing. */
static void hear(struct refit_sibling *sibling, uint64_t version, char digest, uint64_t staged, uint64_t retained)
{
    char text[1024], active[160] = "null", stage[32] = "null", kept[32] = "";
    char hex[REFIT_SHA256_HEX_MAX];
    struct refit_error err;
    json_t *json;
    memset(hex, digest, sizeof hex - 1);
    hex[sizeof hex - 1] = '\0';
    if (version)
        snprintf(active, sizeof active, "{\"version\":%u,\"label\":\"step\",\"digest\":\"%s\"}", (unsigned)version, hex);
    if (staged)
        snprintf(stage, sizeof stage, "{\"version\":%u}", (unsigned)staged);
    if (retained)
        snprintf(kept, sizeof kept, "{\"version\":%u}", (unsigned)retained);
    int len = snprintf(text, sizeof text, "{\"layout\":\"%s\",\"active\":%s,\"staged\":%s,\"retained\":[%s]}", LAYOUT, active,
                       stage, kept);
    assert_int_equal(refit_json_parse(text, (size_t)len, "weights", &json, &err), REFIT_OK);
    assert_int_equal(refit_sibling_heard(sibling, json, NOW, 1000, &err), REFIT_OK);
    json_decref(json);
    sibling->whole = true;
}

/* A pod says this, with two of four ranks; `model` 0: not known. */
static void hear_pod(struct refit_sibling *sibling, const char *replica, uint32_t first_rank, uint64_t version,
                     char model)
{
    hear(sibling, version, (char)('1' + first_rank), 0, 0);
    sibling->whole = false;
    sibling->first_rank = first_rank;
    sibling->rank_count = 2;
    sibling->ranks = 4;
    snprintf(sibling->replica, sizeof sibling->replica, "%s", replica);
    snprintf(sibling->instance, sizeof sibling->instance, "process of %.100s", sibling->url);
    memset(sibling->model, model, model ? sizeof sibling->model - 1 : 0);
}

static struct refit_siblings_choice choose(uint64_t own, uint64_t back_from)
{
    const struct refit_siblings_own here = {.version = own, .back_from = back_from};
    struct refit_siblings_choice choice;
    refit_siblings_choose(&siblings, &here, NOW, &choice);
    return choice;
}

static void takes_the_highest_version_that_is_newer(void **state)
{
    (void)state;
    hear(&siblings.item[0], 4, 'a', 0, 3);
    hear(&siblings.item[1], 6, 'b', 0, 4);
    hear(&siblings.item[2], 0, '0', 0, 0);
    assert_int_equal(choose(0, 0).version.version, 6);
    assert_int_equal(choose(4, 0).version.version, 6);
    assert_int_equal(choose(6, 0).version.version, 0);
    assert_int_equal(choose(7, 0).version.version, 0);
    assert_int_equal(choose(7, 0).newest, 6);
    assert_int_equal(choose(0, 0).heard, 3);
}

static void takes_nothing_with_two_digests_but_what_is_below(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 0);
    hear(&siblings.item[1], 6, 'b', 0, 0);
    assert_int_equal(choose(0, 0).version.version, 0);
    assert_int_equal(choose(0, 0).disputed, 6);
    hear(&siblings.item[2], 5, 'c', 0, 0);
    assert_int_equal(choose(0, 0).version.version, 5);
    assert_int_equal(choose(0, 0).disputed, 6);
    assert_int_equal(choose(5, 0).version.version, 0);
}

static void leaves_alone_what_is_still_being_published(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 5); /* a canary */
    hear(&siblings.item[1], 5, 'b', 6, 0);
    assert_int_equal(choose(0, 0).version.version, 5);
    assert_int_equal(choose(0, 0).withheld, 6);
    hear(&siblings.item[1], 6, 'a', 0, 5);
    assert_int_equal(choose(0, 0).version.version, 6);
}

static void leaves_alone_what_was_gone_back_from(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 5);
    hear(&siblings.item[1], 5, 'b', 0, 6); /* rolled back from 6 */
    assert_int_equal(choose(0, 0).version.version, 5);
    assert_int_equal(choose(5, 0).version.version, 0);
    hear(&siblings.item[1], 6, 'a', 0, 5);
    assert_int_equal(choose(5, 6).version.version, 0); /* here */
    hear(&siblings.item[1], 7, 'c', 0, 6);
    assert_int_equal(choose(5, 6).version.version, 7);
}

static void parts_of_replicas_tell_how_new_but_send_nothing(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 0);
    siblings.item[0].whole = false;
    assert_int_equal(choose(0, 0).version.version, 0);
    assert_int_equal(choose(0, 0).newest, 6);
}

static void what_was_heard_long_ago_or_of_itself_counts_no_more(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 0);
    hear(&siblings.item[1], 7, 'b', 0, 0);
    siblings.item[0].heard_ns = NOW - 600000000000ll;
    siblings.item[1].self = true;
    hear(&siblings.item[2], 8, 'b', 0, 0);
    refit_sibling_failed(&siblings.item[2], NOW);
    assert_int_equal(choose(0, 0).newest, 0);
    assert_int_equal(choose(0, 0).heard, 0);
}

static void asks_each_in_turn_and_those_that_fail_ever_more_rarely(void **state)
{
    (void)state;
    bool asked[3] = {false};
    for (int i = 0; i < 3; i++) {
        struct refit_sibling *sibling = refit_siblings_due(&siblings, NOW);
        assert_non_null(sibling);
        assert_false(asked[sibling - siblings.item]);
        asked[sibling - siblings.item] = true;
        hear(sibling, 1, 'a', 0, 0);
    }
    assert_null(refit_siblings_due(&siblings, NOW));
    assert_non_null(refit_siblings_due(&siblings, NOW + 1000000000));
    int64_t before = 0;
    for (int i = 0; i < 20; i++) {
        refit_sibling_failed(&siblings.item[0], NOW);
        assert_true(siblings.item[0].pause_ms >= before && siblings.item[0].pause_ms <= 60000);
        before = siblings.item[0].pause_ms;
    }
    assert_int_equal(before, 60000);
}

static void pods_that_serve_one_model_together_are_a_source(void **state)
{
    (void)state;
    struct refit_sibling *out[3], *pods[REFIT_MATES_MAX];
    hear_pod(&siblings.item[0], "a", 2, 6, 'c');
    assert_int_equal(choose(0, 0).version.version, 0); /* half of it */
    hear_pod(&siblings.item[2], "b", 0, 6, 'c');
    assert_int_equal(choose(0, 0).version.version, 0); /* of another one */
    hear_pod(&siblings.item[1], "a", 0, 6, 0);
    assert_int_equal(choose(0, 0).version.version, 0); /* nobody has added it up */
    hear_pod(&siblings.item[1], "a", 0, 6, 'd');
    assert_int_equal(choose(0, 0).version.version, 0); /* not the same sum */
    hear_pod(&siblings.item[1], "a", 0, 7, 'c');
    assert_int_equal(choose(0, 0).version.version, 0); /* between two commits */
    hear_pod(&siblings.item[1], "a", 0, 6, 'c');
    const struct refit_control_version version = choose(0, 0).version;
    assert_int_equal(version.version, 6);
    assert_int_equal(version.digest[0], 'c');
    assert_int_equal(refit_siblings_sources(&siblings, &version, "", out, 3), 1);
    assert_ptr_equal(out[0], &siblings.item[1]);
    assert_int_equal(refit_siblings_pods(&siblings, out[0], pods), 2);
    assert_ptr_equal(pods[1], &siblings.item[0]);
    hear(&siblings.item[2], 6, 'c', 0, 0); /* a whole one has it, too */
    siblings.item[2].replica[0] = '\0';
    assert_int_equal(choose(0, 0).disputed, 0);
    assert_int_equal(choose(0, 0).version.version, 6);
    hear(&siblings.item[2], 6, 'e', 0, 0);
    assert_int_equal(choose(0, 0).disputed, 6);
}

static void pods_of_this_replica_are_no_source_but_say_what_is_wanted(void **state)
{
    (void)state;
    struct refit_siblings_own own = {.version = 6, .replica = "a", .first_rank = 0, .rank_count = 2, .ranks = 4};
    struct refit_siblings_choice choice;
    struct refit_sibling *mates[REFIT_MATES_MAX];
    size_t count;
    uint32_t lacking;
    hear(&siblings.item[1], 6, 'c', 0, 0);
    refit_siblings_choose(&siblings, &own, NOW, &choice);
    assert_int_equal(choice.version.version, 0);
    assert_false(refit_siblings_mates(&siblings, &own, mates, &count, &lacking));
    assert_int_equal(lacking, 2);
    hear_pod(&siblings.item[0], "a", 2, 0, 0); /* lost it */
    siblings.item[0].staged = 6;               /* and is about to get it again, from a try that broke off */
    refit_siblings_choose(&siblings, &own, NOW, &choice);
    assert_true(refit_siblings_mates(&siblings, &own, mates, &count, &lacking));
    assert_int_equal(count, 1);
    assert_ptr_equal(mates[0], &siblings.item[0]);
    assert_int_equal(choice.version.version, 6);
    own.version = 7; /* nobody else has what is served here: the others can't get it, and this one does not go back */
    refit_siblings_choose(&siblings, &own, NOW, &choice);
    assert_int_equal(choice.version.version, 0);
    hear_pod(&siblings.item[0], "a", 2, 6, 'c');
    own.version = 6;
    refit_siblings_choose(&siblings, &own, NOW, &choice);
    assert_int_equal(choice.version.version, 0);
}

static void a_process_behind_two_addresses_is_one_sibling(void **state)
{
    (void)state;
    struct refit_sibling *out[3];
    for (int i = 0; i < 3; i++)
        hear(&siblings.item[i], 6, 'a', 0, 0);
    snprintf(siblings.item[0].instance, sizeof siblings.item[0].instance, "one");
    snprintf(siblings.item[2].instance, sizeof siblings.item[2].instance, "one");
    snprintf(siblings.item[1].instance, sizeof siblings.item[1].instance, "another");
    const struct refit_siblings_choice choice = choose(0, 0);
    assert_int_equal(choice.heard, 2);
    assert_int_equal(refit_siblings_sources(&siblings, &choice.version, "", out, 3), 2);
    refit_sibling_failed(&siblings.item[0], NOW); /* by that address: the other one still counts */
    assert_int_equal(choose(0, 0).heard, 2);
}

static void the_same_domain_comes_first(void **state)
{
    (void)state;
    struct refit_sibling *out[3];
    for (int i = 0; i < 3; i++)
        hear(&siblings.item[i], 6, 'a', 0, 0);
    const struct refit_control_version version = choose(0, 0).version;
    assert_int_equal(refit_siblings_sources(&siblings, &version, "here", out, 3), 3);
    snprintf(siblings.item[2].domain, sizeof siblings.item[2].domain, "here");
    assert_int_equal(refit_siblings_sources(&siblings, &version, "here", out, 3), 3);
    assert_ptr_equal(out[0], &siblings.item[2]);
    assert_int_equal(refit_siblings_sources(&siblings, &version, "", out, 2), 2);
    memset(siblings.item[1].layout, '2', REFIT_SHA256_HEX_MAX - 1); /* of another layout than the first that is found */
    assert_int_equal(refit_siblings_sources(&siblings, &version, "here", out, 3), 2);
}

static void members_that_stay_keep_what_is_known_of_them(void **state)
{
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 0);
    char kept[REFIT_URL_MAX];
    snprintf(kept, sizeof kept, "%s", siblings.item[0].url);
    follow(0, 5, 2);
    assert_int_equal(siblings.count, 5);
    assert_int_equal(choose(0, 0).version.version, 6);
    follow(100, 2, 3);
    assert_int_equal(choose(0, 0).newest, 0);
}

/* Each replica has its own order, so that many joiners do not ask the same few. */
static void joiners_ask_different_ones_first(void **state)
{
    (void)state;
    unsigned first[10] = {0}, most = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        refit_siblings_release(&siblings);
        siblings = (struct refit_siblings){.seed = seed * UINT64_C(0x9e3779b97f4a7c15)};
        follow(0, 10, 1);
        unsigned number = (unsigned)atoi(strrchr(siblings.item[0].url, '.') + 1);
        first[number]++;
    }
    for (int i = 0; i < 10; i++)
        most = first[i] > most ? first[i] : most;
    assert_true(most < 200); /* 100 expected */
}

static void refuses_answers_that_are_none(void **state)
{
    static const char *const bad[] = {
        "[]", "{\"active\":7}", "{\"active\":{\"version\":1}}", "{\"active\":{\"version\":1,\"digest\":\"abc\"}}",
        "{\"active\":{\"version\":-1,\"digest\":\"" LAYOUT "\"}}", "{\"active\":null,\"layout\":3}",
        "{\"active\":null,\"staged\":{}}",
    };
    (void)state;
    hear(&siblings.item[0], 6, 'a', 0, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct refit_error err;
        json_t *json;
        assert_int_equal(refit_json_parse(bad[i], strlen(bad[i]), "weights", &json, &err), REFIT_OK);
        assert_int_equal(refit_sibling_heard(&siblings.item[0], json, NOW, 1000, &err), REFIT_INVALID);
        json_decref(json);
    }
    assert_int_equal(siblings.item[0].active.version, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(takes_the_highest_version_that_is_newer, open_three, release),
        cmocka_unit_test_setup_teardown(takes_nothing_with_two_digests_but_what_is_below, open_three, release),
        cmocka_unit_test_setup_teardown(leaves_alone_what_is_still_being_published, open_three, release),
        cmocka_unit_test_setup_teardown(leaves_alone_what_was_gone_back_from, open_three, release),
        cmocka_unit_test_setup_teardown(parts_of_replicas_tell_how_new_but_send_nothing, open_three, release),
        cmocka_unit_test_setup_teardown(what_was_heard_long_ago_or_of_itself_counts_no_more, open_three, release),
        cmocka_unit_test_setup_teardown(asks_each_in_turn_and_those_that_fail_ever_more_rarely, open_three, release),
        cmocka_unit_test_setup_teardown(pods_that_serve_one_model_together_are_a_source, open_three, release),
        cmocka_unit_test_setup_teardown(pods_of_this_replica_are_no_source_but_say_what_is_wanted, open_three, release),
        cmocka_unit_test_setup_teardown(a_process_behind_two_addresses_is_one_sibling, open_three, release),
        cmocka_unit_test_setup_teardown(the_same_domain_comes_first, open_three, release),
        cmocka_unit_test_setup_teardown(members_that_stay_keep_what_is_known_of_them, open_three, release),
        cmocka_unit_test_setup_teardown(joiners_ask_different_ones_first, open_three, release),
        cmocka_unit_test_setup_teardown(refuses_answers_that_are_none, open_three, release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
