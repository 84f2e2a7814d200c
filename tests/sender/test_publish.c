/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishes against real refitd processes, without engines: what is told is what lands, whoever fails.
 */
#include "tests/sidecar/refitd.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "base/io.h"
#include "tests/sender/mesh.h"
#include "tests/sender/raw_server.h"

static struct refitd whole, halves; /* a replica of one rank; of two, cut by columns */
static char whole_url[64], halves_url[64];
static struct mesh mesh;

static void start_halves(void)
{
    static const char *const extra[] = {"--ranks", "2", NULL};
    refitd_start(&halves, extra);
    snprintf(halves_url, sizeof halves_url, "http://127.0.0.1:%u", (unsigned)halves.control);
}

static int setup(void **state)
{
    memset(&mesh, 0, sizeof mesh);
    refitd_prepare(&whole);
    refitd_prepare(&halves);
    assert_int_equal(refit_io_replace_file(halves.layout, MESH_LAYOUT_COLUMNS, strlen(MESH_LAYOUT_COLUMNS), 0644, NULL),
                     REFIT_OK);
    refitd_start(&whole, NULL);
    snprintf(whole_url, sizeof whole_url, "http://127.0.0.1:%u", (unsigned)whole.control);
    start_halves();
    mesh.urls[0] = whole_url;
    mesh.urls[1] = halves_url;
    mesh.url_count = 2;
    mesh.transport = "auto";
    return 0;
}

static int teardown(void **state)
{
    mesh_close(&mesh);
    for (uint32_t i = 0; strcmp(mesh.transport, "tcp") == 0 && i < mesh.ranks; i++)
        free(mesh.w[i]);
    refitd_cleanup(&whole);
    refitd_cleanup(&halves);
    return 0;
}

static uint64_t served(const struct refitd *refitd, char digest[static REFIT_SHA256_HEX_MAX])
{
    json_t *weights = http_json(refitd->control, "GET", "/v1/weights", NULL, 200);
    json_t *active = json_object_get(weights, "active");
    uint64_t version = (uint64_t)json_integer_value(json_object_get(active, "version"));
    const char *text = json_string_value(json_object_get(active, "digest"));
    snprintf(digest, REFIT_SHA256_HEX_MAX, "%s", text ? text : "");
    json_decref(weights);
    return version;
}

static void expect_served(const struct refitd *refitd, uint64_t version, uint32_t seed)
{
    char wanted[REFIT_SHA256_HEX_MAX], found[REFIT_SHA256_HEX_MAX];
    mesh_digest(seed, wanted);
    assert_int_equal(served(refitd, found), version);
    assert_string_equal(found, wanted);
}

static void publish(uint64_t version, uint32_t seed)
{
    struct refit_publish wanted = {.version = version, .label = "test", .deadline_ms = 60000};
    mesh_fill(&mesh, seed);
    mesh_publish(&mesh, &wanted, NULL);
}

static void expect_ok(void)
{
    for (uint32_t i = 0; i < mesh.ranks; i++)
        if (mesh.status[i] != REFIT_OK)
            fail_msg("rank %u: %s", i, mesh.err[i].text);
}

/* ---- it works ---- */

static void expect_report(uint64_t version, uint32_t seed, const char *transport)
{
    char digest[REFIT_SHA256_HEX_MAX];
    mesh_digest(seed, digest);
    expect_ok();
    for (uint32_t rank = 0; rank < mesh.ranks; rank++) {
        const struct refit_report *report = &mesh.report[rank];
        assert_int_equal(report->version, version);
        assert_int_equal(report->replica_count, 2);
        assert_string_equal(report->digest, digest);
        for (size_t i = 0; i < 2; i++) {
            const struct refit_replica_report *replica = &report->replicas[i];
            assert_string_equal(replica->url, mesh.urls[i]);
            assert_int_equal(replica->outcome, REFIT_OUTCOME_COMMITTED);
            assert_string_equal(replica->digest, digest);
            assert_string_equal(replica->transport, transport);
            assert_int_equal(replica->bytes_needed, (MESH_W + MESH_B) * sizeof(float));
            assert_int_equal(replica->bytes_moved, replica->bytes_needed);
        }
    }
    expect_served(&whole, version, seed);
    expect_served(&halves, version, seed);
}

