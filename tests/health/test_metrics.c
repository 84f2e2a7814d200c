/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/io.h"
#include "health/health.h"

static struct refit_receiver_snapshot receiver;
static struct refit_session_snapshot session;
static struct refit_health_totals totals;
static char text[64 << 10];

static const struct refit_health_siblings siblings = {.known = 7, .heard = 6, .newest = 5, .results = {3, 2, 1}};

static int set_up(void **state)
{
    memset(&receiver, 0, sizeof receiver);
    memset(&session, 0, sizeof session);
    memset(&totals, 0, sizeof totals);
    receiver.bank = (struct refit_bank_snapshot){.ranks = 2, .slots = 2, .attached = 1, .active = 0, .swaps = 3};
    receiver.bank.slot[0].state = REFIT_SLOT_ACTIVE;
    receiver.bank.slot[0].version.version = UINT64_MAX;
    strcpy(receiver.bank.slot[0].version.label, "a\"b\\c\nd");
    receiver.bank.slot[0].since_ms = 12500;
    receiver.bank.slot[1] = (struct refit_bank_slot){.state = REFIT_SLOT_RETAINED, .pins = 2, .since_ms = 40000};
    receiver.committed = 5;
    receiver.aborted_by[REFIT_PEER] = 2;
    receiver.supplied = (struct refit_supplied){
        .origin_bytes = 11, .domain_bytes = 12, .fleet_bytes = 13, .kept_bytes = 14, .excess_bytes = 5};
    receiver.served_bytes = 15;
    receiver.serving = 2;
    strcpy(session.id, "r1");
    strcpy(session.transport, "tcp");
    session.phase = REFIT_PHASE_COMMITTED;
    session.bytes_due = 100;
    session.stats.payload_bytes = 120;
    session.phase_ns[REFIT_PHASE_TRANSFER] = 1500000000;
    return 0;
}

static const struct refit_health_engine *driven; /* NULL: engines attach */

static const char *render(bool openmetrics)
{
    struct refit_buf out;
    const struct refit_health_view view = {.started = true,
                                           .engine = driven,
                                           .receiver = &receiver,
                                           .session = &session,
                                           .totals = &totals,
                                           .siblings = &siblings,
                                           .admin = {.connections = 3, .answers = {[2] = 40, [5] = 1}, .refused = 2,
                                                     .handshakes_failed = 5},
                                           .guard = {.control_not_after_s = 2000000000, .data_not_after_s = 1900000000},
                                           .log_lines_lost = 7,
                                           .now_ms = 100000,
                                           .software = "0.1.0"};
    refit_buf_init(&out, sizeof text - 1);
    assert_true(refit_health_metrics(&view, openmetrics, &out));
    memcpy(text, out.data, out.len);
    text[out.len] = '\0';
    refit_buf_release(&out);
    return text;
}

static void assert_line(const char *line)
{
    char whole[512];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(text, whole))
        fail_msg("no line %s", line);
}

static void values_are_those_of_the_snapshots(void **state)
{
    refit_health_observe(&totals, &session);
    render(false);
    assert_line("refit_version 18446744073709551615");
    assert_line("refit_siblings 7");
    assert_line("refit_siblings_version 5");
    assert_line("refit_version_lag 0");
    assert_line("refit_catch_ups_total{result=\"caught-up\"} 3");
    assert_line("refit_version_since_timestamp_seconds 12.5");
    assert_line("refit_refits_total{outcome=\"committed\",reason=\"\"} 5");
    assert_line("refit_refits_total{outcome=\"aborted\",reason=\"peer\"} 2");
    assert_line("refit_slots{state=\"active\"} 1");
    assert_line("refit_slots{state=\"retained\"} 1");
    assert_line("refit_ranks_attached 1");
    assert_line("refit_ready 0");
    assert_line("refit_swaps_total 3");
    assert_line("refit_needed_bytes_total 100");
    assert_line("refit_moved_bytes_total{transport=\"tcp\"} 120");
    assert_line("refit_moved_bytes_total{transport=\"other\"} 0");
    assert_line("refit_refits_by_transport_total{transport=\"tcp\"} 1");
    assert_line("refit_phase{phase=\"committed\"} 1");
    assert_line("refit_running 0");
    assert_line("refit_transport_info{transport=\"tcp\"} 1");
    assert_line("refit_http_connections{listener=\"admin\"} 3");
    assert_line("refit_http_connections_refused_total{listener=\"admin\"} 2");
    assert_line("refit_tls_handshakes_failed_total{listener=\"admin\"} 5");
    assert_line("refit_http_answers_total{listener=\"admin\",code=\"2xx\"} 40");
    assert_line("refit_tls_certificate_expiry_timestamp_seconds{listener=\"control\"} 2000000000");
    assert_line("refit_tls_certificate_expiry_timestamp_seconds{listener=\"data\"} 1900000000");
    assert_line("refit_log_lines_lost_total 7");
    assert_line("refit_received_bytes_total{from=\"trainer\"} 11");
    assert_line("refit_received_bytes_total{from=\"domain\"} 12");
    assert_line("refit_received_bytes_total{from=\"fleet\"} 13");
    assert_line("refit_received_bytes_total{from=\"kept\"} 14");
    assert_line("refit_excess_bytes_total 5");
    assert_line("refit_served_bytes_total 15");
    assert_line("refit_serving 2");
    assert_non_null(strstr(text, "refit_weights_info{version=\"18446744073709551615\",label=\"a\\\"b\\\\c\\nd\","));
}

