/* SPDX-License-Identifier: Apache-2.0
 *
 * Did all get the same? Between what ranks sent and what landed, between replicas, and between the pods of a replica
 * and replicas that are whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sender/agree.h"

#define REPLICAS 3

static const char two_ranks[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"a\",\"dtype\":\"F32\",\"shape\":[8],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[4],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";
static const char one_rank[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[1]}},\"entries\":["
    "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[4],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
    "{\"tensor\":\"a\",\"dtype\":\"F32\",\"shape\":[8],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";

/* Two pods of one replica, then a whole one. */
static struct refit_lead lead;
static struct refit_replica replicas[REPLICAS], *all[REPLICAS];
static struct refit_unit units[2];
static struct refit_class class;
static struct refit_error err;

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout;
    if (refit_layout_parse(text, strlen(text), "a test layout", &layout, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return layout;
}

static struct refit_tally *tally_of(uint64_t first, uint64_t second)
{
    struct refit_tally *tally = refit_tally_create(2);
    assert_non_null(tally);
    refit_tally_add(tally, 0, (struct refit_digest){{first, first * 5}});
    refit_tally_add(tally, 1, (struct refit_digest){{second, second * 3}});
    return tally;
}

static int setup(void **state)
{
    (void)state;
    err = (struct refit_error){0};
    lead = (struct refit_lead){.rank_count = 1, .replicas = all, .replica_count = REPLICAS, .units = units,
                               .unit_count = 2};
    units[0] = (struct refit_unit){.pods = all, .pod_count = 2};
    units[1] = (struct refit_unit){.number = 1, .pods = all + 2, .pod_count = 1};
    class = (struct refit_class){.count = 2};
    for (int i = 0; i < REPLICAS; i++) {
        replicas[i] = (struct refit_replica){.lead = &lead, .unit = &units[i / 2], .first_rank = i == 1,
                                             .rank_count = 1};
        replicas[i].layout = parse(i == 2 ? one_rank : two_ranks);
        snprintf(replicas[i].report.url, sizeof replicas[i].report.url, "http://replica-%d", i);
        all[i] = &replicas[i];
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < REPLICAS; i++) {
        refit_layout_release(replicas[i].layout);
        refit_tally_destroy(replicas[i].tally);
        refit_tally_destroy(replicas[i].share);
    }
    return 0;
}

/* What landed there, and what it says of it. */
static void land(struct refit_replica *replica, uint64_t first, uint64_t second)
{
    refit_tally_destroy(replica->share);
    replica->share = tally_of(first, second);
    assert_int_equal(refit_model_digest(replica->layout, replica->share, "exact", replica->digest, &err), REFIT_OK);
}

/* ---- a class and its source ---- */

/* Two whole members of one class that pass on to each other; each got its half from the trainer. */
static void relay(uint64_t sent_to_first, uint64_t sent_to_second)
{
    lead.replicas = all + 1;
    lead.replica_count = 2;
    lead.unit_count = 0;
    lead.classes = &class;
    lead.class_count = 1;
    refit_layout_release(replicas[1].layout);
    replicas[1].layout = refit_layout_retain(replicas[2].layout);
    replicas[1].first_rank = 0;
    for (int i = 1; i < REPLICAS; i++) {
        replicas[i].class = &class;
        replicas[i].posted = true;
        replicas[i].served = 1;
        replicas[i].sent_bytes = 24;
        replicas[i].report.bytes_needed = 48;
        land(&replicas[i], 100, 7);
    }
    replicas[1].tally = tally_of(sent_to_first, 7);
    replicas[2].tally = tally_of(sent_to_second, 0);
}

static void what_a_class_was_sent_is_what_its_members_have(void **state)
{
    (void)state;
    relay(40, 60);
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_OK);
}

static void other_bytes_than_were_sent_are_found_out(void **state)
{
    (void)state;
    relay(40, 61);
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_CORRUPT);
    assert_non_null(strstr(err.text, "what the ranks sent to its class"));
}

/* One batch was sent twice, since the member whose turn it was failed, and another not at all: as many bytes, another
 * sum. */
static void what_was_sent_twice_says_nothing_of_what_landed(void **state)
{
    (void)state;
    relay(40, 40);
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_CORRUPT);
    replicas[1].report.bytes_excess = 8;
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_OK);
    replicas[1].report.bytes_excess = 0;
    replicas[2].report.bytes_excess = 8; /* whichever member it was, also one that has not got anywhere */
    replicas[2].posted = false;
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_OK);
}

/* ---- pods ---- */

static void pods_add_up_to_what_a_whole_replica_has(void **state)
{
    (void)state;
    land(&replicas[0], 40, 7); /* the copy of "b" that counts is the first pod's */
    land(&replicas[1], 60, 0);
    refit_tally_destroy(replicas[2].share);
    replicas[2].share = refit_tally_create(2); /* its tensors are in another order */
    refit_tally_add(replicas[2].share, 0, (struct refit_digest){{7, 21}});
    refit_tally_add(replicas[2].share, 1, (struct refit_digest){{100, 500}});
    assert_int_equal(refit_model_digest(replicas[2].layout, replicas[2].share, "exact", replicas[2].digest, &err),
                     REFIT_OK);
    assert_int_equal(refit_agree_pods(&units[0], &err), REFIT_OK);
    assert_string_equal(units[0].model, replicas[2].digest);
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_OK);
}

static void pods_with_other_bytes_are_found_out(void **state)
{
    (void)state;
    land(&replicas[0], 40, 7);
    land(&replicas[1], 60, 0);
    land(&replicas[2], 7, 101);
    assert_int_equal(refit_agree_pods(&units[0], &err), REFIT_CORRUPT);
    assert_non_null(strstr(err.text, "http://replica-2"));
    assert_int_equal(refit_agree_all(&lead, &err), REFIT_CORRUPT);
}

static void a_pod_that_does_not_tell_leaves_the_model_unknown(void **state)
{
    (void)state;
    land(&replicas[0], 40, 7);
    land(&replicas[1], 60, 0);
    land(&replicas[2], 7, 101);
    refit_tally_destroy(replicas[1].share);
    replicas[1].share = NULL;
    assert_int_equal(refit_agree_pods(&units[0], &err), REFIT_OK);
    assert_string_equal(units[0].model, "");
}

static void pods_that_lack_a_rank_have_no_model(void **state)
{
    (void)state;
    land(&replicas[0], 40, 7);
    land(&replicas[1], 60, 0);
    replicas[1].first_rank = 0;
    assert_int_equal(refit_agree_pods(&units[0], &err), REFIT_OK);
    assert_string_equal(units[0].model, "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_a_class_was_sent_is_what_its_members_have),
        TEST(other_bytes_than_were_sent_are_found_out),
        TEST(what_was_sent_twice_says_nothing_of_what_landed),
        TEST(pods_add_up_to_what_a_whole_replica_has),
        TEST(pods_with_other_bytes_are_found_out),
        TEST(a_pod_that_does_not_tell_leaves_the_model_unknown),
        TEST(pods_that_lack_a_rank_have_no_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