static void replicas_of_two_layouts_get_the_same_bytes_again_and_again(void **state)
{
    mesh.transport = "tcp";
    mesh_open(&mesh, 2, false);
    for (uint32_t step = 1; step <= 4; step++) {
        publish(step, 100 + step);
        expect_report(step, 100 + step, "tcp");
    }
}

static void shared_memory_on_the_same_host_goes_the_local_way(void **state)
{
    mesh_open(&mesh, 4, true);
    publish(1, 7);
    expect_report(1, 7, "local");
    publish(2, 8);
    expect_report(2, 8, "local");
}

static void versions_beyond_63_bits_travel(void **state)
{
    mesh_open(&mesh, 1, true);
    publish(UINT64_MAX - 1, 5);
    expect_ok();
    assert_true(mesh.report[0].version == UINT64_MAX - 1);
}

static void progress_is_told_on_the_callers_thread(void *context, const struct refit_replica_progress *replicas,
                                                   size_t count)
{
    size_t *calls = context;
    assert_int_equal(count, 2);
    assert_string_equal(replicas[1].url, halves_url);
    assert_true(replicas[0].bytes_done <= replicas[0].bytes_due);
    ++*calls;
}

static void progress_is_told(void **state)
{
    size_t calls = 0;
    struct refit_publish wanted = {.version = 1, .progress = progress_is_told_on_the_callers_thread,
                                   .progress_context = &calls};
    mesh_open(&mesh, 2, true);
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    assert_true(calls > 0);
}

static void a_staged_version_is_committed_by_a_second_call(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_publish wanted = {.version = 3, .stage_only = 1};
    mesh_open(&mesh, 2, true);
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    assert_int_equal(mesh.report[1].replicas[0].outcome, REFIT_OUTCOME_STAGED);
    assert_int_equal(served(&whole, digest), 0);
    wanted.stage_only = 0;
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    assert_int_equal(mesh.report[1].replicas[0].outcome, REFIT_OUTCOME_COMMITTED);
    assert_int_equal(mesh.report[1].replicas[0].bytes_moved, 0);
    expect_served(&whole, 3, 1);
    expect_served(&halves, 3, 1);
}

static void a_staged_version_goes_when_another_is_published(void **state)
{
    struct refit_publish wanted = {.version = 3, .stage_only = 1};
    mesh_open(&mesh, 2, true);
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    publish(4, 44);
    expect_report(4, 44, "local");
}

/* ---- only what changed ---- */

#define W_BYTES (MESH_W * sizeof(float))
#define B_BYTES (MESH_B * sizeof(float))

static void publish_with_b_unchanged(uint64_t version, int check, const char *strategy)
{
    static const char *const names[] = {"b"};
    struct refit_publish wanted = {.version = version, .deadline_ms = 60000, .check_source = check, .strategy = strategy,
                                   .unchanged_since = version - 1, .unchanged = names, .unchanged_count = 1};
    mesh_publish(&mesh, &wanted, NULL);
}

static void what_is_unchanged_is_not_moved(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX], found[REFIT_SHA256_HEX_MAX];
    static const char *const strategies[] = {"direct", "relay"};
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    expect_ok();
    for (uint32_t i = 0; i < 2; i++) {
        mesh_fill_each(&mesh, 2 + i, 1);
        publish_with_b_unchanged(2 + i, 1, strategies[i]);
        expect_ok();
        mesh_digest_each(2 + i, 1, digest);
        for (size_t k = 0; k < 2; k++) {
            assert_string_equal(mesh.report[0].replicas[k].digest, digest);
            assert_int_equal(mesh.report[0].replicas[k].bytes_moved, W_BYTES);
            assert_int_equal(mesh.report[0].replicas[k].bytes_saved, B_BYTES);
        }
        assert_int_equal(served(&whole, found), 2 + i);
        assert_string_equal(found, digest);
        served(&halves, found);
        assert_string_equal(found, digest);
    }
}