static void a_pin_on_a_version_no_longer_served_has_an_age(void **state)
{
    render(false);
    assert_line("refit_slot_pins{slot=\"1\"} 2");
    assert_line("refit_slot_pin_age_seconds{slot=\"1\"} 60");
    assert_line("refit_slot_pin_age_seconds{slot=\"0\"} 0");
    receiver.bank.slot[1].pins = 0;
    render(false);
    assert_line("refit_slot_pin_age_seconds{slot=\"1\"} 0");
}

static void times_of_ended_refits_are_histograms_by_phase(void **state)
{
    session.phase_ns[REFIT_PHASE_PREFLIGHT] = 1000000; /* on a bound: counts as below it */
    refit_health_observe(&totals, &session);
    receiver.bank.last_swap_ns = 2000000;
    refit_health_observe_swap(&totals, &receiver.bank);
    refit_health_observe_swap(&totals, &receiver.bank);
    render(false);
    assert_line("refit_phase_duration_seconds_bucket{phase=\"transfer\",le=\"1.0\"} 0");
    assert_line("refit_phase_duration_seconds_bucket{phase=\"transfer\",le=\"2.5\"} 1");
    assert_line("refit_phase_duration_seconds_bucket{phase=\"transfer\",le=\"+Inf\"} 1");
    assert_line("refit_phase_duration_seconds_sum{phase=\"transfer\"} 1.5");
    assert_line("refit_phase_duration_seconds_bucket{phase=\"preflight\",le=\"0.001\"} 1");
    assert_line("refit_phase_duration_seconds_count{phase=\"verify\"} 0");
    assert_line("refit_duration_seconds_count{outcome=\"committed\"} 1");
    assert_line("refit_duration_seconds_sum{outcome=\"committed\"} 1.501");
    assert_line("refit_swap_duration_seconds_bucket{le=\"0.005\"} 1");
    assert_line("refit_swap_duration_seconds_count 1");
    struct refit_health_histogram long_one = {0};
    refit_health_histogram_add(&long_one, INT64_C(400000000000)); /* beyond all bounds */
    assert_int_equal(long_one.bucket[REFIT_HEALTH_BUCKETS - 1], 0);
    assert_int_equal(long_one.count, 1);
}

static void an_unknown_path_is_other(void **state)
{
    strcpy(session.transport, "carrier-pigeon");
    refit_health_observe(&totals, &session);
    render(false);
    assert_line("refit_moved_bytes_total{transport=\"other\"} 120");
}

static void a_refit_is_counted_once_and_only_at_its_end(void **state)
{
    session.phase = REFIT_PHASE_TRANSFER;
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 0);
    session.phase = REFIT_PHASE_ABORTED;
    refit_health_observe(&totals, &session);
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 100);
    strcpy(session.id, "r2");
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 200);
}

static bool ends_in(const char *name, const char *end)
{
    return strlen(name) > strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0;
}

/* Every sample follows a HELP and a TYPE of its own family, each family comes once, counters end in _total. */
static void the_text_format_is_prometheus(void **state)
{
    char *save = NULL, family[128] = "", type[32] = "", seen[16384] = "", mark[160];
    render(false);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "# TYPE %127s %31s", family, type) == 2) {
            snprintf(mark, sizeof mark, " %s ", family);
            assert_null(strstr(seen, mark));
            strncat(seen, mark, sizeof seen - strlen(seen) - 1);
            assert_int_equal(strcmp(type, "counter") == 0, ends_in(family, "_total"));
        } else if (*line != '#') {
            size_t len = strcspn(line, "{ ");
            assert_true(strcmp(type, "histogram") == 0 ? len > strlen(family) : len == strlen(family));
            assert_memory_equal(line, family, strlen(family));
        }
    }
    assert_true(strlen(seen) > 0);
}