static void what_is_said_to_be_unchanged_and_is_not_is_found_by_check_source(void **state)
{
    mesh_open(&mesh, 1, true);
    publish(1, 1);
    expect_ok();
    mesh_fill_each(&mesh, 2, 2);
    publish_with_b_unchanged(2, 1, "direct");
    assert_int_equal(mesh.report[0].outcome, REFIT_FLEET_ABORTED);
    assert_int_equal(mesh.report[0].replicas[0].error.status, REFIT_CORRUPT);
    assert_non_null(strstr(mesh.report[0].replicas[0].error.text, "unchanged since version 1"));
    expect_served(&whole, 1, 1);
}

static void one_that_has_another_version_gets_everything(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    expect_ok();
    json_decref(http_json(halves.control, "POST", "/v1/hold", "{}", 200));
    mesh_fill_each(&mesh, 2, 2);
    struct refit_publish second = {.version = 2, .deadline_ms = 60000};
    mesh_publish(&mesh, &second, NULL); /* the halves miss it */
    json_decref(http_json(halves.control, "POST", "/v1/release", "{}", 200));
    mesh_fill_each(&mesh, 3, 2);
    publish_with_b_unchanged(3, 0, NULL);
    expect_ok();
    mesh_digest_each(3, 2, digest);
    assert_int_equal(mesh.report[0].replicas[0].bytes_saved, B_BYTES);
    assert_int_equal(mesh.report[0].replicas[1].bytes_saved, 0);
    for (size_t k = 0; k < 2; k++)
        assert_string_equal(mesh.report[0].replicas[k].digest, digest);
}

static void a_tensor_that_did_change_is_found_out_by_the_check(void **state)
{
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    expect_ok();
    mesh_fill_each(&mesh, 2, 2);
    publish_with_b_unchanged(2, 1, "direct");
    assert_int_equal(mesh.status[0], REFIT_CORRUPT);
    expect_served(&whole, 1, 1);
    expect_served(&halves, 1, 1);
}

/* ---- the fleet ---- */

static void the_trainer_sends_each_byte_once_whatever_the_layouts(void **state)
{
    mesh.transport = "tcp";
    mesh_open(&mesh, 2, false);
    for (uint32_t version = 1; version <= 3; version++) {
        publish(version, version);
        expect_report(version, version, "tcp");
        assert_true(mesh.report[1].relayed);
        assert_int_equal(mesh.report[1].bytes_excess, 0);
        assert_int_equal(mesh.report[1].bytes_sent, W_BYTES + B_BYTES);
        assert_int_equal(mesh.report[1].outcome, REFIT_FLEET_COMMITTED);
    }
}

static void directly_the_trainer_sends_to_each(void **state)
{
    struct refit_publish wanted = {.version = 1, .deadline_ms = 60000, .strategy = "direct"};
    mesh_open(&mesh, 2, true);
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    assert_false(mesh.report[0].relayed);
    assert_int_equal(mesh.report[0].bytes_sent, 2 * (W_BYTES + B_BYTES));
}

/* ---- replicas that fail do so alone ---- */

static void expect_one_failed(size_t failed, enum refit_status status)
{
    for (uint32_t rank = 0; rank < mesh.ranks; rank++) {
        const struct refit_report *report = &mesh.report[rank];
        assert_int_equal(mesh.status[rank], status);
        assert_non_null(strstr(mesh.err[rank].text, mesh.urls[failed]));
        assert_int_equal(report->replica_count, 2);
        assert_int_equal(report->replicas[failed].outcome, REFIT_OUTCOME_ABORTED);
        assert_int_equal(report->replicas[failed].error.status, status);
        assert_int_equal(report->replicas[1 - failed].outcome, REFIT_OUTCOME_COMMITTED);
    }
}

static void a_dead_replica_does_not_block_the_other(void **state)
{
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    expect_ok();
    assert_int_equal(refitd_stop(&halves), 0);
    publish(2, 2);
    expect_one_failed(1, REFIT_PEER);
    expect_served(&whole, 2, 2);
}

static void a_replica_that_does_not_answer_does_not_block_the_other(void **state)
{
    struct raw_server silent = {.hold = true};
    struct refit_publish wanted = {.version = 2, .deadline_ms = 3000};
    raw_server_start(&silent);
    mesh.urls[1] = silent.url;
    mesh_open(&mesh, 2, true);
    mesh_publish(&mesh, &wanted, NULL);
    raw_server_stop(&silent);
    expect_one_failed(1, REFIT_TIMEOUT);
    expect_served(&whole, 2, 1);
}

#define PATIENCE_MS 3000 /* with one that is busy, */
#define AGAIN_MS 100     /* and between attempts: docs/sender.md */

/* However fast it says so, and whatever other members and the lead are up to. */
static void a_busy_replica_is_asked_again_at_intervals(void **state)
{
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    struct raw_server servers[3] = {{.answer = busy, .again = true}, {.answer = busy, .again = true}, {.answer = busy, .again = true}};
    for (size_t i = 0; i < 3; i++) {
        raw_server_start(&servers[i]);
        mesh.urls[i + 1] = servers[i].url;
    }
    mesh.url_count = 4;
    mesh_open(&mesh, 1, true);
    publish(2, 1);
    for (size_t i = 0; i < 3; i++) {
        raw_server_stop(&servers[i]);
        assert_in_range(servers[i].served, 2, PATIENCE_MS / AGAIN_MS + 2);
    }
    assert_int_equal(mesh.report[0].outcome, REFIT_FLEET_PARTLY_COMMITTED);
    expect_served(&whole, 2, 1);
}

static void a_deadline_beyond_all_bounds_is_told_and_not_passed(void **state)
{
    struct refit_publish wanted = {.version = 1, .deadline_ms = INT64_MAX};
    mesh_open(&mesh, 1, true);
    mesh_fill(&mesh, 1);
    mesh_publish(&mesh, &wanted, NULL);
    assert_int_equal(mesh.status[0], REFIT_INVALID);
    assert_non_null(strstr(mesh.err[0].text, "deadline_ms"));
}

/* All zero would read as committed. */
static void what_could_not_begin_is_reported_as_aborted(void **state)
{
    struct refit_publish wanted = {.version = 7, .policy = "nobody"};
    struct refit_report report;
    struct refit_error err;
    mesh_open(&mesh, 1, true);
    mesh_fill(&mesh, 1);
    assert_int_equal(refit_sender_publish(mesh.sender[0], &wanted, &report, &err), REFIT_INVALID);
    assert_int_equal(report.outcome, REFIT_FLEET_ABORTED);
    assert_int_equal(report.version, 7);
    assert_int_equal(report.replica_count, 0);
    assert_int_equal(refit_sender_publish_wait_report(mesh.sender[0], &report, &err), REFIT_INVALID);
    assert_int_equal(report.outcome, REFIT_FLEET_UNKNOWN);
}

static void a_replica_that_refuses_says_why_and_the_other_commits(void **state)
{
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    publish(2, 2);
    expect_ok();
    json_decref(http_json(halves.control, "POST", "/rollback", "{}", 200));
    publish(3, 3);
    expect_one_failed(1, REFIT_CONFLICT);
    assert_non_null(strstr(mesh.report[0].replicas[1].error.text, "held"));
    expect_served(&whole, 3, 3);
    expect_served(&halves, 1, 1);
}

static void a_restarted_replica_is_led_again(void **state)
{
    mesh_open(&mesh, 2, true);
    publish(1, 1);
    expect_ok();
    char port[32];
    snprintf(port, sizeof port, "127.0.0.1:%u", (unsigned)halves.control);
    const char *const extra[] = {"--ranks", "2", "--control", port, "--adopt-timeout", "0s", NULL};
    assert_int_equal(refitd_stop(&halves), 0);
    refitd_start(&halves, extra);
    publish(2, 2);
    expect_report(2, 2, "local");
}