static void openmetrics_names_families_and_units_and_ends(void **state)
{
    render(true);
    assert_line("# TYPE refit_swaps counter");
    assert_line("refit_swaps_total 3");
    assert_line("# TYPE refit_weights info");
    assert_line("# TYPE refit_phase_duration_seconds histogram");
    assert_line("# UNIT refit_phase_duration_seconds seconds");
    assert_line("# UNIT refit_moved_bytes bytes");
    assert_line("# UNIT refit_received_bytes bytes");
    assert_line("# TYPE process_cpu_seconds counter");
    assert_true(ends_in(text, "\n# EOF\n"));
    render(false);
    assert_null(strstr(text, "# UNIT"));
    assert_null(strstr(text, "# EOF"));
}

/* The labels of the samples of a family, from its first sample on: "`phase`, `le`" without le. */
static void labels_of(const char *sample, char *out, size_t size)
{
    char *save = NULL, copy[1024];
    out[0] = '\0';
    size_t name = strcspn(sample, "{ ");
    if (sample[name] != '{')
        return;
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(sample + name + 1, "\n"), sample + name + 1);
    for (char *part = strtok_r(copy, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
        size_t len = strcspn(part, "=");
        if (strncmp(part, "le=", 3) == 0 || part[len] != '=')
            continue;
        snprintf(out + strlen(out), size - strlen(out), "%s%.*s", *out ? ", " : "", (int)len, part);
    }
}

/* As many rows as families, and each family's row says what the family says. */
static void the_page_lists_every_metric_and_no_other(void **state)
{
    char *page, family[128], type[32], help[256], labels[128], row[768];
    size_t len, families = 0, rows = 0;
    struct refit_error err;
    assert_int_equal(refit_io_read_file(METRICS_DOC, 1 << 20, &page, &len, &err), REFIT_OK);
    const struct refit_health_engine engine = {.kind = "vllm"};
    strcpy(receiver.bank.slot[0].version.label, "step-8");
    driven = &engine;
    render(false);
    driven = NULL;
    for (const char *at = strstr(text, "# HELP "); at; at = strstr(at + 1, "\n# HELP ")) {
        at += *at == '\n';
        assert_int_equal(sscanf(at, "# HELP %127s %255[^\n]\n# TYPE %*s %31s", family, help, type), 3);
        labels_of(strchr(strchr(at, '\n') + 1, '\n') + 1, labels, sizeof labels);
        snprintf(row, sizeof row, "\n| `%s` | %s | %s | %s |\n", family, type, labels, help);
        if (!strstr(page, row))
            fail_msg("docs/metrics.md lacks the row%s", row);
        families++;
    }
    for (const char *at = page; (at = strstr(at, "\n| `")); at++)
        rows++;
    assert_int_equal(rows, families);
    free(page);
}

/* Another version than a slot has: refitd was restarted and found it in the engine. */
static void a_driven_engine_has_the_version_and_counts_as_attached(void **state)
{
    struct refit_health_engine engine = {.kind = "vllm", .whole = true, .version.version = 9, .restores = 4};
    driven = &engine;
    receiver.bank.active = REFIT_SLOT_NONE;
    render(false);
    assert_line("refit_version 9");
    assert_line("refit_ranks_attached 2");
    assert_line("refit_engine_restores_total 4");
    engine.whole = false;
    render(false);
    driven = NULL;
    assert_line("refit_version 0");
    assert_line("refit_ranks_attached 0");
}

static void nothing_known_is_fine(void **state)
{
    struct refit_buf out;
    const struct refit_health_view view = {.software = "0.1.0"};
    refit_buf_init(&out, 1 << 16);
    assert_true(refit_health_metrics(&view, false, &out));
    refit_buf_release(&out);
    refit_buf_init(&out, 64);
    assert_false(refit_health_metrics(&view, true, &out));
    refit_buf_release(&out);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(values_are_those_of_the_snapshots),
        TEST(a_refit_is_counted_once_and_only_at_its_end),
        TEST(a_pin_on_a_version_no_longer_served_has_an_age),
        TEST(times_of_ended_refits_are_histograms_by_phase),
        TEST(an_unknown_path_is_other),
        TEST(the_text_format_is_prometheus),
        TEST(openmetrics_names_families_and_units_and_ends),
        TEST(a_driven_engine_has_the_version_and_counts_as_attached),
        TEST(the_page_lists_every_metric_and_no_other),
        TEST(nothing_known_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