static void another_leads_epoch_is_taken_back(void **state)
{
    mesh_open(&mesh, 1, true);
    publish(1, 1);
    expect_ok();
    json_decref(http_json(whole.control, "POST", "/v1/lead", "{\"name\": \"other\", \"takeover\": true}", 200));
    publish(2, 2);
    expect_report(2, 2, "local");
}

/* ---- trainers that write ---- */

static void scribble(struct mesh *of)
{
    for (uint32_t rank = 0; rank < of->ranks; rank++)
        memset(of->b[rank], 0x55, sizeof of->own_b[rank]);
}

static int64_t corrupt_or_ok(uint64_t version)
{
    struct refit_publish wanted = {.version = version, .check_source = 1, .deadline_ms = 60000};
    mesh_fill(&mesh, (uint32_t)version);
    mesh_publish(&mesh, &wanted, scribble);
    return mesh.status[0];
}

/* Written right after begin: either before anything was read, and then the new bytes were published whole on both, or it
 * is caught. Never do two replicas serve different bytes under one version. */
static void a_trainer_that_writes_never_gets_two_contents_into_one_version(void **state)
{
    char a[REFIT_SHA256_HEX_MAX], b[REFIT_SHA256_HEX_MAX];
    mesh_open(&mesh, 2, true);
    for (uint64_t version = 1; version <= 5; version++) {
        int64_t status = corrupt_or_ok(version);
        assert_true(status == REFIT_OK || status == REFIT_CORRUPT);
        if (status != REFIT_OK)
            assert_non_null(strstr(mesh.err[0].text, "tensor"));
        uint64_t on_whole = served(&whole, a), on_halves = served(&halves, b);
        if (on_whole == on_halves)
            assert_string_equal(a, b);
        assert_true((on_whole == version) == (mesh.report[0].replicas[0].outcome == REFIT_OUTCOME_COMMITTED));
    }
}

/* ---- wrong use ---- */

static void wrong_publishes_are_named_on_every_rank(void **state)
{
    mesh_open(&mesh, 2, true);
    publish(0, 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(mesh.status[i], REFIT_INVALID);
        assert_non_null(strstr(mesh.err[i].text, "version 0"));
    }
    struct refit_publish wanted = {.version = 1, .kv = "burn"};
    mesh_publish(&mesh, &wanted, NULL);
    assert_non_null(strstr(mesh.err[1].text, "burn"));
    publish(1, 1);
    expect_ok();
    publish(1, 2);
    assert_int_equal(mesh.status[0], REFIT_CONFLICT);
}

static void nothing_registered_is_said(void **state)
{
    const char *urls[] = {whole_url};
    struct refit_sender_config config = {.ranks = 1, .replicas = urls, .replica_count = 1};
    struct refit_sender *sender = NULL;
    struct refit_publish wanted = {.version = 1};
    struct refit_error err;
    assert_int_equal(refit_sender_open(&config, &sender, &err), REFIT_OK);
    assert_int_equal(refit_sender_publish(sender, &wanted, NULL, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "registered"));
    refit_sender_close(sender);
}

static void closing_in_the_middle_aborts(void **state)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct raw_server silent = {.hold = true};
    struct refit_publish wanted = {.version = 1, .deadline_ms = 2000};
    struct refit_error err;
    raw_server_start(&silent);
    mesh.urls[1] = silent.url;
    mesh_open(&mesh, 1, true);
    assert_int_equal(refit_sender_publish_begin(mesh.sender[0], &wanted, &err), REFIT_OK);
    assert_int_equal(refit_sender_publish_begin(mesh.sender[0], &wanted, &err), REFIT_BUSY);
    refit_sender_close(mesh.sender[0]);
    mesh.sender[0] = NULL;
    raw_server_stop(&silent);
    assert_int_equal(served(&whole, digest), 0);
}

/* ---- ranks that are late or leave ---- */

static void a_rank_that_comes_too_late_disturbs_no_later_publish(void **state)
{
    struct refit_publish hasty = {.version = 1, .deadline_ms = 200};
    struct refit_error err;
    mesh.transport = "tcp";
    mesh_open(&mesh, 2, false);
    mesh_fill(&mesh, 3);
    assert_int_equal(refit_sender_publish(mesh.sender[0], &hasty, NULL, &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "nothing from rank 1"));
    assert_int_equal(refit_sender_publish(mesh.sender[1], &hasty, NULL, &err), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "nothing from rank 1"));
    for (uint32_t version = 2; version <= 3; version++) {
        publish(version, version);
        expect_report(version, version, "tcp");
    }
}

static void *begin_and_leave(void *context)
{
    const struct refit_publish *wanted = context;
    struct refit_error err;
    enum refit_status status = refit_sender_publish_begin(mesh.sender[1], wanted, &err);
    refit_sender_close(mesh.sender[1]);
    mesh.sender[1] = NULL;
    return status == REFIT_OK ? context : NULL;
}

/* While a replica can't be reached yet. */
static void a_rank_that_leaves_in_the_middle_is_named(void **state)
{
    struct refit_publish wanted = {.version = 1, .deadline_ms = 60000};
    struct refit_error err;
    pthread_t thread;
    void *begun;
    mesh.urls[1] = "http://127.0.0.1:1";
    mesh_open(&mesh, 2, true);
    assert_int_equal(pthread_create(&thread, NULL, begin_and_leave, &wanted), 0);
    assert_int_equal(refit_sender_publish(mesh.sender[0], &wanted, NULL, &err), REFIT_PEER);
    pthread_join(thread, &begun);
    assert_non_null(begun);
}

static void a_lead_that_closes_may_be_followed_at_once(void **state)
{
    struct refit_publish wanted = {.version = 1, .deadline_ms = 60000, .stage_only = 1};
    mesh_open(&mesh, 1, true);
    mesh_fill(&mesh, 1);
    mesh_publish(&mesh, &wanted, NULL);
    expect_ok();
    struct answer answer;
    http_call(whole.control, "POST", "/v1/lead", "{\"name\":\"another\"}", &answer);
    assert_problem(&answer, 409, "other-lead");
    mesh_close(&mesh);
    json_decref(http_json(whole.control, "POST", "/v1/lead", "{\"name\":\"another\"}", 200));
    json_decref(http_json(halves.control, "POST", "/v1/lead", "{\"name\":\"another\"}", 200));
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(replicas_of_two_layouts_get_the_same_bytes_again_and_again),
        TEST(shared_memory_on_the_same_host_goes_the_local_way),
        TEST(versions_beyond_63_bits_travel),
        TEST(progress_is_told),
        TEST(a_staged_version_is_committed_by_a_second_call),
        TEST(a_staged_version_goes_when_another_is_published),
        TEST(what_is_unchanged_is_not_moved),
        TEST(what_is_said_to_be_unchanged_and_is_not_is_found_by_check_source),
        TEST(one_that_has_another_version_gets_everything),
        TEST(a_tensor_that_did_change_is_found_out_by_the_check),
        TEST(the_trainer_sends_each_byte_once_whatever_the_layouts),
        TEST(directly_the_trainer_sends_to_each),
        TEST(a_dead_replica_does_not_block_the_other),
        TEST(a_replica_that_does_not_answer_does_not_block_the_other),
        TEST(a_busy_replica_is_asked_again_at_intervals),
        TEST(a_deadline_beyond_all_bounds_is_told_and_not_passed),
        TEST(what_could_not_begin_is_reported_as_aborted),
        TEST(a_replica_that_refuses_says_why_and_the_other_commits),
        TEST(a_restarted_replica_is_led_again),
        TEST(another_leads_epoch_is_taken_back),
        TEST(a_trainer_that_writes_never_gets_two_contents_into_one_version),
        TEST(wrong_publishes_are_named_on_every_rank),
        TEST(nothing_registered_is_said),
        TEST(closing_in_the_middle_aborts),
        TEST(a_rank_that_comes_too_late_disturbs_no_later_publish),
        TEST(a_rank_that_leaves_in_the_middle_is_named),
        TEST(a_lead_that_closes_may_be_followed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
